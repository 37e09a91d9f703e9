"""Patching and unpatching of a model."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedModel
from transformers import __version__ as transformers_version
from transformers.generation.candidate_generator import AssistedCandidateGenerator

from ._cache import Prefill
from ._mixer import GDN_CLASSES, GdnMixer
from ._mtp import CACHE_ARGUMENT, MtpCandidates, MtpHead
from ._shard import HeadShard, ShardedWeights

_ATTRIBUTE = "_undraft_patched"
_ABSENT = object()
_IMAGES = ("pixel_values", "pixel_values_videos", "mm_encoder_outputs")
_STOPS_AT_FINISHED_PROMPT = ("5.17.0",)


class Patched:
    """A patched model. `unpatch`, or the end of a `with` block, makes it as it was.

    Attributes:
        model: the model.
        max_window: tokens at the end that can be taken back.
        mtp_tokens: tokens that the MTP head drafts in a round; may be changed.
    """

    def __init__(
        self,
        model: Any,
        *,
        max_window: int,
        prefill: Prefill,
        mtp: str | Path | None,
        mtp_tokens: int,
        shard_heads: bool,
    ) -> None:
        self.model = model
        self.max_window = max_window
        self.mtp_tokens = mtp_tokens
        self._mtp_source = mtp
        self._mtp_head: MtpHead | None = None
        self._num_cached = 0  # tokens of the sequence that the first round of assisted decoding finds in the cache
        self._replaced: list[tuple[nn.Module, str, Any]] = []
        self._sharded: list[ShardedWeights] = []
        layers = gdn_layers(model)
        if not layers:
            raise ValueError(
                f"`model` is a {type(model).__name__} without Gated DeltaNet layers, expected one with a module of "
                + ", ".join(GDN_CLASSES)
            )
        shard = HeadShard.of(model) if shard_heads else None
        mixers = [GdnMixer(name, module, max_window=max_window, prefill=prefill, shard=shard) for name, module in layers]
        try:
            for mixer in mixers:
                if shard is not None:
                    self._sharded.append(ShardedWeights(mixer.module, mixer.name, shard))
                # A hook of accelerate keeps the forward pass that it wraps under another name.
                hooked = "_old_forward" in mixer.module.__dict__
                self._replace(mixer.module, "_old_forward" if hooked else "forward", mixer.forward)
                self._replace(mixer.module, _ATTRIBUTE, self)
            if hasattr(model, "_get_candidate_generator"):
                self._replace(model, "_is_stateful", False)
                self._replace(model, "_get_candidate_generator", self._candidate_generator)
                self._replace(model, "prepare_inputs_for_generation", self._prepare_inputs)
            self._replace(model, _ATTRIBUTE, self)
        except BaseException:
            self.unpatch()
            raise

    def unpatch(self) -> None:
        """Makes the model as it was. Caches that it filled while it was patched cannot be used any more.

        With sharded heads every rank calls it.
        """
        for module, attribute, before in reversed(self._replaced):
            if before is _ABSENT:
                del module.__dict__[attribute]
            else:
                module.__dict__[attribute] = before
        self._replaced = []
        for weights in self._sharded:
            weights.restore()
        self._sharded = []

    def load_mtp(self) -> MtpHead:
        """The MTP head, loaded when it is first needed.

        Raises:
            ValueError: the checkpoint has none.
        """
        if self._mtp_head is None:
            source = self._mtp_source if self._mtp_source is not None else self.model.config._name_or_path
            if not source:
                raise ValueError("`mtp` is None and the model does not know its folder, expected the folder with `mtp.*` tensors")
            self._mtp_head = MtpHead.load(self.model, source)
        return self._mtp_head

    def __enter__(self) -> Patched:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.unpatch()

    def _replace(self, module: nn.Module, attribute: str, value: Any) -> None:
        """Sets an attribute of this one object; the class and other objects of it stay as they are."""
        self._replaced.append((module, attribute, module.__dict__.get(attribute, _ABSENT)))
        module.__dict__[attribute] = value

    def _prepare_inputs(self, input_ids: Tensor, *args: Any, **kwargs: Any) -> Any:
        """In place of the model's own method of that name: of a sequence whose beginning is in the cache, the rest is read.

        Plain decoding says so with `next_sequence_length`; assisted decoding does not in its first round.
        """
        if self._num_cached and kwargs.get("is_first_iteration") and kwargs.get("next_sequence_length") is None:
            kwargs["next_sequence_length"] = input_ids.shape[1] - self._num_cached
        self._num_cached = 0
        return type(self.model).prepare_inputs_for_generation(self.model, input_ids, *args, **kwargs)

    def _candidate_generator(self, generation_config: GenerationConfig, **kwargs: Any) -> Any:
        """In place of the model's own method of that name, which the assisted decoding of transformers calls."""
        input_ids: Tensor = kwargs["input_ids"]
        _refuse_finished_prompt(input_ids, getattr(generation_config, "_eos_token_tensor", None))
        self._num_cached = _num_cached(input_ids, kwargs["model_kwargs"], generation_config)
        if generation_config.use_mtp:
            for name in _IMAGES:
                images = kwargs["model_kwargs"].get(name)
                if images is not None and len(images) > 0:
                    raise ValueError(f"`use_mtp` came with `{name}`; drafts of the MTP head are for text alone")
            check_mtp_tokens(self.mtp_tokens, self.max_window)
            return MtpCandidates(self.model, self.load_mtp(), self.mtp_tokens, generation_config)
        lookup = generation_config.prompt_lookup_num_tokens
        if lookup is not None and lookup >= self.max_window:
            raise ValueError(f"`prompt_lookup_num_tokens` is {lookup}, expected fewer than `max_window` = {self.max_window}")
        assistant = kwargs.get("assistant_model")
        if assistant is not None and gdn_layers(assistant) and not is_patched(assistant):
            raise ValueError(
                f"`assistant_model` is a {type(assistant).__name__} that is not patched: its states cannot be taken back; "
                "patch it too"
            )
        generator = type(self.model)._get_candidate_generator(self.model, generation_config=generation_config, **kwargs)
        _fit(generator, self.max_window - 1)
        return generator


