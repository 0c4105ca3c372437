"""The columns of the family matrix that two processes fill; ``tests/integration/family_worker.py`` computes
them.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
TOGETHER, TP, RESUME = "ddp = fsdp = zero3", "tp", "resume"
GRPO, ROLLOUTS = "grpo", "rollouts on 1 and 2 ranks"
#: Column -> what it says.
RANKED = {
    TOGETHER: "Losses and gradient norms of three steps on two ranks are those of one process.",
    TP: "The same with tensor parallelism, where the family's own plan is followed.",
    RESUME: "Two ranks (fsdp) that go on from a checkpoint do bit for bit what they do without a stop.",
    GRPO: "Two steps, each on answers of its own: a token's log-probability in training is the sampler's.",
    ROLLOUTS: "Four answers, sampled, have the same tokens from one rank as from two (fsdp).",
}
#: Column -> the ways of one process and of two that it is judged by.
WAYS = {
    TOGETHER: (("single",), ("ddp", "fsdp", "zero3")),
    TP: (("single",), ("tp",)),
    RESUME: ((), ("resume",)),
    GRPO: (("grpo",), ()),
    ROLLOUTS: (("rollouts",), ("rollouts",)),
}
CLOSE = 2e-5  # relative, in float32
WIDE, EXACT = "64", 1e-8  # relative, in float64
GAP = 1e-4  # of log-probabilities, in float32
AT_ONCE = 8  # families a pair of processes
DEADLINE = 1800.0
Row = dict[str, dict[str, Any]]
Found = Mapping[str, Any]


def cells(columns: Sequence[str], one: Found, two: Found) -> Row:
    """The cells of one family, of what one process and two found by way."""
    return {column: _cell(column, one, two) for column in columns}


def _cell(column: str, one: Found, two: Found) -> dict[str, Any]:
    first, second = WAYS[column]
    found = [*(one[way] for way in first), *(two[way] for way in second)]
    if refusal := next((r for r in map(_refusal, found) if r), None):
        return refusal
    if column == RESUME:
        return {"result": "works"} if found[0] is True else _fails("other numbers than without a stop")
    if column == GRPO:
        gap = found[0]["gap"]
        moved = all(math.isfinite(norm) and norm > 0 for norm in found[0]["norms"])
        works = gap <= GAP and moved
        return (
            {"result": "works", "measured": gap} if works else _fails(f"gap {gap:.1e}, {found[0]['norms']}")
        )
    if column == ROLLOUTS:
        same = [a[0] == b[0] for a, b in zip(*found, strict=True)]
        return {"result": "works"} if all(same) else _fails(f"{same.count(False)} of {len(same)} differ")
    return _alike(*found)


def _alike(single: Any, *others: Any) -> dict[str, Any]:
    far = apart(single, *others)
    if far <= CLOSE:
        return {"result": "works", "measured": far}
    return _fails(f"differs by {far:.1e}, more than {CLOSE:g}", measured=far)


def apart(single: Any, *others: Any) -> float:
    """The largest relative difference of any number of any step."""
    return max(
        abs(a - b) / max(abs(b), 1e-3)
        for steps in others
        for step, expected in zip(steps, single, strict=True)
        for a, b in zip(step, expected, strict=True)
    )


def rounding(row: Row, one: Found, two: Found) -> Row:
    """The cells of ``row`` that differ by float32's rounding alone, anew: in float64 the ways are one, and in
    float32 none is farther from one process than that is from its own float64.

    DeepSpeed has no float64: its part is held by the second. Differences grow from step to step where
    gradients are steep.
    """
    again: Row = {}
    for column, wide in ((TOGETHER, ("ddp64", "fsdp64")), (TP, ("tp64",))):
        if column not in row or not _is_far(row[column]):
            continue
        exact = [one["single64"], *(two[way] for way in wide)]
        if any(_refusal(found) for found in exact):
            continue
        double, own, far = apart(*exact), apart(one["single64"], one["single"]), row[column]["measured"]
        if double <= EXACT and (column == TP or far <= own):
            reason = (
                f"to {far:.0e} in float32, whose own rounding is {own:.0e} here; to {double:.0e} in float64"
            )
            again[column] = {"result": "works", "reason": reason, "measured": double}
    return again


def _refusal(found: Any) -> dict[str, Any] | None:
    if not isinstance(found, dict):
        return None
    if "refused" in found:
        return {"result": "refused", "reason": found["refused"]}
    return _fails(found["fails"]) if "fails" in found else None


def _fails(reason: str, **more: float) -> dict[str, Any]:
    return {"result": "fails", "reason": reason, **more}


def run(asked: Mapping[str, Sequence[str]]) -> dict[str, Row]:
    """Compute the cells of families (family -> columns); one that hangs is not among them, nor are those
    after it.
    """
    ways = {kind: [_ways(columns, place) for place in (0, 1)] for kind, columns in asked.items()}
    found = _found(ways)
    rows = {kind: cells(asked[kind], *both) for kind, both in found.items()}
    far = {kind: row for kind, row in rows.items() if any(_is_far(cell) for cell in row.values())}
    if far:
        again = _found({kind: [["single", "single64"], ["ddp64", "fsdp64", "tp64"]] for kind in far})
        for kind, both in again.items():
            rows[kind] |= rounding(far[kind], *both)
    return rows


def _is_far(cell: Mapping[str, Any]) -> bool:
    return cell["result"] == "fails" and "measured" in cell


def _ways(columns: Sequence[str], place: int) -> list[str]:
    return list(dict.fromkeys(way for column in columns for way in WAYS[column][place]))


def _found(ways: Mapping[str, Sequence[Sequence[str]]]) -> dict[str, tuple[Found, Found]]:
    """By family what one process and two found."""
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/integration")]
    from ranks import run_ranks

    worker = ROOT / "tests/integration/family_worker.py"
    found: list[dict[str, Found]] = []
    with tempfile.TemporaryDirectory() as place:
        for ranks in (1, 2):
            asked = [f"{kind}={','.join(both[ranks - 1])}" for kind, both in ways.items() if both[ranks - 1]]
            file, outputs = Path(place, str(ranks), "0.json"), [""]
            if asked:
                _, outputs = run_ranks("+".join(asked), ranks, file.parent, DEADLINE, worker)
            if asked and not file.exists():
                print(outputs[0][-2000:])
            found.append(json.loads(file.read_text()) if file.exists() else {})
    one, two = found
    done = [k for k, both in ways.items() if (k in one or not both[0]) and (k in two or not both[1])]
    return {kind: (one.get(kind, {}), two.get(kind, {})) for kind in done}
