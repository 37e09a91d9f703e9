"""What undraft.transformers refuses, and how it says so."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch  # noqa: E402
from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM  # noqa: E402

import undraft.transformers  # noqa: E402
from transformers_support import BUNDLED, RANDOM_MODELS, greedy, load, prompt_ids  # noqa: E402
from undraft.transformers import _mtp  # noqa: E402


@pytest.fixture(scope="module")
def model() -> Any:
    return load(BUNDLED)


@pytest.mark.parametrize("version", ["4.57.1", "5.16.0", "6.0.0", "5.17.0.dev0"])
def test_other_versions(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("undraft.transformers._versions.transformers.__version__", version)
    tested = ", ".join(undraft.transformers.TESTED_VERSIONS)
    message = f"undraft.transformers was run with transformers {tested}; found {version}, whose caches"
    with pytest.raises(ImportError, match=message):
        importlib.reload(undraft.transformers)


def test_patched_twice(model: Any) -> None:
    with undraft.transformers.patch(model):
        for again in (model, model.model):
            with pytest.raises(ValueError, match="is patched already; unpatch it first"):
                undraft.transformers.patch(again)
    with pytest.raises(ValueError, match=r"`model` \(a Qwen3_5ForCausalLM\) is not patched"):
        undraft.transformers.unpatch(model)


def test_other_models() -> None:
    config = Qwen3Config(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1
    )
    with pytest.raises(ValueError, match="Qwen3ForCausalLM without Gated DeltaNet layers, expected one with a module of"):
        undraft.transformers.patch(Qwen3ForCausalLM(config))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_window": 1}, "`max_window` is 1, expected 2 or more"),
        ({"mtp_tokens": 8, "max_window": 8}, "`mtp_tokens` is 8, expected 1 to `max_window` - 1 = 7"),
        ({"prefill": "fast"}, "`prefill` is 'fast', expected 'chunk' or 'recurrent'"),
    ],
)
def test_options(model: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        undraft.transformers.patch(model, **options)
    assert not undraft.transformers.is_patched(model)


def test_an_activation_that_is_not_there(model: Any) -> None:
    layer = model.model.layers[1].linear_attn
    layer.activation = "relu"
    try:
        with pytest.raises(ValueError, match=r"`model.layers.1.linear_attn.activation` is 'relu', expected one of"):
            undraft.transformers.patch(model)
        assert not undraft.transformers.is_patched(model)
    finally:
        layer.activation = "silu"


def test_gradients(model: Any) -> None:
    with (
        undraft.transformers.patch(model),
        pytest.raises(RuntimeError, match="has no gradients; call the model under torch.no_grad"),
    ):
        model(prompt_ids("short"))


@torch.no_grad()
def test_static_caches_and_packed_sequences(model: Any) -> None:
    ids = prompt_ids("short")
    with undraft.transformers.patch(model):
        with pytest.raises(ValueError, match="got a StaticCache with a LinearAttentionLayer, expected a DynamicCache"):
            greedy(model, ids, 2, cache_implementation="static")
        with pytest.raises(ValueError, match="got a DynamicCache of 0 layers, expected one made with the model's config"):
            model(ids, **{_mtp.CACHE_ARGUMENT: DynamicCache()})
        with pytest.raises(ValueError, match="packed sequences"):
            model(ids, cu_seq_lens_q=torch.tensor([0, 2, 5], device=ids.device))


def test_a_cache_of_the_patched_model_afterwards(model: Any) -> None:
    ids = prompt_ids("short")
    with undraft.transformers.patch(model), torch.no_grad():
        cache = getattr(model(ids, use_cache=True), _mtp.CACHE_ARGUMENT)
    with torch.no_grad(), pytest.raises(RuntimeError, match="a model that is not patched cannot read|has no attribute"):
        model(ids, **{_mtp.CACHE_ARGUMENT: cache})


def test_an_assistant_that_is_not_patched(model: Any) -> None:
    with undraft.transformers.patch(model), pytest.raises(ValueError, match="its states cannot be taken back; patch it too"):
        greedy(model, prompt_ids("short"), 4, assistant_model=load(BUNDLED))


def test_drafts_longer_than_the_window(model: Any) -> None:
    message = "`prompt_lookup_num_tokens` is 8, expected fewer than `max_window` = 8"
    with undraft.transformers.patch(model, max_window=8), pytest.raises(ValueError, match=message):
        greedy(model, prompt_ids("short"), 32, prompt_lookup_num_tokens=8)


def test_more_drafts_of_the_head_than_the_window(model: Any) -> None:
    with undraft.transformers.patch(model, max_window=8) as patched:
        patched.mtp_tokens = 8
        with pytest.raises(ValueError, match="`mtp_tokens` is 8, expected 1 to `max_window` - 1 = 7"):
            greedy(model, prompt_ids("short"), 4, use_mtp=True)


def test_drafts_for_a_batch(model: Any) -> None:
    with undraft.transformers.patch(model), pytest.raises(ValueError, match="batch_size = 1"):
        greedy(model, prompt_ids("short").repeat(2, 1), 4, prompt_lookup_num_tokens=3)


def test_a_checkpoint_without_the_head(model: Any, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"model.norm.weight": "a.safetensors"}}')
    with undraft.transformers.patch(model, mtp=tmp_path), pytest.raises(ValueError, match="the model has no MTP head"):
        greedy(model, prompt_ids("short"), 4, use_mtp=True)


def test_the_head_of_another_model(model: Any) -> None:
    with undraft.transformers.patch(model, mtp=RANDOM_MODELS / "qwen3_5-odd-random"):
        with pytest.raises(ValueError, match=r"`mtp.fc.weight` of .* has shape \(96, 192\), expected \(256, 512\)"):
            greedy(model, prompt_ids("short"), 4, use_mtp=True)


def test_experts_that_are_missing() -> None:
    tensors = {
        f"mlp.experts.{expert}.{which}_proj.weight": torch.zeros(2, 3) for expert in (0, 1) for which in ("gate", "up", "down")
    }
    assert set(_mtp.stack_experts(tensors)) == {"mlp.experts.gate_up_proj", "mlp.experts.down_proj"}
    del tensors["mlp.experts.0.up_proj.weight"]
    with pytest.raises(ValueError, match="`mtp.mlp.experts.0.up_proj.weight` is missing"):
        _mtp.stack_experts(tensors)
