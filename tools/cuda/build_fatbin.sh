#!/usr/bin/env bash
# Compiles the CUDA kernels into the fat binary that the crate embeds: machine code for sm_80, sm_90a, sm_100 and sm_120,
# and PTX of compute_80.
#
#     tools/cuda/build_fatbin.sh            writes crates/undraft-cuda/kernels/undraft.fatbin and undraft.fatbin.sources
#     tools/cuda/build_fatbin.sh --check    fails if the sources have changed since, or a build gives other bytes
#     tools/cuda/build_fatbin.sh --sources  fails if the sources have changed since; needs no compiler
#     tools/cuda/build_fatbin.sh --report   registers and spills of every kernel on sm_90a
#
# Needs no GPU. The compiler is that of tools/cuda/nvcc.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

kernels=crates/undraft-cuda/kernels
fatbin=$kernels/undraft.fatbin
mode=${1:-}

sources() { (cd "$kernels" && sha256sum -- *.cu *.cuh); }

if [[ $mode == --sources || $mode == --check ]]; then
    if ! diff <(sources) "$fatbin.sources"; then
        echo "fatbin: the kernels have changed, expected those of $fatbin.sources: run tools/cuda/build_fatbin.sh" >&2
        exit 1
    fi
    [[ $mode == --check ]] || { echo "fatbin: built from these sources" && exit 0; }
fi

source tools/cuda/nvcc.sh
flags+=(--threads 2)
if [[ $mode == --report ]]; then
    cubin=$(mktemp)
    trap 'rm -f "$cubin"' EXIT
    "$NVCC" "${flags[@]}" -cubin -gencode arch=compute_90a,code=sm_90a -Xptxas -v -o "$cubin" "$kernels/undraft.cu" 2>&1 |
        resources | awk '{ printf "%-44s %4d registers, %s/%s bytes spilled and read\n", $1, $2, $3, $4 }'
    exit
fi

out=$fatbin
if [[ $mode == --check ]]; then
    out=$(mktemp)
    trap 'rm -f "$out"' EXIT
fi
targets=()
for arch in 80 90a 100 120; do targets+=(-gencode "arch=compute_$arch,code=sm_$arch"); done
targets+=(-gencode arch=compute_80,code=compute_80)
"$NVCC" "${flags[@]}" -fatbin --compress-mode=size "${targets[@]}" -o "$out.new" "$kernels/undraft.cu"
mv "$out.new" "$out"
if [[ $mode == --check ]]; then
    cmp "$out" "$fatbin" || { echo "fatbin: a build gives other bytes, expected $fatbin" >&2 && exit 1; }
    echo "fatbin: a build gives the same $(stat -c %s "$fatbin") bytes"
else
    sources >"$fatbin.sources"
    echo "fatbin: $(stat -c %s "$fatbin") bytes"
fi
