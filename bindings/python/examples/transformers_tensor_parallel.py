"""A patched model on several ranks with the tensor parallelism of transformers, against one process.

    torchrun --nproc-per-node 2 bindings/python/examples/transformers_tensor_parallel.py

Where there are GPUs, every rank takes one and NCCL carries the sums, else it is the CPU and gloo. Each rank has `H / ranks` key
heads and `HV / ranks` value heads of the Gated DeltaNet layers, with the states of those alone.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from torch import Tensor
from transformers.distributed.configuration_utils import DistributedConfig

import undraft.transformers

BUNDLED = Path(__file__).resolve().parents[3] / "models" / "qwen3_5-tiny-mtp"
PROMPT = [596, 1521, 508, 11, 258, 367, 12, 77, 30, 4, 9, 81, 596, 1521]


def main() -> int:
    options = arguments()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        same = [compare(folder, options.tokens, device) for folder in options.model or [BUNDLED]]
    finally:
        dist.destroy_process_group()
    return 0 if all(same) else 1


def compare(folder: str | Path, tokens: int, device: torch.device) -> bool:
    """Whether the texts of all ranks together, plain and drafted, are that of one process."""
    load, ranks = transformers.AutoModelForCausalLM.from_pretrained, dist.get_world_size()
    ids = torch.tensor([PROMPT], device=device) % 500
    single = load(folder, dtype=torch.float32).eval().to(device)
    expected, _ = timed(single, ids, tokens)
    del single
    model = load(folder, dtype=torch.float32, distributed_config=DistributedConfig(tp_size=ranks)).eval()
    identical = True
    with undraft.transformers.patch(model, mtp=folder):
        config = model.config.get_text_config()
        say(
            f"{Path(folder).name}: {ranks} ranks on {device.type} ({dist.get_backend()}), "
            f"key heads {config.linear_num_key_heads // ranks} of {config.linear_num_key_heads}, "
            f"value heads {config.linear_num_value_heads // ranks} of {config.linear_num_value_heads}"
        )
        drafts: dict[str, dict[str, Any]] = {"plain": {}, "lookup": {"prompt_lookup_num_tokens": 4}, "mtp": {"use_mtp": True}}
        for name, how in drafts.items():
            text, seconds = timed(model, ids, tokens, **how)
            same = everywhere(torch.equal(text, expected), device)
            identical &= same
            say(f"  {name:<8} {tokens / seconds:7.1f} tokens/s, tokens as of one process: {'yes' if same else 'no'}")
    restored = everywhere(torch.equal(timed(model, ids, tokens)[0], expected), device)
    say(f"  unpatched, tokens as of one process: {'yes' if restored else 'no'}")
    return identical and restored


def timed(model: Any, ids: Tensor, tokens: int, **kwargs: Any) -> tuple[Tensor, float]:
    """Greedy text of a fixed length, and its seconds."""
    start = time.perf_counter()
    text: Tensor = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        **kwargs,
    )
    if ids.is_cuda:
        torch.cuda.synchronize()
    return text, time.perf_counter() - start


def everywhere(holds: bool, device: torch.device) -> bool:
    """Whether it holds on every rank."""
    flag = torch.tensor(int(holds), device=device)
    dist.all_reduce(flag, op=dist.ReduceOp.MIN)
    return bool(flag)


def say(line: str) -> None:
    if dist.get_rank() == 0:
        print(line, flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--model", action="append", help="folder of a model; may be given several times (default: the bundled one)"
    )
    parser.add_argument("--tokens", type=int, default=32)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
