#!/usr/bin/env python3
"""Writes testdata/golden/ops: single operations on odd sizes, as three public implementations compute them.

    python3 -m venv venv && venv/bin/pip install -r tools/golden/requirements.txt
    venv/bin/python tools/golden/make_ops.py

One safetensors file a case, with the inputs under their own names and the results as `NAME.SOURCE_PRECISION`, such as
`o.transformers_f64`. Inputs come from a seed made of the case's name. Everything is stored as f32, or bf16 where the case is
one of bf16; what was computed in f64 is rounded once. MANIFEST.toml beside the files tells the conventions of each case, which
function of which package gave which result, and how far further runs lie from the first result.
"""

import hashlib
import importlib.metadata
import json
import platform
import sys
import zlib

import numpy
import torch

import source_fla as fla
import source_mlx_lm as mlx_lm
import source_transformers as transformers
from trim import LIMIT, ROOT, write

OUT = ROOT / "golden/ops"
SOURCES = {"transformers": transformers, "fla": fla, "mlx_lm": mlx_lm}
LICENCES = {"transformers": "Apache-2.0", "fla": "MIT", "mlx_lm": "MIT"}
# How far a run may lie from the first result, RMS(error) / RMS(result); a run in f32 or with outputs in bf16 is that much less exact.
NEAR = {"f64": 1e-12, "f32": 2e-6, "bf16": 3e-3}

CONVENTIONS = {
    "delta_rule": {
        "decay": "g = log of the factor; as raw gate a with A_log, dt_bias: g = -exp(A_log) * softplus(a + dt_bias)",
        "beta": "the value, of every source; b is its logit",
        "head_map": "grouped: value head hv reads key head hv / (HV / H)",
        "state_layout": "key-major, [HV, K, V]",
        "rounding": "q, k, beta used in full precision",
    },
    "causal_conv1d": {
        "weight": "[C, W], the last tap is the present token",
        "state": "[C, W], oldest first, inputs before the convolution; the oldest is never read",
    },
    "rms_norm_gated": {"order": "norm, weight (no 1 +), gate", "eps": "inside the root, added to the mean of squares"},
    "gdn_gating": {
        "g": "-exp(A_log) * softplus(a + dt_bias)",
        "beta": "sigmoid(b)",
        "decay": "exp(g), of sources that give the factor",
    },
}


def bf16(values):
    return torch.tensor(values).to(torch.bfloat16).to(torch.float32).numpy()


def f32(values):
    return numpy.asarray(values, dtype=numpy.float32)


def softplus(x):
    return numpy.logaddexp(x.astype(numpy.float64), 0.0)


def gates(rng, num_tokens, num_v_heads, channels):
    """Raw gates, mostly of slow decay, a few of fast."""
    inner = (channels,) if channels else ()
    a_log = f32(numpy.log(rng.uniform(0.5, 8.0, num_v_heads)))
    dt_bias = f32(rng.normal(-3.0, 1.0, (num_v_heads, *inner)))
    a = rng.normal(0.0, 1.5, (num_tokens, num_v_heads, *inner))
    a = f32(numpy.where(rng.random(a.shape) < 0.06, 5.0, a))
    rate = numpy.exp(a_log.astype(numpy.float64))
    g = -(rate[:, None] if channels else rate) * softplus(a.astype(numpy.float64) + dt_bias)
    return {"a": a, "A_log": a_log, "dt_bias": dt_bias, "g": f32(g)}


def delta_rule(rng, heads, sizes, num_tokens, per_channel=False, normalise=True, io="f32"):
    (h, hv), (k, v) = heads, sizes
    case = gates(rng, num_tokens, hv, k if per_channel else 0)
    magnitude = numpy.array([1.0, 1e-3, 20.0]) if normalise else numpy.array([k**-0.5])
    for name in ["q", "k"]:
        scales = magnitude[rng.integers(0, len(magnitude), (num_tokens, h, 1))]
        case[name] = f32(rng.normal(size=(num_tokens, h, k)) * scales)
    case["v"] = f32(rng.normal(size=(num_tokens, hv, v)))
    case["b"] = f32(rng.normal(0.0, 2.0, (num_tokens, hv)))
    case["beta"] = f32(1.0 / (1.0 + numpy.exp(-case["b"].astype(numpy.float64))))
    case["state_before"] = f32(rng.normal(0.0, 0.3, (hv, k, v)))
    case["bf16"] = io == "bf16"
    if case["bf16"]:
        del case["b"]
        case.update({name: bf16(case[name]) for name in ["q", "k", "v", "beta"]})
    # Those of transformers, or what only the others take.
    case["l2_norm_eps"] = 1e-6 if normalise else None
    case["scale"] = k**-0.5 if normalise else 0.375
    case["sizes"] = f"T {num_tokens}, H {h}, HV {hv}, K {k}, V {v}, decay per {'channel' if per_channel else 'head'}, io {io}"
    return case


