"""The operations on CPU tensors: values, exactness, dispatcher, compilation, errors."""

import sys
from types import FrameType

import pytest

torch = pytest.importorskip("torch")

import numpy as np  # noqa: E402

import undraft  # noqa: E402
import undraft.torch as ut  # noqa: E402
from array_cases import golden  # noqa: E402
from torch_cases import Case, error, recurrence  # noqa: E402

NORM = {"qk_l2norm_eps": 1e-6}
CASES = [
    Case(),
    Case(head_k_dim=128, head_v_dim=64, num_v_heads=4),
    Case(per_channel=True),
    Case(dtype=torch.bfloat16, state_dtype=torch.bfloat16),
    Case(dtype=torch.float16),
]
ops = torch.ops.undraft


def log_of(case: Case, max_tokens: int = 4) -> ut.DeltaLog:
    sizes = (case.num_k_heads, case.num_v_heads, case.head_k_dim, case.head_v_dim)
    return ut.DeltaLog.empty(case.num_slots, max_tokens, *sizes, per_channel=case.per_channel)


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_are_those_of_the_recurrence(case: Case) -> None:
    state = case.state.clone()
    out = ut.fused_recurrent_gated_delta_rule(*case.inputs(), state, state_indices=case.state_indices, **NORM)
    assert out.dtype == case.dtype
    bound = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}[case.dtype]
    for i, slot in enumerate(case.slots):
        factor = case.g[i].double().exp()
        expected, states = recurrence(case.q[i], case.k[i], case.v[i], factor, case.beta[i], case.state[slot])
        assert error(out[i], expected) < bound
        assert error(state[slot], states[-1]) < bound


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_window_is_its_tokens_one_by_one(case: Case) -> None:
    log, slots = log_of(case), {"state_indices": case.state_indices}
    start = case.state.clone()
    out = ut.verify(*case.inputs(), case.state, log, **slots, **NORM)
    assert torch.equal(case.state, start)
    once = start.clone()
    single = [ut.fused_recurrent_gated_delta_rule(*case.inputs(t, t + 1), once, **slots, **NORM) for t in range(3)]
    assert torch.equal(out, torch.cat(single, dim=1))
    for kept in ([0, 0], [1, 3], [3, 2]):
        committed, decoded, lazy = start.clone(), start.clone(), start.clone()
        ut.commit_states(committed, log, torch.tensor(kept), **slots)
        for i, n in enumerate(kept):
            for t in range(n):
                one = [x[i : i + 1] for x in case.inputs(t, t + 1)]
                ut.fused_recurrent_gated_delta_rule(*one, decoded, state_indices=case.state_indices[i : i + 1], **NORM)
        assert torch.equal(committed, decoded)
        ut.verify(*case.inputs(), lazy, log_of(case), pending_log=log, num_pending=torch.tensor(kept), **slots, **NORM)
        assert torch.equal(lazy, decoded)


def test_tensors_and_arrays_give_the_same_bits() -> None:
    case = Case(seed=3)
    a, b = case.state.clone(), case.state.numpy().copy()
    out = ut.fused_recurrent_gated_delta_rule(*case.inputs(), a, state_indices=case.state_indices, **NORM)
    arrays = [x.numpy() for x in case.inputs()]
    other = undraft.fused_recurrent_gated_delta_rule(*arrays, b, state_indices=case.slots, **NORM)
    assert np.array_equal(out.numpy(), other)
    assert np.array_equal(a.numpy(), b)


def test_bf16_through_dlpack() -> None:
    """NumPy has no bf16; tensors of torch export it."""
    case = Case(dtype=torch.bfloat16, state_dtype=torch.bfloat16)
    a, b = case.state.clone(), case.state.clone()
    out = ut.fused_recurrent_gated_delta_rule(*case.inputs(), a, state_indices=case.state_indices, **NORM)
    other = torch.empty_like(out)
    undraft.fused_recurrent_gated_delta_rule(*case.inputs(), b, state_indices=case.state_indices, out=other, **NORM)
    assert torch.equal(out, other)
    assert torch.equal(a, b)


@pytest.mark.parametrize("name", ["gdn_t67", "kda_t67"])
def test_golden_delta_rule(name: str) -> None:
    file = {key: torch.from_numpy(value) for key, value in golden(name).items()}
    state = ut.state_to_value_major(file["state_before"][None])
    options = {"qk_l2norm_eps": float(file["l2_norm_eps"][0]), "scale": float(file["scale"][0])}
    gate = {"decay": "gate", "A_log": file["A_log"], "dt_bias": file["dt_bias"], "beta_is_logit": True}
    inputs = [file[key][None] for key in ("q", "k", "v", "a", "b")]
    out = ut.fused_recurrent_gated_delta_rule(*inputs, state, **options, **gate)
    for source in (key.split(".")[1] for key in file if key.startswith("o.")):
        assert error(out[0], file[f"o.{source}"]) < 3e-6
        assert error(ut.state_to_key_major(state)[0], file[f"state.{source}"]) < 3e-6


