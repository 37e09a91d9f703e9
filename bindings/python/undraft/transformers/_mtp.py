"""Drafts from the multi-token-prediction head of a checkpoint, which transformers does not load."""

from __future__ import annotations

import copy
import inspect
import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import GenerationConfig
from transformers.cache_utils import DynamicCache
from transformers.generation.candidate_generator import CandidateGenerator
from transformers.masking_utils import create_causal_mask
from transformers.utils.hub import cached_file

_PREFIX = "mtp."
_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_EXPERT = re.compile(r"^(?P<at>.*\.experts)\.(?P<expert>\d+)\.(?P<which>gate|up|down)_proj\.weight$")

# The name of the cache as an argument and in outputs.
CACHE_ARGUMENT = "cache" if "cache" in inspect.signature(create_causal_mask).parameters else "past_key_values"


class MtpHead(nn.Module):
    """The head of Qwen3-Next and Qwen3.5: one block of gated full attention over pairs of a token and the trunk's state before.

    Embedding, output head and rotation are the model's.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        decoder = model.get_decoder()
        config = copy.deepcopy(model.config.get_text_config(decoder=True))
        config.num_hidden_layers, config.layer_types = 1, ["full_attention"]
        if getattr(config, "mlp_only_layers", None):
            config.mlp_only_layers = []
        norm, size, eps = type(decoder.norm), config.hidden_size, config.rms_norm_eps
        self.config = config
        self.pre_fc_norm_embedding = norm(size, eps)
        self.pre_fc_norm_hidden = norm(size, eps)
        self.fc = nn.Linear(2 * size, size, bias=False)
        self.layers = nn.ModuleList([type(decoder.layers[0])(config, 0)])
        self.norm = norm(size, eps)
        # In a tuple: they stay the model's, and are not parameters of this module.
        self._shared = (model.get_input_embeddings(), model.get_output_embeddings(), decoder.rotary_emb)
        self._has_sections = hasattr(decoder.rotary_emb, "mrope_section")

    @classmethod
    def load(cls, model: Any, source: str | Path) -> MtpHead:
        """The head of a checkpoint, on the device and in the dtype of the model's last layer.

        Args:
            model: a causal language model of transformers.
            source: folder of the checkpoint, or the name of a repository whose files are in the cache of huggingface_hub.

        Raises:
            ValueError: the checkpoint has no `mtp.*` tensors, or not those that the head needs.
        """
        tensors = stack_experts(read_tensors(source, _PREFIX))
        if not tensors:
            raise ValueError(f"`{source}` has no tensor whose name begins with `{_PREFIX}`: the model has no MTP head")
        with torch.device("meta"):
            head = cls(model)
        like = model.get_decoder().norm.weight
        tensors = {name: tensor.to(like.device, like.dtype) for name, tensor in tensors.items()}
        expected = {name: tuple(tensor.shape) for name, tensor in head.state_dict().items()}
        found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        for name in sorted(expected.keys() | found.keys()):
            if expected.get(name) != found.get(name):
                raise ValueError(
                    f"`{_PREFIX}{name}` of `{source}` has shape {found.get(name, 'none')}, expected {expected.get(name, 'none')}"
                )
        head.load_state_dict(tensors, assign=True)
        return head.eval().requires_grad_(False)

    def new_cache(self) -> DynamicCache:
        """Keys and values of the head."""
        return DynamicCache(config=self.config)

    def forward(self, token_ids: Tensor, hidden: Tensor, position: int, cache: DynamicCache) -> Tensor:
        """States of the head for pairs at `position`, `position + 1`, ..

        Args:
            token_ids: `[1, T]`, the token after each state.
            hidden: `[1, T, hidden_size]`, the trunk's states after its last norm, or states of the head.
            position: of the first pair.
            cache: holds the pairs before; these are added.

        Returns:
            `[1, T, hidden_size]`; `logits` of a state are those of the token after the pair's token.
        """
        embeddings, _, rotary = self._shared
        embeds = embeddings(token_ids).to(hidden)
        x = self.fc(torch.cat([self.pre_fc_norm_embedding(embeds), self.pre_fc_norm_hidden(hidden)], dim=-1))
        positions = torch.arange(position, position + x.shape[1], device=x.device)[None]
        angles = rotary(x, positions.expand(3, 1, -1) if self._has_sections else positions)
        given: dict[str, Any] = {"position_ids": positions, CACHE_ARGUMENT: cache}
        mask = create_causal_mask(config=self.config, inputs_embeds=x, attention_mask=None, **given)
        x = self.layers[0](x, position_embeddings=angles, attention_mask=mask, **given)
        state: Tensor = self.norm(x)
        return state

    def logits(self, state: Tensor) -> Tensor:
        """The model's output head."""
        logits: Tensor = self._shared[1](state)
        return logits


