"""Trials between nodes: who tries whom, a connection, a transfer, and what they tell about the network."""

from __future__ import annotations

import random
import socket
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TypeVar

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.units import human_bytes
from paceline.doctor.nodes import codes
from paceline.doctor.nodes.messages import Hello, NotOurs, SentBytes, Trial, Wire, greet, received, welcome
from paceline.doctor.nodes.network import listen_at
from paceline.launch.network import is_loopback
from paceline.plan.plan_json import to_json

T = TypeVar("T")
CONNECT_SECONDS = 5.0
TRANSFER_SECONDS = 5.0
_RESOLVE_SECONDS = 5.0
_ROUND_TRIPS = 5
#: Bytes of the first of some tries. The next is this much larger where it will then take about a while.
_FIRST_BYTES, _TRIES, _GROWTH, _AIM_SECONDS = 64 << 10, 6, 16, 0.2
LARGEST = 32 << 20
_BLOCK = bytes(range(256)) * 1024
_AT_ONCE = 16  # connections of partners


@dataclass(frozen=True)
class _Size:
    """Before ``size`` raw bytes."""

    size: int


@dataclass(frozen=True)
class _Arrived:
    """After them: how many came in time."""

    arrived: int


class PartnerListener:
    """Answers the partners of this node, in threads, until it is closed.

    It listens at ``address`` alone, the address that reaches node 0.
    """

    def __init__(self, address: str, secret: bytes) -> None:
        self._server = listen_at(address, 0)
        self._server.settimeout(0.2)
        self._secret, self._closed = secret, threading.Event()
        self._free = threading.BoundedSemaphore(_AT_ONCE)
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._accept, name="paceline-partners", daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    def _accept(self) -> None:
        with closing(self._server):
            while not self._closed.is_set():
                try:
                    connection, _ = self._server.accept()
                except TimeoutError:
                    continue
                if self._free.acquire(blocking=False):
                    threading.Thread(target=self._answer, args=(connection,), daemon=True).start()
                else:
                    connection.close()

    def _answer(self, connection: socket.socket) -> None:
        try:
            with closing(connection), suppress(OSError):  # its partner reports it
                wire, _ = welcome(connection, self._secret, CONNECT_SECONDS)
                while not self._closed.is_set():
                    size = received(_Size, wire.receive(CONNECT_SECONDS)).size
                    if not 0 <= size <= LARGEST:
                        return
                    wire.send(to_json(_Arrived(_take(connection, size))), CONNECT_SECONDS)
        finally:
            self._free.release()


def _take(connection: socket.socket, size: int) -> int:
    """Read up to ``size`` bytes for a limited time; return their number."""
    deadline, arrived = time.monotonic() + TRANSFER_SECONDS, 0
    while arrived < size and (left := deadline - time.monotonic()) > 0:
        connection.settimeout(left)
        try:
            part = connection.recv(min(size - arrived, len(_BLOCK)))
        except TimeoutError:
            break
        if not part:
            break
        arrived += len(part)
    return arrived


def try_partner(partner: Hello, mine: Hello, secret: bytes) -> Trial:
    """Connect to a partner, and resolve its name."""
    resolved, unresolved = addresses_of(partner.host)
    error, round_trip = "", 0.0
    try:
        with closing(_connected(partner, mine, secret)) as wire:
            round_trip = min(_request(wire, 0)[1] for _ in range(_ROUND_TRIPS))
    except NotOurs:
        error = "another program answers there"
    except OSError as refused:
        error = _reason(refused)
    return Trial(partner.rank, error, round_trip, resolved, unresolved)


def send_to(partner: Hello, mine: Hello, secret: bytes, most: int) -> SentBytes:
    """Send bytes to a partner some times, more where they are quick; return the best speed.

    A pause of a busy machine makes one of them slow, and not all.
    """
    best, total, error, size = 0.0, 0, "", _FIRST_BYTES
    try:
        with closing(_connected(partner, mine, secret)) as wire:
            for _ in range(_TRIES):
                arrived, seconds = _request(wire, size)
                total, best = total + arrived, max(best, arrived / seconds)
                if arrived < size:
                    error = f"{arrived} of {size} bytes arrived within {TRANSFER_SECONDS:.0f} s"
                    break
                if best * _AIM_SECONDS > _GROWTH * size:
                    size = min(_GROWTH * size, most)
    except OSError as refused:
        error = _reason(refused)
    return SentBytes(partner.rank, best, total, error)


