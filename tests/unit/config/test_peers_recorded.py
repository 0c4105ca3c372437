"""What LLaMA-Factory answered once (``tests/peers``): our tokens and labels are still its own.

What was not equal is said by the import.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support import swept

PEERS = Path(__file__).parents[2] / "peers"
sys.path.insert(0, str(PEERS))

import of_llamafactory  # noqa: E402
import ours  # noqa: E402
import templates  # noqa: E402

TEMPLATES = json.loads((PEERS / "recorded/templates_llamafactory.json").read_text(encoding="utf-8"))
LOSSES = json.loads((PEERS / "recorded/losses.json").read_text(encoding="utf-8"))
KEPT = sorted(name for name, row in TEMPLATES.items() if "equal" in row and "said" not in row)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    folder = tmp_path_factory.mktemp("templates")
    return folder, templates.given("llamafactory", folder)


@pytest.mark.parametrize("name", swept(KEPT, every=18))
def test_a_kept_template_gives_the_recorded_tokens_and_labels(
    files: tuple[Path, dict[str, object]], name: str
) -> None:
    folder, keys = files
    said, mine = templates.ours_of(
        "llamafactory", templates.with_template("llamafactory", keys, name), folder
    )
    assert said == {} and templates.digests(mine) == TEMPLATES[name]["digests"]


def test_losses_that_were_not_equal_are_said_by_the_import() -> None:
    cases = {row["file"]: row for row in LOSSES if row["file"] in of_llamafactory.SMALL}
    apart = [name for name, row in cases.items() if row["difference"] and row["difference"] > 1e-4]
    home = {"model_name_or_path": "base", "dataset": "rows", "dataset_dir": "."}
    silent = [
        name
        for name in apart
        if not ours.imported("llamafactory", {**of_llamafactory.SMALL[name], **home}).said
    ]
    assert len(cases) > 8 and len(apart) > 3 and silent == []
