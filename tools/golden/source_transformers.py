"""Operations as transformers computes them: Qwen3-Next, Qwen3.5 and Kimi-Linear, on the CPU.

Arguments and results are arrays without the batch axis, in the layouts of transformers (states key-major, convolutions
channel-major). Head counts of q and k are brought to that of v as the layers do it, by `repeat_interleave`.
"""

import contextlib
import sys

import numpy
import torch
from torch import nn

from float64 import lifted

# Where these packages can be imported, transformers calls them in the place of its own functions.
_OTHERS = ["fla", "causal_conv1d", "kernels"]
_hidden = {name: sys.modules.pop(name, None) for name in _OTHERS}
sys.modules.update(dict.fromkeys(_OTHERS))
from transformers.models.kimi_linear import modeling_kimi_linear as kimi  # noqa: E402
from transformers.models.kimi_linear.configuration_kimi_linear import KimiLinearConfig  # noqa: E402
from transformers.models.qwen3_5 import modeling_qwen3_5 as qwen3_5  # noqa: E402
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig  # noqa: E402
from transformers.models.qwen3_next import modeling_qwen3_next as qwen3_next  # noqa: E402

for _name, _module in _hidden.items():
    del sys.modules[_name]
    if _module is not None:
        sys.modules[_name] = _module

NAME = "transformers"
MODULES = (qwen3_next, qwen3_5, kimi)
GDN = {"recurrent": qwen3_next.torch_recurrent_gated_delta_rule, "chunk": qwen3_next.torch_chunk_gated_delta_rule}
KDA = {"recurrent": kimi.recurrent_kimi_delta_attention, "chunk": kimi.chunk_kimi_delta_attention}


def _float64(precision):
    return lifted(*MODULES) if precision == "f64" else contextlib.nullcontext()


def _tensor(values, precision, bf16=False):
    tensor = torch.tensor(numpy.asarray(values), dtype=torch.float64 if precision == "f64" else torch.float32)
    return tensor.to(torch.bfloat16) if bf16 else tensor


def _array(tensor):
    return tensor.detach().to(torch.float64).numpy()


def delta_rule(case, form, precision):
    """`form` is recurrent or chunk; needs the scale K^-0.5, and eps 1e-6 where q and k are normalised."""
    num_v_heads = case["v"].shape[1]
    function = (KDA if case["g"].ndim == 3 else GDN)[form]
    heads = lambda x: torch.repeat_interleave(x, num_v_heads // x.shape[2], dim=2)
    io = lambda name: _tensor(case[name], precision, case["bf16"])[None]
    with _float64(precision):
        out, state = function(
            heads(io("q")),
            heads(io("k")),
            io("v"),
            g=_tensor(case["g"], precision)[None],
            beta=io("beta"),
            initial_state=_tensor(case["state_before"], precision)[None],
            output_final_state=True,
            use_qk_l2norm_in_kernel=case["l2_norm_eps"] is not None,
        )
    return {"o": _array(out[0]), "state": _array(state[0])}, f"{function.__module__}.{function.__name__}"


def conv_update(case, precision):
    with _float64(precision):
        state = _tensor(case["state_before"], precision)[None]
        out = qwen3_next.causal_conv1d_update(
            _tensor(case["x"], precision).T[None],
            state,
            _tensor(case["weight"], precision),
            None if case["bias"] is None else _tensor(case["bias"], precision),
            case["activation"],
        )
    return {"out": _array(out[0].T), "state": _array(state[0])}, f"{qwen3_next.__name__}.causal_conv1d_update"


def conv_whole(case, precision):
    """From a state of zeros; gives no state."""
    with _float64(precision):
        out = qwen3_next.causal_conv1d_fn(
            _tensor(case["x"], precision).T[None],
            _tensor(case["weight"], precision),
            None if case["bias"] is None else _tensor(case["bias"], precision),
            case["activation"],
        )
    return {"out": _array(out[0].T)}, f"{qwen3_next.__name__}.causal_conv1d_fn"


def norm(case, precision):
    norms = {"silu": qwen3_next.Qwen3NextRMSNormGated, "sigmoid": kimi.KimiLinearRMSNormGated}
    cls = norms[case["activation"]]
    with _float64(precision):
        module = cls(case["weight"].shape[0], eps=case["eps"])
        module.weight.data = _tensor(case["weight"], precision)
        out = module(*(_tensor(case[name], precision, case["bf16"]) for name in ["x", "z"]))
    return {"out": _array(out)}, f"{cls.__module__}.{cls.__name__}"


class _Preset(nn.Module):
    """A projection that gives what it was made with."""

    def __init__(self, output):
        super().__init__()
        self.output = output

    def forward(self, _):
        return self.output


def gating(case, precision):
    """g and beta of a whole Qwen3.5 layer, caught where it calls the delta rule."""
    num_tokens, num_v_heads = case["a"].shape
    config = Qwen3_5TextConfig(
        hidden_size=8,
        linear_num_key_heads=1,
        linear_num_value_heads=num_v_heads,
        linear_key_head_dim=2,
        linear_value_head_dim=2,
    )
    caught = {}

    def catch(query, key, value, g, beta, **_):
        caught.update(g=g[0], beta=beta[0])
        return torch.zeros_like(value), None

    plain = qwen3_5.torch_chunk_gated_delta_rule
    with _float64(precision):
        layer = qwen3_5.Qwen3_5GatedDeltaNet(config, 0)
        layer.in_proj_a = _Preset(_tensor(case["a"], precision)[None])
        layer.in_proj_b = _Preset(_tensor(case["b"], precision)[None])
        layer.A_log.data = _tensor(case["A_log"], precision)
        layer.dt_bias.data = _tensor(case["dt_bias"], precision)
        try:
            qwen3_5.torch_chunk_gated_delta_rule = catch
            layer(torch.zeros(1, num_tokens, 8, dtype=layer.A_log.dtype))
        finally:
            qwen3_5.torch_chunk_gated_delta_rule = plain
    return {name: _array(x) for name, x in caught.items()}, f"{qwen3_5.__name__}.Qwen3_5GatedDeltaNet"


def channel_gating(case, precision):
    """g of Kimi-Linear, `[T, HV, K]`."""
    num_tokens, num_v_heads, head_dim = case["a"].shape
    config = KimiLinearConfig(hidden_size=8, linear_num_heads=num_v_heads, linear_head_dim=head_dim)
    with _float64(precision):
        gate = kimi.KimiLinearForgetGate(config)
        gate.f_a_proj = nn.Identity()
        gate.f_b_proj = _Preset(_tensor(case["a"], precision).reshape(1, num_tokens, -1))
        gate.A_log.data = _tensor(case["A_log"], precision).reshape(1, 1, -1, 1)
        gate.dt_bias.data = _tensor(case["dt_bias"], precision).reshape(-1)
        g = gate(torch.zeros(1, num_tokens, 8))
    return {"g": _array(g[0])}, f"{kimi.__name__}.KimiLinearForgetGate"
