#!/usr/bin/env bash
# Runs what scripts/bundle.sh gathered, on a machine with an NVIDIA driver; nothing else is needed, but for
# `clients`: Python 3 with PyTorch and with CuPy. A client that is not there is said, and is no failure.
#
# usage: run.sh [--quick] [REPORT-FOLDER] [tests|bench|examples|clients]...
#
# The report (./report by default) is report.txt, with everything that was printed, and results.jsonl:
# a line on the machine, the JSON lines of the benchmarks and examples, and a line for each command
# with its exit status. Each command has a time limit; after a failure the rest still runs. The exit
# status is 0 when every command succeeded, 1 when one failed, 2 when nothing could be run.
#
# --quick passes --quick to the benchmark: shows that it runs, measures nothing.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)

quick=()
folder=
parts=()
for word in "$@"; do
    case $word in
        tests | bench | examples | clients) parts+=("$word") ;;
        --quick) quick=(--quick) ;;
        -h | --help) sed -n '2,14s/^# \{0,1\}//p' "$0"; exit 0 ;;
        -*) echo "run.sh: no option $word" >&2; exit 2 ;;
        *)
            [[ -z $folder ]] || { echo "run.sh: one folder, not $folder and $word" >&2; exit 2; }
            folder=$word
            ;;
    esac
