#!/usr/bin/env bash
# Gathers everything that runs on a GPU into target/gpu-bundle/, for a machine without Rust: copy the
# folder there and run its run.sh.
#
# usage: scripts/bundle.sh [TRACE.csv.gz|TRACE.csv]...    more traces than the repository ships
#
# CARGO_TARGET_DIR moves the folder with it. Runs on Linux with bash; the programs need a glibc at least
# as new as this machine's.
set -euo pipefail
cd "$(dirname "$0")/.."

target=${CARGO_TARGET_DIR:-target}
bundle=$target/gpu-bundle
most_mib=40

# Names of cargo targets of one kind: files, or folders with a main.rs.
targets_in() { # FOLDER
    local path
    for path in "$1"/*.rs "$1"/*/main.rs; do
        [[ -e $path ]] || continue
        [[ $path == */main.rs ]] && path=${path%/main.rs}
        basename "$path" .rs
    done | sort -u
}

# Whether a name is among the targets in a folder.
has() { # FOLDER NAME
    targets_in "$1" | grep -qx -- "$2"
}

# Builds what the arguments name, and prints `NAME FILE` for each program of this kind.
build() { # KIND FEATURES CARGO-ARGUMENTS...
    local kind=$1 features=$2
    shift 2
    cargo "$@" --features "$features" --message-format json-render-diagnostics |
        sed -n 's/.*"kind":\["'"$kind"'"\].*"name":"\([^"]*\)","src_path".*"executable":"\([^"]*\)".*/\1 \2/p'
}

# Puts programs, read as `NAME FILE`, into a folder of the bundle.
collect() { # FOLDER
    mkdir -p "$bundle/$1"
    local name file
    while read -r name file; do
        strip -o "$bundle/$1/$name" "$file"
        echo "$1/$name"
    done
}

rm -rf "$bundle"
mkdir -p "$bundle/traces"

# The tests keep their debug assertions, which the release profile would take away. Those on the
# stand-in driver need cargo where they run, and no GPU.
# Those that seed faults, in processes of their own, need them compiled in; the others have none to seed.
plain=()
seeding=()
for name in $(targets_in tests | grep -E '^(cuda_gpu|gpu_)' || true); do
    case $name in
        gpu_gate | gpu_stress | gpu_trace) seeding+=(--test "$name") ;;
        *) plain+=(--test "$name") ;;
    esac
done
((${#plain[@]} == 0)) || build test cuda test --no-run "${plain[@]}" | collect tests
((${#seeding[@]} == 0)) || build test cuda,faults test --no-run "${seeding[@]}" | collect tests

benches=(--bench gpu)
if has benches host_path; then benches+=(--bench host_path); fi
build bench cuda bench --no-run "${benches[@]}" | collect bench

examples=()
for name in clear_pool replay ntt ring; do
    if has examples "$name"; then examples+=(--example "$name"); fi
done
((${#examples[@]} == 0)) || build example cuda build --release "${examples[@]}" | collect examples

# The C library, and the programs in Python that run real clients on it.
mkdir -p "$bundle/clients"
library=$(cargo build --release -p streampool-capi --message-format json-render-diagnostics |
    sed -n 's/.*"\([^"]*\/libstreampool\.so\)".*/\1/p' | tail -1)
strip -o "$bundle/clients/libstreampool.so" "$library"
cp capi/examples/*.py capi/include/streampool.h capi/examples/rmm_style.cpp "$bundle/clients/"
(cd "$bundle" && printf '%s\n' clients/*)

shopt -s nullglob
for trace in traces/*.csv traces/*.csv.gz examples/traces/*.csv examples/traces/*.csv.gz \
    tests/traces/*.csv tests/traces/*.csv.gz "$@"; do
    base=$(basename "$trace" .gz)
    case $trace in
        *.gz) gzip -dc "$trace" >"$bundle/traces/$base" ;;
        *) cp "$trace" "$bundle/traces/$base" ;;
    esac
    echo "traces/$base"
done

cp scripts/run-on-gpu.sh "$bundle/run.sh"
chmod +x "$bundle/run.sh"
{
    echo "commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
    echo "changed=$(git status --porcelain --untracked-files=no 2>/dev/null | wc -l)"
    echo "rustc=$(rustc --version)"
    echo "built=$(date -u +%Y-%m-%dT%H:%M:%SZ)"
} >"$bundle/versions"

chmod +x "$bundle"/clients/*.py
for needed in bench/gpu tests/cuda_gpu clients/libstreampool.so clients/pytorch_gpt.py run.sh; do
    [[ -x $bundle/$needed ]] || { echo "$needed is missing" >&2; exit 1; }
done
size=$(du -sm "$bundle" | cut -f1)
echo "$bundle: $size MiB"
if ((size >= most_mib)); then
    echo "that is too large: under $most_mib MiB are allowed" >&2
    exit 1
fi