def delta_rule_runs(case, stored):
    """First the results that are stored, as (source, form, precision), then all others."""
    runs = list(stored)
    for precision in ["f64", "f32"]:
        for form in ["recurrent", "chunk"]:
            runs += [("transformers", form, precision)] if case["l2_norm_eps"] is not None else []
            runs += [] if case["bf16"] else [("fla", form, precision)]
    runs += [] if case["bf16"] else [("mlx_lm", "", "f32")]
    for source, form, precision in dict.fromkeys(runs):
        arguments = (case, form, precision) if form else (case,)
        results, function = SOURCES[source].delta_rule(*arguments)
        yield source, precision, function, results


def conv(rng, channels, width, num_tokens, bias, activation, whole=False):
    state = rng.normal(size=(channels, width))
    state[:, 0] = 1e3
    return {
        "x": f32(rng.normal(size=(num_tokens, channels))),
        "weight": f32(rng.normal(0.0, 0.6, (channels, width))),
        "bias": f32(rng.normal(0.0, 0.5, channels)) if bias else None,
        "state_before": f32(numpy.zeros_like(state) if whole else state),
        "activation": activation,
        "whole": whole,
        "sizes": f"T {num_tokens}, C {channels}, W {width}, bias {bias}, activation {activation}",
    }


def conv_runs(case, _):
    for precision in ["f64", "f32"]:
        results, function = transformers.conv_update(case, precision)
        yield "transformers", precision, function, results
    results, function = mlx_lm.conv(case)
    yield "mlx_lm", "f32", function, results
    if case["whole"]:
        results, function = transformers.conv_whole(case, "f64")
        yield "transformers", "f64", function, results


def norm(rng, num_rows, num_heads, head_dim, eps, activation, io="f32"):
    case = {
        # The size of a recurrence's outputs, where eps has a say.
        "x": f32(rng.normal(0.0, 1e-3, (num_rows, num_heads, head_dim))),
        "z": f32(rng.normal(0.0, 2.0, (num_rows, num_heads, head_dim))),
        "weight": f32(rng.normal(1.0, 0.5, head_dim)),
        "eps": eps,
        "activation": activation,
        "bf16": io == "bf16",
        "sizes": f"rows {num_rows}, heads {num_heads}, D {head_dim}, gate {activation}, eps {eps}, io {io}",
    }
    if case["bf16"]:
        case.update({name: bf16(case[name]) for name in ["x", "z"]})
    return case


def norm_runs(case, _):
    for precision in ["f64", "f32"]:
        results, function = transformers.norm(case, precision)
        yield "transformers", precision, function, results
    if case["activation"] == "silu":
        for precision in ["f64", "f32"]:
            results, function = fla.norm(case, precision)
            yield "fla", precision, function, results
        results, function = mlx_lm.norm(case)
        yield "mlx_lm", "f32", function, results


def gating(rng, num_tokens, num_v_heads, channels=0):
    case = gates(rng, num_tokens, num_v_heads, channels)
    del case["g"]
    extremes = numpy.array([0.0, 30.0, -12.0, 60.0])
    at = rng.random(case["a"].shape) < 0.2
    case["a"] = f32(numpy.where(at, extremes[rng.integers(0, len(extremes), at.shape)], case["a"]))
    if not channels:
        b = rng.normal(0.0, 4.0, (num_tokens, num_v_heads))
        case["b"] = f32(numpy.where(rng.random(b.shape) < 0.2, -30.0, b))
    per = f"channel, K {channels}" if channels else "head"
    case["sizes"] = f"T {num_tokens}, HV {num_v_heads}, decay per {per}"
    return case


