"""The other programs are asked anew (``scripts/test --peers``): what the import keeps is so."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import losses
import resume
import templates

pytestmark = [pytest.mark.peers, pytest.mark.timeout(7200)]


def test_templates_that_are_kept_give_the_programs_tokens_and_labels(tmp_path: Path) -> None:
    found = templates.compare("llamafactory", templates.names("llamafactory"), tmp_path)
    kept = {name: row for name, row in found.items() if "equal" in row and "said" not in row}
    assert {name: row["first"] for name, row in kept.items() if row["first"]} == {}
    assert len(kept) > 50


@pytest.mark.parametrize("program", ["llamafactory", "axolotl", "trl", "swift"])
def test_losses_are_equal_or_the_import_says_why_not(tmp_path: Path, program: str) -> None:
    found = list(losses.compare(program, losses.extra(program), tmp_path))
    assert [one for one in found if not one.within() and not one.said] == []
    assert sum(one.within() for one in found) > len(found) / 3


@pytest.mark.parametrize("title", list(resume.CASES))
def test_a_checkpoint_of_llama_factory_goes_on_with_its_losses(tmp_path: Path, title: str) -> None:
    theirs, mine = resume.compare(tmp_path, dict(resume.CASES[title]))
    assert theirs == pytest.approx(mine, abs=resume.TOLERANCE)
