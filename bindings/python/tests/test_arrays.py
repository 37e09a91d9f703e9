"""The operations on NumPy arrays and DLPack: values, exactness, rollback, errors. Imports no torch."""

import sys
from dataclasses import replace

import numpy as np
import pytest

import undraft
from array_cases import Case, error, golden, recurrence, same

NORM = {"qk_l2norm_eps": 1e-6}
CASES = [
    Case(),
    Case(head_k_dim=128, head_v_dim=64, num_v_heads=4),
    Case(per_channel=True),
    Case(head_k_dim=1, head_v_dim=3, per_channel=True),
    Case(dtype="float16", state_dtype="float16"),
]


def log_of(case: Case, max_tokens: int = 4) -> undraft.DeltaLog:
    return undraft.DeltaLog.empty(case.num_slots, max_tokens, *case.sizes(), per_channel=case.per_channel)


def test_torch_is_not_needed() -> None:
    assert "torch" not in sys.modules or "undraft.torch" in sys.modules


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_are_those_of_the_recurrence(case: Case) -> None:
    state = case.state.copy()
    out = undraft.fused_recurrent_gated_delta_rule(*case.inputs(), state, state_indices=case.slots, **NORM)
    bound = 2e-3 if case.dtype == "float16" else 1e-6
    for i, slot in enumerate(case.slots):
        factor = np.exp(case.g[i].astype(np.float64))
        expected, states = recurrence(case.q[i], case.k[i], case.v[i], factor, case.beta[i], case.state[slot])
        assert error(out[i], expected) < bound
        assert error(state[slot], states[-1]) < bound
    others = [slot for slot in range(case.num_slots) if slot not in case.slots]
    assert same(state[others], case.state[others])


@pytest.mark.parametrize("decay", ["linear", "neg_log", "gate"])
@pytest.mark.parametrize("head_map", ["grouped", "tiled"])
def test_conventions(decay: str, head_map: str) -> None:
    case = Case(seed=1)
    rng = np.random.default_rng(2)
    A_log, dt_bias = rng.standard_normal(6).astype(np.float32), rng.standard_normal(6).astype(np.float32)
    factor = np.exp(case.g.astype(np.float64))
    g = {"linear": factor.astype(np.float32), "neg_log": -case.g, "gate": case.g}[decay]
    gate = {"A_log": A_log, "dt_bias": dt_bias} if decay == "gate" else {}
    if decay == "gate":
        factor = np.exp(-np.exp(A_log.astype(np.float64)) * np.log1p(np.exp(g.astype(np.float64) + dt_bias)))
    logit = np.log(case.beta / (1 - case.beta)).astype(np.float32)
    state = case.state.copy()
    options = {"decay": decay, "head_map": head_map, "beta_is_logit": True, "scale": 0.75, "state_indices": case.slots, **gate}
    out = undraft.fused_recurrent_gated_delta_rule(case.q, case.k, case.v, g, logit, state, **options)
    for i, slot in enumerate(case.slots):
        expected, states = recurrence(
            case.q[i],
            case.k[i],
            case.v[i],
            factor[i],
            1 / (1 + np.exp(-logit[i].astype(np.float64))),
            case.state[slot],
            eps=None,
            scale=0.75,
            tiled=head_map == "tiled",
        )
        # Keys that are not normalised make large states.
        assert error(out[i], expected) < 1e-5
        assert error(state[slot], states[-1]) < 1e-5


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_window_is_its_tokens_one_by_one(case: Case) -> None:
    log, slots = log_of(case), {"state_indices": case.slots}
    state = case.state.copy()
    out = undraft.verify(*case.inputs(), state, log, **slots, **NORM)
    assert same(state, case.state), "a window leaves the states as they were"
    once = case.state.copy()
    parts = [undraft.fused_recurrent_gated_delta_rule(*case.inputs(t, t + 1), once, **slots, **NORM) for t in range(3)]
    assert same(out, np.concatenate(parts, axis=1))
    for kept in ([0, 0], [1, 3], [3, 2]):
        committed, decoded, lazy = case.state.copy(), case.state.copy(), case.state.copy()
        undraft.commit_states(committed, log, kept, **slots)
        for i, n in enumerate(kept):
            for t in range(n):
                one = [x[i : i + 1] for x in case.inputs(t, t + 1)]
                undraft.fused_recurrent_gated_delta_rule(*one, decoded, state_indices=[case.slots[i]], **NORM)
        assert same(committed, decoded)
        undraft.verify(*case.inputs(), lazy, log_of(case), pending_log=log, num_pending=kept, **slots, **NORM)
        assert same(lazy, decoded)


