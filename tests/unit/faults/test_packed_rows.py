"""Rows that packing makes too few for the ranks are refused by ``plan``, as the run itself counts them."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
from fault_jobs import Job

from paceline.core.errors import ConfigError
from paceline.data.packed_source import PackedSource
from paceline.data.prepare.prepare import prepare
from paceline.data.rows.kinds.base import row_kind
from paceline.launch.preflight import child_checks
from paceline.launch.preflight.load_config import load
from paceline.launch.preflight.plan_job import planned
from paceline.plan.algorithms.spec import algorithm_spec
from paceline.training.preflight import row_counts, trial

TOO_FEW = {"data.too_few_rows", "training.no_steps"}
BRIEF = (
    "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% if m.role == 'assistant' %}{{ eos_token }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}a{% endif %}"
)


@pytest.fixture
def checked_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks and their trials in this process: seconds fewer."""

    def asked(job: dict[str, Any]) -> tuple[dict[str, Any], str]:
        *_, last = trial.answers(job)
        return last, ""

    monkeypatch.setattr(child_checks, "run_child", asked)


def drawn(r: random.Random, path: Path) -> dict[str, Any]:
    """A job of few short rows on several processes: how many packed rows they are varies."""
    pairs = r.random() < 0.4
    rows: list[dict[str, str]] = []
    for number in range(r.randint(2, 30)):
        words = " ".join(r.choices(["tide", "moon", "sea"], k=r.randint(1, 4)))
        row = {"prompt": f"say {number}", "chosen": words, "rejected": f"{words} no"}
        rows.append(row if pairs else {"instruction": row["prompt"], "output": words})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "data.train": [{"path": str(path), "weight": r.choice([1, 1, 2.5])}],
        "data.max_length": r.choice([64, 128]),
        "data.packing": True,
        "data.on_bad_row": "skip",
        "model.chat_template": BRIEF,
        "training.algorithm": "dpo" if pairs else "sft",
        "training.per_device_train_batch_size": 1,
        "training.gradient_accumulation_steps": 2,
        "training.distributed_strategy": "ddp",
        "training.dataloader_drop_last": r.random() < 0.3,
        "launch.nproc": r.choice([2, 4, 8]),
    }


def test_what_a_run_would_end_with_ends_the_plan(job: Job, checked_here: None, tmp_path: Path) -> None:
    r, seen = random.Random(15), set[str]()
    for number in range(10):
        settings = drawn(r, tmp_path / f"{number}.jsonl")
        loaded = load(job.yaml(settings), [])
        config = loaded.config
        try:
            planned(loaded)
            found = set[str]()
        except ConfigError as error:
            found = {d.code for d in error.diagnostics}
        kind = row_kind(algorithm_spec(config.training.algorithm).rows)
        made = prepare(config.data, config.model, seed=42, cache_dir=tmp_path / "own", kind=kind)
        source = PackedSource(
            made.train, seq_len=config.data.max_length, packing=True, seed=42, pad_token_id=made.pad_token_id
        )
        rows, ranks, drops = (
            source.num_rows(0),
            settings["launch.nproc"],
            settings["training.dataloader_drop_last"],
        )
        no_steps = {"training.no_steps"} if drops and rows < 2 * ranks else set()
        expected = {"data.too_few_rows"} if rows < ranks else no_steps
        # the rows before they are packed may be too few for a step as well
        assert expected <= found <= (TOO_FEW if expected else set()), (settings, rows)
        seen |= expected or {"planned"}
    assert seen == TOO_FEW | {"planned"}


def test_a_compressed_file_counts_as_the_text_that_it_holds(job: Job, tmp_path: Path) -> None:
    """``plan`` tokenizes what is small: the size of a ``.gz`` is a quarter of its text's, about."""
    text = "".join(json.dumps({"text": f"tide {number} moon"}) + "\n" for number in range(2000))
    plain, packed = tmp_path / "rows.jsonl", tmp_path / "rows.jsonl.gz"
    plain.write_text(text)
    packed.write_bytes(gzip.compress(text.encode(), 1))
    sizes = [
        row_counts.bytes_of_text(load(job.yaml({"data.train": str(file)}), []).config)
        for file in (plain, packed)
    ]
    assert sizes[0] == len(text) and sizes[1] == 4 * packed.stat().st_size
