#!/usr/bin/env bash
# Compiles every kernel for the targets of the fat binary's ends and the one that is measured, without a GPU, and fails if one
# does not compile, or if one that must not spill registers on sm_90a does.
#
#     tools/cuda/check_kernels.sh          compiles what has changed since, for sm_80, sm_90a and sm_120
#
# Some three minutes on two cores; the compiler is that of tools/cuda/nvcc.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source tools/cuda/nvcc.sh

# Everything but these: the general kernels.
may_spill='^(chunk_scan|recurrent_(.*_k128_r2_(any|odd)|.*_k64_r2_odd|.*_k256_r1_odd))$'
strict=90a

out=target/kernels
mkdir -p "$out"
compile() {
    local source=$1 arch=$2 log=$out/$(basename "$1" .cu).sm_$2.txt
    "$NVCC" "${flags[@]}" -cubin -gencode "arch=compute_$arch,code=sm_$arch" -Xptxas -v -o "${log%.txt}.cubin" "$source" \
        >"$log.new" 2>&1 || { cat "$log.new" >&2 && return 1; }
    if grep -E "warning|error" "$log.new" >&2; then
        echo "kernels: $source for sm_$arch compiles with warnings, expected none" >&2
        return 1
    fi
    mv "$log.new" "$log"
}

# As many at a time as there are cores; the first failure ends the script once the others are done.
failed=0 running=0
for source in $(ls -S "$kernels"/*.cu); do
    [[ $(basename "$source") == undraft.cu ]] && continue
    for arch in 80 90a 120; do
        log=$out/$(basename "$source" .cu).sm_$arch.txt
        # Of the headers any may be included.
        if [[ -f $log && -z $(find "$source" "$kernels"/*.cuh tools/cuda/nvcc.sh -newer "$log") ]]; then continue; fi
        if ((running >= $(nproc))); then
            wait -n || failed=1
            running=$((running - 1))
        fi
        compile "$source" "$arch" &
        running=$((running + 1))
    done
done
while ((running > 0)); do
    wait -n || failed=1
    running=$((running - 1))
done
((failed == 0)) || exit 1

count=0
for source in "$kernels"/*.cu; do
    [[ $(basename "$source") == undraft.cu ]] && continue
    while read -r name registers stored loaded; do
        ((count += 1))
        if [[ $stored != 0 || $loaded != 0 ]] && ! [[ $name =~ $may_spill ]]; then
            echo "kernels: $name spills $stored bytes and reads $loaded on sm_$strict with $registers registers, expected none" >&2
            failed=1
        fi
    done < <(resources <"$out/$(basename "$source" .cu).sm_$strict.txt")
done
((failed == 0)) || exit 1
((count > 0)) || { echo "kernels: none found in $kernels, expected those of *.cu" >&2 && exit 1; }
echo "kernels: $count compile for sm_80, sm_90a and sm_120, none spills on sm_$strict that must not"
