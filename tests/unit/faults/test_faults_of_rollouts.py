"""Faults of what a rollout names: built-in rewards, the reward model, the server's key. Each is found by
``plan`` without a try.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
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


def _unanswered(job: Job, rows: str, **more: Any) -> Settings:
    settings = rollout(job, ["numeric"], **more)
    (job.root / "asked.jsonl").write_text(rows)
    return settings


NO_ANSWER, ANSWER = (
    '{"prompt": "a", "reward_model": {"ground_truth": "1"}}\n',
    '{"prompt": "a", "answer": "1"}\n',
)
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
        (lambda job: _unanswered(job, NO_ANSWER), "rewards.no_answer"),
        (lambda job: _unanswered(job, ANSWER + NO_ANSWER), "rewards.no_answer"),
        (lambda job: _unanswered(job, NO_ANSWER, on_reward_error="skip"), "rewards.no_answer"),
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
        _unanswered(job, ANSWER + NO_ANSWER, on_reward_error="zero"),
        rollout(job, ["exact_match", {"name": "regex", "options": {"pattern": "a"}}]),
    )
    for settings in sound:
        found = {c: d.render() for c, d in job.found(settings).items() if d.severity.value == "error"}
        assert not found.keys() & {
            "reward.unknown",
            "rewards.options",
            "rewards.model",
            "rollout.server_no_key",
            "rewards.no_answer",
        }, found


class _Models(BaseHTTPRequestHandler):
    """A server that lists ``served``, to those who know the key."""

    served: tuple[str, ...] = ()

    def do_GET(self) -> None:
        known = self.headers.get("Authorization") == "Bearer right"
        self.send_response(200 if known else 401)
        self.end_headers()
        self.wfile.write(
            json.dumps(
                {"data": [{"id": n, "max_model_len": 8 if n == "short" else 4096} for n in self.served]}
            ).encode()
        )

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200 if self.path == "/v1/completions" else 404)
        self.end_headers()
        self.wfile.write(b'{"choices": [{"token_ids": [7]}]}')

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("key", "model", "served", "code"),
    [
        ("right", None, ("policy",), None),
        ("right", "policy", ("other", "policy"), None),
        ("wrong", None, ("policy",), "rollout.server_status"),
        ("right", None, ("a", "b"), "rollout.server_answer"),
        ("right", "policy", ("other",), "rollout.server_answer"),
        ("right", None, (), "rollout.server_answer"),
        ("right", None, ("short",), "rollout.server_unfit"),
    ],
)
def test_the_server_is_asked_before_the_start(
    job: Job,
    key: str,
    model: str | None,
    served: tuple[str, ...],
    code: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_this_process(monkeypatch)
    monkeypatch.setenv("OF_THE_SERVER", key)
    with HTTPServer(("127.0.0.1", 0), type("Served", (_Models,), {"served": served})) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        options = {
            "url": f"http://127.0.0.1:{server.server_port}",
            "api_key_env": "OF_THE_SERVER",
            "model": model,
        }
        found = job.found(rollout(job, ["exact_match"], server=options))
        server.shutdown()
        thread.join()
    assert {c for c in found if c.startswith("rollout.server")} == ({code} if code else set())
    assert code is None or (found[code].severity.value == "error" and "right" not in found[code].render())
    found = job.found(rollout(job, ["exact_match"], server=options))  # it is gone: it may start later
    assert found["rollout.server_unreachable"].severity.value == "warning"
