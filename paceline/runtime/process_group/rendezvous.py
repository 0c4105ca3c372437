"""Rendezvous: the run's store, listening on one interface, and the arrival of all ranks.

``python -m paceline.runtime.process_group.rendezvous`` tells the other nodes that this one is refused.
"""

from __future__ import annotations

import contextlib
import datetime
import socket
import sys
import time
from collections.abc import Callable
from typing import TypeVar

import torch.distributed as dist

from paceline.core.errors import PacelineError
from paceline.launch.environment.guide_variables import current
from paceline.launch.program import program
from paceline.launch.run_secret import read_secret
from paceline.runlog.redact import printable
from paceline.runtime import codes
from paceline.runtime.process_group.held_stderr import HeldStderr
from paceline.runtime.process_group.refusal import (
    ALL_HERE,
    HEAR_SECONDS,
    Refusals,
    other_secret,
    parsed_failure,
)
from paceline.runtime.process_group.signed_store import fingerprint
from paceline.runtime.rank_env import RankEnv
from paceline.runtime.time_limit import call_with_timeout

T = TypeVar("T")
REPORT_SECONDS = 30.0  # how often a node says for whom it waits
_GRACE_SECONDS = 5.0  # we wait a little longer than torch's timeout, to get torch's own error
RETRY_SECONDS = 1.0  # between two tries to reach rank 0
_LEAST_SECONDS = 1.0  # to connect to a port that answers
# all ranks of a large job connect at once
_BACKLOG = 4096


def connect_store(
    env: RankEnv, timeout_seconds: float, *, may_host: bool = True, report_seconds: float = REPORT_SECONDS
) -> dist.Store:
    """Connect to the run's store, with this attempt's key prefix.

    Rank 0 hosts it unless torchrun's agent does. A node that waits says so every ``report_seconds``.

    torchrun passes the same store to every attempt. The keys carry the restart count, so no attempt reads a
    failed attempt's keys (as ``torch.distributed.rendezvous`` does for the process group's own keys). Raises
    PacelineError (``runtime.port_in_use``, ``runtime.rendezvous``).
    """
    host, stderr = may_host and env.hosts_store, HeldStderr()

    def connect(seconds: float) -> dist.Store:
        if not host:
            seconds = _await_port(env.meeting_host, env.master_port, seconds)
            stderr.hold()
        store = dist.TCPStore(
            env.meeting_host,
            env.master_port,
            env.world_size,
            is_master=host,
            timeout=datetime.timedelta(seconds=seconds),
            # Arrival is counted in ``arrive``, which can say who is missing.
            wait_for_workers=False,
            master_listen_fd=listener(env.meeting_host, env.master_port) if host else None,
        )
        # The constructor's timeout was only what was left for connecting.
        store.set_timeout(datetime.timedelta(seconds=timeout_seconds))
        return store

    def report(waited: float) -> None:
        stderr.release()
        address = f"{env.meeting_host}:{env.master_port}"
        _report(env, f"rank 0, which does not answer at {address}", waited, timeout_seconds)

    try:
        store = call_with_timeout(
            timeout_seconds + _GRACE_SECONDS,
            lambda: _patiently(connect, timeout_seconds, report, timeout_seconds if host else report_seconds),
            "connecting to the store",
        )
    except (RuntimeError, ValueError, OSError) as exc:  # TimeoutError is an OSError
        raise _store_error(exc, env, host) from exc
    finally:
        stderr.release()
    return dist.PrefixStore(env.store_prefix, store)


def _await_port(host: str, port: int, seconds: float) -> float:
    """Wait until the port answers; return the remaining seconds. Raises TimeoutError.

    torch retries up to a minute apart, and would miss a refused rank 0, which stays only seconds to say why.
    """
    deadline, last = time.monotonic() + seconds, ""
    while (left := deadline - time.monotonic()) > 0:
        try:
            socket.create_connection((host, port), timeout=left).close()
        except OSError as error:
            last = str(error)
        else:
            return max(left, _LEAST_SECONDS)
        time.sleep(min(RETRY_SECONDS, left))
    raise TimeoutError(f"no answer within {seconds:.0f} s: {last}")


def listener(host: str, port: int) -> int:
    """Return the descriptor of a socket that listens at the address of ``host`` only.

    torch by itself would listen on all interfaces. If the address is on no interface of this machine (a
    forwarded port, a Kubernetes service), listen on all and print a warning.
    """
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    refused: OSError | None = None
    # IPv4 first: ``localhost`` often resolves to ::1 first, where other ranks may not connect.
    for family, kind, protocol, _, address in sorted(addresses, key=lambda info: info[0] != socket.AF_INET):
        try:
            return _listening(family, kind, protocol, address)
        except OSError as exc:
            if "in use" in str(exc).lower():
                raise
            refused = exc
    print(
        codes.RUNTIME_STORE_OPEN(f"{host}:{port}", str(refused), host=host).render(),
        file=sys.stderr,
        flush=True,
    )
    return _listening(socket.AF_INET, socket.SOCK_STREAM, 0, ("0.0.0.0", port))