def patch(
    model: PreTrainedModel,
    *,
    max_window: int = 32,
    prefill: Prefill = "chunk",
    mtp: str | Path | None = None,
    mtp_tokens: int = 3,
    shard_heads: bool = True,
) -> Patched:
    """Has the Gated DeltaNet layers of a model run on undraft, and lets it draft.

    Every layer of this one model object gets the operations of undraft in place of those of transformers; nothing else of
    transformers changes. `generate` then takes `prompt_lookup_num_tokens`, `assistant_model` and `use_mtp`, which transformers
    refuses for these models: their states are rolled back exactly.

    Args:
        model: a Qwen3-Next or Qwen3.5 model of transformers, with or without experts, on CPU or CUDA. One that was loaded with a
            tensor parallel plan is patched on every rank.
        max_window: how many tokens at the end can be taken back, 2 or more: the longest draft and one. A layer's log takes
            `4 * max_window * (H K + HV (V + 1) + C)` bytes for each sequence, twice.
        prefill: form of the recurrence for all but the last `max_window` tokens of a prompt: `"chunk"`, the matrix form, or
            `"recurrent"`, token by token. The second is bit for bit the same however a prompt is cut into calls.
        mtp: folder or cached repository with the weights of the MTP head; that of the model if None. Loaded when first used.
        mtp_tokens: tokens that the head drafts in a round, fewer than `max_window`.
        shard_heads: with a tensor parallel plan, cut the layers by heads; else every rank computes them whole.

    Returns:
        A handle with `unpatch()`, also a context manager.

    Raises:
        ValueError: the model has no such layers, is patched already, or has what is not supported; the message says what.

    Example:
        >>> import torch, undraft.transformers
        >>> from transformers import AutoModelForCausalLM, AutoTokenizer
        >>> folder = "models/qwen3_5-tiny-mtp"
        >>> model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        >>> prompt = AutoTokenizer.from_pretrained(folder)("def main():", return_tensors="pt")
        >>> with undraft.transformers.patch(model):
        ...     plain = model.generate(**prompt, max_new_tokens=24)
        ...     drafted = model.generate(**prompt, max_new_tokens=24, use_mtp=True)
        >>> torch.equal(plain, drafted)
        True
    """
    if is_patched(model):
        raise ValueError(f"`model` (a {type(model).__name__}) is patched already; unpatch it first")
    if max_window < 2:
        raise ValueError(f"`max_window` is {max_window}, expected 2 or more")
    if prefill not in ("chunk", "recurrent"):
        raise ValueError(f"`prefill` is {prefill!r}, expected 'chunk' or 'recurrent'")
    check_mtp_tokens(mtp_tokens, max_window)
    return Patched(model, max_window=max_window, prefill=prefill, mtp=mtp, mtp_tokens=mtp_tokens, shard_heads=shard_heads)