def _connected(partner: Hello, mine: Hello, secret: bytes) -> Wire:
    connection = socket.create_connection((partner.address, partner.port), CONNECT_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        return greet(connection, secret, to_json(mine), CONNECT_SECONDS)
    except BaseException:
        connection.close()
        raise


def _request(wire: Wire, size: int) -> tuple[int, float]:
    """Send ``size`` bytes; return how many arrived, and the seconds until the answer came."""
    begun = time.monotonic()
    wire.send(to_json(_Size(size)), CONNECT_SECONDS)
    wire.connection.settimeout(TRANSFER_SECONDS)
    sent = 0
    with suppress(TimeoutError):  # the other side counts what arrives, and answers
        while sent < size:
            sent += wire.connection.send(_BLOCK[: size - sent])
    answer = received(_Arrived, wire.receive(TRANSFER_SECONDS + CONNECT_SECONDS))
    return answer.arrived, max(time.monotonic() - begun, 1e-9)


def addresses_of(name: str) -> tuple[tuple[str, ...], str]:
    """Return the addresses of a host name here, and why there are none; within some seconds."""
    results: list[tuple[tuple[str, ...], str]] = []

    def resolve() -> None:
        try:
            infos = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            results.append((tuple(sorted({str(info[4][0]) for info in infos})), ""))
        except (OSError, UnicodeError) as error:
            results.append(((), str(getattr(error, "strerror", None) or error)))

    thread = threading.Thread(target=resolve, daemon=True)
    thread.start()
    thread.join(_RESOLVE_SECONDS)
    return results[0] if results else ((), f"no answer within {_RESOLVE_SECONDS:.0f} s")


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "no answer: its packets are dropped"
    return (error.strerror or str(error)).lower()


def each(partners: Sequence[Hello], call: Callable[[Hello], T]) -> list[T]:
    """Call for each partner, all at once."""
    with ThreadPoolExecutor(max(1, len(partners))) as pool:
        return list(pool.map(call, partners))


SLOW_SHARE = 1 / 4  # of the speed in the middle
SLOW_BYTES = 10e6  # a second: no two nodes train over less
QUICK_BYTES = 400e6  # what a busy processor may send over one connection, over a link in order
Link = tuple[int, int]  # from, to
Where = Callable[[Sequence[int]], str]


def shifts_of(count: int, chance: random.Random) -> tuple[int, ...]:
    """Return how far the partners are in the ring: 1, and a random one for more than two nodes."""
    return (1,) if count < 3 else (1, chance.randint(2, max(2, count - 2)))


def partners_of(ranks: Sequence[int], shift: int) -> dict[int, int]:
    """Return the node ``shift`` places on in the ring of ``ranks``, for each."""
    return {rank: ranks[(place + shift) % len(ranks)] for place, rank in enumerate(ranks)}


def to_try(ranks: Sequence[int], shifts: Sequence[int]) -> dict[int, list[int]]:
    """Return whom each node connects to: its partners on both sides."""
    return {
        rank: sorted(
            {
                ring[rank]
                for shift in shifts
                for ring in (partners_of(ranks, shift), partners_of(ranks, -shift))
            }
        )
        for rank in ranks
    }


def port_findings(trials: Mapping[int, Sequence[Trial]], where: Where) -> Iterator[Diagnostic]:
    """Find the nodes that cannot be reached, by all that tried or by some."""
    tried: dict[int, dict[int, str]] = defaultdict(dict)
    for source, own_trials in trials.items():
        for trial in own_trials:
            tried[trial.rank][source] = trial.error
    for target, by_source in sorted(tried.items()):
        failed = [source for source, error in by_source.items() if error]
        if not failed:
            continue
        error = by_source[failed[0]]
        back = [source for source in failed if not tried[source].get(target)]
        way = "one way" if back == failed else "both ways" if not back else "one way or both"
        yield codes.NODE_PORT(
            where([target]),
            f"{error}, from {where(failed)}",
            way=way,
            evidence={"ranks": [target], "from": failed},
        )


def name_findings(
    trials: Mapping[int, Sequence[Trial]], hellos: Mapping[int, Hello], where: Where
) -> Iterator[Diagnostic]:
    """Find the host names that other nodes resolve to nothing, or to themselves."""
    wrong: dict[tuple[int, str], list[int]] = defaultdict(list)
    unknown: dict[int, list[int]] = defaultdict(list)
    for source, own_trials in trials.items():
        for trial in own_trials:
            partner = hellos[trial.rank]
            if partner.host == hellos[source].host or is_loopback(partner.address):
                continue  # nodes of one machine, or of one name: nothing can be told
            if trial.unresolved:
                unknown[trial.rank].append(source)
            elif all(map(is_loopback, trial.resolved)):
                wrong[trial.rank, ", ".join(trial.resolved)].append(source)
    for (target, address), sources in wrong.items():
        shown = (
            f"{hellos[target].host} is {address} on {where(sources)}; its address is {hellos[target].address}"
        )
        yield codes.NODE_NAME_WRONG(where(sources), shown, name=hellos[target].host)
    for target, sources in unknown.items():
        shown = f"{hellos[target].host}, looked up on {where(sources)}"
        yield codes.NODE_NAME_UNKNOWN(where([target]), shown, address=hellos[target].address)


def suspects(transfers: Mapping[Link, SentBytes]) -> list[Link]:
    """Return the links that are much slower than the one in the middle, or slow in any case."""
    speeds = [transfer.speed for transfer in transfers.values()]
    least = max(SLOW_BYTES, min(QUICK_BYTES, SLOW_SHARE * statistics.median(speeds))) if speeds else 0.0
    return [link for link, transfer in transfers.items() if transfer.error or transfer.speed < least]


def link_findings(
    transfers: Mapping[Link, SentBytes], slow: Sequence[Link], where: Where
) -> Iterator[Diagnostic]:
    """Return findings about the slow links. ``transfers``: the better of two tries of each."""
    usual = statistics.median(transfer.speed for transfer in transfers.values())
    for source, target in slow:
        transfer = transfers[source, target]
        pair = f"{where([source])} → {where([target])}"
        ranks = {"ranks": [source, target]}
        if transfer.arrived == 0:
            yield codes.NODE_LARGE_PACKETS(pair, transfer.error, evidence=ranks)
            continue
        shown = f"{human_bytes(round(transfer.speed))}/s, {human_bytes(round(usual))}/s in the middle"
        severity = Severity.ERROR if transfer.error else Severity.WARNING
        yield codes.NODE_LINK_SLOW(pair, shown, severity=severity, evidence=ranks)
