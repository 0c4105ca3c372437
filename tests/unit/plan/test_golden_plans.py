"""The plans of 200 varied jobs are those of ``tests/golden/plans.jsonl``:
``python tests/unit/plan/test_golden_plans.py`` writes it anew.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from plan_cases import jobs, planned

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "plans.jsonl"


def _lines(folder: Path) -> list[str]:
    found = []
    for name, config, hardware, world_size, num_nodes in jobs():
        result = planned(config, hardware, world_size, num_nodes, folder)
        found.append(json.dumps({"job": name, **result}, sort_keys=True, separators=(",", ":")))
    return found


def test_plans_are_those_that_were_written_down(tmp_path: Path) -> None:
    written = [json.loads(line) for line in GOLDEN.read_text(encoding="utf-8").splitlines()]
    now = [json.loads(line) for line in _lines(tmp_path)]
    assert [job["job"] for job in now] == [job["job"] for job in written]
    other = {
        a["job"]: sorted(k for k in {*a, *b} if a.get(k) != b.get(k))
        for a, b in zip(now, written, strict=True)
        if a != b
    }
    assert other == {}, "which parts of which plans are others now"


def test_cases_reach_every_strategy_and_are_mostly_started() -> None:
    written = [json.loads(line) for line in GOLDEN.read_text(encoding="utf-8").splitlines()]
    started = [job for job in written if "refused" not in job]
    assert len(started) > 0.4 * len(written)
    assert len({job["strategy"] for job in started}) >= 9 and len({job["algorithm"] for job in started}) == 5


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        GOLDEN.write_text("\n".join(_lines(Path(made))) + "\n", encoding="utf-8")
    sys.stdout.write(f"{GOLDEN}\n")
