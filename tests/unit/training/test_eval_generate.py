"""Answers at evaluations (``eval_generate``): every row once, the same numbers on any number of ranks."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from paceline.config.registries.evaluation_metrics import evaluation_metrics
from paceline.config.schema import Config
from paceline.core.diagnostics import Diagnostic
from paceline.evaluation.scores.metrics import score
from paceline.generation.engine import Completion, Request, RolloutSampling
from paceline.training.evaluation import AnswersMeasured, expected_answers
from paceline.training.preflight.inputs import check_inputs

ROWS = 23  # a prime


class Table:
    """Documents whose prompt is three letters and whose answer repeats one of them; row 5 has no prompt."""

    group = 1

    def __len__(self) -> int:
        return ROWS

    def coded(self, row: int) -> Any:
        prompt = [~(65 + row % 26), ~66, ~67]
        return np.array([*(prompt if row != 5 else []), 65 + row % 26, 68, 10], np.int32)

    def facts(self, row: int) -> dict[str, Any]:
        return {}


class Prompts(Table):
    def coded(self, row: int) -> Any:
        return np.array([~(65 + row % 26), ~66], np.int32)

    def facts(self, row: int) -> dict[str, Any]:
        return {"prompt": "?", **({"answer": row} if row % 2 else {})}


class Repeats:
    """Answers rightly where the prompt's first letter is even; says as many tokens as it may otherwise."""

    def __init__(self, asked: list[Request]) -> None:
        self.asked = asked

    def generate(self, requests: list[Request], sampling: RolloutSampling) -> list[Completion]:
        self.asked += requests
        nothing = torch.zeros(0)
        return [
            Completion((one.prompt[0], 68, 10), nothing, True)
            if one.prompt[0] % 2 == 0
            else Completion((90,) * one.max_tokens, nothing, False)
            for one in requests
        ]


@dataclass
class Ranks:
    """Threads in place of processes."""

    count: int
    said: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.count)
        self.values: list[Any] = [None] * self.count

    def gather(self, rank: int, value: Any) -> list[Any]:
        self.values[rank] = json.dumps(value)
        self.barrier.wait(10)
        found = [json.loads(one) for one in self.values]
        self.barrier.wait(10)
        return found


class Letters:
    added_tokens_decoder = {2: SimpleNamespace(content="<odd>", special=True)}

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        return "".join(map(chr, tokens))


def measured(
    ranks: Ranks,
    rank: int,
    metrics: list[str],
    asked: list[Request],
    notes: list[Diagnostic],
    table: Any = None,
) -> AnswersMeasured:
    @contextmanager
    def generating(handle: object) -> Iterator[None]:
        yield None

    world = SimpleNamespace(rank=rank, all_gather_json=lambda value: ranks.gather(rank, value))
    strategy = SimpleNamespace(
        world=world, data_parallel_rank=rank, data_parallel_size=ranks.count, generating=generating
    )
    return AnswersMeasured(
        strategy,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        Letters(),  # type: ignore[arg-type]
        lambda root: Repeats(asked),
        expected_answers(table or Table(), None, answered=table is not None),
        RolloutSampling(0.0),
        4,
        6,
        metrics,
        7,
        True,
        1e6,
        notes.append,
    )


def on(count: int, metrics: list[str]) -> tuple[dict[str, float], list[Request], list[Diagnostic]]:
    ranks, asked, notes = Ranks(count), list[Request](), list[Diagnostic]()
    with ThreadPoolExecutor(count) as pool:
        parts = [measured(ranks, rank, metrics, asked, notes) for rank in range(count)]
        results = list(pool.map(lambda one: one(), parts))
    assert all(one == results[0] for one in results)
    return results[0], asked, notes


def test_every_row_is_answered_once_and_the_numbers_are_the_same_on_any_number_of_ranks() -> None:
    metrics = ["exact_match", "f1"]
    alone, asked, _ = on(1, metrics)
    rows = [row for row in range(ROWS) if row != 5]
    right = [row for row in rows if (65 + row) % 2 == 0]
    assert alone["eval_exact_match"] == len(right) / len(rows)
    assert alone["eval_answers_ended"] == alone["eval_exact_match"]
    # prompt and answer together have at most 6 positions
    assert alone["eval_answer_tokens"] == 3.0 and {one.max_tokens for one in asked} == {3}
    assert set(alone) <= set(evaluation_metrics("sft", (), metrics))
    for count in (2, 3, 25):  # of 25 ranks three have no row
        found, again, _ = on(count, metrics)
        assert found == alone
        assert sorted(again, key=lambda r: r.stream) == sorted(asked, key=lambda r: r.stream)


def test_the_expected_answer_is_the_last_one_without_what_follows_it() -> None:
    expected = expected_answers(Table(), 3, answered=False)  # type: ignore[arg-type]
    assert [(one.row, one.prompt, one.expected) for one in expected] == [
        (row, (65 + row, 66, 67), (65 + row, 68, 10)) for row in range(3)
    ]
    prompts = expected_answers(Prompts(), 4, answered=True)  # type: ignore[arg-type]
    assert [(one.row, one.expected) for one in prompts] == [(1, "1"), (3, "3")]


def test_a_metric_that_fails_counts_as_nothing_and_is_named_with_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_metric.py").write_text(
        "def at_c(answer, expected):\n    if expected.startswith('C'):\n        raise KeyError('c')\n"
        "    return float('inf') if expected.startswith('D') else 1.0\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found, _, notes = on(1, ["own_metric:at_c"])
    assert found["eval_at_c"] == 20 / 22
    (note,) = notes
    assert note.where == "training.eval_metrics" and "2 of 22" in note.what
    assert (
        "evaluation row 3: KeyError" in note.found
        and "evaluation row 4: the metric returned inf" in note.found
    )


def test_a_metric_has_only_so_much_time_for_all_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_metric.py").write_text("def never(a, b):\n    while True:\n        pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    scores = score("slow_metric:never", [("a", "b")] * 5, until=1.0)
    assert scores.values == [0.0] * 5 and [at for at, _ in scores.failed] == [0, 1, 2, 3, 4]
    assert "1 s for this metric" in scores.failed[0][1]


def test_before_the_start_data_without_answers_and_missing_packages_are_named(
    tmp_path: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "once upon a time"}\n' * 3)
    config = Config.model_validate(
        {
            "model": {"config": {"model_type": "llama"}, "tokenizer": str(tokenizer_dir)},
            "data": {"train": str(rows), "validation_split": 1},
            "training": {
                "eval_generate": True,
                "eval_strategy": "epoch",
                "eval_metrics": ["bleu"],
                "eval_generate_rows": 1,
            },
        }
    )
    monkeypatch.setattr("paceline.evaluation.scores.metrics.find_spec", lambda name: None)
    assert "evaluation.metric_package" in {one.code for one in check_inputs(config, {}).found}
    monkeypatch.setattr("paceline.evaluation.scores.metrics.find_spec", lambda name: object())
    assert "training.eval_generate" in {one.code for one in check_inputs(config, {}).found}


def test_an_expected_text_is_compared_without_special_tokens_as_answers_are() -> None:
    class Marked(Prompts):
        def facts(self, row: int) -> dict[str, Any]:
            return {"prompt": "?", "answer": f"<odd>{chr(65 + row % 26)}D"}

    one = measured(Ranks(1), 0, ["exact_match"], [], [], Marked())()
    assert one["eval_exact_match"] == sum((65 + row) % 2 == 0 for row in range(ROWS)) / ROWS