def test_a_tree_is_decoding_each_path() -> None:
    case = Case(batch=1, tokens=5)
    parents, log = [-1, 0, 0, 2, 1], log_of(Case(), 5)
    out = undraft.verify(*case.inputs(), case.state, log, state_indices=case.slots, parents=[parents], **NORM)
    for path in ([0, 1, 4], [0, 2, 3]):
        state = case.state.copy()
        chain = [np.ascontiguousarray(x[:, path]) for x in case.inputs()]
        single = undraft.fused_recurrent_gated_delta_rule(*chain, state, state_indices=case.slots, **NORM)
        assert same(out[:, path], single)
        committed = case.state.copy()
        undraft.commit_states(committed, log, [3], state_indices=case.slots, path=[[*path, 0, 0]])
        assert same(committed, state)


def test_states_after_each_token() -> None:
    case = Case()
    captured = np.full((2, 3, 6, 12, 20), np.nan, np.float32)
    undraft.verify(*case.inputs(), case.state, capture="per_token", captured=captured, state_indices=case.slots, **NORM)
    once = case.state.copy()
    for t in range(3):
        undraft.fused_recurrent_gated_delta_rule(*case.inputs(t, t + 1), once, state_indices=case.slots, **NORM)
        assert same(captured[:, t], once[case.slots])


def test_packed_sequences_and_padding() -> None:
    case = Case(batch=1, tokens=5)
    packed = [x[0] for x in case.inputs()]
    state = case.state.copy()
    options = {"cu_seqlens": [0, 2, 2, 5], "state_indices": [1, -1, 4]}
    out = undraft.fused_recurrent_gated_delta_rule(*packed, state, **options, **NORM)
    other = case.state.copy()
    for slot, start, end in ((1, 0, 2), (4, 2, 5)):
        part = [x[None, start:end] for x in packed]
        assert same(out[start:end], undraft.fused_recurrent_gated_delta_rule(*part, other, state_indices=[slot], **NORM)[0])
    assert same(state, other)
    padded = undraft.fused_recurrent_gated_delta_rule(*packed, state, cu_seqlens=[0, 5], state_indices=[-1], **NORM)
    assert not padded.any()
    assert same(state, other)


def test_fused_rows_are_not_copied() -> None:
    """q, k and v as views of one row ``[q | k | v]``."""
    case = Case()
    parts = [x.reshape(2, 3, -1) for x in (case.q, case.k, case.v)]
    fused = np.concatenate(parts, axis=-1)
    ends = np.cumsum([0, *(part.shape[-1] for part in parts)])
    views = [fused[..., a:b].reshape(x.shape) for a, b, x in zip(ends[:-1], ends[1:], (case.q, case.k, case.v), strict=True)]
    assert all(view.base is not None for view in views)
    a, b = case.state.copy(), case.state.copy()
    one = undraft.fused_recurrent_gated_delta_rule(*case.inputs(), a, state_indices=case.slots, **NORM)
    two = undraft.fused_recurrent_gated_delta_rule(*views, case.g, case.beta, b, state_indices=case.slots, **NORM)
    assert same(one, two)
    assert same(a, b)


def test_the_matrix_form_and_its_checkpoints() -> None:
    case = Case(batch=1, tokens=150)
    exact, close = case.state.copy(), case.state.copy()
    checkpoints = np.zeros((2, 6, 12, 20), np.float32)
    a = undraft.fused_recurrent_gated_delta_rule(*case.inputs(), exact, state_indices=case.slots, **NORM)
    options = {"checkpoints": checkpoints, "checkpoint_every": 64, "state_indices": case.slots}
    b = undraft.chunk_gated_delta_rule(*case.inputs(), close, **options, **NORM)
    assert error(b, a) < 3e-6
    assert error(close, exact) < 3e-6
    part = case.state.copy()
    undraft.fused_recurrent_gated_delta_rule(*case.inputs(0, 64), part, state_indices=case.slots, **NORM)
    assert error(checkpoints[0], part[case.slots[0]]) < 3e-6


