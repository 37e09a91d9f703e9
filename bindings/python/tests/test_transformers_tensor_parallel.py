"""Gated DeltaNet heads on two ranks of transformers' tensor parallelism."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch  # noqa: E402
from torch import nn  # noqa: E402

from transformers_support import RANDOM_MODELS, REPOSITORY, load  # noqa: E402
from undraft.transformers._mixer import GdnMixer  # noqa: E402
from undraft.transformers._shard import HeadShard, ShardedWeights  # noqa: E402

EXAMPLE = REPOSITORY / "bindings" / "python" / "examples" / "transformers_tensor_parallel.py"


def test_two_ranks_give_the_text_of_one_process() -> None:
    """The example of the documentation on the bundled model, with gloo."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(EXAMPLE)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([*command, "--tokens", "12"], env=environment, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.count("tokens as of one process: yes") == 4, run.stdout
    assert "qwen3_5-tiny-mtp: 2 ranks on cpu (gloo), key heads 1 of 2, value heads 2 of 4" in run.stdout


class _Alone(HeadShard):
    """A share whose sum over the ranks is taken by the test."""

    def sum(self, partial: torch.Tensor) -> torch.Tensor:
        return partial


def _share(rank: int, size: int) -> Any:
    return _Alone(rank=rank, size=size, group=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["qwen3_5-odd-random", "qwen3_next-random"])
@torch.no_grad()
def test_shares_add_up_to_the_layer(name: str) -> None:
    hidden: torch.Tensor | None = None
    total = torch.zeros(())
    for rank in (None, 0, 1):
        model = load(RANDOM_MODELS / name)
        layer: Any = next(module for path, module in model.named_modules() if path.endswith("linear_attn"))
        if hidden is None:
            hidden = torch.randn(2, 9, layer.hidden_size, generator=torch.Generator().manual_seed(4)).to(model.device)
        if rank is None:
            whole = layer(hidden)
            continue
        shard = _share(rank, 2)
        ShardedWeights(layer, "linear_attn", shard)
        mixer = GdnMixer("linear_attn", layer, max_window=4, prefill="recurrent", shard=shard)
        assert mixer.sizes.num_v_heads * layer.num_k_heads == mixer.sizes.num_k_heads * layer.num_v_heads
        total = total + mixer.forward(hidden)
    torch.testing.assert_close(total, whole, rtol=1e-4, atol=1e-5)


def test_heads_that_do_not_divide() -> None:
    model = load(RANDOM_MODELS / "qwen3_5-odd-random")
    layer: nn.Module = next(module for path, module in model.named_modules() if path.endswith("linear_attn"))
    with pytest.raises(ValueError, match="`linear_attn.num_k_heads` is 2, expected a multiple of the tensor parallel size 4"):
        ShardedWeights(layer, "linear_attn", _share(0, 4))
