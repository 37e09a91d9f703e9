"""Models and comparisons for the tests of undraft.transformers.

`UNDRAFT_TEST_DEVICE=cuda` runs them on a GPU.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

REPOSITORY = Path(__file__).resolve().parents[3]
BUNDLED = REPOSITORY / "models" / "qwen3_5-tiny-mtp"
RANDOM_MODELS = REPOSITORY / "testdata" / "models"
GOLDEN = REPOSITORY / "testdata" / "golden" / "qwen3_5-tiny-mtp"

DEVICE = torch.device(os.environ.get("UNDRAFT_TEST_DEVICE", "cpu"))

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
torch.set_num_threads(1)


def load(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """A causal language model for inference."""
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval().to(DEVICE)


def golden_prompts() -> dict[str, dict[str, Any]]:
    """Prompts of the bundled model with the greedy continuation that transformers gave in float32."""
    prompts: dict[str, dict[str, Any]] = json.loads((GOLDEN / "prompts.json").read_text(encoding="utf-8"))
    return prompts


def prompt_ids(name: str) -> Tensor:
    return torch.tensor([golden_prompts()[name]["input_ids"]], device=DEVICE)


def greedy(model: Any, input_ids: Tensor, new_tokens: int, **kwargs: Any) -> Any:
    """Greedy text of a fixed length: ends of text do not end it."""
    mask = torch.ones_like(input_ids)
    arguments: dict[str, Any] = {"attention_mask": mask, "eos_token_id": None, "pad_token_id": 0, "do_sample": False}
    arguments |= kwargs
    return model.generate(input_ids, max_new_tokens=new_tokens, **arguments)


@dataclass
class Forwards:
    """Forward passes of a model."""

    count: int = 0
    seconds: float = 0.0


@contextmanager
def counted(model: Any) -> Iterator[Forwards]:
    """Counts the forward passes of the trunk in the block, and takes the time of the block."""
    forwards = Forwards()

    def count(*_: Any) -> None:
        forwards.count += 1

    hook = model.get_decoder().register_forward_pre_hook(count)
    start = time.perf_counter()
    try:
        yield forwards
    finally:
        forwards.seconds = time.perf_counter() - start
        hook.remove()


def tokens_before_tie(model: Any, sequence: Tensor, prompt_length: int, margin: float = 1e-3) -> int:
    """Length of the sequence up to the first greedy choice whose two best logits lie closer together than `margin`."""
    with torch.no_grad():
        best = model(sequence).logits[0, prompt_length - 1 : -1].topk(2).values
    close = (best[:, 0] - best[:, 1] < margin).nonzero()
    return sequence.shape[1] if close.numel() == 0 else prompt_length + int(close[0])
