#!/usr/bin/env bash
# Runs every workload of the GPU benchmark to its end on the stand-in driver, with tiny counts: that it
# runs, what it prints, and that it does not pretend to have measured where there is no device.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-target}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

program() { # CARGO-ARGUMENTS...: builds, and prints the file that comes out
    cargo "$@" --message-format json-render-diagnostics |
        sed -n 's/.*"\([^"]*\/\(libstreampool_standin_cuda\.so\|deps\/gpu-[0-9a-f]*\)\)".*/\1/p' |
        tail -1
}
fail() {
    echo "bench-smoke: $1" >&2
    exit 1
}

# The dev profile: the assertions of debug builds stay on.
gpu=$(program bench --profile dev --no-run --features cuda --bench gpu)
cp "$(program build --package streampool-standin-cuda)" "$scratch/libcuda.so"

if ! command -v nvidia-smi >/dev/null; then
    code=0
    "$gpu" --quick >"$scratch/none" 2>"$scratch/said" || code=$?
    ((code == 2)) || fail "exit status $code without a driver, not 2"
    [[ ! -s $scratch/none ]] || fail "it prints figures without a driver"
    grep -q "NOTHING WAS MEASURED" "$scratch/said" || fail "it does not say that nothing was measured"
fi

export LD_LIBRARY_PATH=$scratch STANDIN_MEMORY=$((64 << 30))
cat >"$scratch/small.csv" <<'END'
# {"name": "small"}
t_us,action,ptr,bytes,stream
0,allocate,7f00,2097152,0
1,allocate,8f00,65536,1
2,free,7f00,2097152,0
3,free,9f00,512,0
4,allocate,7f00,1048576,1
END
"$gpu" --quick >"$scratch/lines" || fail "a workload failed"
"$gpu" --quick --segments --reuse memory random >"$scratch/options" || fail "it fails with options"
"$gpu" trace "$scratch/small.csv" >"$scratch/trace" || fail "a trace failed"

while read -r name; do
    grep -qF "\"workload\":\"$name" "$scratch/lines" || fail "no line of $name"
done < <("$gpu" list)
for way in lazy scope release; do
    grep -qF "\"peer\":\"streampool $way, quick\",\"workload\":\"clear 4816: whole clear\"" \
        "$scratch/lines" || fail "no clear by $way"
done
grep -qF '"peer":"streampool, segments, reuse memory, quick"' "$scratch/options" ||
    fail "the lines do not name the options"
grep -q '"workload":"trace small.csv".*"peak_live_mib":2,.*"operations":4,' "$scratch/trace" ||
    fail "the trace's figures are wrong: $(cat "$scratch/trace")"
grep -q '"workload":"trace small.csv warm"' "$scratch/trace" || fail "no second pass"
# The sequence is that of the C++ program: it has this peak.
"$gpu" "random sizes" >"$scratch/sizes" || fail "the random sizes failed"
grep -q '"workload":"random sizes cold".*"peak_live_mib":1638,' "$scratch/sizes" ||
    fail "the random sizes are not those of std::mt19937_64"
if grep -vE '^\{"peer":"[^"]*","workload":"[^"]*","unit":"[^"]*","value":[0-9.]+(,"[a-z0-9_]+":[0-9.]+)*\}$' \
    "$scratch/lines" "$scratch/options" "$scratch/trace" "$scratch/sizes"; then
    fail "these are not the lines of the format"
fi
echo "bench-smoke: $(wc -l <"$scratch/lines") lines, all well"