def test_layers_and_convolution_in_one_commit() -> None:
    case = Case()
    layers, channels, width = 3, 10, 4
    log = ut.DeltaLog.empty(case.num_slots, 4, 2, 6, 20, 12, num_layers=layers)
    state = case.state.expand(layers, *case.state.shape).contiguous()
    conv_state, conv_log = torch.randn(layers, case.num_slots, width - 1, channels), torch.zeros(layers, case.num_slots, 4, channels)
    x, weight = torch.randn(2, 3, channels), ut.conv_weight_to_tap_major(torch.randn(channels, 1, width))
    slots = {"state_indices": case.state_indices}
    expected_state, expected_conv = state.clone(), conv_state.clone()
    for layer in range(layers):
        ut.verify(*case.inputs(), state[layer], log.layer(layer), **slots, **NORM)
        window = ut.causal_conv1d_update(x, weight, conv_state[layer], log=conv_log[layer], **slots)
        ut.fused_recurrent_gated_delta_rule(*case.inputs(0, 2), expected_state[layer], **slots, **NORM)
        prompt = ut.causal_conv1d_fn(x[:, :2].contiguous(), weight, expected_conv[layer], **slots)
        assert torch.equal(window[:, :2], prompt)
    ut.commit_states(state, log, torch.tensor([2, 2]), conv_state=conv_state, conv_log=conv_log, **slots)
    assert torch.equal(state, expected_state)
    assert torch.equal(conv_state, expected_conv)


def test_the_matrix_form_the_gates_and_the_norm() -> None:
    case = Case(tokens=130)
    exact, close = case.state.clone(), case.state.clone()
    slots = {"state_indices": case.state_indices}
    checkpoints = torch.zeros(4, 6, 12, 20)
    a = ut.fused_recurrent_gated_delta_rule(*case.inputs(), exact, **slots, **NORM)
    b = ut.chunk_gated_delta_rule(*case.inputs(), close, checkpoints=checkpoints, checkpoint_every=64, **slots, **NORM)
    assert error(b, a) < 3e-6
    assert error(close, exact) < 3e-6
    assert checkpoints[:4].abs().sum(dim=(1, 2, 3)).min() > 0

    gate, logit, A_log, dt_bias = torch.randn(5, 6).bfloat16(), torch.randn(5, 6), torch.randn(6), torch.randn(6)
    g, beta = ut.fused_gdn_gating(gate, logit, A_log, dt_bias)
    assert error(g, -A_log.double().exp() * torch.nn.functional.softplus(gate.double() + dt_bias.double())) < 1e-6
    assert error(beta, logit.double().sigmoid()) < 1e-6
    x, z, weight = torch.randn(5, 6, 12), torch.randn(5, 6, 12), torch.randn(12)
    for activation, gated in (("silu", torch.nn.functional.silu), ("sigmoid", torch.sigmoid)):
        out = ut.rms_norm_gated(x, z, weight, activation=activation)
        normed = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-6).sqrt()
        assert error(out, normed * weight.double() * gated(z.double())) < 1e-6


def arguments() -> dict[str, tuple]:
    """One call of each dispatcher operation."""
    case = Case()
    seqlens, slots = torch.tensor([0, 3, 6], dtype=torch.int32), case.state_indices
    options = (0, False, 0, 1e-6, 0, 0.3)
    out, kept = torch.empty_like(case.v), torch.tensor([1, 2], dtype=torch.int32)
    x, weight, conv_state = torch.randn(2, 3, 10), torch.randn(4, 10), torch.randn(7, 3, 10)
    conv_log = torch.zeros(7, 4, 10)
    gates = (torch.randn(5, 6), torch.randn(5, 6), torch.randn(6), torch.randn(6))
    pending = (*log_of(case), kept, None)
    return {
        "fused_recurrent_gated_delta_rule": (*case.inputs(), case.state, out, seqlens, slots, None, None, *options, 3),
        "verify": (*case.inputs(), case.state, *log_of(case), None, out, seqlens, slots, None, *pending, None, None, *options, 3),
        "commit_states": (case.state, *log_of(case), kept, slots, None, 0),
        "commit_conv_states": (conv_state, conv_log, kept, slots, None, torch.zeros(3, dtype=torch.int32)),
        "causal_conv1d_update": (x, weight, conv_state, conv_log, torch.empty_like(x), seqlens, slots, None, None, kept, None, True),
        "causal_conv1d_fn": (x, weight, conv_state, torch.empty_like(x), seqlens, slots, torch.randn(10), True),
        "chunk_gated_delta_rule": (*case.inputs(), case.state, None, out, seqlens, slots, None, None, *options, 0),
        "fused_gdn_gating": (*gates, torch.empty(5, 6), torch.empty(5, 6)),
        "rms_norm_gated": (torch.randn(5, 6, 12), torch.randn(5, 6, 12), torch.randn(12), torch.empty(5, 6, 12), 1e-6, True),
    }


