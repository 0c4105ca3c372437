"""``launch.nodes``: a run on two nodes goes on with one when the other is gone, and with both once it is
back; the same rows and losses as without.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import warm
from support import worker_environment, write_yaml
from test_killed_ranks import ranks_of
from test_train import end, events_of, steps_of, train, wait_for_step

from paceline.launch.network import free_port
from paceline.runlog.events import Notice, RunStarted

pytestmark = [pytest.mark.integration]


class Nodes:
    """Launchers of a run, one a node, at the loopback interface."""

    def __init__(self, config: dict[str, Any], folder: Path) -> None:
        self.folder, self.yaml = folder, write_yaml(folder / "nodes.yaml", config)

    def begin(self, node: int) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "paceline.cli.main", "train", str(self.yaml), "--node-rank", str(node)]
        with (self.folder / f"err-{node}").open("a") as errors:
            return warm.Popen(
                argv,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=worker_environment({"PACELINE_STORE_SECRET": "s" * 32}),
                cwd=self.folder,
                start_new_session=True,
            )

    def errors(self, node: int) -> str:
        return (self.folder / f"err-{node}").read_text()


def started(run: Path) -> list[int]:
    """The world sizes of the run's starts."""
    return [e.world_size for e in events_of(run) if isinstance(e, RunStarted)]


def wait_for(run: Path, worlds: list[int], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 240
    while started(run) != worlds:
        assert time.monotonic() < deadline and process.poll() is None, started(run)
        time.sleep(0.1)


@pytest.mark.parametrize(
    "lost", [pytest.param(lost, marks=pytest.mark.full) for lost in ("node", "launcher")]
)
def test_a_run_goes_on_with_fewer_nodes_and_with_more_once_they_are_back(
    lost: str, tiny: Callable[..., dict[str, Any]], paceline: Callable[..., Any], tmp_path: Path
) -> None:
    sizes = {
        "max_steps": 5000,
        "lr_scheduler_type": "constant",
        "learning_rate": 1e-4,
        "save_strategy": "steps",
        "save_steps": 4,
        "logging_steps": 1,
    }
    launch = {"nodes": "1:2", "nnodes": 2, "nproc": 1, "master_port": free_port(), "rejoin_timeout": 2}
    config = tiny(**sizes, output_dir=str(tmp_path / "run"))
    nodes = Nodes({**config, "launch": {**launch, "master_addr": "127.0.0.1"}}, tmp_path)
    first, second = nodes.begin(0), nodes.begin(1)
    wait_for_step(tmp_path / "run", 6, first)
    ranks = ranks_of(second, 1).values() if lost == "node" else ()  # else the kernel asks its rank to stop
    for pid in (second.pid, *ranks):
        os.killpg(pid, signal.SIGKILL)
    second.communicate()
    wait_for(tmp_path / "run", [2, 1], first)
    wait_for_step(tmp_path / "run", max(s.step for s in steps_of(tmp_path / "run")) + 5, first)
    second = nodes.begin(1)
    wait_for(tmp_path / "run", [2, 1, 2], first)
    wait_for_step(tmp_path / "run", max(s.step for s in steps_of(tmp_path / "run")) + 5, first)
    first.send_signal(signal.SIGTERM)
    assert end(first).code == end(second).code == 75, (nodes.errors(0), nodes.errors(1))
    notes = {e.diagnostic.code for e in events_of(tmp_path / "run") if isinstance(e, Notice)}
    assert {"launch.fewer_nodes", *(["launch.restart"] if lost == "node" else [])} <= notes, nodes.errors(0)

    last = {s.step: s for s in steps_of(tmp_path / "run")}
    whole = train(
        paceline, tiny(**{**sizes, "max_steps": max(last)}, output_dir=str(tmp_path / "whole")), tmp_path, 2
    )
    assert whole.code == 0, whole.err
    for step in steps_of(tmp_path / "whole"):
        assert last[step.step].loss == pytest.approx(step.loss, abs=2e-6), step.step
        assert last[step.step].tokens == step.tokens


@pytest.mark.parametrize(
    ("rows", "nodes", "code"),
    [(1, "2:3", "plan.batch_world"), (2, "2:3", ""), (2, "2:4", "launch.nodes_range")],
)
def test_rows_that_fewer_nodes_cannot_divide_are_refused_before_the_start(
    rows: int,
    nodes: str,
    code: str,
    tiny: Callable[..., dict[str, Any]],
    paceline: Callable[..., Any],
    tmp_path: Path,
) -> None:
    launch = {"nodes": nodes, "nnodes": 3, "nproc": 1, "master_port": 29500, "allow_unsigned_store": True}
    config = {**tiny(per_device_train_batch_size=rows), "launch": {**launch, "master_addr": "127.0.0.1"}}
    done = paceline("train", str(write_yaml(tmp_path / "c.yaml", config)), "--dry-run")
    assert done.code == (2 if code else 0), done.err
    assert code in done.err
