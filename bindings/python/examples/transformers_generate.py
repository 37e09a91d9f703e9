"""Text of a Qwen3.5 or Qwen3-Next model by transformers, plain and with drafts: the same tokens, and how much faster.

    python bindings/python/examples/transformers_generate.py
    python bindings/python/examples/transformers_generate.py --model path/to/model --device cuda --dtype bfloat16

The drafts come from the text before them (`lookup`), from the MTP head of the checkpoint (`mtp`), and from an assistant model
where `--assistant` names one.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

import undraft.transformers

BUNDLED = Path(__file__).resolve().parents[3] / "models" / "qwen3_5-tiny-mtp"


def main() -> int:
    options = arguments()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    # That attention prepares itself anew for every length of the text when several queries come at once.
    torch.backends.cuda.enable_cudnn_sdp(False)
    dtype = getattr(torch, options.dtype)
    load = transformers.AutoModelForCausalLM.from_pretrained
    model = load(options.model, dtype=dtype).eval().to(options.device)
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
    ids = tokenizer(options.prompt, return_tensors="pt").input_ids.to(options.device)

    unpatched, seconds = timed(model, ids, options.tokens)
    print(f"{'transformers alone':<20} {options.tokens / seconds:7.1f} tokens/s")
    identical = True
    with undraft.transformers.patch(model, mtp_tokens=options.window) as patched:
        plain, plain_seconds = timed(model, ids, options.tokens)
        against = "as transformers alone" if torch.equal(plain, unpatched) else "not those of transformers alone"
        print(f"{'plain':<20} {options.tokens / plain_seconds:7.1f} tokens/s, tokens {against}")
        drafts: dict[str, dict[str, Any]] = {"lookup": {"prompt_lookup_num_tokens": options.window}}
        if has_mtp_head(patched):
            drafts["mtp"] = {"use_mtp": True}
        if options.assistant is not None:
            assistant = load(options.assistant, dtype=dtype).eval().to(options.device)
            if any("linear_attn" in name for name, _ in assistant.named_modules()):
                undraft.transformers.patch(assistant)
            drafts["assistant"] = {"assistant_model": assistant}
        for name, how in drafts.items():
            text, seconds = timed(model, ids, options.tokens, **how)
            same = torch.equal(text, plain)
            identical &= same
            tokens_a_round = options.tokens / forward_passes(model, ids, options.tokens, **how)
            print(
                f"{name:<20} {options.tokens / seconds:7.1f} tokens/s, speed ratio {plain_seconds / seconds:.2f}, "
                f"{tokens_a_round:.2f} tokens a round, identical: {'yes' if same else 'no'}"
            )
    print(tokenizer.decode(plain[0]))
    return 0 if identical else 1


def greedy(model: Any, ids: Tensor, tokens: int, **kwargs: Any) -> Tensor:
    """Greedy text of a fixed length: ends of text do not end it."""
    fixed: dict[str, Any] = {"attention_mask": torch.ones_like(ids), "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    text: Tensor = model.generate(ids, max_new_tokens=tokens, **fixed, **kwargs)
    return text


def timed(model: Any, ids: Tensor, tokens: int, **kwargs: Any) -> tuple[Tensor, float]:
    """The text, and the seconds of the fastest of three runs, after a short one."""
    best = math.inf
    for count in (4, tokens, tokens, tokens):
        start = time.perf_counter()
        text = greedy(model, ids, count, **kwargs)
        if ids.is_cuda:
            torch.cuda.synchronize()
        if count == tokens:
            best = min(best, time.perf_counter() - start)
    return text, best


def forward_passes(model: Any, ids: Tensor, tokens: int, **kwargs: Any) -> int:
    """How often the model runs for a text, the prompt counted in."""
    passes = 0

    def count(*_: Any) -> None:
        nonlocal passes
        passes += 1

    hook = model.get_decoder().register_forward_pre_hook(count)
    try:
        greedy(model, ids, tokens, **kwargs)
    finally:
        hook.remove()
    return passes


def has_mtp_head(patched: undraft.transformers.Patched) -> bool:
    try:
        patched.load_mtp()
    except ValueError as error:
        print(f"no drafts by mtp: {error}", file=sys.stderr)
        return False
    return True


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default=str(BUNDLED), help="folder or cached repository (default: the bundled model)")
    parser.add_argument("--assistant", help="model that drafts")
    parser.add_argument(
        "--prompt", default="class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n"
    )
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--window", type=int, default=3, help="drafts a round")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
