"""Further classes of models: multimodal ones with text, experts of Qwen3.5, layers with hooks of accelerate."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch  # noqa: E402
import transformers  # noqa: E402
from torch import Tensor  # noqa: E402

import undraft.transformers  # noqa: E402
from transformers_support import DEVICE, RANDOM_MODELS, greedy, load, tokens_before_tie  # noqa: E402

ODD = RANDOM_MODELS / "qwen3_5-odd-random"


@pytest.fixture
def ids() -> Tensor:
    return torch.arange(24, device=DEVICE)[None] * 7 % 500


def text_config() -> dict[str, Any]:
    config: dict[str, Any] = json.loads((ODD / "config.json").read_text(encoding="utf-8"))["text_config"]
    del config["dtype"]
    return config


def multimodal() -> Any:
    vision = {
        "depth": 1,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_heads": 2,
        "out_hidden_size": 96,
        "num_position_embeddings": 16,
    }
    config = transformers.Qwen3_5Config(text_config=text_config(), vision_config=vision)
    return transformers.Qwen3_5ForConditionalGeneration(config)


def experts() -> Any:
    moe = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}
    config = transformers.Qwen3_5MoeTextConfig(**text_config() | moe | {"model_type": "qwen3_5_moe_text"})
    return transformers.Qwen3_5MoeForCausalLM(config)


@pytest.mark.parametrize(("make", "drafts"), [(multimodal, {"use_mtp": True}), (experts, {"prompt_lookup_num_tokens": 4})])
def test_other_classes(make: Any, drafts: dict[str, Any], ids: Tensor) -> None:
    torch.manual_seed(5)
    model = make().float().eval().to(DEVICE)
    expected = greedy(model, ids, 20)
    sure = tokens_before_tie(model, expected, ids.shape[1], margin=1e-4)
    assert sure > ids.shape[1] + 4
    with undraft.transformers.patch(model, mtp=ODD):
        for how in ({}, drafts):
            assert torch.equal(greedy(model, ids, 20, **how)[:, :sure], expected[:, :sure])


def test_images_are_not_drafted_for(ids: Tensor) -> None:
    model = multimodal().eval().to(DEVICE)
    with (
        undraft.transformers.patch(model, mtp=ODD),
        pytest.raises(ValueError, match="`use_mtp` came with `.*`; drafts of the MTP head"),
    ):
        greedy(
            model,
            ids,
            4,
            use_mtp=True,
            pixel_values=torch.zeros(4, 1536, device=DEVICE),
            image_grid_thw=torch.tensor([[1, 2, 2]]),
        )


@torch.no_grad()
def test_hooks_of_accelerate(ids: Tensor) -> None:
    hooks = pytest.importorskip("accelerate.hooks")
    calls = []

    class Hook(hooks.ModelHook):  # type: ignore[misc, name-defined]
        def pre_forward(self, module: Any, *args: Any, **kwargs: Any) -> Any:
            calls.append(module)
            return args, kwargs

    model = load(ODD)
    expected = model(ids).logits
    layers = [module for name, module in model.named_modules() if name.endswith("linear_attn")]
    for layer in layers:
        hooks.add_hook_to_module(layer, Hook())
    with undraft.transformers.patch(model):
        torch.testing.assert_close(model(ids).logits, expected, rtol=0, atol=1e-3)
        assert calls == layers
    assert torch.equal(model(ids).logits, expected)
    assert calls == layers * 2