@pytest.mark.parametrize("name", list(arguments()))
def test_opcheck(name: str) -> None:
    """Schema, fake kernel, and tracing with symbolic sizes."""
    torch.library.opcheck(getattr(ops, name).default, arguments()[name])


def test_every_operation_is_checked() -> None:
    registered = {name.removeprefix("undraft::") for name in torch._C._dispatch_get_all_op_names() if name.startswith("undraft::")}
    assert registered == set(arguments())


def layer(mixed, weight, a, b, z, gate, state, log, conv_state, conv_log, num_kept):
    """A layer's round: convolution, window, commit, norm."""
    x = ut.causal_conv1d_update(mixed, weight, conv_state, log=conv_log)
    q, k, v = (y.unflatten(-1, (heads, -1)) for y, heads in zip(x.split([32, 32, 40], dim=-1), (2, 2, 4), strict=True))
    o = ut.verify(q, k, v, a, b, state, log, decay="gate", beta_is_logit=True, **gate, **NORM)
    ut.commit_states(state, log, num_kept, conv_state=conv_state, conv_log=conv_log)
    return ut.rms_norm_gated(o, z, torch.ones(10)) * 2.0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("backend", "batches"), [("aot_eager", (1, 2, 3)), ("inductor", (2,))])
def test_compile_without_graph_breaks(backend: str, batches: tuple[int, ...]) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    weight, gate = torch.randn(4, 104), {"A_log": torch.randn(4), "dt_bias": torch.randn(4)}
    for batch in batches:
        inputs = (torch.randn(batch, 3, 104), weight, torch.randn(batch, 3, 4), torch.randn(batch, 3, 4), torch.randn(batch, 3, 4, 10))
        log = ut.DeltaLog.empty(5, 3, 2, 4, 16, 10)
        states = [(torch.randn(5, 4, 10, 16), log, torch.randn(5, 3, 104), torch.zeros(5, 3, 104))]
        states.append(tuple(ut.DeltaLog(*(y.clone() for y in x)) if isinstance(x, tuple) else x.clone() for x in states[0]))
        num_kept = torch.full((batch,), 2, dtype=torch.int32)
        eager = layer(*inputs, gate, *states[0], num_kept)
        assert torch.equal(compiled(*inputs, gate, *states[1], num_kept), eager)
        for i in (0, 2, 3):
            assert torch.equal(states[0][i], states[1][i])
        assert all(torch.equal(x, y) for x, y in zip(states[0][1], states[1][1], strict=True))


def test_meta_tensors_run_nothing() -> None:
    case = Case(device="meta")
    out = ut.fused_recurrent_gated_delta_rule(*case.inputs(), case.state, state_indices=case.state_indices)
    assert out.device.type == "meta"
    assert out.shape == case.v.shape
    with pytest.raises(RuntimeError, match="expected .* as `q`"):
        ut.fused_recurrent_gated_delta_rule(case.q, case.k[:, :2], *case.inputs()[2:], case.state, state_indices=case.state_indices)


