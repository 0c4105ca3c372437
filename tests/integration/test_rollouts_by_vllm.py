"""Rollouts whose answers a real vLLM writes: by every way of the weights and under every strategy the run
learns what it learns with the own engine. ``scripts/test --engines``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from support import ROOT, Run, write_yaml

from paceline.core.rundir import RunDir
from paceline.runlog.events import Step, read_events

sys.path[:0] = [str(ROOT / "tests/peers/vllm"), str(ROOT / "tests/peers")]
import vllm_asked  # noqa: E402
from record import TAKES_WEIGHTS, real_vllm  # noqa: E402

pytestmark = [pytest.mark.engines, pytest.mark.peers, pytest.mark.timeout(3600)]
STEPS = 20
STRATEGIES: dict[str, tuple[int, dict[str, Any]]] = {
    "single": (1, {"distributed_strategy": "single"}),
    "ddp": (2, {"distributed_strategy": "ddp"}),
    "fsdp": (2, {"distributed_strategy": "fsdp"}),
    "zero3": (2, {"distributed_strategy": "zero3"}),
    "tp": (2, {"distributed_strategy": "fsdp", "parallelism": {"tp_size": 2}}),
}
REINFORCE = {"algorithm": "reinforce_plus_plus", "reinforce_plus_plus": {"beta": 0.0}}
REWARDS = [
    {"name": "length", "options": {"target": 20, "unit": "characters"}},
    {"name": "regex", "weight": 0.5, "options": {"pattern": "[a-m]"}},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model for both, and prompts."""
    made = tmp_path_factory.mktemp("rollouts")
    vllm_asked.write_model(made / "mine")
    words = ("one", "two", "red", "cat", "dog", "sum", "say")
    rows = [{"prompt": " ".join(words[(i * k) % 7] for k in (1, 3, 5, 8)), "answer": "x"} for i in range(200)]
    (made / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return made


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with real_vllm(folder, folder / "mine", *TAKES_WEIGHTS) as found:
        yield found


@pytest.fixture(scope="module")
def own() -> dict[tuple[bool, int], list[Step]]:
    """What runs with the own engine have learnt, by LoRA and ranks."""
    return {}


def learnt(
    paceline: Callable[..., Run],
    model: Path,
    tmp_path: Path,
    strategy: str,
    lora: bool,
    steps: int = STEPS,
    training: Mapping[str, Any] = REINFORCE,
    **rollout: Any,
) -> list[Step]:
    ranks, settings = STRATEGIES[strategy]
    readers = 1 if strategy in ("single", "tp") else 2
    config: dict[str, Any] = {
        "model": {"name_or_path": str(model), "dtype": "float32"},
        "data": {"train": str(model.parent / "rows.jsonl"), "max_length": 96},
        "training": {
            "output_dir": str(tmp_path / ("served" if "server" in rollout else "own")),
            "max_steps": steps,
            "learning_rate": 2e-3 if lora else 1e-3,
            "per_device_train_batch_size": 8 // readers,
            "save_strategy": "no",
            "rollout": {"rewards": REWARDS, "max_completion_length": 8, "temperature": 0.0, **rollout},
            **training,
            **settings,
        },
    }
    if lora:
        config["lora"] = {"r": 8, "alpha": 16}
    path = write_yaml(tmp_path / "run.yaml", config)
    done = paceline("train", str(path), "--nproc", str(ranks), deadline=1200)
    assert done.code == 0, done.err
    run = RunDir.at(Path(config["training"]["output_dir"]))
    return [record.event for record in read_events(run.events(0)) if isinstance(record.event, Step)]


# adapters first: they need the server's first weights
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("way", "lora"),
    [("adapter", True), ("transfer", False), ("folder", False), ("transfer", True), ("folder", True)],
)
def test_a_run_learns_the_same_whoever_writes_its_answers(
    way: str,
    lora: bool,
    strategy: str,
    folder: Path,
    url: str,
    own: dict[tuple[bool, int], list[Step]],
    paceline: Callable[..., Run],
    tmp_path: Path,
) -> None:
    ranks = STRATEGIES[strategy][0]
    if (lora, ranks) not in own:
        own[lora, ranks] = learnt(paceline, folder / "mine", tmp_path, {1: "single", 2: "ddp"}[ranks], lora)
    server = {"url": url, "weights_dir": str(tmp_path / "weights")}
    served = learnt(paceline, folder / "mine", tmp_path, strategy, lora, server=server, weights=way)
    assert len(served) == STEPS
    the_same(own[lora, ranks], served)
    if way == "adapter":
        (file,) = (tmp_path / "weights").glob("*/adapter_model.safetensors")
        assert file.stat().st_size < served[-1].extras["sync_bytes"] < 1.05 * file.stat().st_size