@pytest.mark.parametrize("name", ["gdn_t1", "gdn_t5_given", "gdn_t67", "kda_t1", "kda_t5_given", "kda_t67"])
@pytest.mark.parametrize("form", ["recurrent", "chunk"])
def test_golden_delta_rule(name: str, form: str) -> None:
    """Values of transformers, flash-linear-attention and mlx-lm; their states are key-major."""
    file = golden(name)
    eps = float(file["l2_norm_eps"][0]) if "l2_norm_eps" in file else None
    options = {"qk_l2norm_eps": eps, "scale": float(file["scale"][0])}
    op = undraft.fused_recurrent_gated_delta_rule if form == "recurrent" else undraft.chunk_gated_delta_rule
    inputs = [file[key][None] for key in ("q", "k", "v")]
    gate = {"A_log": file["A_log"], "dt_bias": file["dt_bias"]}
    for given in (
        {"g": file["g"][None], "beta": file["beta"][None]},
        {"g": file["a"][None], "beta": file["b"][None], "decay": "gate", "beta_is_logit": True, **gate},
    ):
        state = undraft.state_to_value_major(file["state_before"][None])
        out = op(*inputs, state=state, **given, **options)
        sources = [key.split(".")[1] for key in file if key.startswith("o.")]
        assert sources
        for source in sources:
            assert error(out[0], file[f"o.{source}"]) < 3e-6, source
            assert error(undraft.state_to_key_major(state)[0], file[f"state.{source}"]) < 3e-6, source


@pytest.mark.parametrize("name", ["conv_t1", "conv_t5", "conv_t67"])
def test_golden_convolution(name: str) -> None:
    """transformers keeps ``W`` inputs of a channel, the oldest of which is never read."""
    file = golden(name)
    weight = undraft.conv_weight_to_tap_major(file["weight"])
    before = np.ascontiguousarray(file["state_before"][:, 1:].T)[None]
    tokens = len(file["x"])
    log = np.zeros((1, tokens, before.shape[2]), np.float32)
    bias = {"bias": file.get("bias"), "activation": "none" if name == "conv_t1" else "silu"}
    state = before.copy()
    window = undraft.causal_conv1d_update(file["x"][None], weight, state, log=log, **bias)
    assert same(state, before)
    prompt = undraft.causal_conv1d_fn(file["x"][None], weight, state, **bias)
    assert same(window, prompt)
    assert error(window[0], file["out.transformers_f64"]) < 1e-6
    assert same(np.ascontiguousarray(state[0].T), np.ascontiguousarray(file["state.transformers_f64"][:, 1:]))


def test_golden_gates_and_norm() -> None:
    file = golden("gating_head")
    g, beta = undraft.fused_gdn_gating(file["a"], file["b"], file["A_log"], file["dt_bias"])
    assert error(g, file["g.transformers_f64"]) < 1e-6
    assert error(beta, file["beta.transformers_f64"]) < 1e-6
    file = golden("gating_channel")
    g, _ = undraft.fused_gdn_gating(file["a"], np.zeros(file["a"].shape[:2], np.float32), file["A_log"], file["dt_bias"])
    assert error(g, file["g.fla_f64"]) < 1e-6
    file = golden("norm_silu")
    out = undraft.rms_norm_gated(file["x"], file["z"], file["weight"], eps=float(file["eps"][0]))
    assert error(out, file["out.transformers_f64"]) < 1e-6


def test_states_layers_and_convolution_in_one_commit() -> None:
    case = Case()
    rng = np.random.default_rng(4)
    channels, layers = 10, 3
    weight = rng.standard_normal((4, channels)).astype(np.float32)
    state = np.stack([case.state] * layers)
    conv_state = rng.standard_normal((layers, case.num_slots, 3, channels)).astype(np.float32)
    log = undraft.DeltaLog.empty(case.num_slots, 4, *case.sizes(), num_layers=layers)
    conv_log = np.zeros((layers, case.num_slots, 4, channels), np.float32)
    x = rng.standard_normal((2, 3, channels)).astype(np.float32)
    expected_state, expected_conv = state.copy(), conv_state.copy()
    kept = [2, 1]
    for layer in range(layers):
        q, k, v, g, beta = case.inputs()
        inputs = (q, k, v * np.float32(layer + 1), g, beta)
        undraft.verify(*inputs, state[layer], log.layer(layer), state_indices=case.slots, **NORM)
        undraft.causal_conv1d_update(x, weight, conv_state[layer], log=conv_log[layer], state_indices=case.slots)
        for i, n in enumerate(kept):
            slot = {"state_indices": [case.slots[i]]}
            part = [np.ascontiguousarray(y[i : i + 1, :n]) for y in inputs]
            undraft.fused_recurrent_gated_delta_rule(*part, expected_state[layer], **slot, **NORM)
            undraft.causal_conv1d_update(x[i : i + 1, :n], weight, expected_conv[layer], **slot)
    undraft.commit_states(state, log, kept, state_indices=case.slots, conv_state=conv_state, conv_log=conv_log)
    assert same(state, expected_state)
    assert same(conv_state, expected_conv)


