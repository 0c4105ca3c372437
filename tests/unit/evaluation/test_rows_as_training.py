"""What ``evaluate`` and ``generate`` do with rows that cannot be used is what a training on the file does."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from support import write_tokenizer

from paceline.config.sections.data import DataSection
from paceline.config.sections.model import ModelSection
from paceline.core.errors import DataError
from paceline.data.prepare.prepare import prepare
from paceline.data.rows.kinds.base import row_kind
from paceline.evaluation.file_rows import read_file

USER, NOTES_BY_KEY = {"role": "user", "content": "How many?"}, {"role": "assistant", "content": "Four."}
LINES: dict[str, Any] = {
    "good": {"messages": [USER, NOTES_BY_KEY]},
    "too_long": {"messages": [USER, {**NOTES_BY_KEY, "content": "four " * 60}]},
    "answer_cut_off": {"messages": [{**USER, "content": "how " * 60}, NOTES_BY_KEY]},
    "no_answer": {"messages": [USER]},
    "empty": {"messages": []},
    "unknown_role": {"messages": [{"role": "king", "content": "a"}, NOTES_BY_KEY]},
    "not_an_object": [1],
    "bad_json": None,
}
FILES = [set(LINES), {"good", "too_long", "answer_cut_off"}, {"answer_cut_off"}]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def outcome(read: Any) -> tuple[str, Any]:
    """Return the codes of what is wrong, or what was used and left out."""
    try:
        return ("used", read())
    except DataError as error:
        return (
            "refused",
            sorted({one.code for one in error.diagnostics} - {"data.no_usable_rows", "data.no_labels"}),
        )


@pytest.mark.parametrize("kind", ["documents", "prompts"])
@pytest.mark.parametrize(
    "bad, long", [*itertools.product(["refuse", "skip"], ["truncate", "skip", "refuse"])]
)
def test_rows_are_refused_and_left_out_alike(
    tokenizer: Path, kind: str, bad: str, long: str, tmp_path: Path
) -> None:
    model, of_kind = ModelSection(name_or_path=str(tokenizer)), row_kind(kind)
    for number, names in enumerate(FILES):
        path = tmp_path / f"{number}.jsonl"
        lines = [LINES[name] for name in LINES if name in names]
        path.write_text("".join((json.dumps(one) if one is not None else "{oops") + "\n" for one in lines))
        data = DataSection(
            train=str(path),
            num_proc=1,
            max_length=64,
            on_bad_row=bad,
            on_too_long=long,  # type: ignore[arg-type]
        )

        def training(data: DataSection = data) -> Any:
            found = prepare(data, model, seed=1, cache_dir=tmp_path / "cache", kind=of_kind)
            used = [found.train.source_row[i] for i in range(len(found.train))]
            return used, {reason: tally.count for reason, tally in found.counts.skipped.items()}

        def evaluation(data: DataSection = data) -> Any:
            found = read_file(data, model, of_kind)
            return found.numbers, {reason: tally.count for reason, tally in found.skipped.items()}

        assert outcome(evaluation) == outcome(training), names
