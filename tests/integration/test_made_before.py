"""Runs, plans and prepared rows of former commits (``made_before/make.py`` made them) are gone on from."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import Run

from paceline.config.load import load_config
from paceline.core.rundir import RunDir
from paceline.data.prepare import fingerprint
from paceline.data.prepare.prepare import train_fingerprint_of
from paceline.data.rows.kinds.base import row_kind
from paceline.plan.algorithms.spec import algorithm_spec
from paceline.runlog.events import Notice, Step, read_events

pytestmark = [pytest.mark.integration]
HERE = Path(__file__).parent / "made_before"
# The newest defined rows by ROWS_VERSION's first value, the other by its own.
BEFORE, NEWEST = "2715d9d7", "ee8d2649"
# The config is compared by itself; the version is that of the release that made the plan
NOT_OF_A_PLAN = {"config", "config_digest", "run_dir", "decisions", "paceline_version"}
PINNED = "training.dataloader_pin_memory"  # a default that 0.1.0 called not granted on a CPU


def then(commit: str) -> dict[str, Any]:
    return dict(json.loads((HERE / commit / "then.json").read_text()))


@pytest.fixture
def work(tmp_path: Path) -> Path:
    return Path(shutil.copytree(HERE / "inputs", tmp_path / "work"))


@pytest.mark.parametrize("name", list(then(NEWEST)["keys"]))
def test_rows_prepared_before_have_the_key_of_then(
    name: str, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work)
    was = then(NEWEST)["keys"][name]
    _, source, *libraries = [part.partition(" ")[2] for part in was["data_definition"].split(", ")]
    if fingerprint.versions() != dict(zip(fingerprint.versions(), libraries, strict=True)):
        pytest.skip("other versions of the libraries that tokenize")
    if source != fingerprint.ROWS_VERSION:
        pytest.skip("rows are defined anew since then")
    assert fingerprint.definition() == was["data_definition"]
    config = load_config(f"{name}.yaml").config
    kind = row_kind(algorithm_spec(config.training.algorithm).rows)
    found = train_fingerprint_of(config.data, config.model, 7, work / "cache", kind=kind, most_bytes=1 << 20)
    assert found == was["train_fingerprint"]


@pytest.mark.parametrize(
    ("commit", "name"),
    [
        (NEWEST, "sft"),
        (BEFORE, "lora"),
        (BEFORE, "grpo"),
        *(pytest.param(*run, marks=pytest.mark.full) for run in ((BEFORE, "sft"), (BEFORE, "dpo"))),
    ],
)
def test_a_run_of_a_former_commit_goes_on_as_it_did_there(
    commit: str, name: str, work: Path, paceline: Callable[..., Run]
) -> None:
    shutil.copytree(HERE / commit, work / "before")
    if commit == NEWEST:
        shutil.copytree(HERE / commit / "cache", work / "cache")
    saved = work / "before" / name / "step-00000003"
    done = paceline(
        "train", f"{name}.yaml", f"training.resume_from_checkpoint={saved}", "--nproc", "1", cwd=work
    )
    assert done.code == 0, done.err[-2000:]
    run = RunDir.at(work / "runs" / name)
    events = [record.event for record in read_events(run.events(0))]
    was, steps = then(commit)["steps"][name], [event for event in events if isinstance(event, Step)]
    assert [(s.step, s.sample_digest) for s in steps] == [(s["step"], s["sample_digest"]) for s in was]
    for key in ("loss", "grad_norm"):
        assert [getattr(s, key) for s in steps] == pytest.approx([s[key] for s in was], abs=1e-5)
    said = {event.diagnostic.code for event in events if isinstance(event, Notice)}
    comparable = then(commit)["keys"][name]["data_definition"] == fingerprint.definition()
    assert ("resume.data_not_compared" in said) != comparable, said
    assert not comparable or len(list((work / "cache/prepared").iterdir())) == 1  # none was made
    check_plan(json.loads((saved.parent / "plan.json").read_text()), json.loads(run.plan_json.read_text()))


def check_plan(before: dict[str, Any], now: dict[str, Any]) -> None:
    """A plan of now says what the former one said; keys may have come."""
    # Why a precision is chosen depends on the processor (bf16 instructions), not on the version.
    before, now = ({**plan, "precision": {**plan["precision"], "reason": ""}} for plan in (before, now))
    apart = {key for key, value in before.items() if now.get(key) != value} - NOT_OF_A_PLAN
    assert not apart, apart
    decided = [
        {d["subject"]: (d["choice"], d["granted"]) for d in plan["decisions"] if d["subject"] != PINNED}
        for plan in (before, now)
    ]
    assert decided[0].items() <= decided[1].items()
    for section in ("model", "data", "training", "rollout"):
        was, now_is = before["config"].get(section) or {}, now["config"].get(section) or {}
        other = {key for key, value in was.items() if not goes_on(value, now_is[key])}
        assert other <= {"resume_from_checkpoint", "train_on"}, (section, other)  # null is its default now


def goes_on(was: Any, now: Any) -> bool:
    """Whether a value is as it was; keys may have come since."""
    if isinstance(was, dict) and isinstance(now, dict):
        return all(key in now and goes_on(value, now[key]) for key, value in was.items())
    if isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        return all(goes_on(old, new) for old, new in zip(was, now, strict=True))
    return bool(was == now)
