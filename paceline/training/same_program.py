"""Before step 0: share rank 0's plan, and check that all ranks run the same program on the same data.

Contract 8.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Generic, TypedDict, TypeVar

from paceline.checkpoint.node_local.shared_disks import Disks
from paceline.config.schema import Config
from paceline.config.source import shown
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError, ExitCode, PacelineError
from paceline.core.json_types import Json, JsonObject
from paceline.core.package import PACKAGE_VERSION
from paceline.runtime.process_group.world import World
from paceline.training import codes

PLAN_LIMIT_BYTES = 1 << 20
T = TypeVar("T")  # of JSON types


class _Shared(TypedDict, Generic[T], total=False):
    """What rank 0 says: what it made, or why it could not."""

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
    """Call ``work`` on the first rank of each disk but rank 0's. Collective.

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
    for found in world.all_gather_json(mine):
        if found:
            raise ConfigError(*(Diagnostic.from_json(d) for d in found))


def identity(config: Config, data_fingerprint: str) -> dict[str, str]:
    """Return what must be equal on all ranks, besides what they compared before the group opened
    (``runtime.peers``).
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
    raise PacelineError(*(_differs(*found) for found in _differences(everyone, settings)))


def _differences(
    everyone: Sequence[Mapping[str, Json]], settings: Sequence[Mapping[str, Json]]
) -> Iterator[tuple[int, str, str, str]]:
    """Yield (rank, key, its value, rank 0's value) of all that differs; digests are opened."""
    for rank, (facts, own) in enumerate(zip(everyone, settings, strict=True)):
        for key, value in facts.items():
            if value == everyone[0][key]:
                continue
            if key != "config":
                yield rank, key, str(value), str(everyone[0][key])
                continue
            for name in dict.fromkeys((*settings[0], *own)):
                theirs = settings[0].get(name)
                if own.get(name) != theirs:
                    yield rank, name, shown(name, own.get(name)), shown(name, theirs)


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
