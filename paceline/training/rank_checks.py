"""Checks that the ranks agree: before step 0 on plan, program and data; in the first steps on rows, weights.

Contract 8.

If two ranks enter two collectives of equal shape in opposite order, the wrong tensors are paired, and neither
gloo nor NCCL reports it. Replicated weights then differ after the step, which is detected here. Where each
rank holds its own shard, nothing inside a run can detect it: ``paceline verify`` compares with one process.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Generic, TypedDict, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from paceline.checkpoint.node_local.shared_disks import Disks
from paceline.config.schema import Config
from paceline.config.source import shown
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError, ExitCode, PacelineError
from paceline.core.json_types import Json, JsonObject
from paceline.core.package import PACKAGE_VERSION
from paceline.plan.mesh import Coordinates, Mesh
from paceline.protocols.window import Window
from paceline.runtime.process_group.world import World
from paceline.training import codes
from paceline.training.loop.window_source import RunComponents

T = TypeVar("T")
CHECKED_STEPS = 3  # of every attempt: a wrong order shows from the start


def rows_digest(window: Window) -> str:
    """Hash this rank's part of a window: document ids, boundaries, tokens and labels."""
    digest = hashlib.blake2b(digest_size=8)
    for batch in window.micro_batches:
        for tensor in (batch.document_ids, batch.cu_seqlens, batch.input_ids, batch.labels):
            digest.update(tensor.cpu().numpy().tobytes())
        digest.update(b"|")
    return digest.hexdigest()


def check_same_rows(world: World, data_parallel_rank: int, window: Window) -> None:
    """Raise PacelineError on every rank if two ranks of equal ``data_parallel_rank`` read different rows.

    Collective.
    """
    everyone = world.all_gather_json((data_parallel_rank, rows_digest(window)))
    first: dict[int, tuple[int, str]] = {}
    for rank, (copy_rank, digest) in enumerate(everyone):
        other, expected = first.setdefault(copy_rank, (rank, digest))
        if digest != expected:
            raise PacelineError(
                codes.TRAINING_ROWS_DIFFER(
                    f"step {window.step + 1}", f"rank {other}: {expected}, rank {rank}: {digest}"
                )
            )


_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_PART = 2**20  # elements per chunk


def check_same_weights(world: World, at: Coordinates, step: int, roots: Mapping[str, nn.Module]) -> None:
    """Raise PacelineError on every rank if copies of a parameter differ in any bit after ``step`` steps.

    Collective. ``at``: this rank's mesh coordinates; ``roots``: the trained models by role.
    """
    mine = _by_place(at, roots)
    everyone = world.all_gather_json({shard: _digest(sums) for shard, sums in mine.items()})
    first: dict[str, tuple[int, str]] = {}
    for rank, theirs in enumerate(everyone):
        for shard, digest in theirs.items():
            other, expected = first.setdefault(shard, (rank, digest))
            if digest != expected:
                raise PacelineError(_named(world, mine.get(shard, {}), step, other, rank))


def _named(world: World, sums: Mapping[str, int], step: int, one: int, other: int) -> Diagnostic:
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
        for name, parameter in root.named_parameters():
            if not parameter.requires_grad:
                continue
            local = parameter.detach()
            shard = f"stage {at.pp}, tp {at.tp}"
            if isinstance(local, DTensor):
                shard = f"stage {at.pp}, {_shards(local)}"
                local = local.to_local()
            if local.numel():  # ZeRO-3 leaves an empty placeholder for partitioned weights
                order.append((shard, f"{role}.{name} {tuple(local.shape)}"))
                sums.append(_sum_of_bits(local.contiguous().view(-1)))
    by_shard: dict[str, dict[str, int]] = {}
    for (shard, name), total in zip(order, torch.stack(sums).tolist() if sums else [], strict=True):
        by_shard.setdefault(shard, {})[name] = total
    return by_shard


def _sum_of_bits(flat: Tensor) -> Tensor:
    """Return the int64 sum of the values' bits read as integers.

    In chunks, since a sum in another dtype copies its input.
    """
    bits = flat.view(_BITS[flat.element_size()])
    return torch.stack([part.sum(dtype=torch.int64) for part in torch.split(bits, _PART)]).sum()


def _shards(tensor: DTensor) -> str:
    """Return the coordinates on the mesh axes along which ``tensor`` is sharded."""
    mesh = tensor.device_mesh
    axes = mesh.mesh_dim_names or ()
    here = list(mesh.get_coordinate() or [])
    cut = [
        f"{axis} {coordinate}"
        for axis, coordinate, p in zip(axes, here, tensor.placements, strict=True)
        if not p.is_replicate()
    ]
    return ", ".join(cut) or "whole"


