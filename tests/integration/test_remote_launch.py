"""``paceline launch`` for nodes that do not see this machine's disk: files, commands, refusals."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import Run, write_yaml

pytestmark = [pytest.mark.integration]
PROGRAMS = {
    "kubernetes": "kubectl apply",
    "ray": "ray job submit",
    "skypilot": "sky jobs",
    "dstack": "dstack apply",
}


@pytest.mark.parametrize("system", PROGRAMS)
def test_a_job_is_written_and_its_command_is_printed(
    system: str, tiny: Callable[..., dict[str, Any]], paceline: Callable[..., Run], tmp_path: Path
) -> None:
    site = {"image": "an/image", "gpus_per_node": 0, "kubernetes": {"kind": "jobset"}}
    config = {**tiny(use_cpu=True, checkpoint_url=f"file://{tmp_path}/store"), "launch": site}
    file = write_yaml(tmp_path / "mine.yaml", config)
    # A run of this machine is none of theirs
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "plan.json").write_text("{}")
    done = paceline("launch", str(file), "--on", system, "--nodes", "2", "--nproc", "1", "--out", "job")
    assert done.code == 0, done.err
    assert PROGRAMS[system] in done.out
    assert "warning[schedulers.local_path] data.train" in done.err, "rows of this machine, in no mount"
    folder = tmp_path / "job"
    written = [
        Path(line.removeprefix("wrote ")) for line in done.err.splitlines() if line.startswith("wrote ")
    ]
    assert written and all(path.is_file() and path.is_relative_to(folder) for path in written)
    texts = "".join(path.read_text() for path in written)
    assert "mine.yaml" in texts and "launch.max_restarts=0" in texts or system == "dstack"
    secret = folder / "store-secret"
    if system != "ray":  # its driver makes one
        assert secret.stat().st_mode & 0o777 == 0o600
        assert secret.read_text() not in texts + done.out + done.err
    named = [word for word in shlex.split(done.out) if word.startswith(str(folder))]
    assert named and all(Path(word).exists() for word in named)


def test_a_pod_that_would_lose_the_run_is_refused(
    tiny: Callable[..., dict[str, Any]], paceline: Callable[..., Run], tmp_path: Path
) -> None:
    file = write_yaml(tmp_path / "mine.yaml", {**tiny(use_cpu=True), "launch": {"gpus_per_node": 0}})
    done = paceline("launch", str(file), "--on", "kubernetes", "--nodes", "2", "--nproc", "1", "--out", "job")
    assert done.code == 2 and not (tmp_path / "job").exists()
    assert "schedulers.lost" in done.err and "launch.image" in done.err


def test_a_sweep_whose_runs_are_complete_starts_nothing(
    tiny: Callable[..., dict[str, Any]], paceline: Callable[..., Run], tmp_path: Path
) -> None:
    file = write_yaml(tmp_path / "mine.yaml", {**tiny(use_cpu=True), "launch": {"gpus_per_node": 0}})
    for seed in (1, 2):
        run = tmp_path / "run-sweep" / f"seed={seed}"
        (run / "events").mkdir(parents=True)
        (run / "result.json").write_text('{"outcome": "completed", "exit_code": 0, "diagnostics": []}')
    sweep = ("--sweep", "training.seed=1,2", "--time", "1h", "--out", "job")
    done = paceline("launch", str(file), "--on", "slurm", *sweep)
    assert done.code == 2 and "all runs of the sweep are complete" in done.err
    assert not (tmp_path / "job").exists()
