"""Diagnostics for ranks, or a store, that do not respond."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.plan.timeouts import START, STEP, Limit
from paceline.runtime import codes
from paceline.runtime.failures.last_heard import Beat
from paceline.runtime.rank_env import RankEnv


def rank_silent(
    ranks: Sequence[int], seconds: float, seen: Sequence[str], stood_still: float, key: str
) -> Diagnostic:
    """``seen``: what is known of each rank; ``key``: sets the limit.

    ``stood_still``: seconds for which this process itself was stopped.
    """
    shown = _ranks(ranks)
    evidence = {"silent_ranks": list(ranks), "stood_still_seconds": round(stood_still, 1)}
    return codes.RUNTIME_RANK_SILENT(
        f"rank {shown}",
        "; ".join([*seen, *_still(stood_still)]),
        shown=shown,
        seconds=seconds,
        key=key,
        evidence=evidence,
    )


def rank_died(rank: int, seen: str) -> Diagnostic:
    """A rank's connection was cut without a farewell. ``seen``: what is known of the rank."""
    return codes.RUNTIME_RANK_DIED(f"rank {rank}", seen, rank=rank, evidence={"silent_ranks": [rank]})


def rank_late(ranks: Sequence[int], beat: Beat, limit: Limit, seen: Sequence[str], waits: str) -> Diagnostic:
    """``ranks`` are alive and in no collective, and the others wait for them for longer than ``limit``.

    ``beat``: the first one's; ``seen``: what is known of each; ``waits``: who waits for them, where.
    """
    shown, them = _ranks(ranks), "it" if len(ranks) == 1 else "them"
    place = {START: "in the start", STEP: f"in step {beat.step + 1}"}.get(
        beat.phase, f"after step {beat.step} ({beat.phase})"
    )
    what = f"rank {shown} {'is' if len(ranks) == 1 else 'are'} late {place}: the others wait for {them}"
    hint = (
        "see that rank's log, and its stacks there after kill -USR1 PID; if it only needs longer, raise"
        f" {limit.key} (now {limit.seconds:g} s)"
    )
    evidence = {
        "rank": ranks[0],
        "late_ranks": list(ranks),
        "phase": beat.phase,
        "limit_seconds": limit.seconds,
        "key": limit.key,
    }
    return codes.RUNTIME_RANK_LATE(what, f"rank {shown}", "; ".join([*seen, waits]), hint, evidence=evidence)


def collective_stuck(rank: int, waits: str, key: str) -> Diagnostic:
    """This ``rank`` waits in a collective for as long as is allowed, and all ranks give signs of life."""
    return codes.RUNTIME_COLLECTIVE_STUCK(
        f"rank {rank}", waits, rank=rank, waits=waits, key=key, evidence={"rank": rank}
    )


def store_silent(
    env: RankEnv, seconds: float, sign: Callable[[int], str], stood_still: float, severity: Severity
) -> Diagnostic:
    """The store does not respond: its host is stopped, or the network in between is cut."""
    where, host = _place(env)
    hosted = env.rank == 0 and not env.agent_store
    what = (
        f"the ranks' store has not answered for {seconds:.0f} s;"
        f" {'this very process' if hosted else host} hosts it"
    )
    ranks = [] if hosted or env.agent_store else [0]
    found = "; ".join(filter(None, (*map(sign, ranks), *_still(stood_still))))
    rank_0 = "check rank 0 (stopped by SIGSTOP or a debugger?), its machine and the network to it"
    hint = (
        "check the network of this machine"
        if hosted
        else rank_0
        if ranks
        else "check torchrun's agent, its machine and the network to it"
    )
    evidence = {"silent_ranks": ranks, "stood_still_seconds": round(stood_still, 1)}
    return codes.RUNTIME_STORE_SILENT(what, where, found, hint, severity, evidence)


def store_lost(env: RankEnv) -> Diagnostic:
    """The connection to the store broke: its host died."""
    where, host = _place(env)
    evidence = {"silent_ranks": [] if env.agent_store else [0]}
    return codes.RUNTIME_STORE_LOST(where, "connection lost", host=host, evidence=evidence)


def store_forged(rank: int, key: str) -> Diagnostic:
    """A value in the store was not written by a rank of this run; it is ignored and not shown."""
    return codes.RUNTIME_STORE_FORGED(f"rank {rank}", key)


def _place(env: RankEnv) -> tuple[str, str]:
    return f"{env.meeting_host}:{env.master_port}", "the launcher's agent" if env.agent_store else "rank 0"


def _ranks(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:16])) + (" …" if len(ranks) > 16 else "")


def _still(seconds: float) -> list[str]:
    return [f"this process itself did not run for {seconds:.0f} s"] if seconds else []
