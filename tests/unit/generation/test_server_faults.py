"""Faults of generation servers, injected: each is named rightly, and none trains on other weights for more
than one rollout. Clean syncs alarm nobody.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from completions_server import handler
from test_rollout import STOP, VOCAB, build, wanted
from test_rollout_servers import (
    Faulty,
    half,
    ignored,
    learn,
    listening,
    no_reset,
    sound,
    stale_layer,
    swapped_layers,
    transposed,
)

from paceline.config.sections.rollout import ServerOptions
from paceline.core.diagnostics import Severity
from paceline.core.errors import PacelineError
from paceline.generation.engine import Completion, Request, RolloutSampling
from paceline.generation.local import score_texts
from paceline.models.role_module import RoleModule
from paceline.runtime.process_group.world import World
from paceline.training.loop.divergence_watch import check_sampling
from paceline.training.preflight.weight_ways import SentPolicy
from paceline.training.rollout import weight_folder
from paceline.training.rollout.server import RolloutServers

EXPERTS = {"model_type": "mixtral", "num_local_experts": 4}
SECONDS = 4.0  # for an answer
LARGEST, LARGEST_IN_16_BITS = 0.02, 0.5  # as ``largest_gap`` has them

Harm = Callable[[Faulty, dict[str, Any]], dict[str, Any] | None]


# --- what a server does to the weights that it was sent


def swapped_experts(served: Faulty, before: dict[str, Any]) -> dict[str, Any]:
    order = torch.tensor([1, 0, 2, 3])
    return {n: v[order].clone() for n, v in served.hf.state_dict().items() if ".experts." in n}


def not_merged(served: Faulty, before: dict[str, Any]) -> dict[str, Any]:
    """The adapter's layers stay as they were."""
    return {name: value for name, value in before.items() if "q_proj" in name}


def merged_twice(served: Faulty, before: dict[str, Any]) -> dict[str, Any]:
    now = served.hf.state_dict()
    return {name: 2 * now[name] - value for name, value in before.items() if "q_proj" in name}


def stale_norms(served: Faulty, before: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in before.items() if value.ndim == 1}


def stale_head(served: Faulty, before: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in before.items() if name.startswith("lm_head")}


def one_behind(served: Faulty, before: dict[str, Any]) -> dict[str, Any]:
    """A wrong version: each load gives the one before it."""
    now = {name: value.clone() for name, value in served.hf.state_dict().items()}
    last, served.last = getattr(served, "last", now), now  # type: ignore[attr-defined]
    return last


def quantized(served: Faulty, before: dict[str, Any]) -> dict[str, Any]:
    now = served.hf.state_dict()
    return {name: (value * 4).round() / 4 for name, value in now.items() if value.ndim == 2}


# --- what it does to requests


def web(
    server: type[BaseHTTPRequestHandler], fault: Callable[[Any, dict[str, Any]], bool]
) -> type[BaseHTTPRequestHandler]:
    """The server; ``fault`` sees each request first, and is true where it has dealt with it."""
    inner: Any = server

    class Handler(inner):  # type: ignore[misc]
        def answer(self, body: dict[str, Any]) -> None:
            if not fault(self, body):
                super().answer(body)

    return Handler


def asks(request: Any, body: dict[str, Any]) -> bool:
    """Whether it asks for an answer of a rollout."""
    return bool(
        request.path == "/v1/completions" and body.get("temperature") and "prompt_logprobs" not in body
    )


def slow(request: Any, body: dict[str, Any]) -> bool:
    if asks(request, body):
        time.sleep(1.5 * SECONDS)
    return False


def cut(request: Any, body: dict[str, Any]) -> bool:
    if not asks(request, body):
        return False
    request.send_response(200)
    request.send_header("Content-Length", "1000")
    request.end_headers()
    request.wfile.write(b'{"choices": [')
    request.close_connection = True
    return True


def busy(request: Any, body: dict[str, Any]) -> bool:
    """429 for longer than an answer may take."""
    if asks(request, body):
        request.reply(429, {"error": "busy"})
    return asks(request, body)


def no_key(request: Any, body: dict[str, Any]) -> bool:
    request.reply(401, {"error": "Unauthorized"})
    return True


def dies_in_a_sync(request: Any, body: dict[str, Any]) -> bool:
    if request.path == "/collective_rpc":
        raise ConnectionError
    return False


