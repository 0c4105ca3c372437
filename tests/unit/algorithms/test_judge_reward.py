"""A judge behind an OpenAI-compatible server as a reward."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from paceline.algorithms.rewards.builtin import Sample
from paceline.algorithms.rewards.scoring import RewardSpec, Scorer, check_built_in
from paceline.core.errors import ConfigError, PacelineError

Reply = Callable[[dict[str, Any]], tuple[int, Any]]


@contextmanager
def judging(reply: Reply, seen: list[Any]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            seen.append((self.path, self.headers.get("Authorization"), body))
            status, answer = reply(body)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(answer if isinstance(answer, bytes) else json.dumps(answer).encode())

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def said(text: str) -> tuple[int, Any]:
    return 200, {"choices": [{"message": {"content": text}}], "usage": {"total_tokens": 30}}


@contextmanager
def scorer(url: str, on_error: str = "error", **options: Any) -> Iterator[Scorer]:
    spec = RewardSpec("judge", options={"url": url, "model": "big", **options})
    check_built_in(spec)
    made = Scorer([spec], on_error=on_error)
    try:
        yield made
    finally:
        for function in made.functions:
            function.close()  # type: ignore[union-attr]


SAMPLES = [Sample("2+2 {answer}?", "4", {"answer": "four"}), Sample("1+1?", "{prompt} 3")]


def test_the_last_number_of_the_reply_is_the_score(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE", "s3cret")
    seen: list[Any] = []

    def reply(body: dict[str, Any]) -> tuple[int, Any]:
        return said("between 0 and 10: 7.5" if "four" in body["messages"][0]["content"] else "-2")

    prompt = "Q {prompt} A {completion} R {answer}"
    with judging(reply, seen) as url, scorer(url, api_key_env="JUDGE", prompt=prompt) as judge:
        assert judge(SAMPLES).total == [7.5, -2.0]
    # what stands in braces in a text is the text's own
    contents = sorted(body["messages"][0]["content"] for _, _, body in seen)
    assert contents == ["Q 1+1? A {prompt} 3 R ", "Q 2+2 {answer}? A 4 R four"]
    assert {(path, key) for path, key, _ in seen} == {("/v1/chat/completions", "Bearer s3cret")}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (said("good"), "no number in the reply 'good'"),
        ((500, b"boom"), "HTTP 500: boom"),
        ((200, b"<html>"), "no JSON"),
    ],
)
def test_a_judgement_that_fails_is_named_and_decided_by_on_reward_error(answer: Any, words: str) -> None:
    with judging(lambda body: answer, []) as url:
        with scorer(url) as judge, pytest.raises(PacelineError, match="rewards.failed") as caught:
            judge(SAMPLES)
        assert words in str(caught.value)
        with scorer(url, "skip") as judge:
            assert all(math.isnan(value) for value in judge(SAMPLES).total)


def test_a_busy_judge_is_asked_again_and_a_budget_is_kept() -> None:
    seen: list[Any] = []
    with judging(lambda body: (503, b"") if len(seen) == 1 else said("3"), seen) as url:
        with scorer(url, "zero", concurrency=1, budget=40) as judge:
            found = judge([*SAMPLES, *SAMPLES])
        assert found.total == [3.0, 3.0, 0.0, 0.0] and len(seen) == 3
        assert "budget of 40 tokens" in found.problems[0].found


@pytest.mark.parametrize(
    "options",
    [
        {"url": "127.0.0.1:8000"},
        {"url": "http://user:key@h:1"},
        {"prompt": "judge!"},
        {"api_key_env": "NOT_SET_ANYWHERE"},
        {"concurrency": 0},
        {"budget": True},
        {"temprature": 1},
    ],
)
def test_options_that_cannot_be_are_refused_before_the_start(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"rewards\.options"):
        check_built_in(RewardSpec("judge", options={"url": "http://h:1", "model": "m", **options}))


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("8/10", 8),
        ("I rate this an 8 out of 10.", 8),
        ("Rating: [[7]] / 10", 7),
        ("**3.5**/5", 3.5),
        ("There are 5 reasons for a score of 9", 9),
        ("<think>3? 4?</think> I say .8", 0.8),
        ("-3", -3),
    ],
)
def test_what_a_score_is_out_of_belongs_to_it(text: str, score: float) -> None:
    with judging(lambda _: said(text), []) as url, scorer(url) as judge:
        assert judge([Sample("q", "a")]).total == [score]
