"""GRPO with its answers written by a server on loopback: the same losses as when the ranks write them, and
errors that name the server.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import warm
from support import ROOT, Run, write_yaml
from test_grpo_program import grpo, numbers, train
from test_killed_ranks import ranks_of
from test_train import start, wait_for_step

from paceline.config.sections.model import ModelSection
from paceline.launch import processes
from paceline.models.factory import HFModelFactory

pytestmark = [pytest.mark.integration]
__all__ = ["grpo"]  # the fixture


@pytest.fixture
def server(served: tuple[str, warm.Popen]) -> str:
    return served[0]


@pytest.fixture
def served(grpo: Callable[..., dict[str, Any]], tmp_path: Path) -> Iterator[tuple[str, warm.Popen]]:
    """A server that computes with other weights than the run's until it is told better: its address and its
    process."""
    model = ModelSection.model_validate({"config": grpo("any", 1)["model"]["config"]})
    HFModelFactory(model, seed=99)().hf.save_pretrained(tmp_path / "served")
    port = tmp_path / "port"
    log = (tmp_path / "server.log").open("w")
    argv = [sys.executable, str(ROOT / "tests/completions_server.py"), str(tmp_path / "served"), str(port)]
    process = warm.Popen(argv, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 120
        while not port.exists():
            assert process.poll() is None and time.monotonic() < deadline, (
                tmp_path / "server.log"
            ).read_text()
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port.read_text()}", process
    finally:
        process.kill()
        process.wait()
        log.close()


@pytest.mark.parametrize("lora", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_server_changes_no_loss(
    lora: bool, grpo: Callable[..., dict[str, Any]], server: str, paceline: Callable[..., Run], tmp_path: Path
) -> None:
    def config(name: str, **rollout: Any) -> dict[str, Any]:
        found = grpo(name, 2, dtype="float32", distributed_strategy="ddp")
        found["training"]["max_steps"] = 5  # the second rollout begins with step 5
        found["training"]["rollout"] |= rollout
        return found | ({"lora": {"r": 4}} if lora else {})

    own = train(paceline, config("own"), tmp_path, 2)
    served = train(paceline, config("served", server={"url": server}), tmp_path, 2)
    assert [s.sample_digest for s in served] == [s.sample_digest for s in own]
    for one, two in zip(own, served, strict=True):
        assert numbers(two) == pytest.approx(numbers(one), rel=1e-4, abs=2e-5), f"step {one.step}"
    assert served[0].extras["completion_length"] > 1 and served[4].loss != served[0].loss
    with urllib.request.urlopen(f"{server}/v1/models") as answer:
        loaded = json.load(answer)["loaded"]
    # three for what is measured at the start, then one for the second rollout
    assert [Path(p).name for p in loaded[1:]] == [f"weights-00000{n}" for n in range(1, 5)]
    assert [p.name for p in (tmp_path / "served/rollout-weights").iterdir()] == ["weights-000004"]


def test_a_server_that_is_not_there_is_named_by_every_rank(
    grpo: Callable[..., dict[str, Any]], paceline: Callable[..., Run], tmp_path: Path
) -> None:
    config = grpo("run", 2, dtype="float32", distributed_strategy="ddp")
    config["training"]["rollout"] |= {"server": {"url": "http://127.0.0.1:9", "timeout": 1}}
    path = write_yaml(tmp_path / "run.yaml", config)
    done = paceline("train", str(path), "--nproc", "2", deadline=200)
    assert done.code == 1 and "rollout.server_unreachable" in done.err and "http://127.0.0.1:9" in done.err
    config["training"]["rollout"] |= {"server": {"url": "127.0.0.1:9/v1"}}
    done = paceline("train", str(write_yaml(path, config)))
    assert done.code == 2 and "rollout.server_url" in done.err


def test_ranks_whose_launcher_and_server_are_gone_save_and_end(
    grpo: Callable[..., dict[str, Any]], served: tuple[str, warm.Popen], tmp_path: Path
) -> None:
    url, server = served
    config = grpo("run", 2, dtype="float32", distributed_strategy="ddp", save_strategy="no")
    config["training"]["max_steps"] = 100_000
    config["training"]["rollout"] |= {"server": {"url": url, "timeout": 3000}}
    process = start(config, tmp_path, 2)
    ranks = ranks_of(process, 2)
    wait_for_step(tmp_path / "run", 1, process)
    server.kill()
    time.sleep(2.0)  # the steps of this rollout are done; the next one waits for the server
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    process.stderr.close()
    deadline = time.monotonic() + 240
    while any(processes.state_of(pid) not in ("", "Z") for pid in ranks.values()):
        assert time.monotonic() < deadline, (tmp_path / "run/logs/rank-00000.log").read_text()
        time.sleep(0.1)
    assert list((tmp_path / "run/checkpoints").glob("step-*/manifest.json"))
    assert json.loads((tmp_path / "run/result.json").read_text())["outcome"] == "stopped"
