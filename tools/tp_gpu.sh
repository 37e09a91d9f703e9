#!/usr/bin/env bash
# A patched model of transformers on several GPUs with NCCL, against one process:
#   tools/tp_gpu.sh [ranks, default 2] [options of bindings/python/examples/transformers_tensor_parallel.py]
# The package undraft is importable (installed, or PYTHONPATH and UNDRAFT_LIBRARY are set).
set -euo pipefail
root="$(cd "$(dirname "$0")/.." && pwd)"
ranks="${1:-2}"
shift || true
gpus="$(python3 -c 'import torch; print(torch.cuda.device_count())')"
if ((gpus < ranks)); then
    echo "there are $gpus GPUs, expected at least $ranks" >&2
    exit 2
fi
if (($# == 0)); then
    set -- --model "$root/models/qwen3_5-tiny-mtp" --model "$root/testdata/models/qwen3_5-odd-random" \
        --model "$root/testdata/models/qwen3_next-random"
fi
exec python3 -m torch.distributed.run --standalone --nproc-per-node "$ranks" \
    "$root/bindings/python/examples/transformers_tensor_parallel.py" "$@"