def _digest(sums: Mapping[str, int]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for name, total in sums.items():
        digest.update(f"{name} {total}\n".encode())
    return digest.hexdigest()


def checks_of_first_windows(world: World, mesh: Mesh, parts: RunComponents) -> Callable[[Window], None]:
    """Return a check for the first windows: equal rows in a model copy, equal weights across copies."""
    until = parts.state.step + CHECKED_STEPS
    trained = {role.value: handle.root for role, handle in parts.handles.items() if handle.trained}

    def inspect(window: Window) -> None:
        if window.step < until and mesh.model_copies > 1:
            check_same_rows(world, parts.runner.strategy.data_parallel_rank, window)
        if window.step <= until:
            check_same_weights(world, mesh.coordinates(world.rank), window.step, trained)

    return inspect


PLAN_LIMIT_BYTES = 1 << 20


class _Shared(TypedDict, Generic[T], total=False):
    """Rank 0's result, or its error."""

    plan: T
    error: list[JsonObject]
    exit_code: int


def share_plan(world: World, make: Callable[[], T], limit_bytes: int = PLAN_LIMIT_BYTES) -> T:
    """Return rank 0's ``make()`` on every rank. Collective.

    If ``make`` raises a PacelineError, every rank raises it with the same diagnostics and exit code.
    """
    message: _Shared[T] | None = None
    failure: PacelineError | None = None
    if world.rank == 0:
        try:
            message = {"plan": make()}
        except PacelineError as exc:
            failure = exc
            message = {"error": [d.to_json() for d in exc.diagnostics], "exit_code": int(exc.exit_code)}
    received = world.broadcast_json(message, src=0, limit_bytes=limit_bytes)
    if failure is not None:
        raise failure
    if "error" in received:
        remote = PacelineError(*(Diagnostic.from_json(d) for d in received["error"]))
        remote.exit_code = ExitCode(received["exit_code"])
        raise remote
    return received["plan"]


def on_other_disks(world: World, disks: Disks, work: Callable[[], None]) -> None:
    """Call ``work`` on the first rank of each disk except rank 0's. Collective.

    If it raises a PacelineError on any, every rank raises a ConfigError with its diagnostics.
    """
    if disks.are_one:
        return
    mine: list[JsonObject] = []
    if disks.leads(world.rank) and world.rank != 0:
        try:
            work()
        except PacelineError as exc:
            mine = [d.to_json() for d in exc.diagnostics]
    for errors_of_rank in world.all_gather_json(mine):
        if errors_of_rank:
            raise ConfigError(*(Diagnostic.from_json(d) for d in errors_of_rank))


def identity(config: Config, data_fingerprint: str) -> dict[str, str]:
    """Return the values that must be equal on all ranks, besides those compared before the group opened
    (``runtime.process_group.rank_agreement``).
    """
    return {
        "paceline": PACKAGE_VERSION,
        "python": ".".join(platform.python_version_tuple()[:2]),
        "config": config.digest(),
        "data": data_fingerprint,
    }


def check_same(world: World, config: Config, data_fingerprint: str) -> None:
    """Raise PacelineError on every rank if any differs from rank 0, naming rank, key and both values.

    Collective.
    """
    everyone = world.all_gather_json(identity(config, data_fingerprint))
    if all(other == everyone[0] for other in everyone):
        return
    # Every rank sees that they differ, so that all take part
    settings = world.all_gather_json(dict(flat_keys(config.deciding())), limit_bytes=PLAN_LIMIT_BYTES)
    raise PacelineError(*(_differs(*difference) for difference in _differences(everyone, settings)))


def _differences(
    everyone: Sequence[Mapping[str, Json]], settings: Sequence[Mapping[str, Json]]
) -> Iterator[tuple[int, str, str, str]]:
    """Yield (rank, key, its value, rank 0's value) of each difference; digests are resolved to values."""
    for rank, (facts, values) in enumerate(zip(everyone, settings, strict=True)):
        for key, value in facts.items():
            if value == everyone[0][key]:
                continue
            if key != "config":
                yield rank, key, str(value), str(everyone[0][key])
                continue
            for name in dict.fromkeys((*settings[0], *values)):
                theirs = settings[0].get(name)
                if values.get(name) != theirs:
                    yield rank, name, shown(name, values.get(name)), shown(name, theirs)


def _differs(rank: int, key: str, value: str, first: str) -> Diagnostic:
    what, hint = f"rank {rank} differs from rank 0 in {key}", "start all ranks with the same YAML and code"
    if key == "data":
        what = f"rank {rank} reads other data than rank 0 from the paths of the config"
        value, first = f"fingerprint {value[:12]}", f"fingerprint {first[:12]}"
        hint = (
            "copy the same files (data.train, data.eval, the tokenizer) to every node, or use a shared disk"
        )
    return codes.WORLD_MISMATCH(
        what, f"rank {rank}", f"{key}: {value} on rank {rank}, {first} on rank 0", hint
    )


def flat_keys(data: Mapping[str, Json], prefix: str = "") -> Iterator[tuple[str, Json]]:
    for name, value in data.items():
        if isinstance(value, dict) and value:
            yield from flat_keys(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