BAD = {
    "dtype": (lambda c: {"q": c.q.double()}, "`q` is f64, expected f32, bf16 or f16"),
    "shape": (lambda c: {"beta": c.beta[..., :4]}, "`beta` has shape [2, 3, 4], expected [B=2, T=3, num_v_heads=6]"),
    "device": (
        lambda c: {"state": torch.empty(c.state.shape, device="meta")},
        "`state` lies on meta, expected cpu as `q`; move it there first",
    ),
    "strides": (lambda c: {"k": c.k.transpose(2, 3).contiguous().transpose(2, 3)}, "pass `k.contiguous()`"),
    "window of a longer one": (
        lambda c: {"q": torch.randn(2, 5, 2, 20)[:, :3]},
        "`q` has shape [2, 3, 2, 20] and strides [200, 40, 20, 1], expected heads of a token without gaps and tokens at one stride; "
        "pass `q.contiguous()`",
    ),
    "non-contiguous state": (lambda c: {"state": torch.zeros(14, 6, 12, 20)[::2]}, "expected a contiguous tensor; pass `state.contiguous()`"),
    "key-major": (lambda c: {"state": c.state.transpose(2, 3).contiguous()}, "the states look key-major; pass `state_to_value_major(..)`"),
    "overlap": (lambda c: {"out": c.v}, "`out` is written and shares memory with `v`"),
    "expanded": (lambda c: {"state": c.state[:1].expand(7, -1, -1, -1)}, "every element to have memory of its own"),
    "grad": (
        lambda c: {"q": c.q.requires_grad_()},
        "`q` requires a gradient, which the operations do not compute; call within `torch.no_grad()`, or pass `q.detach()`",
    ),
    "slot": (lambda c: {"state_indices": torch.tensor([7, 0])}, "`state_indices`[0] is 7, expected -1 (padding) or 0..7"),
    "float slots": (
        lambda c: {"state_indices": torch.tensor([0.0, 1.0])},
        "`state_indices` is float32, expected int32 or int64; convert it with `.to(torch.int32)`",
    ),
    "seqlens": (lambda c: {"cu_seqlens": torch.tensor([0, 3, 6])}, "expected packed tokens [num_tokens, ..] or [1, num_tokens, ..]"),
    "option": (lambda c: {"head_map": "blocked"}, "`head_map` is 'blocked', expected one of 'grouped', 'tiled'"),
    "gate": (lambda c: {"decay": "gate"}, "`A_log` is missing, expected it with decay `gate`"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_said(name: str) -> None:
    make, sentence = BAD[name]
    with torch.enable_grad():
        case = Case()
        args = {"q": case.q, "k": case.k, "v": case.v, "g": case.g, "beta": case.beta, "state": case.state, **make(case)}
        with pytest.raises(RuntimeError) as caught:
            ut.fused_recurrent_gated_delta_rule(**args)
    assert sentence in str(caught.value)


def test_an_error_of_the_dispatcher_is_the_sentence_alone() -> None:
    values = list(arguments()["fused_gdn_gating"])
    values[2] = torch.randn(5)
    with pytest.raises(RuntimeError) as caught:
        ops.fused_gdn_gating(*values)
    assert str(caught.value).splitlines()[0] == "`A_log` has shape [5], expected [num_v_heads=6]"


def test_packed_tensors_promise_their_longest_window() -> None:
    case = Case(batch=1, tokens=5)
    packed = [x[0] for x in case.inputs()]
    seqlens, slots = torch.tensor([0, 2, 5]), torch.tensor([1, 4])
    out = ut.fused_recurrent_gated_delta_rule(*packed, case.state, cu_seqlens=seqlens, state_indices=slots, max_window=3)
    assert out.shape == (5, 6, 12)
    with pytest.raises(RuntimeError, match="`max_window` is 2, expected at least 3, the tokens of sequence 1"):
        ut.fused_recurrent_gated_delta_rule(*packed, case.state, cu_seqlens=seqlens, state_indices=slots, max_window=2)


def test_repeated_calls_keep_no_memory() -> None:
    """Tensors and the boxes of optional ones are given back, also where a call is refused."""
    case = Case()
    tensors = [*case.inputs(), case.state, *log_of(case), case.state_indices]
    before = [torch._C._storage_Use_Count(x.untyped_storage()._cdata) for x in tensors]
    log, pending = ut.DeltaLog(*tensors[6:9]), log_of(case)
    bad = ut.DeltaLog(log.k, log.decay, log.delta[:, :, :, :5])
    for _ in range(20):
        options = {"state_indices": case.state_indices, "pending_log": pending, "num_pending": torch.tensor([1, 0])}
        ut.verify(*tensors[:5], case.state, log, **options)
        with pytest.raises(RuntimeError, match="log_delta"):
            ut.verify(*tensors[:5], case.state, bad, **options)
    del bad, options
    after = [torch._C._storage_Use_Count(x.untyped_storage()._cdata) for x in tensors]
    assert before == after


def test_a_call_of_the_dispatcher_enters_no_python_kernel() -> None:
    """Behind torch's own entry there is machine code alone."""
    a, b, w = torch.zeros(1, 1), torch.zeros(1, 1), torch.zeros(1)
    g, beta = torch.zeros(1, 1), torch.zeros(1, 1)
    entered: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            entered.append(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        ops.fused_gdn_gating.default(a, b, w, w, g, beta)
    finally:
        sys.setprofile(None)
    assert set(entered) <= {torch._ops.__file__}
