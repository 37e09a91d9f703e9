"""Operations as the reference functions of flash-linear-attention compute them, on the CPU.

Arguments and results are arrays without the batch axis; states are key-major. The reference functions of the delta rule
take q and k as they are given: where a case wants them normalised, they are handed over normalised.
"""

import contextlib
import warnings

import numpy
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # There is no GPU here, which it says more than once.
    from fla.modules.norm import layernorm_gated
    from fla.ops.gated_delta_rule import gate as gdn_gate
    from fla.ops.gated_delta_rule import naive as gdn
    from fla.ops.kda import gate as kda_gate
    from fla.ops.kda import naive as kda

from float64 import lifted

NAME = "fla-core"
MODULES = (gdn, kda, gdn_gate, kda_gate, layernorm_gated)
CHUNK = 64


def _float64(precision):
    return lifted(*MODULES) if precision == "f64" else contextlib.nullcontext()


def _tensor(values, precision):
    return torch.tensor(numpy.asarray(values), dtype=torch.float64 if precision == "f64" else torch.float32)


def _array(tensor):
    return tensor.to(torch.float64).numpy()


def delta_rule(case, form, precision):
    """`form` is recurrent or chunk. Where the function wants whole chunks, tokens of zeros are put behind, which leave the
    state as it is."""
    inputs = {name: _tensor(case[name], precision)[None] for name in ["q", "k", "v", "g", "beta"]}
    if case["l2_norm_eps"] is not None:
        for name in ["q", "k"]:
            x = inputs[name]
            inputs[name] = x / torch.sqrt((x * x).sum(-1, keepdim=True) + case["l2_norm_eps"])
    num_tokens, num_v_heads = case["v"].shape[:2]
    per_channel = case["g"].ndim == 3
    if not per_channel:
        # The functions of the per-head decay know one number of heads.
        for name in ["q", "k"]:
            inputs[name] = inputs[name].repeat_interleave(num_v_heads // inputs[name].shape[2], dim=2)
    elif form == "chunk":
        for name, x in inputs.items():
            behind = torch.zeros(1, -num_tokens % CHUNK, *x.shape[2:], dtype=x.dtype)
            inputs[name] = torch.cat([x, behind], dim=1)
    module, stem = (kda, "kda") if per_channel else (gdn, "gated_delta_rule")
    function = getattr(module, f"naive_{form}_{stem}")
    with _float64(precision):
        out, state = function(
            **inputs,
            scale=float(case["scale"]),
            initial_state=_tensor(case["state_before"], precision)[None],
            output_final_state=True,
        )
    return {"o": _array(out[0, :num_tokens]), "state": _array(state[0])}, f"{module.__name__}.{function.__name__}"


def gating(case, precision):
    """g, per head or per channel by the shape of a; gives no beta."""
    module, function = (
        (kda_gate, kda_gate.naive_kda_gate) if case["a"].ndim == 3 else (gdn_gate, gdn_gate.naive_gdn_gate)
    )
    with _float64(precision):
        a, a_log, dt_bias = (_tensor(case[name], precision) for name in ["a", "A_log", "dt_bias"])
        g = function(a, a_log, dt_bias, output_dtype=a.dtype)
    return {"g": _array(g)}, f"{module.__name__}.{function.__name__}"


def norm(case, precision):
    """Gate SiLU."""
    with _float64(precision):
        x, weight, z = (_tensor(case[name], precision) for name in ["x", "weight", "z"])
        out = layernorm_gated.rms_norm_ref(x, weight, None, z=z, eps=case["eps"], norm_before_gate=True)
    return {"out": _array(out)}, f"{layernorm_gated.__name__}.rms_norm_ref"
