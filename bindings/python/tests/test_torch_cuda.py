"""CUDA tensors: values, exactness, graphs, streams, devices. Needs a GPU."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

import undraft  # noqa: E402
import undraft.torch as ut  # noqa: E402
from torch_cases import Case, error, recurrence  # noqa: E402

pytestmark = pytest.mark.cuda

CASES = [
    Case(head_k_dim=128, head_v_dim=128, num_k_heads=4, num_v_heads=8),
    Case(),
    Case(head_k_dim=64, head_v_dim=32, per_channel=True),
    Case(head_k_dim=128, head_v_dim=64, dtype=torch.bfloat16, state_dtype=torch.bfloat16),
    Case(head_k_dim=256, head_v_dim=16, dtype=torch.float16),
]
NORM = {"qk_l2norm_eps": 1e-6}


def log_of(case: Case, max_tokens: int = 4) -> ut.DeltaLog:
    sizes = (case.num_k_heads, case.num_v_heads, case.head_k_dim, case.head_v_dim)
    return ut.DeltaLog.empty(case.num_slots, max_tokens, *sizes, per_channel=case.per_channel, device=case.device)


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_are_those_of_the_recurrence(case: Case) -> None:
    case = case.on("cuda")
    before = case.state.clone()
    out = ut.fused_recurrent_gated_delta_rule(*case.inputs(), case.state, state_indices=case.state_indices, **NORM)
    low = case.state_dtype != torch.float32 or case.dtype != torch.float32
    for i, slot in enumerate(case.slots):
        expected, states = recurrence(case.q[i], case.k[i], case.v[i], case.g[i].exp(), case.beta[i], before[slot])
        assert error(out[i], expected) < (1e-2 if low else 2e-6)
        assert error(case.state[slot], states[-1]) < (1e-2 if low else 2e-6)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_window_is_its_tokens_one_by_one(case: Case) -> None:
    case = case.on("cuda")
    start, log, logs = case.state.clone(), log_of(case), (log_of(case), log_of(case))
    slots = {"state_indices": case.state_indices}
    out = ut.verify(*case.inputs(), case.state, log, **slots, **NORM)
    assert torch.equal(case.state, start)
    once = start.clone()
    single = [ut.fused_recurrent_gated_delta_rule(*case.inputs(t, t + 1), once, **slots, **NORM) for t in range(3)]
    assert torch.equal(out, torch.cat(single, dim=1))
    for kept in range(4):
        committed, decoded, lazy = start.clone(), start.clone(), start.clone()
        num_kept = torch.full((2,), kept, dtype=torch.int32, device="cuda")
        ut.commit_states(committed, log, num_kept, **slots)
        for t in range(kept):
            ut.fused_recurrent_gated_delta_rule(*case.inputs(t, t + 1), decoded, **slots, **NORM)
        assert torch.equal(committed, decoded)
        ut.verify(*case.inputs(), lazy, logs[0], pending_log=log, num_pending=num_kept, **slots, **NORM)
        assert torch.equal(lazy, decoded)
    # On the CPU the same log gives the same states.
    on_cpu = start.cpu().clone()
    ut.commit_states(on_cpu, ut.DeltaLog(*(x.cpu() for x in log)), torch.tensor([2, 2]), state_indices=case.state_indices.cpu())
    on_gpu = start.clone()
    ut.commit_states(on_gpu, log, torch.tensor([2, 2], device="cuda"), **slots)
    assert torch.equal(on_cpu, on_gpu.cpu())


def test_layers_and_convolution_in_one_commit() -> None:
    case = CASES[0].on("cuda")
    layers, channels, width = 3, 64, 4
    log = ut.DeltaLog.empty(case.num_slots, 4, 4, 8, 128, 128, num_layers=layers, device="cuda")
    state = case.state.expand(layers, *case.state.shape).contiguous()
    conv_state = torch.randn(layers, case.num_slots, width - 1, channels, device="cuda")
    conv_log = torch.zeros(layers, case.num_slots, 4, channels, device="cuda")
    x, weight = torch.randn(2, 3, channels, device="cuda"), torch.randn(width, channels, device="cuda")
    slots = {"state_indices": case.state_indices}
    expected_state, expected_conv = state.clone(), conv_state.clone()
    for layer in range(layers):
        scaled = [*case.inputs()[:2], case.v * (layer + 1), *case.inputs()[3:]]
        ut.verify(*scaled, state[layer], log.layer(layer), **slots, **NORM)
        window = ut.causal_conv1d_update(x, weight, conv_state[layer], log=conv_log[layer], **slots)
        kept = [y[:, :2].contiguous() for y in scaled]
        ut.fused_recurrent_gated_delta_rule(*kept, expected_state[layer], **slots, **NORM)
        prompt = ut.causal_conv1d_fn(x[:, :2].contiguous(), weight, expected_conv[layer], **slots)
        assert torch.equal(window[:, :2], prompt)
    num_kept = torch.tensor([2, 2], device="cuda")
    ut.commit_states(state, log, num_kept, conv_state=conv_state, conv_log=conv_log, **slots)
    assert torch.equal(state, expected_state)
    assert torch.equal(conv_state, expected_conv)


@pytest.mark.parametrize("case", CASES[:3], ids=str)
def test_the_matrix_form_is_near_the_recurrence(case: Case) -> None:
    long = replace(case, tokens=150, device="cuda")
    exact, close = long.state.clone(), long.state.clone()
    slots = {"state_indices": long.state_indices}
    a = ut.fused_recurrent_gated_delta_rule(*long.inputs(), exact, **slots, **NORM)
    b = ut.chunk_gated_delta_rule(*long.inputs(), close, **slots, **NORM)
    assert error(b, a) < 1e-5
    assert error(close, exact) < 1e-5


def test_gates_and_norm() -> None:
    a, b = torch.randn(5, 6, device="cuda", dtype=torch.bfloat16), torch.randn(5, 6, device="cuda")
    A_log, dt_bias = torch.randn(6, device="cuda"), torch.randn(6, device="cuda")
    g, beta = ut.fused_gdn_gating(a, b, A_log, dt_bias)
    expected = -A_log.double().exp() * torch.nn.functional.softplus(a.double() + dt_bias.double())
    assert error(g, expected) < 1e-6
    assert error(beta, b.double().sigmoid()) < 1e-6
    x, z, weight = (torch.randn(*shape, device="cuda") for shape in ((5, 6, 32), (5, 6, 32), (32,)))
    out = ut.rms_norm_gated(x, z, weight)
    x, z = x.double(), z.double()
    expected = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double() * torch.nn.functional.silu(z)
    assert error(out, expected) < 1e-6


def test_a_graph_replays_rounds_whose_counts_change() -> None:
    """Verify and commit, recorded once; counts and inputs are what the tensors hold at each replay."""
    case = CASES[0].on("cuda")
    log, slots = log_of(case), {"state_indices": case.state_indices}
    inputs = [x.clone() for x in case.inputs()]
    num_kept = torch.zeros(2, dtype=torch.int32, device="cuda")
    state, out = case.state.clone(), torch.empty_like(case.v)

    def round_() -> None:
        ut.verify(*inputs, state, log, out=out, **slots, **NORM)
        ut.commit_states(state, log, num_kept, **slots)

    ut.load("cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        round_()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        round_()
    state.copy_(case.state)
    expected = case.state.clone()
    for seed, kept in enumerate([[0, 3], [2, 1], [3, 3], [1, 0]]):
        other = replace(case, seed=seed + 1)
        for to, new in zip(inputs, other.inputs(), strict=True):
            to.copy_(new)
        num_kept.copy_(torch.tensor(kept, dtype=torch.int32))
        graph.replay()
        for i, n in enumerate(kept):
            if n:
                part = [x[i : i + 1, :n] for x in other.inputs()]
                single = ut.fused_recurrent_gated_delta_rule(*part, expected, state_indices=case.state_indices[i : i + 1], **NORM)
                assert torch.equal(out[i : i + 1, :n], single)
        torch.cuda.synchronize()
        assert torch.equal(state, expected), f"round {seed}"


def test_calls_run_on_the_current_stream() -> None:
    case = CASES[0].on("cuda")
    expected = case.state.clone()
    out = ut.fused_recurrent_gated_delta_rule(*case.inputs(), expected, state_indices=case.state_indices, **NORM)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    # What the side stream does first takes long: a call on another stream would read the states before.
    with torch.cuda.stream(side):
        state = torch.zeros_like(case.state)
        torch.cuda._sleep(200_000_000)
        state.copy_(case.state)
        got = ut.fused_recurrent_gated_delta_rule(*case.inputs(), state, state_indices=case.state_indices, **NORM)
    side.synchronize()
    assert torch.equal(got, out)
    assert torch.equal(state, expected)


def test_compiled_with_graphs() -> None:
    case = CASES[0].on("cuda")
    log, slots = log_of(case), {"state_indices": case.state_indices}

    def step(q, k, v, g, beta, state, num_kept):
        out = ut.verify(q * 1.0, k, v, g, beta, state, log, **slots, **NORM)
        ut.commit_states(state, log, num_kept, **slots)
        return out * 2.0

    num_kept = torch.tensor([1, 3], dtype=torch.int32, device="cuda")
    a, b = case.state.clone(), case.state.clone()
    eager = [step(*case.inputs(), a, num_kept) for _ in range(4)]
    compiled = torch.compile(step, fullgraph=True, mode="reduce-overhead")
    got = [compiled(*case.inputs(), b, num_kept).clone() for _ in range(4)]
    assert all(torch.equal(x, y) for x, y in zip(eager, got, strict=True))
    assert torch.equal(a, b)


def test_opcheck() -> None:
    case = CASES[1].on("cuda")
    cu_seqlens = torch.tensor([0, 3, 6], dtype=torch.int32, device="cuda")
    options = (0, False, 0, 1e-6, 0, 0.3, 3)
    lists = (torch.empty_like(case.v), cu_seqlens, case.state_indices)
    torch.library.opcheck(
        torch.ops.undraft.fused_recurrent_gated_delta_rule.default, (*case.inputs(), case.state, *lists, None, None, *options)
    )
    torch.library.opcheck(
        torch.ops.undraft.verify.default,
        (*case.inputs(), case.state, *log_of(case), None, *lists, *[None] * 8, *options),
    )


def test_tensors_of_two_devices_are_refused() -> None:
    case = CASES[0].on("cuda")
    with pytest.raises(RuntimeError, match="`state` lies on cpu, expected cuda:0 as `q`; move it there first"):
        ut.fused_recurrent_gated_delta_rule(*case.inputs(), case.state.cpu(), state_indices=case.state_indices)
    if torch.cuda.device_count() > 1:
        with pytest.raises(RuntimeError, match="`state` lies on cuda:1, expected cuda:0 as `q`"):
            ut.fused_recurrent_gated_delta_rule(*case.inputs(), case.state.to("cuda:1"), state_indices=case.state_indices)


def test_unaligned_states_are_refused() -> None:
    case = CASES[0].on("cuda")
    memory = torch.zeros(case.state.numel() + 1, device="cuda")
    state = memory[1:].view(case.state.shape)
    with pytest.raises(RuntimeError, match="`state` begins at an address that is no multiple of 16 bytes"):
        ut.fused_recurrent_gated_delta_rule(*case.inputs(), state, state_indices=case.state_indices)


def test_arrays_of_a_gpu_are_refused_without_torch() -> None:
    a = torch.zeros(1, 1, device="cuda")
    with pytest.raises(undraft.Error, match="`a` lies on a CUDA device, expected host memory; use `undraft.torch`"):
        undraft.fused_gdn_gating(a, a, a[0], a[0])


def test_the_first_call_in_a_capture_says_what_to_do(tmp_path) -> None:
    """In a process of its own, which has loaded nothing yet."""
    import subprocess
    import sys

    script = tmp_path / "first.py"
    script.write_text(
        "import torch, undraft.torch as ut\n"
        "a = torch.zeros(1, 2, device='cuda'); w = torch.zeros(2, device='cuda'); g = torch.zeros(1, 2, device='cuda')\n"
        "b = torch.zeros(1, 2, device='cuda')\n"
        "torch.cuda.synchronize()\n"
        "graph = torch.cuda.CUDAGraph()\n"
        "try:\n"
        "    with torch.cuda.graph(graph):\n"
        "        torch.ops.undraft.fused_gdn_gating(a, a, w, w, g, b)\n"
        "except RuntimeError as e:\n"
        "    print(e)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert "the kernels of cuda:0 are not loaded" in done.stdout, done.stdout + done.stderr
    assert "call `undraft.torch.load(0)` before the capture" in done.stdout
