"""From what the logs say to the first cause: causes before echoes, by kind and by time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from paceline.doctor.logs.catalogue import ECHO, UNKNOWN, catalogue
from paceline.doctor.logs.deaths import Death
from paceline.doctor.logs.reader import Evidence, LogFacts

_SURVIVED = 3  # steps after which a failure was none
_NOTICE = 50  # of a stop that was announced, and whose end comes later
_TIMEOUTS = ("nccl_unique_id_timeout", "nccl_watchdog_timeout", "gloo_recv_timeout", "store_client_timeout")
_STOPS = ("preemption", "time limit")
_BLOCK = 12  # lines of one message
_WAITING = 3.0  # from here on a cause may be the mark of another one
_BY_SIGNAL = {-11: "segfault", -7: "shm_open", -4: "no_kernel_image", -8: "segfault"}
_VICTIMS = (-6, -15)  # signals of ranks whose peer has failed


@dataclass(frozen=True)
class FirstCause:
    """``root``: the first cause; None where nothing was found, or (``failed``) none can be told.

    ``echoes``: other evidence, in order; ``death``: the end that no line explains.
    """

    failed: bool
    root: Evidence | None = None
    kind: str = ""
    rank: int | None = None
    node: str = ""
    echoes: tuple[Evidence, ...] = ()
    death: Death | None = None
    file: str = ""


def judge(logs: Sequence[LogFacts]) -> FirstCause:
    """Find the first cause in logs of one run."""
    evidence = [item for facts in logs for item in _standing(facts)]
    deaths = [(facts.file, death) for facts in logs for death in facts.deaths]
    if all(item.time is not None for item in evidence):
        evidence.sort(key=lambda item: item.time or 0.0)
    candidates = [item for item in evidence if item.level < ECHO]
    root = _first(candidates)
    if root is None or root.level >= _WAITING:
        root = _by_signal(deaths, root)
    death = next((pair for pair in deaths if pair[1].code not in _VICTIMS), deaths[0] if deaths else None)
    raised = root is not None and root.raised  # such an exception ends its rank with exit code 1
    explained = death is None or death[1].code in _VICTIMS or (raised and death[1].code > 0)
    hidden = any(facts.cut for facts in logs) or not explained
    if root is not None and root.level > _WAITING and hidden:
        root = None  # what the others noticed of a rank that was killed, or whose error is not in these logs
    if root is None:
        failed = bool(evidence or deaths)
        last = death[1] if death else None
        return FirstCause(
            failed,
            None,
            UNKNOWN if failed else "",
            last.rank if last else None,
            last.node if last else "",
            tuple(evidence),
            last,
            death[0] if death else "",
        )
    rank, node = _where(root, [pair[1] for pair in deaths], logs)
    rest = tuple(item for item in evidence if item is not root)
    return FirstCause(True, root, root.cause.kind, rank, node, rest, None, root.file)


def _standing(facts: LogFacts) -> list[Evidence]:
    """The evidence that no later step takes back, and what the signs of life add."""
    progress, standing = facts.progress, []
    ended_well = progress.ended and not facts.deaths
    for item in facts.evidence:
        numeric = item.cause.kind == "numerics"
        after = progress.finite - item.finite if numeric else progress.steps - item.steps
        if after >= (_NOTICE if item.cause.fact and item.cause.kind in _STOPS else _SURVIVED):
            continue
        if (ended_well and not item.ended) or (item.ended and not facts.deaths and item.level >= ECHO):
            continue
        standing.append(item)
    causes = catalogue().causes
    if waits := [item for item in standing if item.cause.id in _TIMEOUTS]:
        if progress.preparing is not None and not progress.finite:
            number, text = progress.preparing
            early = replace(
                waits[0], cause=causes["preprocess_over_timeout"], level=0.9, number=number, text=text
            )
            standing.insert(0, replace(early, rank=None, node=""))
        elif waits[0].ended:
            standing.insert(0, replace(waits[0], cause=causes["post_fit_hang"], level=0.9))
    for name, lines in (("nan_loss", progress.nan), ("loss_zero", progress.zero)):
        if len(lines) > 1 or (lines and not standing and lines[-1][0] >= facts.lines - 1):
            number, text = lines[0]
            cause = causes[name]
            standing.append(
                Evidence(cause, 1.7, facts.file, number, text[:2000], None, "", None, 0, 0, False)
            )
    return standing


def _first(candidates: Sequence[Evidence]) -> Evidence | None:
    """The first of the strongest. A stop from outside does not explain what failed before it."""
    if not candidates:
        return None
    lowest = min(item.level for item in candidates)
    best = next(item for item in candidates if item.level == lowest)
    if best.cause.kind in _STOPS and best.cause.fact:
        before = candidates[: candidates.index(best)]
        own = [
            item for item in before if item.level < _WAITING and item.cause.kind not in _STOPS and item.raised
        ]
        return _first(own) or best
    near = (i for i in candidates if i.file == best.file and 0 <= i.number - best.number <= _BLOCK)
    return next((item for item in near if item.level < _WAITING and item.cause.wins(best.cause)), best)


def _by_signal(deaths: Sequence[tuple[str, Death]], root: Evidence | None) -> Evidence | None:
    """A signal that is never a consequence names a cause by itself."""
    for file, death in deaths:
        if (name := _BY_SIGNAL.get(death.code)) is not None:
            cause = catalogue().causes[name]
            return Evidence(
                cause,
                cause.level,
                file,
                death.number,
                death.text[:2000],
                death.rank,
                death.node,
                None,
                0,
                0,
                False,
            )
    return root


def _where(root: Evidence, deaths: Sequence[Death], logs: Sequence[LogFacts]) -> tuple[int | None, str]:
    """The first rank and its node."""
    if root.cause.id in ("nccl_watchdog_timeout", "gloo_recv_timeout"):
        waiting = {i.rank for facts in logs for i in facts.evidence if i.cause.id == root.cause.id}
        absent = {rank for facts in logs for rank in facts.ranks} - waiting
        if len(absent) == 1:
            return absent.pop(), ""
    own = [death for death in deaths if death.code not in _VICTIMS and death.rank is not None]
    if root.rank is None and len({death.rank for death in own}) == 1:
        return own[0].rank, root.node or own[0].node
    if root.rank is None and root.cause.kind == "hardware":
        # The kernel's line tells no rank; the one that then meets a fault of its device is the card's
        met = {i.rank for facts in logs for i in facts.evidence if i.cause.kind == root.cause.kind} - {None}
        if len(met) == 1:
            return met.pop(), root.node
    node = next((d.node for d in own if d.rank == root.rank and d.node), "")
    return root.rank, root.node or node
