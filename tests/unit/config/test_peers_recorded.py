"""What other programs answered once (``tests/peers``): our tokens and labels are still theirs.

What was not equal is said by the import.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from support import swept

PEERS = Path(__file__).parents[2] / "peers"
sys.path.insert(0, str(PEERS))

import of_llamafactory  # noqa: E402
import of_swift  # noqa: E402
import of_trl  # noqa: E402
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


def _of_trl(name: str) -> dict[str, str]:
    trainer, keys = of_trl.SMALL[name]
    home = {"model_name_or_path": "base", "dataset_name": "rows.jsonl", "gradient_accumulation_steps": 2}
    return ours.imported("trl", (trainer, {**home, **keys})).said


def _of_swift(name: str) -> dict[str, str]:
    words = list(of_swift.SMALL[name])
    batch = [] if "--gradient_accumulation_steps" in words else ["--gradient_accumulation_steps", "2"]
    home = ["--model", "base", "--template", "chatml", "--torch_dtype", "float32", "--dataset", "rows.jsonl"]
    said = ours.imported("swift", [*words[:1], *home, *words[1:], *batch, "--max_length", "64"]).said
    return {key: says for key, says in said.items() if key != "use_chat_template"}


@pytest.mark.parametrize(
    ("program", "cases", "said", "least"),
    [("trl", of_trl.SMALL, _of_trl, 12), ("swift", of_swift.SMALL, _of_swift, 20)],
)
def test_losses_of_a_program_are_equal_or_the_difference_is_named(
    program: str, cases: Mapping[str, object], said: Callable[[str], dict[str, str]], least: int
) -> None:
    rows = [row for row in LOSSES if row["program"] == program and row["file"] in cases]
    apart = [row["file"] for row in rows if row["difference"] is None or row["difference"] > 1e-4]
    assert len(rows) >= least and len(apart) < len(rows) / 2
    assert [name for name in apart if not said(name)] == []


def test_losses_that_were_not_equal_are_said_by_the_import() -> None:
    mine = [row for row in LOSSES if row["program"] == "llamafactory"]
    cases = {row["file"]: row for row in mine if row["file"] in of_llamafactory.SMALL}
    apart = [name for name, row in cases.items() if row["difference"] and row["difference"] > 1e-4]
    home = {"model_name_or_path": "base", "dataset": "rows", "dataset_dir": "."}
    silent = [
        name
        for name in apart
        if not ours.imported("llamafactory", {**of_llamafactory.SMALL[name], **home}).said
    ]
    assert len(cases) > 8 and len(apart) > 3 and silent == []
