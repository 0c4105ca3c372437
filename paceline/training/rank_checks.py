"""Check in the first steps that ranks read the same rows and hold the same weights where they must.

If two ranks enter two collectives of equal shape in opposite order, the wrong tensors are paired, and neither
gloo nor NCCL reports it. Replicated weights then differ after the step, which is detected here. Where each
rank holds its own shard, nothing inside a run can detect it: ``paceline verify`` compares with one process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import PacelineError
from paceline.plan.mesh import Coordinates
from paceline.protocols.window import Window
from paceline.training import codes

T = TypeVar("T")
CHECKED_STEPS = 3  # of every attempt: a wrong order shows from the start


class CheckWorld(Protocol):
    """The part of ``runtime.World`` that the check needs."""

    @property
    def rank(self) -> int: ...

    def all_gather_json(self, value: T) -> list[T]: ...


def rows_digest(window: Window) -> str:
    """Hash what this rank reads in a window: document ids, boundaries, tokens and labels."""
    digest = hashlib.blake2b(digest_size=8)
    for batch in window.micro_batches:
        for tensor in (batch.document_ids, batch.cu_seqlens, batch.input_ids, batch.labels):
            digest.update(tensor.cpu().numpy().tobytes())
        digest.update(b"|")
    return digest.hexdigest()


def check_same_rows(world: CheckWorld, data_parallel_rank: int, window: Window) -> None:
    """Raise PacelineError on every rank if two ranks of equal ``data_parallel_rank`` read different rows.

    Collective.
    """
    everyone = world.all_gather_json((data_parallel_rank, rows_digest(window)))
    first: dict[int, tuple[int, str]] = {}
    for rank, (place, digest) in enumerate(everyone):
        other, expected = first.setdefault(place, (rank, digest))
        if digest != expected:
            raise PacelineError(
                codes.TRAINING_ROWS_DIFFER(
                    f"step {window.step + 1}", f"rank {other}: {expected}, rank {rank}: {digest}"
                )
            )


_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_PART = 2**20  # elements per chunk


def check_same_weights(world: CheckWorld, at: Coordinates, step: int, roots: Mapping[str, nn.Module]) -> None:
    """Raise PacelineError on every rank if copies of a parameter differ in any bit after ``step`` steps.

    Collective. ``at``: this rank's mesh coordinates; ``roots``: the trained models by role.
    """
    mine = _by_place(at, roots)
    everyone = world.all_gather_json({place: _digest(sums) for place, sums in mine.items()})
    first: dict[str, tuple[int, str]] = {}
    for rank, theirs in enumerate(everyone):
        for place, digest in theirs.items():
            other, expected = first.setdefault(place, (rank, digest))
            if digest != expected:
                raise PacelineError(_named(world, mine.get(place, {}), step, other, rank))


def _named(world: CheckWorld, sums: Mapping[str, int], step: int, one: int, other: int) -> Diagnostic:
    """Return the diagnostic, with the first parameter that differs between two ranks. Collective."""
    everyone = world.all_gather_json(dict(sums))
    left, right = everyone[one], everyone[other]
    names = [name for name in {**left, **right} if left.get(name) != right.get(name)]
    return codes.TRAINING_WEIGHTS_DIFFER(
        f"after step {step}" if step else "before the first step",
        f"rank {one} and rank {other} differ in {len(names)} of {len(left)} parameters, first in {names[0]}",
    )


def _by_place(at: Coordinates, roots: Mapping[str, nn.Module]) -> dict[str, dict[str, int]]:
    """Return shard id (equal on ranks that hold the same shard) -> parameter -> sum of its bits."""
    sums: list[Tensor] = []
    order: list[tuple[str, str]] = []
    for role, root in roots.items():
        for name, parameter in _trained(root):
            local = parameter.detach()
            place = f"stage {at.pp}, tp {at.tp}"
            if isinstance(local, DTensor):
                place = f"stage {at.pp}, {_shards(local)}"
                local = local.to_local()
            if local.numel():  # ZeRO-3 leaves an empty placeholder for partitioned weights
                order.append((place, f"{role}.{name} {tuple(local.shape)}"))
                sums.append(_sum_of_bits(local.contiguous().view(-1)))
    found: dict[str, dict[str, int]] = {}
    for (place, name), total in zip(order, torch.stack(sums).tolist() if sums else [], strict=True):
        found.setdefault(place, {})[name] = total
    return found


def _sum_of_bits(flat: Tensor) -> Tensor:
    """Return the int64 sum of the values' bits read as integers.

    In chunks, since a sum in another dtype copies its input.
    """
    bits = flat.view(_BITS[flat.element_size()])
    return torch.stack([part.sum(dtype=torch.int64) for part in torch.split(bits, _PART)]).sum()


def _trained(root: nn.Module) -> Iterable[tuple[str, nn.Parameter]]:
    return ((name, p) for name, p in root.named_parameters() if p.requires_grad)


def _shards(tensor: DTensor) -> str:
    """Return the coordinates on the mesh axes along which ``tensor`` is sharded."""
    mesh = tensor.device_mesh
    axes = mesh.mesh_dim_names or ()
    here = list(mesh.get_coordinate() or [])
    cut = [
        f"{axis} {place}"
        for axis, place, p in zip(axes, here, tensor.placements, strict=True)
        if not p.is_replicate()
    ]
    return ", ".join(cut) or "whole"


def _digest(sums: Mapping[str, int]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for name, total in sums.items():
        digest.update(f"{name} {total}\n".encode())
    return digest.hexdigest()
