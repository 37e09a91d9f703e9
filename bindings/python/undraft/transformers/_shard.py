"""Gated DeltaNet heads shared out over the ranks of transformers' tensor parallelism."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, distribute_tensor


@dataclass(frozen=True)
class HeadShard:
    """One rank's share: `H / size` key heads and the `HV / size` value heads that read them, side by side."""

    rank: int
    size: int
    group: dist.ProcessGroup

    @classmethod
    def of(cls, model: nn.Module) -> HeadShard | None:
        """The share of this rank in a model that transformers has loaded with a tensor parallel plan, else None."""
        mesh: DeviceMesh | None = getattr(model, "_device_mesh", None)
        if mesh is None or (getattr(model, "_tp_size", None) or 1) < 2:
            return None
        mesh = mesh["tp"] if mesh.ndim > 1 else mesh
        return cls(rank=mesh.get_local_rank(), size=mesh.size(), group=mesh.get_group())

    def rows(self, tensor: Tensor, parts: Sequence[int] | None = None) -> Tensor:
        """This rank's share of the first axis, of each of the `parts` that lie one after the other on it."""
        pieces = torch.split(tensor, list(parts)) if parts is not None else (tensor,)
        return torch.cat([piece.chunk(self.size)[self.rank] for piece in pieces]).clone()

    def sum(self, partial: Tensor) -> Tensor:
        """Adds up the outputs of all ranks."""
        dist.all_reduce(partial, group=self.group)
        return partial


@dataclass(frozen=True)
class _Whole:
    """How a projection's weight lay before it was cut, so that it can be put back."""

    projection: str
    parts: tuple[int, ...] | None
    columns: bool
    mesh: DeviceMesh | None
    placements: tuple[Any, ...]


class ShardedWeights:
    """The projections of one module, cut by heads in place; `restore` puts them together again.

    Both cut and restore are collective: every rank calls them, in the same order.
    """

    def __init__(self, module: nn.Module, name: str, shard: HeadShard) -> None:
        sizes: Any = module
        for what, heads in (("num_k_heads", sizes.num_k_heads), ("num_v_heads", sizes.num_v_heads)):
            if heads % shard.size != 0:
                raise ValueError(
                    f"`{name}.{what}` is {heads}, expected a multiple of the tensor parallel size {shard.size}; pass "
                    "shard_heads=False to compute these layers whole on every rank"
                )
        self.module = module
        self.shard = shard
        self._whole: list[_Whole] = []
        if hasattr(module, "in_proj_qkvz"):
            # Grouped by key head: a share of the heads is a share of the rows.
            projections: dict[str, tuple[int, ...] | None] = {"in_proj_qkvz": None, "in_proj_ba": None}
        else:
            parts = (sizes.key_dim, sizes.key_dim, sizes.value_dim)
            projections = {"in_proj_qkv": parts, "in_proj_z": None, "in_proj_b": None, "in_proj_a": None}
        for projection in (*projections, "out_proj"):
            if type(module.get_submodule(projection)) is not nn.Linear:
                found = type(module.get_submodule(projection)).__name__
                raise ValueError(f"`{name}.{projection}` is a {found}, expected a Linear; pass shard_heads=False")
        for projection, of in projections.items():
            self._cut(projection, of, columns=False)
        self._cut("out_proj", None, columns=True)

    def restore(self) -> None:
        """Puts the weights together and places them as before."""
        for whole in self._whole:
            module = self.module.get_submodule(whole.projection)
            local = _weight(module)
            local = local.t() if whole.columns else local
            gathered = [torch.empty_like(local, memory_format=torch.contiguous_format) for _ in range(self.shard.size)]
            dist.all_gather(gathered, local.contiguous(), group=self.shard.group)
            full = self._join(gathered, whole.parts)
            full = full.t().contiguous() if whole.columns else full
            if whole.mesh is not None:
                full = distribute_tensor(full, whole.mesh, whole.placements, src_data_rank=None)
            _set_weight(module, full)
        self._whole = []

    def _cut(self, projection: str, parts: tuple[int, ...] | None, *, columns: bool) -> None:
        module = self.module.get_submodule(projection)
        weight = _weight(module)
        mesh: DeviceMesh | None = None
        placements: tuple[Any, ...] = ()
        if isinstance(weight, DTensor):
            mesh, placements = weight.device_mesh, tuple(weight.placements)
            weight = weight.full_tensor()
        local = self.shard.rows(weight.t(), parts).t().contiguous() if columns else self.shard.rows(weight, parts)
        _set_weight(module, local)
        self._whole.append(_Whole(projection, parts, columns, mesh, placements))

    def _join(self, gathered: list[Tensor], parts: tuple[int, ...] | None) -> Tensor:
        if parts is None:
            return torch.cat(gathered)
        widths = [part // self.shard.size for part in parts]
        by_rank = [torch.split(piece, widths) for piece in gathered]
        return torch.cat([pieces[part] for part in range(len(parts)) for pieces in by_rank])


def _weight(module: nn.Module) -> Tensor:
    return module.get_parameter("weight").detach()


def _set_weight(module: nn.Module, weight: Tensor) -> None:
    module.weight = nn.Parameter(weight, requires_grad=module.get_parameter("weight").requires_grad)
