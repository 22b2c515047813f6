#!/usr/bin/env bash
# Runs each fuzz target for an equal share of some seconds, with coverage and the address sanitizer.
# Needs a nightly toolchain and a C++ compiler; cargo-fuzz is not needed.
# usage: scripts/fuzz.sh [SECONDS]
set -euo pipefail
cd "$(dirname "$0")/../fuzz"
seconds=${1:-60}
target=x86_64-unknown-linux-gnu
export RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing -Ccodegen-units=1 -Zsanitizer=address"
cargo +nightly build --release --target "$target" --target-dir ../target/fuzz
targets=(fuzz_targets/*.rs)
share=$((seconds / ${#targets[@]}))
for file in "${targets[@]}"; do
    name=$(basename "$file" .rs)
    corpus=../target/fuzz/corpus/$name
    mkdir -p "$corpus"
    echo "-- $name for $share s"
    "../target/fuzz/$target/release/$name" -max_total_time="$share" -max_len=512 -print_final_stats=1 -artifact_prefix="../target/fuzz/" \
        "$corpus" $([[ -d corpus/$name ]] && echo "corpus/$name")
done
