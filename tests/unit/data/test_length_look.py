"""The look at ``data.max_length`` finds what the preparation would end with; the preparation judges it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from data_fixtures import make_tokenizer, prepared_from, write_jsonl

from paceline.config.sections.data import DataSection
from paceline.config.sections.model import ModelSection
from paceline.core.errors import DataError
from paceline.data.preflight.length_check import doubtful_sets, lost_rows
from paceline.data.prepare.prepare import setup_of
from paceline.data.rows.kinds.base import row_kind

LENGTH = 128


def words(r: random.Random, most: int) -> str:
    return " ".join(r.choices(["tide", "moon", "a", "sea", "why"], k=r.randint(1, most)))


def made(kind: str, seed: int, rows: int) -> list[dict[str, Any]]:
    """Rows of which a few are too long; pairs begin alike, sometimes for longer than is kept."""
    r, found = random.Random(seed), list[dict[str, Any]]()
    for _ in range(rows):
        long = r.random() < 0.02
        prompt = words(r, 3) if not long else words(r, 40)
        answer = words(r, 2) if r.random() < 0.9 else words(r, 40)
        end = " " if r.random() < 0.01 else " no"
        found.append(
            {
                "pairs": {"prompt": prompt, "chosen": answer, "rejected": answer + end},
                "labelled": {"prompt": prompt, "completion": answer, "label": r.random() < 0.5},
                "documents": {"instruction": prompt, "output": answer},
                "prompts": {"prompt": prompt},
            }[kind]
        )
    return found


POLICIES = [("refuse", "truncate"), ("skip", "truncate"), ("refuse", "refuse"), ("skip", "skip")]
OF_LENGTH = {"data.same_answers", "data.too_long", "data.prompt_too_long", "data.answer_cut_off"}


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("chat"))


def looked_at(section: DataSection, model: ModelSection, kind: str) -> set[tuple[str, str, str]]:
    setup = setup_of(section, model, row_kind(kind))
    found = list(doubtful_sets(section, model, setup.reading))
    return {(d.code, d.what, d.found.partition("; ")[0]) for d in lost_rows(setup, section, found)}


KINDS = ("pairs", "labelled", "documents", "prompts")
CASES = [("pairs", POLICIES[0], range(3)), *((kind, POLICIES[2], range(2)) for kind in KINDS)]
SLOW = [(kind, policy, range(20)) for kind in KINDS for policy in POLICIES]


@pytest.mark.parametrize(
    ("kind", "policy", "seeds"), [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)]
)
def test_the_look_finds_what_the_preparation_would_end_with(
    kind: str, policy: tuple[str, str], seeds: range, chat: Path, tmp_path: Path
) -> None:
    on_bad_row, on_too_long = policy
    ended = 0
    for seed in seeds:
        rows = made(kind, seed, 300 if seed else 4)
        if not seed:  # nothing is left
            rows = [{**row, "prompt" if "prompt" in row else "instruction": "tide " * 40} for row in rows]
        train = write_jsonl(tmp_path / f"{seed}.jsonl", rows)
        data = {"max_length": LENGTH, "on_bad_row": on_bad_row, "on_too_long": on_too_long}
        model = ModelSection(tokenizer=str(chat), chat_template=["chatml", "alpaca"][seed % 2])
        try:
            templated = {"chat_template": model.chat_template}
            prepared_from(train, chat, tmp_path / "cache", model=templated, rows=kind, **data)
            refused = set[tuple[str, str, str]]()
        except DataError as error:
            refused = {(d.code, d.what, d.found.partition("; ")[0]) for d in error.diagnostics}
        looked = looked_at(DataSection(train=train, **data), model, kind)  # type: ignore[arg-type]
        assert looked == refused, (seed, looked ^ refused)
        ended += bool(refused)
    assert ended == len(seeds) or (kind, policy) not in [case[:2] for case in CASES[:-1]]