def the_same(own: Sequence[Step], served: Sequence[Step]) -> None:
    for one, two in zip(own, served, strict=True):
        assert two.loss == pytest.approx(one.loss, abs=1e-5), f"step {one.step}"
        assert two.extras.get("reward", 0) == pytest.approx(one.extras.get("reward", 0), abs=1e-6)
        assert two.grad_norm == pytest.approx(one.grad_norm, rel=1e-3, abs=1e-5)
        assert two.extras.get("sampling_gap", 0) < 1e-4


def test_a_model_of_56_million_learns_the_same(
    folder: Path, paceline: Callable[..., Run], tmp_path: Path
) -> None:
    """Several buckets, of which some are one large tensor."""
    model = vllm_asked.write_model(tmp_path / "larger", vllm_asked.LARGER, 0.05)
    (tmp_path / "rows.jsonl").write_bytes((folder / "rows.jsonl").read_bytes())
    own = learnt(paceline, model, tmp_path, "ddp", False, 4)
    with real_vllm(tmp_path, model, *TAKES_WEIGHTS) as url:
        server = {"url": url, "weights_dir": str(tmp_path / "weights")}
        for way, strategy in (("transfer", "ddp"), ("folder", "fsdp")):
            (tmp_path / way).mkdir()
            served = learnt(paceline, model, tmp_path / way, strategy, False, 4, server=server, weights=way)
            the_same(own, served)
            assert served[0].extras["sync_bytes"] > 3 * 220e6 and served[1].extras["sync_bytes"] > 220e6


RECORDED = """
import json, os, threading
from paceline.generation.remote import ServerEngine

answer, lock = ServerEngine.answer, threading.Lock()

def recorded(self, request, sampling):
    found = answer(self, request, sampling)
    if sampling.temperature:
        row = [request.prompt, request.stream, found.tokens, found.logprobs.tolist(), found.ended]
        with lock, open(f"{os.getpid()}.jsonl", "a") as file:
            file.write(json.dumps(row) + "\\n")
    return found

ServerEngine.answer = recorded
"""
REPLAYED = """
import json, torch
from pathlib import Path
from paceline.generation.engine import Completion
from paceline.generation.local import LocalEngine

rows = [json.loads(line) for file in Path(".").glob("*.jsonl") for line in file.read_text().splitlines()]
said = {(tuple(p), s): Completion(tuple(t), torch.tensor(v), e) for p, s, t, v, e in rows}
LocalEngine.generate = lambda self, requests, sampling: [said[r.prompt, r.stream] for r in requests]
"""
SCORE = """
def score(completions, **columns):
    return [sum(c in "aeiou" for c in text) / 8 for text in completions]
"""


def test_grpo_at_temperature_1_learns_the_same_from_the_recorded_answers(
    folder: Path, url: str, paceline: Callable[..., Run], tmp_path: Path
) -> None:
    """A reward's module puts the recorded answers in place of the own engine's."""
    for name, text in (("recorded", RECORDED), ("replayed", REPLAYED)):
        (tmp_path / f"{name}.py").write_text(text + SCORE)
    grpo = {"algorithm": "grpo", "grpo": {"beta": 0.02, "num_iterations": 2}}
    common = {"temperature": 1.0, "num_generations": 4, "old_logprobs": "recompute"}

    def run(module: str, **rollout: Any) -> list[Step]:
        rewards = [{"name": f"{module}:score"}]
        return learnt(
            paceline,
            folder / "mine",
            tmp_path,
            "ddp",
            False,
            training=grpo,
            **common,
            rewards=rewards,
            **rollout,
        )

    served = run("recorded", server={"url": url, "weights_dir": str(tmp_path / "weights")})
    own = run("replayed")
    assert [step.sample_digest for step in own] == [step.sample_digest for step in served]
    the_same(own, served)
    assert max(abs(step.loss) for step in own) > 1e-3 and own[-1].extras["kl"] > 1e-4