_Address = tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]  # of getaddrinfo


def _listening(family: int, kind: int, protocol: int, address: _Address) -> int:
    with contextlib.closing(socket.socket(family, kind, protocol)) as server:
        # A restart finds the port in TIME_WAIT for a minute.
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(address)
        server.listen(_BACKLOG)
        # torch takes the descriptor over; a socket object would close it when collected.
        return server.detach()


_ABSENT, _TEXT = "absent", 500  # who has not arrived, as rank 0 has it; characters that are read
ARRIVED = "here"  # a counter: N calls; one key per rank, awaited by all, would be N²
PREPARING = "preparing"  # a counter: nodes add to it while they prepare their data


def alive_key(rank: int) -> str:
    """Return the key under which a rank reports its arrival, and later writes its heartbeats."""
    return f"alive/{rank}"


def arrive(
    store: dist.Store,
    env: RankEnv,
    timeout_seconds: float,
    secret: bytes,
    *,
    report_seconds: float = REPORT_SECONDS,
) -> None:
    """Wait until every rank has arrived, or one is refused.

    A waiting node prints every ``report_seconds`` which ranks are missing. While a node prepares its data,
    the limit counts from its last sign of life. Raises PacelineError:
    ``runtime.ranks_missing`` with the missing ranks, ``runtime.store_secret``, or another rank's refusal.
    """
    refusals = Refusals(store, env, secret)

    def report(waited: float) -> None:
        _report(env, _missing(store, env), waited, timeout_seconds)

    def announce() -> None:
        refusals.signed.set(alive_key(env.rank), "{}")
        # The last to come wakes all: one counter, and one key to wait for.
        if store.add(ARRIVED, 1) == env.world_size:
            store.set(ALL_HERE, "1")

    try:
        compare_secrets(store, env, secret, timeout_seconds, report_seconds=report_seconds)
        call_with_timeout(timeout_seconds + _GRACE_SECONDS, announce, "the store")
        _await_key(store, ALL_HERE, timeout_seconds, report, report_seconds)
        call_with_timeout(timeout_seconds + _GRACE_SECONDS, refusals.raise_any, "the store")
    except (RuntimeError, TimeoutError) as exc:
        missing = _absent(store, env)
        error = PacelineError(
            codes.RUNTIME_RANKS_MISSING(
                f"not all of the {env.world_size} ranks connected within {timeout_seconds:.0f} s",
                found=f"missing: {_shown(missing, env) or 'the host of the store'}",
                hint="see the logs of the missing ranks; training.start_timeout sets how long to wait",
                evidence={"missing": missing},
            )
        )
        if missing:  # those that came later would wait longer
            with contextlib.suppress(RuntimeError, OSError):  # TimeoutError is an OSError
                readers = env.world_size - len(missing)
                call_with_timeout(
                    HEAR_SECONDS, lambda: refusals.publish(error, readers), "telling the others"
                )
        raise error from exc


def refuse(
    env: RankEnv,
    secret: bytes,
    error: PacelineError,
    timeout_seconds: float = HEAR_SECONDS,
    hosted: dist.Store | None = None,
) -> None:
    """Tell the waiting ranks that this one will not arrive, and why. Never raises.

    ``hosted``: the store, if this process hosts it already.
    """
    if env.world_size == 1:
        return
    with contextlib.suppress(PacelineError, RuntimeError, OSError):  # TimeoutError is an OSError
        store = hosted or connect_store(env, timeout_seconds)
        refusals = Refusals(store, env, secret, timeout_seconds)
        call_with_timeout(
            timeout_seconds, lambda: compare_secrets(store, env, secret, timeout_seconds), "the first rank"
        )
        call_with_timeout(2 * timeout_seconds, lambda: refusals.publish(error), "telling the others")


def compare_secrets(
    store: dist.Store,
    env: RankEnv,
    secret: bytes,
    timeout_seconds: float,
    *,
    report_seconds: float = REPORT_SECONDS,
) -> None:
    """Check that this rank has rank 0's secret; otherwise ranks would silently ignore each other.

    Raises PacelineError (``runtime.store_secret``), which the others hear, too.
    """
    mine = fingerprint(secret) or "none"
    limit = timeout_seconds + _GRACE_SECONDS
    if env.rank == 0:
        call_with_timeout(limit, lambda: store.set("secret", mine), "the store")

    def report(waited: float) -> None:
        _report(env, "rank 0", waited, timeout_seconds)

    _await_key(store, "secret", timeout_seconds, report, report_seconds)
    answer = call_with_timeout(limit, lambda: store.get("secret"), "the store")
    theirs = answer.decode("ascii", "replace")[:64]
    if theirs != mine:
        Refusals(store, env, secret).publish_other_secret(mine)
        shown = {"none": "none"}
        raise other_secret(env.rank, shown.get(mine, "one"), shown.get(theirs, "another"))