class Exported:
    """An array of another library, which speaks DLPack."""

    def __init__(self, array: np.ndarray, device: int = 1) -> None:
        self.array, self.device = array, device

    def __dlpack__(self, **kwargs: object) -> object:
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.device, 0)


def test_dlpack_shares_memory() -> None:
    case = Case()
    a, b = case.state.copy(), case.state.copy()
    one = undraft.fused_recurrent_gated_delta_rule(*case.inputs(), a, state_indices=case.slots, **NORM)
    exported = [Exported(x) for x in case.inputs()]
    two = undraft.fused_recurrent_gated_delta_rule(*exported, Exported(b), state_indices=case.slots, **NORM)
    assert same(one, two)
    assert same(a, b)


def test_the_number_of_threads_changes_nothing() -> None:
    case, results = Case(head_k_dim=64, head_v_dim=64), []
    try:
        for threads in (1, 2, 5):
            undraft.set_num_threads(threads)
            state = case.state.copy()
            out = undraft.fused_recurrent_gated_delta_rule(*case.inputs(), state, state_indices=case.slots, **NORM)
            results.append((out, state))
    finally:
        undraft.set_num_threads(2)
    assert all(same(out, results[0][0]) and same(state, results[0][1]) for out, state in results)


def transposed(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)


BAD = {
    "dtype": (
        lambda c: {"q": c.q.astype(np.float64)},
        "`q` is f64, expected f32, bf16 or f16; convert it with `.to(torch.float32)` or NumPy's `.astype(\"float32\")`",
    ),
    "shape": (lambda c: {"beta": c.beta[..., :4]}, "`beta` has shape [2, 3, 4], expected [B=2, T=3, num_v_heads=6]"),
    "heads": (
        lambda c: {"v": c.v[:, :, :5], "beta": c.beta[..., :5], "g": c.g[..., :5]},
        "`num_v_heads` is 5, expected a multiple of `num_k_heads` = 2",
    ),
    "rank": (lambda c: {"q": c.q[0, 0]}, "`q` has shape [2, 20], expected [B, T, H, K], or [num_tokens, H, K] with `cu_seqlens`"),
    "strides": (
        lambda c: {"k": transposed(c.k)},
        "`k` has shape [2, 3, 2, 20] and strides [120, 40, 1, 2], expected heads of a token without gaps and tokens at one stride; "
        "pass `k.contiguous()`",
    ),
    "negative strides": (
        lambda c: {"beta": c.beta[..., ::-1]},
        "`beta` has shape [2, 3, 6] and strides [18, 6, -1], expected strides that are not negative; pass `beta.contiguous()`",
    ),
    "key-major": (
        lambda c: {"state": np.ascontiguousarray(c.state.swapaxes(-1, -2))},
        "`state` has shape [7, 6, 20, 12], expected [num_slots=7, num_v_heads=6, head_v_dim=12, head_k_dim=20]: the states look "
        "key-major; pass `state_to_value_major(..)` of them",
    ),
    "non-contiguous state": (
        lambda c: {"state": np.zeros((14, 6, 12, 20), np.float32)[::2]},
        "`state` has shape [7, 6, 12, 20] and strides [2880, 240, 20, 1], expected a contiguous tensor; pass `state.contiguous()`",
    ),
    "overlap": (lambda c: {"out": c.v}, "`out` is written and shares memory with `v`, expected memory of its own; pass another tensor"),
    "read-only": (lambda c: {"state": frozen(c.state)}, "`state` is read-only, expected an array that can be written; pass a copy"),
    "slot": (lambda c: {"state_indices": [7, 0]}, "`state_indices`[0] is 7, expected -1 (padding) or 0..7"),
    "twice": (
        lambda c: {"state_indices": [3, 3]},
        "`state_indices`[1] is slot 3 again, first at [0]: a slot may stand once in a call",
    ),
    "slots": (lambda c: {"state_indices": [3]}, "`state_indices` has shape [1], expected [num_seqs=2]"),
    "float slots": (lambda c: {"state_indices": [0.5, 1.5]}, "`state_indices` is float64, expected integers"),
    "option": (lambda c: {"decay": "exp"}, "`decay` is 'exp', expected one of 'log', 'linear', 'neg_log', 'gate'"),
    "gate": (lambda c: {"decay": "gate"}, "`A_log` is missing, expected it with decay `gate`"),
    "no gate": (lambda c: {"A_log": np.zeros(6, np.float32)}, "`A_log` came, expected it with decay `gate` alone"),
    "scale": (lambda c: {"scale": float("nan")}, "`scale` is NaN, expected a finite number"),
    "list": (lambda c: {"q": [[1.0]]}, "`q` is a list, expected a NumPy array or one that exports DLPack"),
    "device": (
        lambda c: {"q": Exported(c.q, device=2)},
        "`q` lies on a CUDA device, expected host memory; use `undraft.torch` with tensors on CUDA",
    ),
}


