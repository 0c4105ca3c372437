"""Before a process group opens, every rank publishes its device and versions; all ranks report a rank that
differs.

Ranks with different kinds of devices would open groups of different backends and wait for each other until
the timeout. Ranks of different torch or NCCL releases hang or crash in their first collective. So each rank
writes its device and versions into the store; rank 0 compares, and all read its verdict.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist

from paceline.core.diagnostics import Diagnostic, Severity, errors
from paceline.core.errors import PacelineError
from paceline.plan.hardware.device_files import driver_version
from paceline.plan.hardware.device_kinds import is_accelerator
from paceline.runtime import codes
from paceline.runtime.device.device import device_name
from paceline.runtime.device.probe import nccl_version
from paceline.runtime.process_group.signed_store import SignedStore
from paceline.runtime.rank_env import RankEnv
from paceline.runtime.time_limit import call_with_timeout

#: What has to be equal on all ranks, and what may differ with a warning.
SAME = {"device": "kind of device", "torch": "torch", "comm": "NCCL", "compiled_for": "torch's CUDA or ROCm"}
LIKELY = {"name": "device", "driver": "driver"}
_VERDICT, _READ = "peers/verdict", "peers/read"
_LINGER_SECONDS = 5.0
_READ_AT_ONCE = 1024
_NAMED = 8


def own_facts(device: torch.device) -> dict[str, str]:
    """Return what the others compare: kind and name of the device, releases; ``uuid`` of the card."""
    accelerated = is_accelerator(device.type)
    properties = torch.get_device_module(device).get_device_properties(device) if accelerated else None
    return {
        "host": socket.gethostname(),
        "device": device.type,
        "torch": torch.__version__,
        "comm": (nccl_version() or "none") if accelerated else "none",
        "compiled_for": str(torch.version.cuda or torch.version.hip or "none"),
        "name": device_name(device),
        "driver": driver_version() if accelerated else "",
        "uuid": str(getattr(properties, "uuid", "") or ""),
    }


def agree_on_devices(
    store: dist.Store, env: RankEnv, secret: bytes, mine: Mapping[str, str], timeout_seconds: float
) -> tuple[Diagnostic, ...]:
    """Return the warnings about unequal ranks. Called by all ranks after they have arrived.

    Raises PacelineError ``runtime.ranks_differ`` or ``runtime.device_shared`` with the same findings on every
    rank, or ``runtime.ranks_missing`` if one died meanwhile.
    """
    signed = SignedStore(store, secret, env.store_prefix)
    signed.set(_facts_of(env.rank), json.dumps(mine))

    def verdict() -> str:
        if env.rank == 0:
            differences = compare(_everyones(signed, env.world_size))
            signed.set(_VERDICT, json.dumps([finding.to_json() for finding in differences]))
        # On every rank, rank 0 included, whose own key is there at once.
        store.wait([_VERDICT], datetime.timedelta(seconds=timeout_seconds))
        text = signed.get(_VERDICT) or "[]"
        signed.add(_READ, 1)
        return text

    try:
        text = call_with_timeout(timeout_seconds, verdict, "comparing the ranks' devices")
    except (RuntimeError, TimeoutError) as exc:
        raise PacelineError(
            codes.RUNTIME_RANKS_MISSING(
                f"{_absent(store, env)} connected to the store, but did not report its device",
                found=str(exc).splitlines()[0][:200],
                hint="see the ranks' logs; training.start_timeout sets the wait",
            )
        ) from exc
    findings = tuple(Diagnostic.from_json(item) for item in json.loads(text))
    if wrong := errors(findings):
        if env.rank == 0:
            # Rank 0 hosts the store: if it left first, the others would report a lost connection instead.
            _await_readers(signed, env.world_size)
        raise PacelineError(*wrong)
    return findings


def _absent(store: dist.Store, env: RankEnv) -> str:
    """Name the ranks that have not reported their device."""
    with contextlib.suppress(RuntimeError, TimeoutError):
        keys = [_facts_of(rank) for rank in range(env.world_size)]
        came = call_with_timeout(
            _LINGER_SECONDS, lambda: [store.check([key]) for key in keys], "who reported"
        )
        if missing := [rank for rank, there in enumerate(came) if not there]:
            return _ranks(missing)
    return "a rank"


def _await_readers(signed: SignedStore, count: int) -> None:
    """Keep rank 0, which hosts the store, until all have read the verdict, or for a few seconds."""
    deadline = time.monotonic() + _LINGER_SECONDS
    with contextlib.suppress(RuntimeError, TimeoutError):
        while call_with_timeout(_LINGER_SECONDS, lambda: signed.add(_READ, 0), "readers") < count:
            if time.monotonic() > deadline:
                return
            time.sleep(0.02)


def compare(everyone: Sequence[Mapping[str, str]]) -> list[Diagnostic]:
    """Return a finding for every group of ranks that differs from most, and for each card that two ranks use.

    An even split is reported as seen from rank 0.
    """
    findings = []
    for keys, code, severity in (
        (SAME, codes.RUNTIME_RANKS_DIFFER, Severity.ERROR),
        (LIKELY, codes.RUNTIME_RANKS_UNEQUAL, Severity.WARNING),
    ):
        for key, label in keys.items():
            values = [facts.get(key, "") for facts in everyone]
            counts = Counter(values)
            # a tie goes to rank 0's value
            usual = max(counts, key=lambda value: (counts[value], value == values[0]))
            for value in counts:
                ranks = [rank for rank, own_value in enumerate(values) if own_value == value]
                if value != usual:
                    what = f"{_ranks(ranks)} has another {label} than the other ranks"
                    where = ", ".join(
                        dict.fromkeys(everyone[rank].get("host", "") for rank in ranks[:_NAMED])
                    )
                    findings.append(
                        code(
                            what,
                            where,
                            f"{value or 'unknown'} there, {usual or 'unknown'} on the {counts[usual]} others",
                            "the same machine, driver and environment for every rank",
                            severity,
                            {"ranks": ranks, "key": key},
                        )
                    )
    return findings + _shared_cards(everyone)


def _shared_cards(everyone: Sequence[Mapping[str, str]]) -> list[Diagnostic]:
    owners: dict[tuple[str, str], list[int]] = {}
    for rank, facts in enumerate(everyone):
        if facts.get("uuid"):
            owners.setdefault((facts.get("host", ""), facts["uuid"]), []).append(rank)
    return [
        codes.RUNTIME_DEVICE_SHARED(host, uuid, ranks=_ranks(ranks), evidence={"ranks": ranks})
        for (host, uuid), ranks in owners.items()
        if len(ranks) > 1
    ]


def _everyones(signed: SignedStore, world_size: int) -> list[dict[str, str]]:
    texts: list[str | None] = []
    for start in range(0, world_size, _READ_AT_ONCE):
        ranks = range(start, min(world_size, start + _READ_AT_ONCE))
        texts += signed.get_all([_facts_of(rank) for rank in ranks])
    return [_parsed(text) for text in texts]


def _parsed(text: str | None) -> dict[str, str]:
    try:
        data = json.loads(text or "{}")
        return {str(key): str(value) for key, value in data.items()}
    except (ValueError, AttributeError):
        return {}


def _facts_of(rank: int) -> str:
    return f"peers/{rank}"


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:_NAMED])) + (" …" if len(ranks) > _NAMED else "")
    return f"rank {shown}"