def _await_key(
    store: dist.Store, key: str, seconds: float, report: Callable[[float], None], every: float
) -> None:
    """Wait for a key of the store, and on while a node says that it prepares its data."""

    def wait(patience: float) -> None:
        limit = datetime.timedelta(seconds=patience)
        call_with_timeout(patience + _GRACE_SECONDS, lambda: store.wait([key], limit), f"waiting for {key}")

    def signs() -> int:
        return call_with_timeout(_GRACE_SECONDS, lambda: store.add(PREPARING, 0), "signs of life")

    _patiently(wait, seconds, report, every, signs)


def _patiently(
    call: Callable[[float], T],
    seconds: float,
    report: Callable[[float], None],
    every: float,
    signs: Callable[[], int] = lambda: 0,
) -> T:
    """Return ``call(patience)``. After each ``every`` seconds ``report`` the waiting time.

    The wait begins anew where ``signs``, looked at as often, has changed.
    """
    began = begun = time.monotonic()
    before = signs()
    while True:
        since = time.monotonic()
        patience = max(0.1, min(every, seconds - (since - begun)))
        try:
            return call(patience)
        except (RuntimeError, OSError):
            now = time.monotonic()
            if now - since < 0.9 * patience:
                raise
            if (heard := signs()) != before:
                begun, before = now, heard
            elif now - begun > seconds - 0.1:
                raise
            report(now - began)


def _report(env: RankEnv, whom: str, waited: float, limit: float) -> None:
    """Print on the first rank of each node which ranks it waits for."""
    if env.local_rank == 0:
        until = f"training.start_timeout: {limit:.0f} s"
        print(
            f"rank {env.rank} of {env.world_size} has waited {waited:.0f} s for {whom} ({until})",
            file=sys.stderr,
            flush=True,
        )


def _absent(store: dist.Store, env: RankEnv) -> list[int]:
    """Return the ranks that have not arrived; none if the store itself is gone."""
    try:
        here = call_with_timeout(
            _GRACE_SECONDS,
            lambda: [store.check([alive_key(r)]) for r in range(env.world_size)],
            "who is here",
        )
    except (RuntimeError, TimeoutError):
        return []
    return [rank for rank, came in enumerate(here) if not came]


def _missing(store: dist.Store, env: RankEnv) -> str:
    """Say who has not arrived. Rank 0 looks at all keys and writes the answer down for the other nodes."""
    if env.rank == 0:
        text = _shown(_absent(store, env), env) or "nobody"
        store.set(_ABSENT, text)
        return text
    if store.check([_ABSENT]):
        return printable(store.get(_ABSENT).decode("utf-8", "replace")[:_TEXT])
    if not store.check([alive_key(0)]):
        return _shown([0], env)
    return f"{env.world_size - int(store.add(ARRIVED, 0))} ranks"


def _shown(ranks: list[int], env: RankEnv) -> str:
    """Format a list of ranks, with their nodes where there are several; empty for none."""
    listed = ", ".join(map(str, ranks[:16])) + (" …" if len(ranks) > 16 else "")
    nodes = sorted({rank // env.local_world_size for rank in ranks}) if env.num_nodes > 1 else []
    where = ", ".join(map(str, nodes[:16])) + (" …" if len(nodes) > 16 else "")
    on = f" on node{'s' * (len(nodes) > 1)} {where}" if nodes else ""
    return f"rank{'s' * (len(ranks) > 1)} {listed}{on}" if ranks else ""


def _store_error(exc: Exception, env: RankEnv, host: bool) -> PacelineError:
    text = str(exc).splitlines()[0][:300] if str(exc) else type(exc).__name__
    nodes = "" if env.num_nodes == 1 else "; every node needs a --node-rank of its own, and 0 is taken"
    if host and ("EADDRINUSE" in str(exc) or "address already in use" in str(exc).lower()):
        return PacelineError(
            codes.RUNTIME_PORT_IN_USE(
                "MASTER_PORT", text, master_port=env.master_port, meeting_host=env.meeting_host, nodes=nodes
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


HOST_SECONDS = 60.0  # node 0 answers for the others, which may still start; it ends once all have heard
SECONDS = 20.0  # another node waits for node 0


@program
def main() -> int:
    """Publish the error on stdin as this node's first rank."""
    message = parsed_failure(sys.stdin.read())
    if message is not None:
        environ = current()
        env = RankEnv.from_environ(environ)
        seconds = HOST_SECONDS if env.rank == 0 else SECONDS
        refuse(env, read_secret(environ), PacelineError(message[1]), seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