def frozen(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_said(name: str) -> None:
    case = Case()
    make, sentence = BAD[name]
    args = {"q": case.q, "k": case.k, "v": case.v, "g": case.g, "beta": case.beta, "state": case.state.copy()}
    args.update(make(case))
    before = np.array(args["state"])
    with pytest.raises(undraft.Error) as caught:
        undraft.fused_recurrent_gated_delta_rule(**args)
    assert str(caught.value) == sentence
    assert same(np.array(args["state"]), before), "a call that is refused touches nothing"


def test_what_is_wrong_with_a_window_is_said() -> None:
    case = Case()
    short = log_of(case, 2)

    def sentence(*args: object, **kwargs: object) -> str:
        with pytest.raises(undraft.Error) as caught:
            undraft.verify(*case.inputs(), case.state, *args, state_indices=case.slots, **kwargs)
        return str(caught.value)

    assert sentence(short) == "`windows`[0] is 3 tokens, expected at most `max_tokens` = 2"
    assert sentence() == "capture `delta_log` came with neither of `log` and `captured`, expected `log` alone"
    assert sentence(log_of(case), pending_log=short) == (
        "`pending_log` came alone, expected both `pending_log` and `num_pending`, or neither"
    )
    same_log = log_of(case)
    assert sentence(same_log, pending_log=same_log, num_pending=[1, 1]) == (
        "`log_k` is written and shares memory with `pending_k`, expected memory of its own; pass another tensor"
    )
    assert sentence(log_of(case), parents=[[-1, 0, 2], [-1, 0, 1]]) == (
        "`parents`[2] is 2, expected -1 (the committed state) or 0..2: parents come first"
    )
    with pytest.raises(undraft.Error, match=r"^`num_kept`\[1\] is 9 tokens, expected at most `max_tokens` = 2$"):
        undraft.commit_states(case.state, short, [0, 9], state_indices=case.slots)
    with pytest.raises(undraft.Error, match=r"^`num_kept` is -1, expected 0 or more$"):
        undraft.commit_states(case.state, short, [0, -1], state_indices=case.slots)
    with pytest.raises(undraft.Error, match="pass `conv_weight_to_tap_major"):
        undraft.causal_conv1d_fn(np.zeros((1, 2, 5), np.float32), np.zeros((5, 4), np.float32), np.zeros((1, 3, 5), np.float32))


def test_a_fork_keeps_working() -> None:
    """The child of a fork has none of the threads of the pool."""
    import os

    case = replace(Case(), head_k_dim=64, head_v_dim=64)
    undraft.set_num_threads(2)
    expected = undraft.fused_recurrent_gated_delta_rule(*case.inputs(), case.state.copy(), state_indices=case.slots, **NORM)
    child = os.fork()
    if child == 0:
        out = undraft.fused_recurrent_gated_delta_rule(*case.inputs(), case.state.copy(), state_indices=case.slots, **NORM)
        os._exit(0 if same(out, expected) else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
