"""The forward pass of a Gated DeltaNet layer of transformers on the operations of undraft."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, LinearAttentionLayer, StaticCache

import undraft.torch as ops

from ._cache import GdnCacheLayer, GdnParams, GdnSizes, Prefill
from ._shard import HeadShard

GDN_CLASSES = ("Qwen3NextGatedDeltaNet", "Qwen3_5GatedDeltaNet", "Qwen3_5MoeGatedDeltaNet")
"""Names of the classes of transformers that are patched."""

_ACTIVATIONS = ("silu", "swish")


class GdnMixer:
    """Stands in for the forward pass of one module, of which it reads the parameters."""

    def __init__(self, name: str, module: nn.Module, *, max_window: int, prefill: Prefill, shard: HeadShard | None) -> None:
        self.name = name
        self.module: Any = module
        self.max_window = max_window
        self.prefill = prefill
        self.shard = shard
        ways = 1 if shard is None else shard.size
        sizes: Any = module
        self.sizes = GdnSizes(
            num_k_heads=sizes.num_k_heads // ways,
            num_v_heads=sizes.num_v_heads // ways,
            head_k_dim=sizes.head_k_dim,
            head_v_dim=sizes.head_v_dim,
            conv_width=sizes.conv_kernel_size,
        )
        self._fused = hasattr(module, "in_proj_qkvz")
        self._params: GdnParams | None = None
        self._params_of: tuple[tuple[int, int], ...] = ()
        self._check()

    def forward(
        self,
        hidden_states: Tensor,
        cache_params: Cache | None = None,
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """As the module's own: `[B, T, hidden]` in and out; the states go into the cache.

        Raises:
            RuntimeError: gradients are needed.
            ValueError: the cache is static, or the sequences are packed.
        """
        if torch.is_grad_enabled() and hidden_states.requires_grad:
            raise RuntimeError(
                f"`{self.name}` is patched for inference and has no gradients; call the model under torch.no_grad() or unpatch it"
            )
        if kwargs.get("cu_seq_lens_q") is not None:
            raise ValueError(
                f"`{self.name}` got packed sequences (`cu_seq_lens_q`), expected one sequence a row with an attention mask"
            )
        if attention_mask is not None:
            hidden_states = (hidden_states * attention_mask[:, :, None]).to(hidden_states.dtype)
        mixed_qkv, z, b, a = self._project(hidden_states)
        params = self._current_params()
        layer = self._layer(cache if cache is not None else cache_params, hidden_states)
        out = layer.window(params, mixed_qkv, a, b)
        out = ops.rms_norm_gated(out, z.contiguous(), params.norm_weight, eps=params.norm_eps).flatten(-2)
        if self.shard is None:
            projected: Tensor = self.module.out_proj(out)
            return projected
        return self.shard.sum(nn.functional.linear(out, self.module.out_proj.weight))

    def _project(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """`[q | k | v]` `[B, T, C]`, z `[B, T, HV, V]`, b and a `[B, T, HV]`."""
        sizes = self.sizes
        if not self._fused:
            names = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
            mixed_qkv, z, b, a = (self._linear(name, hidden_states) for name in names)
            return mixed_qkv, z.reshape(*z.shape[:2], sizes.num_v_heads, sizes.head_v_dim), b, a
        # A group for each key head: its q, its k, the v and the z of its value heads; and their b and a.
        value_heads = sizes.num_v_heads // sizes.num_k_heads
        value_width = value_heads * sizes.head_v_dim
        grouped = (*hidden_states.shape[:2], sizes.num_k_heads, -1)
        qkvz = self._linear("in_proj_qkvz", hidden_states).reshape(grouped)
        q, k, v, z = torch.split(qkvz, [sizes.head_k_dim, sizes.head_k_dim, value_width, value_width], dim=-1)
        b, a = torch.split(self._linear("in_proj_ba", hidden_states).reshape(grouped), value_heads, dim=-1)
        mixed_qkv = torch.cat([part.flatten(-2) for part in (q, k, v)], dim=-1)
        z = z.reshape(*z.shape[:2], sizes.num_v_heads, sizes.head_v_dim)
        return mixed_qkv, z, b.flatten(-2), a.flatten(-2)

    def _linear(self, name: str, x: Tensor) -> Tensor:
        projection: Callable[[Tensor], Tensor] = getattr(self.module, name)
        if self.shard is None:
            return projection(x)
        return nn.functional.linear(x, self.module.get_submodule(name).weight)

    def _layer(self, cache: Cache | None, hidden_states: Tensor) -> GdnCacheLayer:
        """The layer of the cache; one of transformers' own is replaced, with the states in it."""
        if cache is None:
            return self._new_layer(hidden_states, record_past=False)
        index: int = self.module.layer_idx
        if index >= len(cache.layers):
            raise ValueError(
                f"`{self.name}` got a {type(cache).__name__} of {len(cache.layers)} layers, expected one made with the model's config"
            )
        layer = cache.layers[index]
        if isinstance(layer, GdnCacheLayer):
            return layer
        if isinstance(cache, StaticCache) or type(layer) is not LinearAttentionLayer:
            raise ValueError(f"`{self.name}` got a {type(cache).__name__} with a {type(layer).__name__}, expected a DynamicCache")
        new = self._new_layer(hidden_states, record_past=layer.record_past)
        recurrent, conv = layer.recurrent_states[0], layer.conv_states[0]
        if layer.has_previous_state[0] and recurrent is not None and conv is not None:
            new.load(recurrent, conv)
        cache.layers[index] = new
        return new

    def _new_layer(self, hidden_states: Tensor, *, record_past: bool) -> GdnCacheLayer:
        return GdnCacheLayer(
            self.sizes,
            hidden_states.shape[0],
            hidden_states.device,
            max_window=self.max_window,
            prefill=self.prefill,
            record_past=record_past,
        )

    def _current_params(self) -> GdnParams:
        """The parameters as the operations take them, made anew where one was moved or written."""
        module = self.module
        tensors = (module.conv1d.weight, module.A_log, module.dt_bias, module.norm.weight)
        of = tuple((tensor.data_ptr(), tensor._version) for tensor in tensors)
        if self._params is None or of != self._params_of:
            self._params, self._params_of = self._make_params(), of
        return self._params

    def _make_params(self) -> GdnParams:
        module, shard = self.module, self.shard
        conv_weight, conv_bias = module.conv1d.weight.detach(), module.conv1d.bias
        A_log, dt_bias = module.A_log.detach(), module.dt_bias.detach()
        if conv_bias is not None:
            conv_bias = conv_bias.detach()
        if shard is not None:
            parts = (module.key_dim, module.key_dim, module.value_dim)
            conv_weight = shard.rows(conv_weight, parts)
            conv_bias = None if conv_bias is None else shard.rows(conv_bias, parts)
            A_log, dt_bias = shard.rows(A_log), shard.rows(dt_bias)
        return GdnParams(
            sizes=self.sizes,
            conv_weight=ops.conv_weight_to_tap_major(conv_weight),
            conv_bias=None if conv_bias is None else conv_bias.float(),
            A_log=A_log.float().contiguous(),
            dt_bias=dt_bias.float().contiguous(),
            norm_weight=module.norm.weight.detach().float().contiguous(),
            norm_eps=module.norm.variance_epsilon,
        )

    def _check(self) -> None:
        """Refuses what would be computed wrongly."""
        if self.module.activation not in _ACTIVATIONS:
            raise ValueError(f"`{self.name}.activation` is {self.module.activation!r}, expected one of {_ACTIVATIONS}")
        if any(parameter.is_meta for parameter in self.module.parameters()):
            raise ValueError(f"`{self.name}` has parameters on the meta device (offloaded), expected them in memory")
