"""Operations as mlx and mlx-lm compute them on the CPU, in f32.

Its decay is a factor and its states are value-major; both are turned into the form of the other sources here.
"""

import mlx.core as mx
import numpy
from mlx import nn
from mlx_lm.models import gated_delta, qwen3_next

NAME = "mlx-lm"


def _array(values):
    return mx.array(numpy.asarray(values, dtype=numpy.float32))


def _numpy(array):
    return numpy.array(array).astype(numpy.float64)


def delta_rule(case):
    """With normalised q and k the whole of `gated_delta_update`, raw gates included; else the bare recurrence."""
    q, k, v = (_array(case[name])[None] for name in ["q", "k", "v"])
    state = _array(case["state_before"].swapaxes(-1, -2))[None]
    if case["l2_norm_eps"] is None:
        decay, beta = mx.exp(_array(case["g"]))[None], _array(case["beta"])[None]
        out, state = gated_delta.gated_delta_ops(q * float(case["scale"]), k, v, decay, beta, state)
        function = "gated_delta_ops"
    else:
        q, k = gated_delta.normalize_qk(q, k, inv_scale=float(case["scale"]), eps=case["l2_norm_eps"])
        a, b = _array(case["a"])[None], _array(case["b"])[None]
        a_log = _array(case["A_log"])
        a_log = a_log[:, None] if a.ndim == 4 else a_log
        dt_bias = _array(case["dt_bias"])
        out, state = gated_delta.gated_delta_update(q, k, v, a, b, a_log, dt_bias, state, use_kernel=False)
        function = "gated_delta_update"
    results = {"o": _numpy(out[0]), "state": _numpy(state[0]).swapaxes(-1, -2)}
    return results, f"{gated_delta.__name__}.{function}"


def conv(case):
    """The convolution over state and inputs, as the layers of mlx-lm call it; gives no state."""
    x = numpy.concatenate([case["state_before"].T, case["x"]])
    out = mx.conv1d(_array(x)[None], _array(case["weight"])[..., None], groups=x.shape[1])[0, -len(case["x"]) :]
    if case["bias"] is not None:
        out = out + _array(case["bias"])
    return {"out": _numpy(nn.silu(out) if case["activation"] else out)}, "mlx.core.conv1d"


def norm(case):
    """Gate SiLU."""
    module = qwen3_next.Qwen3NextRMSNormGated(case["weight"].shape[0], eps=case["eps"])
    module.weight = _array(case["weight"])
    out = module(_array(case["x"]), _array(case["z"]))
    return {"out": _numpy(out)}, f"{qwen3_next.__name__}.Qwen3NextRMSNormGated"


def gating(case):
    """The factor as its logarithm, which loses what lies below the smallest f32; and beta."""
    a_log = _array(case["A_log"])
    factor = gated_delta.compute_g(a_log, _array(case["a"]), _array(case["dt_bias"]))
    return {"decay": _numpy(factor), "beta": _numpy(mx.sigmoid(_array(case["b"])))}, f"{gated_delta.__name__}.compute_g"
