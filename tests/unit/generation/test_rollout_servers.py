"""Several servers that share a rollout, and the proof that each computes with the weights it was sent."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from completions_server import Served, handler
from support import ROOT, write_tokenizer
from test_rollout import STOP, VOCAB, build, wanted

from paceline.config.sections.rollout import RolloutOptions, ServerOptions
from paceline.config.sections.training import TrainingSection
from paceline.core.errors import PacelineError
from paceline.generation.engine import RolloutSampling
from paceline.generation.local import LocalEngine, score_texts
from paceline.models.role_module import RoleModule
from paceline.protocols.rollout import RolloutInterrupted
from paceline.runtime.process_group.world import World
from paceline.training.loop.divergence_watch import check_sampling
from paceline.training.preflight.generation_servers import Needs, check_servers
from paceline.training.rollout.build import largest_gap
from paceline.training.rollout.server import RolloutServers
from paceline.training.rollout.weight_probe import Gap, GapBounds, ProvedEngine, WeightProbe
from paceline.training.rollout.wrong_layer import OUTSIDE, LoudLayers, first_wrong

SAMPLED = RolloutSampling(1.0)


class Faulty(Served):
    """A server that does ``harm`` to each load's weights from the ``begins``-th on, and says it loaded."""

    def __init__(
        self, folder: str, harm: Callable[[Faulty, dict[str, Any]], dict[str, Any] | None], begins: int
    ):
        self.harm, self.begins, self.answered = harm, begins, 0
        super().__init__(folder, torch.float32)

    def load(self, folder: str) -> None:
        before = {name: t.clone() for name, t in self.hf.state_dict().items()} if self.loaded else {}
        super().load(folder)
        if len(self.loaded) > self.begins and (wrong := self.harm(self, before)) is not None:
            with self.lock:
                self.hf.load_state_dict({**self.hf.state_dict(), **wrong})

    def dies(self) -> None:
        """Close the connections that are open, too."""
        self.load = self.complete = self.gone  # type: ignore[method-assign, assignment]

    def gone(self, _: Any) -> Any:
        raise ConnectionError

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        self.answered += 1
        return super().complete(body)


def stale_layer(served: Faulty, before: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in before.items() if ".layers.1." in name}


def ignored(served: Faulty, before: dict[str, Any]) -> dict[str, Any]:
    return before


