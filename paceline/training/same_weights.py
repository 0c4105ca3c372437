"""Ranks that hold the same piece of the same parameter hold the same numbers: seen to be so in the first steps, instead of believed.

Two collectives of equal shape that two ranks enter in opposite order pair wrong tensors, and gloo and NCCL say nothing. Where weights are
kept more than once, the copies differ after the step; this is where it is noticed. Where each rank holds a part of its own, nothing
inside a run can tell: ``paceline verify`` compares with one process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import PacelineError
from paceline.plan.mesh import Coordinates
from paceline.training import codes
from paceline.training.same_rows import Ranks

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_PART = 2**20  # numbers


def check_same_weights(world: Ranks, at: Coordinates, step: int, roots: Mapping[str, nn.Module]) -> None:
    """Collective. Raises PacelineError on every rank when copies of one parameter differ in any bit after ``step`` steps.

    ``at``: this rank's place on the mesh; ``roots``: the trained models by role.
    """
    mine = _by_place(at, roots)
    everyone = world.all_gather_json({place: _digest(sums) for place, sums in mine.items()})
    first: dict[str, tuple[int, str]] = {}
    for rank, theirs in enumerate(everyone):
        for place, digest in theirs.items():
            other, expected = first.setdefault(place, (rank, digest))
            if digest != expected:
                raise PacelineError(_named(world, mine.get(place, {}), step, other, rank))


def _named(world: Ranks, sums: Mapping[str, int], step: int, one: int, other: int) -> Diagnostic:
    """The finding, with the first parameter that differs between two ranks."""
    everyone = world.all_gather_json(dict(sums))
    left, right = everyone[one], everyone[other]
    names = [name for name in {**left, **right} if left.get(name) != right.get(name)]
    return codes.TRAINING_WEIGHTS_DIFFER(
        "ranks that hold copies of the same weights hold different numbers",
        f"after step {step}" if step else "before the first step",
        f"rank {one} and rank {other} differ in {len(names)} of {len(left)} parameters, first in {names[0]}",
        "a strategy must average every gradient once, in the same order on all ranks; own collectives outside the strategy can pair up wrongly with its own",
    )


def _by_place(at: Coordinates, roots: Mapping[str, nn.Module]) -> dict[str, dict[str, int]]:
    """Place of a piece (what tells it from other ranks' pieces) -> parameter -> sum of its bits."""
    sums: list[Tensor] = []
    order: list[tuple[str, str]] = []
    for role, root in roots.items():
        for name, parameter in _trained(root):
            local = parameter.detach()
            place = f"stage {at.pp}, tp {at.tp}"
            if isinstance(local, DTensor):
                place = f"stage {at.pp}, {_shards(local)}"
                local = local.to_local()
            if local.numel():  # ZeRO-3 leaves an empty place holder where it keeps a part elsewhere
                order.append((place, f"{role}.{name} {tuple(local.shape)}"))
                sums.append(_sum_of_bits(local.contiguous().view(-1)))
    found: dict[str, dict[str, int]] = {}
    for (place, name), total in zip(order, torch.stack(sums).tolist() if sums else [], strict=True):
        found.setdefault(place, {})[name] = total
    return found


def _sum_of_bits(flat: Tensor) -> Tensor:
    """int64 scalar, of its numbers read as integers; a part at a time, since a sum of another dtype widens what it sums."""
    bits = flat.view(_BITS[flat.element_size()])
    return torch.stack([part.sum(dtype=torch.int64) for part in torch.split(bits, _PART)]).sum()


def _trained(root: nn.Module) -> Iterable[tuple[str, nn.Parameter]]:
    return ((name, p) for name, p in root.named_parameters() if p.requires_grad)


def _shards(tensor: DTensor) -> str:
    """The coordinates on the mesh axes along which ``tensor`` is cut."""
    mesh = tensor.device_mesh
    axes = mesh.mesh_dim_names or ()
    here = list(mesh.get_coordinate() or [])
    cut = [
        f"{axis} {place}" for axis, place, p in zip(axes, here, tensor.placements, strict=True) if not p.is_replicate()
    ]
    return ", ".join(cut) or "whole"


def _digest(sums: Mapping[str, int]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for name, total in sums.items():
        digest.update(f"{name} {total}\n".encode())
    return digest.hexdigest()
