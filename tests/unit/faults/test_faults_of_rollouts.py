"""Faults of what a rollout names: built-in rewards, the reward model, the server's key. Each is found by
``plan`` without a try.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from fault_jobs import Job
from test_faults_of_files import in_this_process

Settings = dict[str, Any]


def rollout(job: Job, rewards: Any, **more: Any) -> Settings:
    rows = job.root / "asked.jsonl"
    rows.write_text('{"prompt": "a", "answer": "b"}\n')
    told = {"max_completion_length": 32, "rewards": rewards, **more}
    return {"data.train": str(rows), "training.algorithm": "grpo", "training.rollout": told}


def _judge(job: Job, **changed: Any) -> Settings:
    """The small GPT-2 as reward model."""
    folder = job.root / "models" / "gpt2"
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changed}))
    return rollout(job, [{"name": "model", "options": {"model": str(folder)}}])


def _server(job: Job) -> Settings:
    return rollout(job, ["exact_match"], server={"url": "http://localhost:9", "api_key_env": "OF_NO_SERVER"})


SCORES = {"architectures": ["GPT2ForSequenceClassification"], "id2label": {"0": "LABEL_0"}}


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (lambda job: rollout(job, ["exactmatch"]), "reward.unknown"),
        (lambda job: rollout(job, [{"name": "regex", "options": {"pattern": "("}}]), "rewards.options"),
        (lambda job: rollout(job, [{"name": "regex", "options": {"patern": "a"}}]), "rewards.options"),
        (
            lambda job: rollout(
                job, [{"name": "code", "options": {"seconds": 0}}], allow_code_execution=True
            ),
            "rewards.options",
        ),
        (_judge, "rewards.model"),
        (lambda job: _judge(job, **{**SCORES, "id2label": {"0": "no", "1": "yes"}}), "rewards.model"),
        (lambda job: _judge(job, architectures=SCORES["architectures"]), "rewards.model"),
        (_server, "rollout.server_no_key"),
    ],
)
def test_a_fault_is_found_by_plan(
    job: Job, fault: Callable[[Job], Settings], code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_this_process(monkeypatch)
    found = job.found(fault(job))
    assert code in found, {c: d.render() for c, d in found.items()}
    assert found[code].severity.value == "error" and found[code].hint and "job.yaml:" in found[code].where


def test_what_is_sound_is_let_through(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    in_this_process(monkeypatch)
    monkeypatch.setenv("OF_NO_SERVER", "x")
    sound = (
        _judge(job, **SCORES),
        _server(job),
        rollout(job, ["exact_match", {"name": "regex", "options": {"pattern": "a"}}]),
    )
    for settings in sound:
        found = {c: d.render() for c, d in job.found(settings).items() if d.severity.value == "error"}
        assert not found.keys() & {
            "reward.unknown",
            "rewards.options",
            "rewards.model",
            "rollout.server_no_key",
        }, found
