"""The columns of the family matrix that two processes fill; ``tests/integration/family_worker.py`` computes
them.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
TOGETHER, TP, RESUME = "ddp = fsdp = zero3", "tp", "resume"
#: Column -> what it says.
RANKED = {
    TOGETHER: "Losses and gradient norms of three steps on two ranks are those of one process.",
    TP: "The same with tensor parallelism, where the family's own plan is followed.",
    RESUME: "Two ranks (fsdp) that go on from a checkpoint do bit for bit what they do without a stop.",
}
CLOSE = 2e-5  # relative, in float32
AT_ONCE = 8  # families a pair of processes
DEADLINE = 900.0
Row = dict[str, dict[str, Any]]


def cells(one: Mapping[str, Any], two: Mapping[str, Any]) -> Row:
    """The cells of one family, of what one process and two found."""
    return {
        TOGETHER: _alike(one["single"], [two[way] for way in ("ddp", "fsdp", "zero3")]),
        TP: _alike(one["single"], [two["tp"]]),
        RESUME: _refusal(two["resume"])
        or ({"result": "works"} if two["resume"] is True else _fails("other numbers than without a stop")),
    }


def _alike(single: Any, others: Sequence[Any]) -> dict[str, Any]:
    for found in (single, *others):
        if refusal := _refusal(found):
            return refusal
    far = max(
        abs(a - b) / max(abs(b), 1e-3)
        for steps in others
        for step, expected in zip(steps, single, strict=True)
        for a, b in zip(step, expected, strict=True)
    )
    if far <= CLOSE:
        return {"result": "works", "measured": far}
    return _fails(f"differs by {far:.1e}, more than {CLOSE:g}")


def _refusal(found: Any) -> dict[str, Any] | None:
    if not isinstance(found, dict):
        return None
    if "refused" in found:
        return {"result": "refused", "reason": found["refused"]}
    return _fails(found["fails"])


def _fails(reason: str) -> dict[str, Any]:
    return {"result": "fails", "reason": reason}


def run(kinds: Sequence[str]) -> dict[str, Row]:
    """Compute the cells of ``kinds``; one that hangs is not among them, nor are those after it."""
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests/integration")]
    from ranks import run_ranks

    worker = ROOT / "tests/integration/family_worker.py"
    with tempfile.TemporaryDirectory() as place:
        for ranks in (1, 2):
            _, outputs = run_ranks("+".join(kinds), ranks, Path(place, str(ranks)), DEADLINE, worker)
            if not Path(place, str(ranks), "0.json").exists():
                print(outputs[0][-2000:])
        return collected(Path(place))


def collected(place: Path) -> dict[str, Row]:
    """The cells of what one process (``1/0.json``) and two (``2/0.json``) wrote."""
    files = [place / ranks / "0.json" for ranks in "12"]
    if not all(file.exists() for file in files):
        return {}
    one, two = (json.loads(file.read_text()) for file in files)
    return {kind: cells(one[kind], two[kind]) for kind in two if kind in one}
