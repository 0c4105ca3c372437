"""The first all-reduce over each axis of the mesh, with a short limit. It reports missing ranks, and the
bandwidth.

Otherwise a link that carries no data, or a hanging rank, would show only in the first step, after the process
group's timeout.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import PacelineError
from paceline.plan.hardware.device_kinds import CPU
from paceline.runtime import codes
from paceline.runtime.device.device import synchronize
from paceline.runtime.time_limit import call_with_timeout

if TYPE_CHECKING:
    from paceline.runtime.process_group.world import World

LIMIT_SECONDS = 60.0  # ranks have just met: what takes longer is no delay
LATE_SECONDS = 5.0
SLOW_SHARE = 1 / 3  # of the other groups' bandwidth
_BYTES, _BYTES_ON_CPU = 64 << 20, 1 << 20
_POLL_SECONDS = 0.002
_NAMED = 8
_KEYS_AT_ONCE = 1024  # in one answer of the store


@dataclass(frozen=True)
class AllReduceTiming:
    """One rank's first all-reduce: seconds that it waited for the others, then seconds of a timed one."""

    waited: float
    seconds: float
    group: tuple[int, ...]


def first_reduce(
    world: World, axis: str, group: dist.ProcessGroup | None, limit_seconds: float = LIMIT_SECONDS
) -> tuple[list[str], list[Diagnostic]]:
    """All-reduce over ``group`` (None: all ranks) twice: once so that all ranks arrive, once timed.
    Collective.

    Returns rank 0's lines for the log and warnings (a late rank, a slow link); nothing elsewhere. Raises
    PacelineError ``runtime.first_reduce`` with the missing ranks after ``limit_seconds``.
    """
    store = world.store
    if store is None or dist.get_world_size(group) == 1:
        return [], []
    ranks = tuple(dist.get_process_group_ranks(group if group is not None else dist.group.WORLD))
    limit = min(limit_seconds, world.timeout_seconds)
    on_host = world.backend == CPU.backend
    device = torch.device(CPU.name) if on_host else world.device
    block = torch.zeros((_BYTES_ON_CPU if on_host else _BYTES) // 4, device=device)

    def reduce(tensor: torch.Tensor) -> float:
        begun = time.monotonic()
        # Asynchronous, so that the host can look at the clock; the group's own timeout is minutes.
        work = dist.all_reduce(tensor, group=group, async_op=True)
        assert work is not None
        while not work.is_completed():
            if time.monotonic() - begun > limit:
                raise PacelineError(_stuck(store, axis, ranks, limit))
            time.sleep(_POLL_SECONDS)
        work.wait()
        synchronize(device)
        return time.monotonic() - begun

    # Before the collective: whoever hangs in it later is told apart from whoever never came.
    store.set(_here(axis, world.rank), "1")
    # one element meets the others, the block is timed
    waited, seconds = reduce(block[:1]), reduce(block)
    store.set(_done(axis, world.rank), json.dumps([waited, seconds, ranks]))
    if world.rank != 0:
        return [], []
    everyone: list[AllReduceTiming] = []
    with contextlib.suppress(RuntimeError, TimeoutError):  # a rank died behind it: the alarm names it
        everyone = call_with_timeout(
            limit, lambda: [*_timings(store, axis, world.world_size)], "the first all-reduce's times"
        )
    return summary(axis, everyone, block.nbytes) if everyone else ([], [])


def summary(axis: str, everyone: Sequence[AllReduceTiming], size: int) -> tuple[list[str], list[Diagnostic]]:
    """Return (lines for the log, warnings) of one axis. Bandwidth is bus bandwidth: 2 (n - 1) / n times the
    bytes per second (nccl-tests' PERFORMANCE.md).
    """
    speeds: dict[tuple[int, ...], float] = {}
    for timed in everyone:
        n = len(timed.group)
        speed = size * 2 * (n - 1) / n / max(timed.seconds, 1e-9)
        # The slowest rank's measurement is the group's speed.
        speeds[timed.group] = min(speed, speeds.get(timed.group, speed))
    usual, slowest = statistics.median(speeds.values()), min(speeds, key=lambda group: speeds[group])
    count = f"{len(speeds)} groups of " if len(speeds) > 1 else ""
    line = (
        f"links     {axis}: {count}{len(slowest)} ranks, all-reduce of {size >> 20} MiB at"
        f" {usual / 1e9:.2g} GB/s"
    )
    warnings = []
    if speeds[slowest] < SLOW_SHARE * usual:
        what = f"the ranks {_ranks(slowest)} of axis {axis} exchange data slower than the other groups"
        warnings.append(
            codes.RUNTIME_LINK_SLOW(
                what,
                f"rank {_ranks(slowest)}",
                f"{speeds[slowest] / 1e9:.2g} GB/s there, {usual / 1e9:.2g} GB/s in the middle",
                "check their cards' links (nvidia-smi topo -m), the nodes' network and load",
                Severity.WARNING,
            )
        )
    first = max(timed.waited for timed in everyone)
    # Who came last waited least.
    late = [rank for rank, timed in enumerate(everyone) if first - timed.waited > LATE_SECONDS]
    if late and len(late) < len(everyone):
        least = min(timed.waited for timed in everyone)
        what = f"rank {_ranks(late)} came {first - least:.0f} s after the first one"
        warnings.append(
            codes.RUNTIME_LINK_SLOW(
                what, f"rank {_ranks(late)}", axis, "check its node's disk and load", Severity.WARNING
            )
        )
    return [line], warnings


def _timings(store: dist.Store, axis: str, world_size: int) -> Iterator[AllReduceTiming]:
    keys = [_done(axis, rank) for rank in range(world_size)]
    for start in range(0, world_size, _KEYS_AT_ONCE):
        for text in store.multi_get(keys[start : start + _KEYS_AT_ONCE]):
            waited, seconds, group = json.loads(text)
            yield AllReduceTiming(float(waited), float(seconds), tuple(group))


def _stuck(store: dist.Store, axis: str, ranks: Sequence[int], limit: float) -> Diagnostic:
    missing: list[int] = []
    with contextlib.suppress(RuntimeError, TimeoutError):
        came = call_with_timeout(
            2.0, lambda: [store.check([_here(axis, rank)]) for rank in ranks], "who came"
        )
        missing = [rank for rank, there in zip(ranks, came, strict=True) if not there]
    if missing:
        what = f"rank {_ranks(missing)} did not come to the first all-reduce over {axis} within {limit:.0f} s"
        hint = "see its log and its machine" + (
            "; training.start_timeout sets the wait" if limit < LIMIT_SECONDS else ""
        )
    else:
        what = f"the ranks {_ranks(ranks)} came to the first all-reduce over {axis}, but no data arrives"
        hint = (
            "set NCCL_DEBUG=INFO to see the path that is used; NCCL_P2P_DISABLE=1 if cards cannot reach each"
            " other, NCCL_SOCKET_IFNAME=<interface> if nodes cannot, NCCL_IB_DISABLE=1 to try without"
            " InfiniBand"
        )
    return codes.RUNTIME_FIRST_REDUCE(what, f"axis {axis}", hint=hint, evidence={"silent_ranks": missing})


def _here(axis: str, rank: int) -> str:
    return f"links/{axis}/here/{rank}"


def _done(axis: str, rank: int) -> str:
    return f"links/{axis}/done/{rank}"


def _ranks(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:_NAMED])) + (" …" if len(ranks) > _NAMED else "")
