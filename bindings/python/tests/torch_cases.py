"""A layer's inputs, and the recurrence in float64: plain loops that share nothing with the kernels."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor


@dataclass
class Case:
    """Inputs of a call over ``batch`` sequences of ``tokens`` tokens; sizes are odd unless said otherwise."""

    batch: int = 2
    tokens: int = 3
    num_k_heads: int = 2
    num_v_heads: int = 6
    head_k_dim: int = 20
    head_v_dim: int = 12
    num_slots: int = 7
    dtype: torch.dtype = torch.float32
    state_dtype: torch.dtype = torch.float32
    per_channel: bool = False
    device: str = "cpu"
    seed: int = 0
    slots: list[int] = field(default_factory=lambda: [5, 2])

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(self.seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        lead = (self.batch, self.tokens)
        h, hv, k, v = self.num_k_heads, self.num_v_heads, self.head_k_dim, self.head_v_dim
        decay = (hv, k) if self.per_channel else (hv,)
        self.q = normal(*lead, h, k).to(self.dtype).to(self.device)
        self.k = normal(*lead, h, k).to(self.dtype).to(self.device)
        self.v = normal(*lead, hv, v).to(self.dtype).to(self.device)
        self.g = (-normal(*lead, *decay).abs()).to(self.device)
        self.beta = normal(*lead, hv).sigmoid().to(self.device)
        self.state = normal(self.num_slots, hv, v, k).to(self.state_dtype).to(self.device)
        self.state_indices = torch.tensor(self.slots[: self.batch], dtype=torch.int32, device=self.device)

    def inputs(self, start: int = 0, end: int | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """q, k, v, g, beta of some tokens of each sequence."""
        return tuple(x[:, start:end].contiguous() for x in (self.q, self.k, self.v, self.g, self.beta))  # type: ignore[return-value]

    def on(self, device: str) -> "Case":
        return replace(self, device=device)


def recurrence(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    factor: Tensor,
    beta: Tensor,
    state: Tensor,
    *,
    eps: float | None = 1e-6,
    scale: float | None = None,
    tiled: bool = False,
) -> tuple[Tensor, Tensor]:
    """One sequence ``[T, ..]`` from the state ``[HV, V, K]``: outputs and the states after each token, in float64."""
    q, k, v, factor, beta, state = (x.detach().cpu().double() for x in (q, k, v, factor, beta, state))
    tokens, num_k_heads, head_k_dim = q.shape
    num_v_heads = v.shape[1]
    out, states = torch.zeros_like(v), []
    for t in range(tokens):
        state = state.clone()
        for hv in range(num_v_heads):
            h = hv % num_k_heads if tiled else hv // (num_v_heads // num_k_heads)
            query, key = q[t, h], k[t, h]
            if eps is not None:
                query = query / (query.square().sum() + eps).sqrt()
                key = key / (key.square().sum() + eps).sqrt()
            state[hv] *= factor[t, hv]
            delta = (v[t, hv] - state[hv] @ key) * beta[t, hv]
            state[hv] += torch.outer(delta, key)
            out[t, hv] = (head_k_dim**-0.5 if scale is None else scale) * (state[hv] @ query)
        states.append(state)
    return out, torch.stack(states) if states else state[None][:0]


def error(got: Tensor, expected: Tensor) -> float:
    """Root mean square of the difference, relative to that of the expected values."""
    got, expected = got.detach().cpu().double(), expected.detach().cpu().double()
    return float((got - expected).square().mean().sqrt() / expected.square().mean().sqrt().clamp_min(1e-30))