def gating_runs(case, _):
    per_channel = case["a"].ndim == 3
    for precision in ["f64", "f32"]:
        results, function = (transformers.channel_gating if per_channel else transformers.gating)(case, precision)
        yield "transformers", precision, function, results
        results, function = fla.gating(case, precision)
        yield "fla", precision, function, results
    if not per_channel:
        results, function = mlx_lm.gating(case)
        yield "mlx_lm", "f32", function, results


RECURRENT = ("transformers", "recurrent", "f64")
CHUNK = ("fla", "chunk", "f64")
MLX = ("mlx_lm", "", "f32")
# name: (operation, inputs, runs whose results are stored; None: each source's first)
CASES = {
    "gdn_t1": ("delta_rule", lambda rng: delta_rule(rng, (2, 6), (33, 5), 1), [RECURRENT, MLX]),
    "gdn_t5_given": (
        "delta_rule",
        lambda rng: delta_rule(rng, (3, 6), (24, 7), 5, normalise=False),
        [("fla", "recurrent", "f64"), MLX],
    ),
    "gdn_t67": ("delta_rule", lambda rng: delta_rule(rng, (2, 4), (9, 5), 67), [RECURRENT, CHUNK, MLX]),
    "gdn_t5_bf16": ("delta_rule", lambda rng: delta_rule(rng, (2, 4), (16, 24), 5, io="bf16"), [RECURRENT]),
    "kda_t1": ("delta_rule", lambda rng: delta_rule(rng, (2, 4), (17, 10), 1, True), [RECURRENT, MLX]),
    "kda_t5_given": (
        "delta_rule",
        lambda rng: delta_rule(rng, (2, 6), (24, 7), 5, True, normalise=False),
        [("fla", "recurrent", "f64"), MLX],
    ),
    "kda_t67": ("delta_rule", lambda rng: delta_rule(rng, (2, 4), (9, 5), 67, True), [RECURRENT, CHUNK, MLX]),
    "conv_t1": ("causal_conv1d", lambda rng: conv(rng, 17, 3, 1, False, None), None),
    "conv_t5": ("causal_conv1d", lambda rng: conv(rng, 37, 4, 5, True, "silu"), None),
    "conv_t67": ("causal_conv1d", lambda rng: conv(rng, 5, 4, 67, False, "silu", whole=True), None),
    "norm_silu": ("rms_norm_gated", lambda rng: norm(rng, 5, 3, 24, 1e-6, "silu"), None),
    "norm_sigmoid": ("rms_norm_gated", lambda rng: norm(rng, 3, 2, 33, 1e-5, "sigmoid"), None),
    "norm_sigmoid_bf16": ("rms_norm_gated", lambda rng: norm(rng, 3, 2, 40, 1e-5, "sigmoid", io="bf16"), None),
    "gating_head": ("gdn_gating", lambda rng: gating(rng, 5, 6), None),
    "gating_channel": ("gdn_gating", lambda rng: gating(rng, 3, 4, 17), None),
}
RUNS = {"delta_rule": delta_rule_runs, "causal_conv1d": conv_runs, "rms_norm_gated": norm_runs, "gdn_gating": gating_runs}


def relative_rms(got, expected):
    error, size = (numpy.sqrt(numpy.mean(numpy.square(x))) for x in [got - expected, expected])
    return float(error / size)


def tensor(values, narrow=False):
    """(dtype, shape, bytes), rounded once."""
    if narrow:
        bits = torch.tensor(numpy.asarray(values)).to(torch.bfloat16).view(torch.int16)
        return "BF16", list(bits.shape), bits.numpy().tobytes()
    values = f32(values)
    return "F32", list(values.shape), values.tobytes()