def unpatch(model: PreTrainedModel) -> None:
    """Makes a patched model as it was; the same as `unpatch` of what `patch` returned.

    Raises:
        ValueError: the model is not patched.
    """
    patched = model.__dict__.get(_ATTRIBUTE)
    if patched is None:
        raise ValueError(f"`model` (a {type(model).__name__}) is not patched")
    patched.unpatch()


def is_patched(model: nn.Module) -> bool:
    """Whether `patch` was called on this object, or on one that it is part of."""
    layers = (module for _, module in gdn_layers(model))
    return any(_ATTRIBUTE in module.__dict__ for module in (model, *layers))


def check_mtp_tokens(mtp_tokens: int, max_window: int) -> None:
    """Refuses drafts that could not be taken back."""
    if not 0 < mtp_tokens < max_window:
        raise ValueError(f"`mtp_tokens` is {mtp_tokens}, expected 1 to `max_window` - 1 = {max_window - 1}")


def gdn_layers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Names and modules of the Gated DeltaNet layers."""
    return [(name, module) for name, module in model.named_modules() if type(module).__name__ in GDN_CLASSES]


def _num_cached(input_ids: Tensor, model_kwargs: dict[str, Any], generation_config: GenerationConfig) -> int:
    """How many tokens of `input_ids` are in the cache; 0 where new tokens alone were passed, to which the mask tells them."""
    mask = model_kwargs.get("attention_mask")
    # transformers 5.24 drops a mask of ones, and keeps its length.
    whole = mask.shape[1] if mask is not None else getattr(generation_config, "_mask_length", input_ids.shape[1])
    cache = model_kwargs.get(CACHE_ARGUMENT)
    return 0 if cache is None or whole != input_ids.shape[1] else int(cache.get_seq_length())


def _fit(generator: Any, most: int) -> None:
    """Has the first round read the prompt alone, as plain decoding does: the states behind it are then the same bits.

    An assistant, which may draft more from round to round, drafts no more than `most` tokens.
    """
    candidates = generator.get_candidates
    rounds = 0

    def get_candidates(input_ids: Tensor, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        nonlocal rounds
        rounds += 1
        is_assistant = isinstance(generator, AssistedCandidateGenerator)
        if rounds > 1:
            if is_assistant:
                generator.num_assistant_tokens = min(generator.num_assistant_tokens, most)
            drafted: tuple[Tensor, Tensor | None] = candidates(input_ids, **kwargs)
            return drafted
        if is_assistant:
            # The assistant has to read the prompt as it is now; one draft is the least that it makes meanwhile.
            num_assistant_tokens, generator.num_assistant_tokens = generator.num_assistant_tokens, 1
            candidates(input_ids, **kwargs)
            generator.num_assistant_tokens = num_assistant_tokens
        return input_ids, None

    generator.get_candidates = get_candidates


def _refuse_finished_prompt(input_ids: Tensor, eos_token_ids: Tensor | None) -> None:
    """Some versions take a prompt that ends with an end-of-text token for finished, when they draft, and give no token back."""
    if eos_token_ids is None or transformers_version not in _STOPS_AT_FINISHED_PROMPT:
        return
    last = int(input_ids[0, -1])
    if last in eos_token_ids.tolist():
        raise ValueError(
            f"the prompt ends with the end-of-text token {last}, behind which transformers {transformers_version} drafts "
            "nothing; decode plainly or drop the token"
        )
