"""Answers from a server on loopback: the very tokens and log-probabilities, and a named error for each way
in which it can fail.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from completions_server import Served, handler
from test_rollout import PAD, STOP, VOCAB, build, wanted

from paceline.core.errors import PacelineError
from paceline.generation.engine import Request, RolloutSampling
from paceline.generation.local import LocalEngine
from paceline.generation.remote import Server, ServerEngine
from paceline.generation.server_pool import ServerPool

SAMPLED = RolloutSampling(0.8, 0.9, 30)
ONE = [Request((5, 6, 7), 3, 4)]


@contextmanager
def listening(handle: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handle)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def answering(
    reply: Callable[[Any], tuple[int, bytes]], seconds: float = 0.0
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
            time.sleep(seconds)
            status, data = reply((self, body))
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            with suppress(BrokenPipeError):  # who asked has given up
                self.wfile.write(data)

        do_GET = do_POST

        def log_message(self, *_: Any) -> None: ...

    return Handler


def engine(url: str, timeout: float = 20.0, key: str | None = None) -> ServerPool:
    return ServerPool([ServerEngine(Server(url, timeout, key), "policy", (STOP,), VOCAB, together=3)])


def choice(tokens: list[Any], logs: list[Any] | None = None, reason: str = "length") -> bytes:
    logs = [-1.0] * len(tokens) if logs is None else logs
    return json.dumps(
        {
            "choices": [
                {
                    "finish_reason": reason,
                    "token_ids": tokens,
                    "logprobs": {"tokens": [], "token_logprobs": logs},
                }
            ]
        }
    ).encode()


@pytest.mark.parametrize("sampling", [SAMPLED, RolloutSampling(temperature=0.0)])
def test_a_server_writes_what_this_process_would(tmp_path: Path, sampling: RolloutSampling) -> None:
    root = build()
    root.hf.save_pretrained(tmp_path / "model")
    requests = [*wanted(6, samples=2), Request((4,), 1, 0)]
    own = LocalEngine(root.hf, pad_id=PAD, stop_ids=(STOP,)).generate(requests, sampling)
    with listening(handler(Served(str(tmp_path / "model"), torch.float32))) as url:
        server = Server(url, 20.0)
        assert server.model() == "policy"
        served = ServerEngine(server, "policy", (STOP,), VOCAB, together=4)
        found = ServerPool([served]).generate(requests, sampling)
        server.close()
    assert [(c.tokens, c.ended) for c in found] == [(c.tokens, c.ended) for c in own]
    for one, other in zip(found, own, strict=True):
        # other batches, other rounding
        torch.testing.assert_close(one.logprobs, other.logprobs, rtol=0, atol=1e-4)
    assert found[-1].tokens == () and any(c.ended for c in found)


def test_tokens_are_read_from_either_dialect() -> None:
    logs = {"tokens": ["token_id:9", f"token_id:{STOP}"], "token_logprobs": [-0.5, -0.25]}
    body = json.dumps({"choices": [{"finish_reason": "stop", "logprobs": logs}]}).encode()
    with listening(answering(lambda _: (200, body))) as url:
        (found,) = engine(url).generate(ONE, SAMPLED)
    assert found.tokens == (9, STOP) and found.ended and found.logprobs.tolist() == [-0.5, -0.25]


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ((200, b"<html>"), "no JSON"),
        ((200, b"{}"), "choices"),
        ((200, choice([9, VOCAB, 3, 4])), f"vocabulary of {VOCAB}"),
        ((200, choice([9, "x", 3, 4])), "outside"),
        ((200, choice([9, 3])), "neither at a stop token nor"),
        ((200, choice([STOP, 3, 4, 5])), "neither at a stop token nor"),
        ((200, choice([3, 4, 5, 6, 7])), "5 tokens"),
        ((200, choice([])), "0 tokens"),
        ((200, choice([3, 4, 5, 6], [-1.0])), "1 log-probabilities"),
        ((200, choice([3, 4, 5, 6], [-1.0, -1.0, float("nan"), -1.0])), "not a number"),
    ],
)
def test_what_is_no_answer_is_said(reply: tuple[int, bytes], said: str) -> None:
    with (
        listening(answering(lambda _: reply)) as url,
        pytest.raises(PacelineError, match="rollout.server_answer") as caught,
    ):
        engine(url).generate(ONE, SAMPLED)
    assert said in str(caught.value) and url in str(caught.value)


def test_a_refusal_is_named_with_what_the_server_said() -> None:
    with (
        listening(answering(lambda _: (500, b"engine is dead"))) as url,
        pytest.raises(PacelineError, match="rollout.server_status") as caught,
    ):
        engine(url).generate(ONE * 7, SAMPLED)
    assert "500" in str(caught.value) and "engine is dead" in str(caught.value)


def test_a_silent_server_is_given_up_at_the_deadline() -> None:
    with (
        listening(answering(lambda _: (200, b"{}"), seconds=3.0)) as url,
        pytest.raises(PacelineError, match="rollout.server_unreachable"),
    ):
        engine(url, timeout=0.2).generate(ONE, SAMPLED)
    with pytest.raises(PacelineError, match="rollout.server_unreachable"):
        engine("http://127.0.0.1:9", timeout=0.6).generate(ONE, SAMPLED)


def test_a_run_that_is_to_stop_waits_for_no_dead_server() -> None:
    asked: list[float] = []
    server = Server(
        "http://127.0.0.1:9", 600.0, stop_requested=lambda: bool(asked.append(0.0)) or len(asked) > 1
    )
    with pytest.raises(PacelineError, match="rollout.server_unreachable"):
        server.model()
    assert len(asked) == 2


def test_a_busy_server_is_asked_again_and_a_key_goes_with_every_call_and_into_no_message() -> None:
    seen: list[str | None] = []

    def reply(call: Any) -> tuple[int, bytes]:
        seen.append(call[0].headers.get("Authorization"))
        return (503, b"starting") if len(seen) == 1 else (200, choice([3, 4, 5, 6]))

    with listening(answering(reply)) as url:
        busy = engine(url, key="s3cret")
        (found,) = busy.generate(ONE, SAMPLED)
    assert found.tokens == (3, 4, 5, 6) and seen == ["Bearer s3cret"] * 2 and "s3cret" not in repr(busy)


def test_several_models_are_asked_about() -> None:
    body = json.dumps({"data": [{"id": "a"}, {"id": "b"}]}).encode()
    with (
        listening(answering(lambda _: (200, body))) as url,
        pytest.raises(PacelineError, match="models: a, b"),
    ):
        Server(url, 5.0).model()