def run(name, operation, inputs, stored):
    """Gives the file's tensors, and the manifest's entries of the stored results and of the further runs."""
    narrow = lambda name: inputs.get("bf16", False) and name in ["q", "k", "v", "beta", "o", "x", "z", "out"]
    tensors = {key: tensor(x, narrow(key)) for key, x in inputs.items() if isinstance(x, numpy.ndarray)}
    for key in ["scale", "eps", "l2_norm_eps"]:
        if isinstance(inputs.get(key), float):
            tensors[key] = tensor([inputs[key]])
    results, further, first, seen = [], [], {}, set()
    for index, (source, precision, function, outputs) in enumerate(RUNS[operation](inputs, stored)):
        keep = index < len(stored) if stored else source not in seen
        seen.add(source)
        off = {key: relative_rms(x, first[key]) for key, x in outputs.items() if key in first}
        for key, x in off.items():
            bound = NEAR["bf16" if narrow(key) else precision]
            if x > bound:
                raise SystemExit(f"{name}: `{key}` of {function} in {precision} is {x:.1e} off, expected at most {bound:.0e}")
        for key, x in outputs.items():
            first.setdefault(key, x)
            if keep:
                tensors[f"{key}.{source}_{precision}"] = tensor(x, narrow(key))
        entry = {"source": source, "function": function, "precision": precision}
        if keep:
            entry["tensors"] = list(outputs)
        if off:
            entry["off"] = {key: float(f"{x:.0e}") for key, x in off.items()}
        (results if keep else further).append(entry)
    return tensors, results, further


def toml(value):
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(x)}" for key, x in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


def entry(name, operation, inputs, results, further):
    path = OUT / f"{name}.safetensors"
    norm = inputs.get("l2_norm_eps")
    lines = [
        f'path = "{path.relative_to(ROOT)}"',
        f"bytes = {path.stat().st_size}",
        f'sha256 = "{hashlib.sha256(path.read_bytes()).hexdigest()}"',
        f'operation = "{operation}"',
        f'sizes = "{inputs["sizes"]}"',
    ]
    if operation == "delta_rule":
        lines.append(f"scale = {inputs['scale']!r}")
        lines.append(f'qk_norm = "{"as given" if norm is None else f"x / sqrt(sum(x^2) + {norm})"}"')
    lines.append("results = [\n" + "".join(f"  {toml(x)},\n" for x in results) + "]")
    lines.append("further = [\n" + "".join(f"  {toml(x)},\n" for x in further) + "]")
    return "[[file]]\n" + "\n".join(lines) + "\n"


def main():
    if sys.byteorder != "little":
        raise SystemExit("this script writes raw little-endian tensors: run it on a little-endian machine")
    torch.set_num_threads(1)
    OUT.mkdir(parents=True, exist_ok=True)
    head = (
        "# Written by tools/golden/make_ops.py; paths are relative to testdata.\n"
        'script = "tools/golden/make_ops.py"\n'
        'seed = "numpy.random.default_rng(crc32 of the file\'s stem)"\n'
        'storage = "f32, or bf16 in the files named so; results in f64 are rounded once"\n'
        'off = "RMS(error) / RMS against the first result of the file that has the tensor"\n'
    )
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ["torch", "mlx", "mlx-cpu", "numpy"]]
    head += f'runtime = "Python {platform.python_version()}, {", ".join(versions)}, CPU"\n'
    entries = [head]
    for source, module in SOURCES.items():
        version = importlib.metadata.version(module.NAME)
        entries.append(
            f'[source.{source}]\npackage = "{module.NAME}"\nversion = "{version}"\nlicence = "{LICENCES[source]}"\n'
        )
    for operation, words in CONVENTIONS.items():
        entries.append(f"[conventions.{operation}]\n" + "".join(f"{key} = {toml(x)}\n" for key, x in words.items()))
    for name, (operation, make, stored) in CASES.items():
        inputs = make(numpy.random.default_rng(zlib.crc32(name.encode())))
        tensors, results, further = run(name, operation, inputs, stored)
        write(OUT / f"{name}.safetensors", tensors)
        entries.append(entry(name, operation, inputs, results, further))
        print(f"{name}: {(OUT / f'{name}.safetensors').stat().st_size} bytes")
        for x in results + further:
            print(f"    {x['source']} {x['precision']} {x['function'].rsplit('.', 1)[1]}: {x.get('off', 'the first')}")
    (OUT / "MANIFEST.toml").write_text("\n".join(entries))
    total = sum(path.stat().st_size for path in ROOT.rglob("*") if path.is_file())
    print(f"{sum(path.stat().st_size for path in OUT.iterdir())} bytes in {OUT}, {total} in {ROOT}")
    if total > LIMIT:
        raise SystemExit(f"testdata has {total} bytes, expected at most {LIMIT}")


if __name__ == "__main__":
    main()
