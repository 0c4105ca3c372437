"""Rendezvous: the run's store, listening on one interface, and the arrival of all ranks."""

from __future__ import annotations

import contextlib
import datetime
import socket
import sys
from dataclasses import dataclass

import torch.distributed as dist

from paceline.core.diagnostics import Severity
from paceline.core.errors import PacelineError
from paceline.runtime import codes
from paceline.runtime.bounded import within
from paceline.runtime.rank_env import RankEnv
from paceline.runtime.signed import SignedStore, fingerprint

_GRACE_SECONDS = 5.0  # we wait a little longer than torch's timeout, to get torch's own error
_BACKLOG = 4096


def connect_store(env: RankEnv, timeout_seconds: float, *, may_host: bool = True) -> dist.Store:
    """Connect to the run's store, with this attempt's key prefix.

    Rank 0 hosts it unless torchrun's agent does.

    torchrun passes the same store to every attempt, so the keys carry the restart count and those of a failed
    attempt are not read (as ``torch.distributed.rendezvous`` does for the process group's own keys). Raises
    PacelineError (``runtime.port_in_use``, ``runtime.rendezvous``).
    """
    host = may_host and env.rank == 0 and not env.agent_store

    def connect() -> dist.Store:
        return dist.TCPStore(
            env.meeting_host,
            env.master_port,
            env.world_size,
            is_master=host,
            timeout=datetime.timedelta(seconds=timeout_seconds),
            wait_for_workers=False,
            master_listen_fd=listener(env.meeting_host, env.master_port) if host else None,
        )

    try:
        store = within(timeout_seconds + _GRACE_SECONDS, connect, "connecting to the store")
    except (RuntimeError, ValueError, OSError) as exc:  # TimeoutError is an OSError
        raise _store_error(exc, env, host) from exc
    return dist.PrefixStore(name_of(env), store)


def name_of(env: RankEnv) -> str:
    """Return the prefix of this attempt's keys."""
    return f"paceline/attempt_{env.restart}"


def listener(host: str, port: int) -> int:
    """Return the descriptor of a socket that listens at ``host``'s own address only.

    torch by itself would listen on all interfaces. If the address is on no interface of this machine (a
    forwarded port, a Kubernetes service), listen on all and print a warning.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    refused: OSError | None = None
    for family, kind, protocol, _, address in sorted(found, key=lambda info: info[0] != socket.AF_INET):
        try:
            return _listening(family, kind, protocol, address)
        except OSError as exc:
            if "in use" in str(exc).lower():
                raise
            refused = exc
    what = f"{host} belongs to no network interface of this machine, so the store listens on all of them"
    hint = "set MASTER_ADDR (launch.master_addr) to an address of rank 0's machine"
    print(
        codes.RUNTIME_STORE_OPEN(what, f"{host}:{port}", str(refused), hint, Severity.WARNING).render(),
        file=sys.stderr,
        flush=True,
    )
    return _listening(socket.AF_INET, socket.SOCK_STREAM, 0, ("0.0.0.0", port))


_Address = tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]  # of getaddrinfo


def _listening(family: int, kind: int, protocol: int, address: _Address) -> int:
    with contextlib.closing(socket.socket(family, kind, protocol)) as own:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        own.bind(address)
        own.listen(_BACKLOG)
        return own.detach()


@dataclass(frozen=True)
class Arrival:
    """The keys that announce a rank's arrival."""

    count: str = "here"  # a counter: N calls; one key per rank, awaited by all, would be N²
    all: str = "all_here"

    @staticmethod
    def of(rank: int) -> str:
        return f"alive/{rank}"


def arrive(store: dist.Store, env: RankEnv, timeout_seconds: float, secret: bytes) -> None:
    """Wait until every rank has arrived.

    Raises PacelineError: ``runtime.ranks_missing`` with the missing ranks, ``runtime.store_secret``.
    """
    signed, keys, wait = (
        SignedStore(store, secret, name_of(env)),
        Arrival(),
        datetime.timedelta(seconds=timeout_seconds),
    )

    def meet() -> None:
        signed.set(keys.of(env.rank), "{}")
        if store.add(keys.count, 1) == env.world_size:
            store.set(keys.all, "1")
        store.wait([keys.all], wait)

    try:
        within(
            timeout_seconds + _GRACE_SECONDS,
            lambda: _compare_secrets(store, env, secret, wait),
            "the first rank",
        )
        within(timeout_seconds + _GRACE_SECONDS, meet, "waiting for all ranks")
    except (RuntimeError, TimeoutError) as exc:
        raise _missing(store, env, timeout_seconds) from exc


def _compare_secrets(store: dist.Store, env: RankEnv, secret: bytes, wait: datetime.timedelta) -> None:
    """Check that this rank has rank 0's secret; otherwise ranks would silently ignore each other."""
    mine = fingerprint(secret) or "none"
    if env.rank == 0:
        store.set("secret", mine)
    store.wait(["secret"], wait)
    theirs = store.get("secret").decode("ascii", "replace")[:64]
    if theirs != mine:
        shown = {"none": "none"}
        raise PacelineError(
            codes.RUNTIME_STORE_SECRET(
                f"rank {env.rank} and rank 0 have different secrets for their messages",
                "PACELINE_STORE_SECRET_FILE",
                f"rank {env.rank}: {shown.get(mine, 'one')}, rank 0: {shown.get(theirs, 'another')}",
                "set the same secret on every node (PACELINE_STORE_SECRET_FILE or PACELINE_STORE_SECRET)",
            )
        )


def _missing(store: dist.Store, env: RankEnv, timeout_seconds: float) -> PacelineError:
    try:
        here = within(
            _GRACE_SECONDS,
            lambda: [store.check([Arrival.of(r)]) for r in range(env.world_size)],
            "who is here",
        )
        missing = [rank for rank, came in enumerate(here) if not came]
    except (RuntimeError, TimeoutError):
        missing = []  # the store itself is gone
    shown = ", ".join(map(str, missing[:16])) + (" …" if len(missing) > 16 else "")
    return PacelineError(
        codes.RUNTIME_RANKS_MISSING(
            f"not all of the {env.world_size} ranks connected within {timeout_seconds:.0f} s",
            found=f"missing: {shown or 'the host of the store'}",
            hint="see the logs of the missing ranks; training.start_timeout sets how long to wait",
            evidence={"missing": missing},
        )
    )


def _store_error(exc: Exception, env: RankEnv, host: bool) -> PacelineError:
    text = str(exc).splitlines()[0][:300] if str(exc) else type(exc).__name__
    if host and ("EADDRINUSE" in str(exc) or "address already in use" in str(exc).lower()):
        return PacelineError(
            codes.RUNTIME_PORT_IN_USE(
                f"port {env.master_port} on {env.meeting_host} is in use, so the ranks cannot connect there",
                where="MASTER_PORT",
                found=text,
                hint="use another port (launch.master_port, --master_port), or end the other run",
            )
        )
    what = (
        "rank 0 cannot open the port where the ranks connect"
        if host
        else f"rank {env.rank} cannot reach rank 0 at {env.meeting_host}:{env.master_port}"
    )
    return PacelineError(
        codes.RUNTIME_RENDEZVOUS(
            what,
            where="MASTER_ADDR, MASTER_PORT",
            found=text,
            hint=(
                "use an address of rank 0's node that all nodes can reach, and a port that no firewall closes"
            ),
        )
    )