def changed(answer: Callable[[dict[str, Any]], None]) -> Callable[[Any, dict[str, Any]], bool]:
    """A server whose answers to a rollout are changed."""

    def fault(request: Any, body: dict[str, Any]) -> bool:
        if not asks(request, body):
            return False
        reply, whole = request.reply, dict[str, Any]()
        request.reply = lambda _, found: whole.update(found)
        super(type(request), request).answer(body)
        request.reply = reply
        answer(whole["choices"][0])
        reply(200, whole)
        return True

    return fault


def goes_on(choice: dict[str, Any]) -> None:
    """It writes on after a stop token."""
    choice["token_ids"] = [STOP, *choice["token_ids"][:-1]]


def other_tokens(choice: dict[str, Any]) -> None:
    choice["token_ids"][0] = 100_000


def no_numbers(choice: dict[str, Any]) -> None:
    choice["logprobs"]["token_logprobs"][0] = None


def raw(choice: dict[str, Any]) -> None:
    """Log-probabilities of a mode of its own: half of what they are."""
    choice["logprobs"]["token_logprobs"] = [v / 2 for v in choice["logprobs"]["token_logprobs"]]


# --- trials


@dataclass
class Trial:
    """One trainer and one server. ``codes``: what was said; ``text``: all of it; ``misled``: the rollouts
    that were trained on answers of other weights.
    """

    root: RoleModule
    folder: Path
    seconds: float = SECONDS
    dtype: torch.dtype = torch.float32
    vocab: int = VOCAB
    positions: int = 60
    way: str = "auto"
    step: Callable[[RoleModule], None] = learn
    codes: list[str] = field(default_factory=list)
    text: str = ""
    misled: int = 0

    def servers(self, url: str) -> RolloutServers:
        option = ServerOptions(
            url=url, timeout=self.seconds, sync_timeout=self.seconds, weights_dir=str(self.folder)
        )
        policy = SentPolicy(None if self.root.adapter is None else self.root.adapter.spec, "cpu")
        numbers = (self.vocab, self.positions)
        return RolloutServers(
            [option], World.single(), (STOP,), *numbers, self.folder, self.dtype, True, self.way, policy
        )

    def run(self, url: str, rollouts: int, between: Callable[[], None] = lambda: None) -> None:
        """Write rollouts and learn, until an error ends the run."""
        try:
            servers = self.servers(url)
            try:
                for _ in range(rollouts):
                    engine, requests = servers.open(self.root), wanted(3, samples=2)
                    between()
                    gap = self.gap(requests, engine.generate(requests, RolloutSampling(1.0)))
                    largest = LARGEST if self.dtype == torch.float32 else LARGEST_IN_16_BITS
                    self.misled += gap > largest
                    step: Any = SimpleNamespace(extras={"sampling_gap": gap})
                    check_sampling(step, 1, largest)
                    self.step(self.root)
            finally:
                for note in servers.notes:
                    if note.severity is not Severity.NOTE:
                        self.says(note)
                for each in servers.pool.engines:
                    each.server.close()
        except PacelineError as error:
            for finding in error.diagnostics:
                self.says(finding)

    def says(self, finding: Any) -> None:
        self.codes.append(finding.code)
        self.text += finding.render()

    def gap(self, requests: list[Request], done: list[Completion]) -> float:
        """Return what training measures: the mean difference to the trained model's log-probabilities."""
        apart = [
            score_texts(self.root.hf, [(*r.prompt, *c.tokens)], len(r.prompt))[0] - c.logprobs
            for r, c in zip(requests, done, strict=True)
        ]
        return float(torch.cat(apart).abs().mean())


AGAIN = "rollout.weights_again"
WRONG, SILENT = "rollout.weights_wrong", "rollout.server_unreachable"
IN_0, IN_1 = "is in model.layers.0", "is in model.layers.1"
OUTSIDE = "is in the embeddings, the last norm or the head"
OF_WEIGHTS: list[tuple[Harm, str]] = [
    (stale_layer, IN_1),
    (swapped_layers, IN_1),
    (swapped_experts, IN_0),
    (not_merged, IN_0),
    (merged_twice, IN_0),
    (half, OUTSIDE),
    (transposed, IN_0),
    (stale_norms, ""),
    (stale_head, OUTSIDE),
    (ignored, "takes over nothing"),
    (one_behind, ""),
    (quantized, OUTSIDE),
    (no_reset, "cache was not reset"),
]
OF_REQUESTS: list[tuple[Callable[[Any, dict[str, Any]], bool], str, str]] = [
    (slow, SILENT, "no answer within"),
    (cut, SILENT, ""),
    (busy, "rollout.server_status", "429"),
    (no_key, "rollout.server_status", "api_key_env"),
    (dies_in_a_sync, SILENT, "/collective_rpc"),
    (changed(goes_on), "rollout.server_answer", "stop token"),
    (changed(other_tokens), "rollout.server_answer", "vocabulary"),
    (changed(no_numbers), "rollout.server_answer", ""),
    (changed(raw), "rollout.sampling_gap", "processed_logprobs"),
]


