"""Logs that real programs wrote as they failed: torchrun, Accelerate, Open MPI, torch, datasets and others.

``real/NAME.log`` is the whole output of one start that was made to fail, on two ranks where ranks matter.
``real/cases.txt`` says what is true of it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.doctor.logs.diagnose import diagnose, read_logs

REAL = Path(__file__).parent / "real"
CASES = [
    line.replace(":", "").split() for line in (REAL / "cases.txt").read_text().splitlines() if line[0] != "#"
]


@pytest.mark.parametrize(("name", "kind", "ident", "rank"), CASES, ids=[case[0] for case in CASES])
def test_the_cause_that_was_made_is_found(name: str, kind: str, ident: str, rank: str) -> None:
    path = REAL / f"{name}.log"
    report = diagnose(read_logs([path]))
    assert report.kind == ("" if kind == "-" else kind.replace("_", " ")), report
    assert report.failed is (kind != "-")
    assert ident in ("-", report.id), report
    assert rank in ("-", str(report.rank)), report
    lines = path.read_bytes().decode("utf-8", "replace").split("\n")
    assert all(line.text.strip()[:80] in lines[line.number - 1] for line in report.evidence)


def test_every_real_log_is_a_case() -> None:
    assert sorted(case[0] for case in CASES) == sorted(path.stem for path in REAL.glob("*.log"))
