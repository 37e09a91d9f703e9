"""The pool and its rounds: what stays is decoding, what is left undecided never was. Imports no torch."""

from pathlib import Path

import numpy as np
import pytest

import undraft
from array_cases import same

DIMS = undraft.LayerDims(num_k_heads=2, num_v_heads=4, head_k_dim=16, head_v_dim=8, conv_width=4)
WINDOW = 4


class Model:
    """Two layers with inputs of many tokens."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)

        def normal(*shape: int) -> np.ndarray:
            return rng.standard_normal(shape).astype(np.float32)

        self.layers = [
            undraft.GdnLayer(DIMS, conv_weight=normal(DIMS.conv_dim, 4), A_log=normal(4), dt_bias=normal(4)) for _ in range(2)
        ]
        self.qkv, self.a, self.b = normal(2, 30, DIMS.conv_dim), normal(2, 30, 4), normal(2, 30, 4)

    def verify(self, round_: undraft.Round, tokens: list[int]) -> list[np.ndarray]:
        """Verifies some tokens in every layer."""
        parts = ((x[layer, tokens] for x in (self.qkv, self.a, self.b)) for layer in range(2))
        return [np.asarray(round_.verify(i, self.layers[i], *part)) for i, part in enumerate(parts)]

    def decode(self, pool: undraft.StatePool, slot: int, tokens: list[int]) -> list[np.ndarray]:
        """Decodes tokens one by one."""
        outs = []
        for token in tokens:
            with pool.begin([slot], [1]) as round_:
                outs.append(self.verify(round_, [token]))
                round_.commit([1])
        return [np.concatenate([out[layer] for out in outs]) for layer in range(2)]


@pytest.fixture
def model() -> Model:
    return Model()


def make_pool(**options: object) -> undraft.StatePool:
    return undraft.StatePool([DIMS, DIMS], num_slots=4, max_window=WINDOW, **options)


def states(pool: undraft.StatePool, slot: int) -> list[np.ndarray]:
    return [read(slot, layer) for layer in range(2) for read in (pool.recurrent_state, pool.conv_state)]


def all_same(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return all(same(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("state_dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("kept", range(WINDOW + 1))
def test_what_stays_is_decoding(model: Model, state_dtype: str, kept: int) -> None:
    with make_pool(state_dtype=state_dtype) as pool:
        slot, plain = pool.alloc(), pool.alloc()
        model.decode(pool, slot, [20])
        model.decode(pool, plain, [20])
        with pool.begin([slot], [WINDOW]) as round_:
            outs = model.verify(round_, list(range(WINDOW)))
            round_.commit([kept])
        if kept:
            single = model.decode(pool, plain, list(range(kept)))
            assert all(same(out[:kept], one) for out, one in zip(outs, single, strict=True))
        assert all_same(states(pool, slot), states(pool, plain))


def test_leaving_a_round_undecided_rolls_it_back(model: Model) -> None:
    with make_pool() as pool:
        slot = pool.alloc()
        model.decode(pool, slot, [3, 4])
        before = states(pool, slot)
        with pool.begin([slot], [3]) as round_:
            model.verify(round_, [0, 1, 2])
        assert all_same(states(pool, slot), before)
        with pytest.raises(ZeroDivisionError), pool.begin([slot], [3]) as round_:
            model.verify(round_, [0, 1, 2])
            raise ZeroDivisionError
        assert all_same(states(pool, slot), before)
        round_ = pool.begin([slot], [2])
        model.verify(round_, [0, 1])
        round_.rollback()
        assert all_same(states(pool, slot), before)


def test_a_path_through_a_tree(model: Model) -> None:
    with make_pool() as pool:
        slot, plain = pool.alloc(), pool.alloc()
        with pool.begin_tree([slot], [[-1, 0, 0, 2]]) as round_:
            outs = model.verify(round_, [0, 1, 2, 3])
            round_.commit_path([[0, 2, 3]])
        single = model.decode(pool, plain, [0, 2, 3])
        assert all(same(out[[0, 2, 3]], one) for out, one in zip(outs, single, strict=True))
        assert all_same(states(pool, slot), states(pool, plain))


def test_prompts_forks_snapshots_and_files(model: Model, tmp_path: Path) -> None:
    with make_pool() as pool:
        slot, plain = pool.alloc(), pool.alloc()
        with pool.begin_final([slot], [10]) as round_:
            model.verify(round_, list(range(10)))
            round_.commit([10])
        model.decode(pool, plain, list(range(10)))
        assert all_same(states(pool, slot), states(pool, plain))
        before = states(pool, slot)

        fork = pool.fork(slot)
        assert all_same(states(pool, fork), before)
        pool.free(fork)
        snapshot = pool.snapshot(slot)
        pool.save(slot, tmp_path / "slot.safetensors")
        model.decode(pool, slot, [11])
        assert not all_same(states(pool, slot), before)
        pool.restore(slot, snapshot)
        assert all_same(states(pool, slot), before)
        loaded = pool.load(tmp_path / "slot.safetensors")
        assert all_same(states(pool, loaded), before)
        pool.restore(plain, undraft.Snapshot.load(tmp_path / "slot.safetensors"))
        assert all_same(states(pool, plain), before)
        pool.reset(loaded)
        assert not any(state.any() for state in states(pool, loaded))

        pool.set_recurrent_state(loaded, 0, pool.recurrent_state(slot, 0, "key_major"), "key_major")
        pool.set_conv_state(loaded, 1, pool.conv_state(slot, 1, "channel_major"), "channel_major")
        assert same(pool.recurrent_state(loaded, 0), before[0])
        assert same(pool.conv_state(loaded, 1), before[3])
        assert pool.num_free_slots == 1


def test_the_matrix_form_of_a_prompt(model: Model) -> None:
    with make_pool() as pool:
        slot, plain = pool.alloc(), pool.alloc()
        with pool.begin_prefill([slot], [30]) as round_:
            model.verify(round_, list(range(30)))
            round_.commit([30])
        model.decode(pool, plain, list(range(30)))
        assert all(np.allclose(a, b, atol=1e-5) for a, b in zip(states(pool, slot), states(pool, plain), strict=True))


def test_rounds_overlap(model: Model) -> None:
    with make_pool() as pool:
        a, b = pool.alloc(), pool.alloc()
        first, second = pool.begin([a], [2]), pool.begin([b], [2])
        model.verify(first, [0, 1])
        model.verify(second, [0, 1])
        with pytest.raises(undraft.Error, match="has an undecided round; commit it or roll it back first"):
            pool.begin([a], [1])
        first.commit([2])
        second.commit([2])
        assert all_same(states(pool, a), states(pool, b))


def test_what_is_wrong_is_said(model: Model) -> None:
    def sentence(f: object, *args: object, **kwargs: object) -> str:
        with pytest.raises(undraft.Error) as caught:
            f(*args, **kwargs)  # type: ignore[operator]
        return str(caught.value)

    with make_pool() as pool:
        slot = pool.alloc()
        assert sentence(pool.begin, [slot], [5]) == "window 0 has 5 tokens, expected at most `max_window` = 4"
        assert sentence(pool.begin, [slot], [1, 2]) == "`windows` has 2 entries, expected 1, one a sequence"
        round_ = pool.begin([slot], [2])
        assert sentence(round_.verify, 2, model.layers[0], model.qkv[0, :2], model.a[0, :2], model.b[0, :2]) == (
            "`layer` is 2, expected 0..2"
        )
        wide = model.qkv[0, :2].astype(np.float64)
        assert "`mixed_qkv` is float64" in sentence(round_.verify, 0, model.layers[0], wide, model.a[0, :2], model.b[0, :2])
        frozen = np.zeros((2, 4, 8), np.float32)
        frozen.flags.writeable = False
        inputs = (model.qkv[0, :2], model.a[0, :2], model.b[0, :2])
        assert sentence(round_.verify, 0, model.layers[0], *inputs, out=frozen) == (
            "`out` is read-only, expected an array that can be written; pass a copy"
        )
        assert "was not verified in this round" in sentence(round_.commit, [1])
        assert sentence(round_.commit, [1]) == "the round is decided, expected an undecided one; begin another"
        pool.free(slot)
        assert "is not in use" in sentence(pool.free, slot)
    assert sentence(pool.alloc) == "the pool is closed, expected an open one"
    assert sentence(make_pool, device="tpu").startswith("`name` is") or "tpu" in sentence(make_pool, device="tpu")
    assert "`num_threads` is 0" in sentence(make_pool, num_threads=0)
    assert "`state_dtype` is 'f64', expected one of 'f32', 'bf16', 'f16'" == sentence(make_pool, state_dtype="f64")
    assert "cpu" in undraft.devices()
