#!/usr/bin/env bash
# Counts the instructions of a hit and its free with valgrind, and fails where they are more than the budget.
# No clock is asked, so that the figures are the same on every run and every machine of one compiler and
# instruction set. Each is (I(2N) - I(N)) / N: what the program does beside the operations cancels.
#
# usage: scripts/instruction-budget.sh            all, against the budgets below
#        scripts/instruction-budget.sh --measure  only says the figures
#
# The exit status is 0 within the budgets, 1 beyond them, and 2 when nothing was counted: without valgrind,
# or on another instruction set. A budget is what was counted when it was set and about 8 % more: set with
# rustc 1.95, x86-64, release profile.
set -euo pipefail
cd "$(dirname "$0")/.."

operations=20000
# MODE of benches/instructions, and instructions for each allocation and free.
budgets() {
    cat <<'END'
pair 512 KiB: 192
pair 64 MiB: 214
pair busy 512 KiB: 192
pair in a scope 512 KiB: 192
pair on 8 streams 512 KiB: 199
clear 4816 on 37 streams: 152
END
}

nothing() {
    echo "!!! NOTHING WAS COUNTED: $1" >&2
    exit 2
}
command -v valgrind >/dev/null || nothing "valgrind is not installed"
[[ $(uname -m) == x86_64 ]] || nothing "the budgets are for x86-64, and this is $(uname -m)"

program=$(cargo bench --no-run --bench instructions --message-format json-render-diagnostics |
    sed -n 's/.*"name":"instructions".*"executable":"\([^"]*\)".*/\1/p' | tail -1)
[[ -x $program ]] || nothing "the program was not built"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

count() { # MODE COUNT: the instructions of a run
    local said
    said=$(valgrind --tool=callgrind --callgrind-out-file="$scratch/out" "$program" "$1" "$2" 2>&1) || {
        echo "$said" >&2
        nothing "\`$1\` failed under valgrind"
    }
    sed -n 's/.*Collected : \([0-9]*\).*/\1/p' <<<"$said"
}

measure=
[[ ${1-} == --measure ]] && measure=1
beyond=0
judged=0
while read -r mode; do
    budget=$(budgets | sed -n "s/^$mode: //p")
    [[ -n $budget || -n $measure ]] || { echo "!!! $mode has no budget" >&2; beyond=1; continue; }
    once=$(count "$mode" "$operations")
    twice=$(count "$mode" $((2 * operations)))
    [[ -n $once && -n $twice ]] || nothing "valgrind gave no figure for \`$mode\`"
    # In tenths.
    each=$(((twice - once) * 10 / operations))
    verdict=${budget:+budget $budget}
    if [[ -z $measure ]] && ((each > budget * 10)); then
        verdict="!!! BEYOND ITS BUDGET of $budget"
        beyond=1
    fi
    printf '%-28s %4d.%d instructions   %s\n' "$mode" $((each / 10)) $((each % 10)) "$verdict"
    judged=$((judged + 1))
done < <("$program" list)
((judged > 0)) || nothing "there is no mode"
exit $beyond