class MtpCandidates(CandidateGenerator):
    """Candidates of assisted decoding that the head drafts one after the other, greedily."""

    requires_model_outputs = True

    def __init__(self, model: Any, head: MtpHead, num_tokens: int, generation_config: GenerationConfig) -> None:
        self.head = head
        self.num_tokens = num_tokens
        self.max_length: int = generation_config.max_length
        self.eos_token_ids: Tensor | None = getattr(generation_config, "_eos_token_tensor", None)
        # The state behind the last norm stands last, which is index n - 1 in transformers 5.17 and n in 5.24, of n layers.
        num_layers = int(model.config.get_text_config(decoder=True).num_hidden_layers)
        self.model_kwargs_overrides = {"output_hidden_states": [num_layers - 1, num_layers]}
        self._cache = head.new_cache()
        self._length: int | None = None  # of the sequence at the last call

    def get_candidates(  # type: ignore[override]  # the annotation there is narrower than what is returned there
        self, input_ids: Tensor, model_kwargs: Any = None, model_outputs: Any = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """`input_ids` with up to `num_tokens` drafted tokens behind; nothing in the first round, which reads the prompt."""
        length = input_ids.shape[1]
        if model_outputs is None:
            return input_ids, None
        hidden: Tensor = model_outputs.hidden_states[-1]
        # The first call comes after the prompt, all of whose states count; then those of the kept tokens do.
        fresh = hidden.shape[1] if self._length is None else length - self._length
        self._length = length
        num_tokens = min(self.num_tokens, self.max_length - length - 1)
        if num_tokens < 1:
            return input_ids, None
        tokens, states = input_ids[:, -fresh:], hidden[:, :fresh]
        drafts = []
        for draft in range(num_tokens):
            position = length - 1 - tokens.shape[1] + draft
            states = self.head(tokens, states, position, self._cache)[:, -1:]
            tokens = self.head.logits(states).argmax(-1).to(input_ids.device)
            drafts.append(tokens)
        if num_tokens > 1:
            self._cache.crop(1 - num_tokens)
        return torch.cat([input_ids, self._until_end(torch.cat(drafts, dim=1))], dim=1), None

    def update_candidate_strategy(self, input_ids: Tensor, scores: Tensor, num_matches: int) -> None:
        """The number of drafts stays."""

    def _until_end(self, drafts: Tensor) -> Tensor:
        """Nothing behind the first token that ends the text."""
        if self.eos_token_ids is None:
            return drafts
        ends = torch.isin(drafts[0], self.eos_token_ids.to(drafts.device)).nonzero()
        return drafts if ends.numel() == 0 else drafts[:, : int(ends[0]) + 1]


def read_tensors(source: str | Path, prefix: str) -> dict[str, Tensor]:
    """Tensors of a checkpoint in safetensors whose names begin with `prefix`, which is left out of the names."""
    index = _file(source, _INDEX)
    if index is not None:
        weight_map: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names = sorted({file for name, file in weight_map.items() if name.startswith(prefix)})
    else:
        names = [_SINGLE]
    tensors = {}
    for name in names:
        path = _file(source, name)
        if path is None:
            raise ValueError(f"`{source}` has no `{name}`, where the weights of the MTP head are looked for")
        with safe_open(path, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118
                if key.startswith(prefix):
                    tensors[key.removeprefix(prefix)] = file.get_tensor(key)
    return tensors


def stack_experts(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights of single experts, `experts.E.{gate,up,down}_proj.weight`, as the stacked ones that transformers has."""
    stacked, experts = {}, dict[str, dict[tuple[str, int], Tensor]]()
    for name, tensor in tensors.items():
        if match := _EXPERT.match(name):
            experts.setdefault(match["at"], {})[match["which"], int(match["expert"])] = tensor
        else:
            stacked[name] = tensor
    for at, parts in experts.items():
        count = 1 + max(expert for _, expert in parts)
        try:
            gate_up = [torch.cat([parts["gate", i], parts["up", i]]) for i in range(count)]
            down = [parts["down", i] for i in range(count)]
        except KeyError as missing:
            which, expert = missing.args[0]
            raise ValueError(f"`{_PREFIX}{at}.{expert}.{which}_proj.weight` is missing") from None
        stacked[f"{at}.gate_up_proj"], stacked[f"{at}.down_proj"] = torch.stack(gate_up), torch.stack(down)
    return stacked


def _file(source: str | Path, name: str) -> Path | None:
    """A file of a folder, or of a repository in the cache of huggingface_hub; nothing is downloaded."""
    folder = Path(source)
    if folder.is_dir():
        return folder / name if (folder / name).is_file() else None
    found = cached_file(str(source), name, local_files_only=True, _raise_exceptions_for_missing_entries=False)
    return None if found is None else Path(found)
