"""Inputs of calls on arrays, the recurrence in float64 as plain loops that share nothing with the kernels, and golden vectors."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

GOLDEN = Path(__file__).resolve().parents[3] / "testdata" / "golden" / "ops"


@dataclass
class Case:
    """Inputs of two sequences; the sizes are odd, and no two are alike."""

    batch: int = 2
    tokens: int = 3
    num_k_heads: int = 2
    num_v_heads: int = 6
    head_k_dim: int = 20
    head_v_dim: int = 12
    num_slots: int = 7
    dtype: str = "float32"
    state_dtype: str = "float32"
    per_channel: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        lead = (self.batch, self.tokens)
        h, hv, k, v = self.num_k_heads, self.num_v_heads, self.head_k_dim, self.head_v_dim
        decay = (hv, k) if self.per_channel else (hv,)
        self.q = rng.standard_normal((*lead, h, k)).astype(self.dtype)
        self.k = rng.standard_normal((*lead, h, k)).astype(self.dtype)
        self.v = rng.standard_normal((*lead, hv, v)).astype(self.dtype)
        self.g = -np.abs(rng.standard_normal((*lead, *decay))).astype(np.float32)
        self.beta = rng.random((*lead, hv)).astype(np.float32)
        self.state = rng.standard_normal((self.num_slots, hv, v, k)).astype(self.state_dtype)
        self.slots = [5, 2][: self.batch]

    def inputs(self, start: int = 0, end: int | None = None) -> tuple[NDArray[Any], ...]:
        """q, k, v, g, beta of some tokens of each sequence."""
        return tuple(np.ascontiguousarray(x[:, start:end]) for x in (self.q, self.k, self.v, self.g, self.beta))

    def sizes(self) -> tuple[int, int, int, int]:
        return (self.num_k_heads, self.num_v_heads, self.head_k_dim, self.head_v_dim)


def recurrence(
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    factor: NDArray[Any],
    beta: NDArray[Any],
    state: NDArray[Any],
    *,
    eps: float | None = 1e-6,
    scale: float | None = None,
    tiled: bool = False,
    parents: list[int] | None = None,
) -> tuple[NDArray[np.float64], list[NDArray[np.float64]]]:
    """One sequence ``[T, ..]`` from the state ``[HV, V, K]``: outputs, and the states after each token."""
    q, k, v, factor, beta = (np.asarray(x, np.float64) for x in (q, k, v, factor, beta))
    tokens, num_k_heads, head_k_dim = q.shape
    num_v_heads = v.shape[1]
    out, states = np.zeros(v.shape), []
    for t in range(tokens):
        parent = t - 1 if parents is None else parents[t]
        now = np.array(state if parent < 0 else states[parent], np.float64)
        for hv in range(num_v_heads):
            h = hv % num_k_heads if tiled else hv // (num_v_heads // num_k_heads)
            query, key = q[t, h], k[t, h]
            if eps is not None:
                query = query / np.sqrt(np.sum(query**2) + eps)
                key = key / np.sqrt(np.sum(key**2) + eps)
            now[hv] *= factor[t, hv]
            delta = (v[t, hv] - now[hv] @ key) * beta[t, hv]
            now[hv] += np.outer(delta, key)
            out[t, hv] = (head_k_dim**-0.5 if scale is None else scale) * (now[hv] @ query)
        states.append(now)
    return out, states


def error(got: Any, expected: Any) -> float:
    """Root mean square of the difference, relative to that of the expected values."""
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    assert got.shape == expected.shape
    assert np.isfinite(got).all()
    return float(np.sqrt(np.mean((got - expected) ** 2)) / max(np.sqrt(np.mean(expected**2)), 1e-30))


def golden(name: str) -> dict[str, NDArray[np.float32]]:
    """The f32 tensors of a golden file."""
    data = (GOLDEN / f"{name}.safetensors").read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for key, entry in json.loads(data[8:end]).items():
        if key != "__metadata__" and entry["dtype"] == "F32":
            first, last = entry["data_offsets"]
            array = np.frombuffer(data[end + first : end + last], np.float32)
            tensors[key] = array.reshape(entry["shape"]).copy()
    return tensors


def same(a: Any, b: Any) -> bool:
    """Whether two arrays have the same bits."""
    a, b = np.asarray(a), np.asarray(b)
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