def trial(tmp_path: Path, harm: Harm = sound, begins: int = 4) -> tuple[Trial, Faulty]:
    """``begins``: the loads that are as they should be; three are of the start."""
    root = build(**EXPERTS) if harm is swapped_experts else build()
    root.hf.save_pretrained(tmp_path / "base")
    return Trial(root, tmp_path / "weights"), Faulty(str(tmp_path / "base"), harm, begins)


@pytest.mark.parametrize("begins", [pytest.param(1, marks=pytest.mark.full), 4])
@pytest.mark.parametrize(
    ("harm", "said"),
    [pytest.param(h, s, marks=() if h is not_merged else pytest.mark.full) for h, s in OF_WEIGHTS],
)
def test_a_fault_of_weights_is_named(tmp_path: Path, harm: Harm, said: str, begins: int) -> None:
    """Also where it lies, once the noise was measured with right weights."""
    mine, served = trial(tmp_path, harm, begins)
    with listening(handler(served)) as url:
        mine.run(url, 4)
    healed = harm is one_behind and begins == 4  # by the second send, and that is said
    assert (AGAIN if healed else WRONG) in mine.codes and not mine.misled, mine
    assert said in mine.text or begins == 1, mine.text


@pytest.mark.parametrize(
    ("fault", "code", "said"),
    [pytest.param(*row, marks=() if row[0] is cut else pytest.mark.full) for row in OF_REQUESTS],
)
def test_a_fault_of_requests_is_named(tmp_path: Path, fault: Any, code: str, said: str) -> None:
    mine, served = trial(tmp_path)
    with listening(web(handler(served), fault)) as url:
        mine.run(url, 2)
    assert code in mine.codes and said in mine.text and mine.misled <= 1, mine


def test_other_weights_after_the_proof_end_the_run(tmp_path: Path) -> None:
    """The server starts again with its first weights, or another trainer sends it its own."""
    mine, served = trial(tmp_path)
    with listening(handler(served)) as url:
        mine.run(url, 3, lambda: served.load(str(tmp_path / "base")) if len(served.loaded) > 4 else None)
        assert mine.codes[-1] == "rollout.sampling_gap" and mine.misled == 1, mine
        other, root = trial(tmp_path / "other")[0], mine.root
        learn(other.root)
        theirs, ours = other.servers(url), Trial(root, tmp_path / "weights")
        ours.run(url, 3, lambda: theirs.open(other.root) and None)
        theirs.pool.engines[0].server.close()
        assert ours.codes[-1] == "rollout.sampling_gap" and ours.misled == 1, ours


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, served = trial(tmp_path)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(weight_folder, "write_weights", full)
    with listening(handler(served)) as url:
        mine.run(url, 1)
    assert "No space left" in mine.text and "weights for the generation server" in mine.text, mine


@pytest.mark.parametrize("syncs", [pytest.param(syncs, marks=pytest.mark.full) for syncs in (10, 100)])
def test_clean_syncs_alarm_nobody(tmp_path: Path, syncs: int) -> None:
    mine, served = trial(tmp_path)

    def briefly(request: Any, body: dict[str, Any]) -> bool:
        """One in seven is answered at the second try."""
        served.tries = getattr(served, "tries", 0) + 1  # type: ignore[attr-defined]
        busy = bool(asks(request, body) and served.tries % 7 == 0)  # type: ignore[attr-defined]
        if busy:
            request.reply(503, {})
        return busy

    with listening(web(handler(served), briefly)) as url:
        mine.run(url, syncs)
    assert not mine.codes and not mine.misled and len(served.loaded) == syncs + 3, mine


def test_servers_on_the_cards_of_training_sleep_meanwhile(tmp_path: Path) -> None:
    mine, served = trial(tmp_path)
    with ExitStack() as stack:
        url = stack.enter_context(listening(handler(served)))
        rollouts = mine.servers(url)
        stack.callback(rollouts.pool.engines[0].server.close)
        rollouts.sleeps, served.asleep = True, True
        engine = rollouts.open(mine.root)
        assert not served.asleep
        assert len(engine.generate(wanted(2), RolloutSampling(1.0))) == 2 and served.asleep
