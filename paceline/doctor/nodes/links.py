"""Who tries whom, and what the trials tell about ports, names and links.

Each node tries the next and the previous node of a ring, and those a random shift away. That makes at most
four connections and two transfers, for any number of nodes. A link that is tried by nobody is not judged.
"""

from __future__ import annotations

import random
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.units import human_bytes
from paceline.doctor.nodes import codes
from paceline.doctor.nodes.messages import Hello, SentBytes, Trial
from paceline.launch.network import is_loopback

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