def half(served: Faulty, before: dict[str, Any]) -> dict[str, Any]:
    return dict(list(before.items())[len(before) // 2 :])


def swapped_layers(served: Faulty, before: dict[str, Any]) -> dict[str, Any]:
    now = served.hf.state_dict()
    other = {".layers.0.": ".layers.1.", ".layers.1.": ".layers.0."}
    return {name: now[name.replace(key, other[key])].clone() for name in now for key in other if key in name}


def transposed(served: Faulty, before: dict[str, Any]) -> dict[str, Any]:
    name = "model.layers.0.self_attn.q_proj.weight"
    return {name: served.hf.state_dict()[name].t().clone()}


def no_reset(served: Faulty, before: dict[str, Any]) -> None:
    served.reset = lambda: None  # type: ignore[method-assign]


def sound(served: Faulty, before: dict[str, Any]) -> None: ...


@contextmanager
def listening(handle: type[BaseHTTPRequestHandler], port: int = 0) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", port), handle)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def servers(
    urls: list[str], tmp_path: Path, seconds: float = 60.0, verify_weights: bool = True
) -> Iterator[RolloutServers]:
    folder = str(tmp_path / "weights")
    shared = {"timeout": seconds, "sync_timeout": seconds, "weights_dir": folder, "concurrency": 4}
    options = [ServerOptions(url=url, model="policy", api_key_env=None, **shared) for url in urls]
    world, unused = World.single(), tmp_path / "unused"
    found = RolloutServers(options, world, (STOP,), VOCAB, 60, unused, torch.float32, verifies=verify_weights)
    assert [note.code for note in found.take_notes()] == ["rollout.weights_way"]
    try:
        yield found
    finally:
        for engine in found.pool.engines:
            engine.server.close()
        assert not unused.exists()


def learn(root: RoleModule) -> None:
    """Move every weight a little, as an optimizer step does."""
    with torch.no_grad():
        for parameter in root.hf.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    root.refresh_compute_weights()


def served_by(root: RoleModule, tmp_path: Path, harm: Any = sound, begins: int = 1) -> Faulty:
    root.hf.save_pretrained(tmp_path / "base")
    return Faulty(str(tmp_path / "base"), harm, begins)


def test_two_servers_share_the_prompts_and_a_clean_sync_alarms_nobody(tmp_path: Path) -> None:
    root = build()
    one, two = served_by(root, tmp_path), served_by(root, tmp_path)
    with (
        listening(handler(one)) as first,
        listening(handler(two)) as second,
        servers([first, second], tmp_path) as rollouts,
    ):
        for _ in range(3):
            before = [one.answered, two.answered]
            engine = rollouts.open(root)
            between = [one.answered, two.answered]
            answers = engine.generate(wanted(6, samples=4), SAMPLED)
            assert len(answers) == 24 and all(a.tokens for a in answers)
            # whole groups; the probe asked both
            shares = [one.answered - between[0], two.answered - between[1]]
            assert (
                sum(shares) == 24 and all(share and share % 4 == 0 for share in shares) and between > before
            )
            learn(root)
    assert not rollouts.notes and not rollouts.pool.out
    assert max(max(limit) for limit in rollouts.probe.limits.values()) < 1e-3


FAULTS = {
    stale_layer: "the first difference is in model.layers.1",
    no_reset: "its cache was not reset",
    ignored: "it takes over nothing of what is sent",
    half: "the first difference is in the embeddings, the last norm or the head",
    swapped_layers: "the first difference is in model.layers.1",  # either one alone is at home anywhere
    transposed: "the first difference is in model.layers.0",
}


@pytest.mark.parametrize(
    ("harm", "begins"),
    [
        pytest.param(harm, begins, marks=() if harm is stale_layer and begins > 1 else pytest.mark.full)
        for harm in FAULTS
        for begins in (1, 4)
    ],
)
def test_a_server_with_other_weights_is_not_asked(tmp_path: Path, harm: Any, begins: int) -> None:
    root = build()
    wrong, right = served_by(root, tmp_path, harm, begins), served_by(root, tmp_path)

    def rollout(of: RolloutServers) -> None:
        of.open(root).generate(wanted(4, samples=2), SAMPLED)
        learn(root)

    with ExitStack() as stack:
        first = stack.enter_context(listening(handler(wrong)))
        second = stack.enter_context(listening(handler(right)))
        pool = stack.enter_context(servers([first, second], tmp_path))
        for _ in range(2):  # the fourth load and later ones are of the second rollout
            rollout(pool)
        assert list(pool.pool.out) == [0]
        assert [note.code for note in pool.notes] == ["rollout.server_left_out"] and first in str(
            pool.notes[0]
        )
        assert pool.pool.out[0][0].code == "rollout.weights_wrong"
        assert FAULTS[harm] in pool.pool.out[0][0].what
        rollout(stack.enter_context(servers([first], tmp_path / "blind", verify_weights=False)))
        alone = stack.enter_context(servers([first], tmp_path / "alone"))
        with pytest.raises(RolloutInterrupted, match=r"rollout\.weights_wrong"):
            for _ in range(2):
                rollout(alone)


@pytest.mark.parametrize(("family", "found"), [("qwen3", True), ("gpt2", True), ("gemma3", False)])
def test_a_layer_is_muted_in_the_model_itself(family: str, found: bool) -> None:
    """Gemma norms what a layer adds to the residual: that no matrix is large there is noticed."""
    root = build(family)
    before = {name: value.clone() for name, value in root.hf.state_dict().items()}
    layers, texts = LoudLayers(root), [tuple(range(3, 20))]
    assert layers.hears(lambda: score_texts(root.hf, texts, 1)) is found
    with layers.loud([0]):
        muted = score_texts(root.hf, texts, 1)
        root.hf.get_submodule(layers.names[1]).apply(shuffle)
        same = torch.allclose(score_texts(root.hf, texts, 1), muted, atol=1e-4)
        root.hf.load_state_dict(
            {name: v for name, v in before.items() if layers.names[1] in name}, strict=False
        )
    assert same or not found
    assert all(torch.equal(value, before[name]) for name, value in root.hf.state_dict().items())


def shuffle(module: Any) -> None:
    """Give the module's own matrices other values of the same size."""
    for parameter in module.parameters(recurse=False):
        with torch.no_grad():
            parameter.copy_(parameter.flip(0))


def test_a_wrong_layer_is_found_in_few_sends() -> None:
    names, asked = [f"layers.{i}" for i in range(80)], list[Collection[int]]()

    def wrong(bad: Collection[int], loud: Collection[int]) -> bool:
        asked.append(loud)
        return not set(bad).isdisjoint(loud)

    for first in range(80):
        asked.clear()
        assert first_wrong(partial(wrong, [first]), names) == f"in layers.{first}" and len(asked) <= 10
    assert first_wrong(partial(wrong, [9, 70]), names) == "in layers.9, and further layers differ"
    assert first_wrong(lambda _: True, names) == OUTSIDE and not first_wrong(lambda _: False, names)
    assert not first_wrong(lambda loud: None if len(loud) == 40 else len(loud) > 9, names)


def test_the_limit_is_thrice_the_largest_gap_of_the_start() -> None:
    """Of three measurements two are of the same weights: in 16 bit another's noise is twice as large."""
    probe = WeightProbe(VOCAB, 60, GapBounds.of(torch.bfloat16))
    usual = Gap(0.02, 0.034)
    assert probe.measured(0, [usual, Gap(0.02, 0.35), usual], 0.0) and not probe.limits
    assert not probe.measured(0, [usual, Gap(0.03, 0.092), usual], 0.0)
    assert probe.limits == {0: Gap(pytest.approx(0.09), pytest.approx(0.276))}
    assert probe.limit(1) == probe.limit(0)
    # A stale layer moves the mean of the text by less than the noise of four tokens
    assert Gap(0.2, 0.1).over(probe.limit(0)) == (0.2, pytest.approx(0.09))
    assert Gap(0.08, 0.3).over(probe.limit(0)) == (0.3, pytest.approx(0.276))
    assert not Gap(0.08, 0.27).over(probe.limit(0)) and Gap(float("nan"), 0.0).over(probe.limit(0))


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_the_own_engine_is_held_to_the_model(temperature: float) -> None:
    root, sampling = build(), RolloutSampling(temperature)
    own = LocalEngine(root.hf, pad_id=0, stop_ids=(STOP,))
    proved = ProvedEngine(own, root, World.single(), 1e-4)
    assert len(proved.generate(wanted(3, samples=5), sampling)) == 15
    assert not proved.generate([], sampling)
    proved.root = build()
    learn(proved.root)  # the engine computes with the former weights
    with pytest.raises(RolloutInterrupted, match=r"rollout\.sampling_gap"):
        proved.generate(wanted(3, samples=5), sampling)


def test_a_server_that_fails_is_left_out_and_comes_back(tmp_path: Path) -> None:
    root = build()
    one, two = served_by(root, tmp_path), served_by(root, tmp_path)
    with ExitStack() as stack, ExitStack() as living:
        first, (second, port) = living.enter_context(listening(handler(one))), _free()
        rollouts = stack.enter_context(servers([first, second], tmp_path, 3.0))
        assert len(rollouts.open(root).generate(wanted(4), SAMPLED)) == 4
        assert [note.code for note in rollouts.notes] == ["rollout.server_left_out"]
        learn(root)
        with listening(handler(two), port):
            rollouts.open(root).generate(wanted(4), SAMPLED)
            assert [note.code for note in rollouts.notes[1:]] == ["rollout.server_back"] and two.answered > 2
            engine = rollouts.open(root)
        # it dies after it has taken the weights: the other answers its share
        two.dies()
        answers = engine.generate(wanted(6, samples=2), SAMPLED)
        assert len(answers) == 12 and all(answer.tokens for answer in answers)
        living.close()
        one.dies()
        with pytest.raises(RolloutInterrupted, match=r"rollout\.servers_gone") as caught:
            rollouts.open(root)
        assert first in str(caught.value) and second in str(caught.value)


SETTINGS = json.loads((ROOT / "tests/peers/vllm/recorded_settings.json").read_text())  # of vLLM 0.32


def replaying(settings: dict[str, Any]) -> type[BaseHTTPRequestHandler]:
    """A server that answers as vLLM did; what is missing there is 404. Of completions it ends after the first
    token that is to stop it.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply(settings.get(self.path.partition("?")[0]))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.reply(settings[self.path](body) if self.path in settings else None)

        def reply(self, found: Any) -> None:
            self.send_response(404 if found is None else 200)
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

        def log_message(self, *_: Any) -> None: ...

    return Handler


def completed(body: dict[str, Any], vocab: int = 320, stops: bool = True) -> dict[str, Any] | None:
    tokens = [7] if stops and 7 in body.get("stop_token_ids", ()) else [7, 8][: body["max_tokens"]]
    return {"choices": [{"token_ids": tokens}]} if max(body["prompt"]) < vocab else None


@pytest.mark.parametrize(
    ("changed", "max_length", "temperature", "said"),
    [
        ({}, 192, 0.7, []),
        ({"logprobs_mode": "raw_logprobs"}, 192, 1.0, []),
        ({"logprobs_mode": "raw_logprobs"}, 192, 0.7, ["--logprobs-mode processed_logprobs"]),
        ({"/server_info": None}, 192, 1.0, ["VLLM_SERVER_DEV_MODE=1"]),
        ({"/version": {"version": "0.9.2"}}, 193, 1.0, ["--max-model-len 193", "vLLM 0.12"]),
        ({"quantization": "fp8"}, 192, 1.0, ["without --quantization"]),
        (
            {
                "/tokenize": lambda _: {"tokens": [5, 6]},
                "/v1/completions": partial(completed, vocab=319),
                "logprobs_mode": "raw_logprobs",
            },
            193,
            0.7,
            ["--max-model-len 193", "--logprobs-mode", "the model that the run", "the model that the run"],
        ),
        ({"/v1/completions": partial(completed, stops=False)}, 192, 1.0, ["vLLM 0.12"]),
    ],
)
def test_what_a_server_cannot_do_is_known_before_the_start(
    changed: dict[str, Any], max_length: int, temperature: float, said: list[str], tmp_path: Path
) -> None:
    settings = {**deepcopy(SETTINGS), "/v1/completions": completed}
    for name, value in changed.items():
        if name in settings["/server_info"]["vllm_config"]["model_config"]:
            settings["/server_info"]["vllm_config"]["model_config"][name] = value
        else:
            settings[name] = value
    write_tokenizer(tmp_path)
    with listening(replaying(settings)) as url:
        options = RolloutOptions.model_validate({"servers": [url, url], "temperature": temperature})
        found = list(check_servers(options, Needs(max_length, 320, tmp_path), {}))
    assert [d.code for d in found] == ["rollout.server_unfit"] * 2 * len(said)
    assert all(text in d.hint and url in d.found for text, d in zip(said * 2, found, strict=True))


def test_answers_of_another_distribution_end_the_run() -> None:
    step: Any = SimpleNamespace(extras={"sampling_gap": 0.3})
    asked = {"server": {"url": "http://127.0.0.1:1"}}

    def largest(compute: str, **rollout: Any) -> float | None:
        return largest_gap(TrainingSection.model_validate({"rollout": {**asked, **rollout}}), compute)

    with pytest.raises(PacelineError, match=r"rollout\.sampling_gap"):
        check_sampling(step, 3, largest("float32"))
    check_sampling(step, 3, largest("bfloat16"))
    check_sampling(step, 3, largest("float32", max_sampling_gap=0.4))
    check_sampling(step, 3, largest("float32", top_p=0.9))  # the server's are those after top-p


def _free() -> tuple[str, int]:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    return f"http://127.0.0.1:{port}", port