done
((${#parts[@]})) || parts=(tests bench examples clients)
folder=${folder:-./report}
mkdir -p "$folder" || exit 2
folder=$(cd "$folder" && pwd)
report=$folder/report.txt
results=$folder/results.jsonl
: >"$report" || exit 2

# One entry for each command: its limit in seconds, and its words, separated by tabs.
plan=()
add() { # SECONDS COMMAND ARGUMENTS...
    [[ -x $here/$2 ]] || return 0
    local IFS=$'\t'
    plan+=("$*")
}

# Whether a part was asked for.
wants() {
    local part
    for part in "${parts[@]}"; do [[ $part == "$1" ]] && return; done
    return 1
}

# Whether an example can run on a GPU; on a simulated device it would tell nothing here.
on_cuda() { # EXAMPLE
    [[ -x $here/$1 ]] && "$here/$1" --help 2>/dev/null | grep -w cuda >/dev/null
}

# How many GPUs there are.
gpus=$(timeout 20 nvidia-smi -L 2>/dev/null | grep -c '^GPU')

shopt -s nullglob
if wants tests; then
    # One at a time: they share the device, and some time it. Those that need a GPU are marked ignored.
    # The first looks at many faults, in a process for each.
    add 600 tests/gpu_gate --include-ignored --test-threads=1 --nocapture --skip pair --skip on_two_
    # Those of two devices, which say SKIPPED where there is one.
    add 300 tests/gpu_gate pair on_two_ --include-ignored --test-threads=1 --nocapture
    for test in "$here"/tests/*; do
        [[ $test == */gpu_gate ]] || add 300 "tests/$(basename "$test")" --include-ignored --test-threads=1 --nocapture
    done
fi
if wants bench; then
    add 120 bench/gpu "${quick[@]}"
    for trace in "$here"/traces/*.csv; do
        # A process each, so that memory is counted apart.
        add 60 bench/gpu "${quick[@]}" trace "traces/$(basename "$trace")"
        add 60 bench/gpu "${quick[@]}" --reuse memory trace "traces/$(basename "$trace")"
    done
    add 60 bench/gpu "${quick[@]}" --segments random
    for trace in "$here"/traces/*.csv; do
        add 60 bench/gpu "${quick[@]}" --segments trace "traces/$(basename "$trace")"
    done
    add 120 bench/host_path --bench --json
fi
if wants examples; then
    if on_cuda examples/clear_pool; then add 60 examples/clear_pool --backend cuda --json; fi
    if on_cuda examples/ntt; then
        add 60 examples/ntt --backend cuda --json
        add 120 examples/ntt --backend cuda --json --layers 16 --batch 4 --streams 25
    fi
    if on_cuda examples/ring; then
        # As many places as there are GPUs, and with chunks so small that the host's time counts.
        add 60 examples/ring --backend cuda --json
        add 60 examples/ring --backend cuda --json --bytes 64K --steps 512
        # Where there is one GPU, also four places that share it.
        ((gpus > 1)) || add 60 examples/ring --backend cuda --json --devices 4
    fi
    for trace in "$here"/traces/*.csv; do
        on_cuda examples/replay || break
        add 60 examples/replay --backend cuda --json "traces/$(basename "$trace")"
    done
fi
if wants clients; then
    add 420 clients/pytorch_gpt.py --lib clients/libstreampool.so --timeout 100
    add 240 clients/cupy_arrays.py --lib clients/libstreampool.so
fi
((${#plan[@]})) || { echo "run.sh: nothing to run for ${parts[*]}" >&2; exit 2; }

quote() { # TEXT, as a JSON string
    local text=${1//\\/\\\\}
    text=${text//\"/\\\"}
    printf '"%s"' "${text//[[:cntrl:]]/ }"
}

gpu() { # FIELD of nvidia-smi, or "unknown"
    local answer
    answer=$(timeout 20 nvidia-smi --query-gpu="$1" --format=csv,noheader -i 0 2>/dev/null) || answer=
    echo "${answer:-unknown}"
}

version() { # KEY in the file of versions
    sed -n "s/^$1=//p" "$here/versions" 2>/dev/null
}

commands=
for entry in "${plan[@]}"; do
    commands+=${commands:+,}$(quote "$(cut -f2- <<<"$entry" | tr '\t' ' ')")
done
{
    printf '{"device":%s' "$(quote "$(gpu name)")"
    printf ',"driver":%s' "$(quote "$(gpu driver_version)")"
    printf ',"gpus":%d' "$gpus"
    printf ',"memory":%s' "$(quote "$(gpu memory.total)")"
    printf ',"cpu":%s' "$(quote "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)")"
    printf ',"cores":%s' "$(nproc)"
    printf ',"kernel":%s' "$(quote "$(uname -r)")"
    printf ',"commit":%s' "$(quote "$(version commit)")"
    printf ',"files_changed_since":%s' "$(quote "$(version changed)")"
    printf ',"rustc":%s' "$(quote "$(version rustc)")"
    printf ',"date":%s' "$(quote "$(date -u +%Y-%m-%dT%H:%M:%SZ)")"
    printf ',"commands":[%s]}\n' "$commands"
} >"$results"
head -1 "$results" >>"$report"

cd "$here" || exit 2
failed=0
for entry in "${plan[@]}"; do
    IFS=$'\t' read -r -a words <<<"$entry"
    limit=${words[0]}
    words=("${words[@]:1}")
    # The programs in Python are run by whichever Python has the packages.
    starter=("./${words[0]}")
    [[ ${words[0]} == *.py ]] && starter=("${PYTHON:-python3}" -B "${words[0]}")
    printf '\n== %s\n' "${words[*]}" | tee -a "$report"
    begun=$SECONDS
    # More queues of the hardware: streams that share one are in order whatever a pool does.
    queues=()
    [[ ${words[0]} == tests/* ]] && queues=(CUDA_DEVICE_MAX_CONNECTIONS=32)
    env "${queues[@]}" timeout --kill-after=5 "$limit" "${starter[@]}" "${words[@]:1}" </dev/null >"$folder/output" 2>&1
    code=$?
    took=$((SECONDS - begun))
    cat "$folder/output" >>"$report"
    # Whole JSON objects only: a program that was stopped may have left half a line.
    grep -E '^\{.*\}$' "$folder/output" | tee -a "$results"
    outcome="exit status $code after $took s"
    if ((code == 124 || code == 137)); then outcome="stopped at its limit of $limit s"; fi
    if ((code == 2)) && grep '^NOTHING WAS RUN' "$folder/output"; then
        outcome="not run: no failure"
    elif ((code != 0)); then
        failed=$((failed + 1))
        # What went wrong, where it is looked for first.
        grep -vE '^\{.*\}$' "$folder/output" | tail -n 40
    fi
    echo "-- $outcome" | tee -a "$report"
    printf '{"command":%s,"exit":%d,"seconds":%d}\n' "$(quote "${words[*]}")" "$code" "$took" \
        >>"$results"
done
rm -f "$folder/output"
printf '\n%d commands, %d failed\n' "${#plan[@]}" "$failed" | tee -a "$report"
((failed == 0))
