#!/usr/bin/env bash
# Builds the measurement of other allocators on a machine with nvcc and, for those that are to be measured:
# PyTorch in the Python that is `python3` (or $PYTHON), and RMM in SITE, a folder into which its wheels were
# installed: pip install --no-deps --target SITE librmm-cu13 'rapids-logger==0.3.*'
#
# usage: benches/peers/build.sh OUT [SITE]
#
# What is not there is left out, and said.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:?usage: build.sh OUT [SITE]}
site=${2-}
objects=$(mktemp -d)
trap 'rm -rf "$objects"' EXIT
compile=(nvcc -O3 -std=c++20 --expt-relaxed-constexpr)
defines=()
links=(-lcuda)

if torch=$("${PYTHON:-python3}" -c 'import os, torch; print(os.path.dirname(torch.__file__))' 2>/dev/null); then
    abi=$("${PYTHON:-python3}" -c 'import torch; print(int(torch._C._GLIBCXX_USE_CXX11_ABI))')
    "${compile[@]}" -D_GLIBCXX_USE_CXX11_ABI="$abi" -I"$torch/include" -c "$here/torch.cpp" -o "$objects/torch.o"
    defines+=(-DWITH_TORCH)
    links+=(-L"$torch/lib" -lc10_cuda -lc10 -Xlinker -rpath -Xlinker "$torch/lib")
else
    echo "build.sh: no PyTorch: left out" >&2
fi
if [[ -n $site && -d $site/librmm ]]; then
    "${compile[@]}" -I"$site/librmm/include" -I"$site/librmm/include/rapids" -I"$site/librmm/include/nvtx3" \
        -I"$site/rapids_logger/include" -DLIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE \
        -c "$here/rmm.cpp" -o "$objects/rmm.o"
    defines+=(-DWITH_RMM)
    for library in librmm/lib64 rapids_logger/lib64; do
        links+=(-L"$site/$library" -Xlinker -rpath -Xlinker "$site/$library")
    done
    links+=(-lrmm -lrapids_logger)
else
    echo "build.sh: no RMM: left out" >&2
fi
"${compile[@]}" -c "$here/cub.cu" -o "$objects/cub.o"
defines+=(-DWITH_CUB)
"${compile[@]}" -c "$here/driver.cpp" -o "$objects/driver.o"
"${compile[@]}" "${defines[@]}" -c "$here/main.cpp" -o "$objects/main.o"
"${compile[@]}" "$objects"/*.o -o "$out" -Xlinker --disable-new-dtags "${links[@]}"
