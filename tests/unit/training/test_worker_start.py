"""What a launcher's worker is told before it meets the others: where the YAML and the launcher disagree."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from support import worker_environment

from paceline.config.load import Loaded, load_config
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import ConfigError
from paceline.launch.processes import MARK
from paceline.launch.supervision.worker_channel import LauncherConnection
from paceline.runtime.rank_env import RankEnv
from paceline.training import rank as rank_module
from paceline.training.rank_arguments import (
    Start,
    looked_at,
    other_processes,
    parse_start,
    restarts,
    same_size,
)

ROOT = Path(__file__).resolve().parents[3]
TORCHRUN = {
    "RANK": "0",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "x",
    "TORCHELASTIC_MAX_RESTARTS": "0",
}


def load(tmp_path: Path, text: str) -> Loaded:
    (tmp_path / "c.yaml").write_text(text)
    return load_config(tmp_path / "c.yaml", environ={})


def test_processes_of_the_yaml_beside_those_of_the_launcher(tmp_path: Path) -> None:
    loaded = load(tmp_path, "launch:\n  nproc: 8\n  nnodes: 3\n")
    found = other_processes(loaded, TORCHRUN)
    assert [(d.code, d.where, d.severity) for d in found] == [
        ("launch.other_processes", f"{tmp_path}/c.yaml:2", Severity.WARNING),
        ("launch.other_processes", f"{tmp_path}/c.yaml:3", Severity.WARNING),
    ]
    assert [d.hint.partition(",")[0] for d in found] == ["launch.nproc: 2", "launch.nnodes: 2"]


@pytest.mark.parametrize("text", ["launch:\n  nproc: 2\n  nnodes: 2\n", "training:\n  seed: 1\n"])
def test_the_same_or_nothing_asked_is_not_said(tmp_path: Path, text: str) -> None:
    assert other_processes(load(tmp_path, text), TORCHRUN) == ()


@pytest.mark.parametrize(
    ("resume", "restarted", "said"),
    [
        ("null", "3", True),
        ("ckpt/step-5", "1", True),
        ("auto", "3", False),
        ("latest", "3", False),
        ("null", "0", False),
    ],
)
def test_restarts_that_do_not_go_on(tmp_path: Path, resume: str, restarted: str, said: bool) -> None:
    loaded = load(tmp_path, f"training:\n  resume_from_checkpoint: {resume}\n")
    found = restarts(loaded, {**TORCHRUN, "TORCHELASTIC_MAX_RESTARTS": restarted})
    assert [d.code for d in found] == ["launch.restarts"] * said


def test_a_worker_hears_of_both(tmp_path: Path) -> None:
    arguments = [
        "--config",
        str(ROOT / "config.yaml"),
        "--set",
        "launch.nproc=8",
        "--set",
        f"training.output_dir={tmp_path}",
    ]
    start = parse_start(arguments, {**TORCHRUN, "TORCHELASTIC_MAX_RESTARTS": "2"})
    assert {"launch.other_processes", "launch.restarts"} <= {note.code for note in start.notes}


SRUN = {
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_JOB_ID": "5",
}


@pytest.mark.parametrize(("rank", "told"), [(0, True), (1, False), (2, True), (3, False)])
def test_what_is_wrong_with_the_yaml_is_said_once_a_node(
    tmp_path: Path, rank: int, told: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rank_module, "LATER_SECONDS", 0.0)
    (tmp_path / "c.yaml").write_text("training:\n  lerning_rate: 1\n")
    environ = {
        **SRUN,
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank % 2),
        "PACELINE_CACHE": str(tmp_path),
    }
    line = LauncherConnection.join({}, rank, lambda word: None)
    assert rank_module.run_rank(["--config", str(tmp_path / "c.yaml")], environ, line) == 2
    assert ("lerning_rate" in capsys.readouterr().err) == told
    assert rank_module.place({"PMIX_RANK": "3"}) == (True, 0)  # of how many nobody says: every rank tells it


def test_ranks_started_from_outside_look_once_before_torch_and_all_end(tmp_path: Path) -> None:
    """By hand, as srun starts tasks that it does not end when one has ended: two programs, none of which
    waits for the other.
    """
    environ = {
        **worker_environment(),
        **SRUN,
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NUM_NODES": "1",
        "PACELINE_CACHE": str(tmp_path / "cache"),
    }
    (tmp_path / "c.yaml").write_text(
        "data:\n  train: /nowhere/rows.json\nmodel:\n  name_or_path: /nowhere/model\n"
    )
    program = f"""
import sys
from paceline.launch.preflight import child_checks
from paceline.training import rank
asked = child_checks.run_child
child_checks.run_child = lambda job: (open(sys.argv[1], "a").write("looked "), asked(job))[1]
code = rank.main(["--config", "{tmp_path}/c.yaml", "--set", "training.use_cpu=true"])
assert "torch" not in sys.modules and "transformers" not in sys.modules
sys.exit(code)
"""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path / "looks")],
            stderr=subprocess.PIPE,
            text=True,
            env={**environ, "SLURM_PROCID": str(n), "SLURM_LOCALID": str(n)},
        )
        for n in range(2)
    ]
    said = [process.communicate(timeout=240)[1] for process in ranks]
    assert [process.returncode for process in ranks] == [2, 2], said
    assert "data.missing" in said[0] and "/nowhere/model" in said[0] and f"{tmp_path}/c.yaml:2" in said[0]
    assert said[1] == ""
    assert (tmp_path / "looks").read_text() == "looked "


def test_nobody_looks_again_where_a_parent_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = [
        "--config",
        str(ROOT / "config.yaml"),
        "--set",
        f"training.output_dir={tmp_path}",
        "--set",
        "data.train=/nowhere",
    ]
    environ = {**TORCHRUN, "PACELINE_CACHE": str(tmp_path)}
    start, env = parse_start(arguments, environ), RankEnv.from_environ(environ)
    monkeypatch.setattr(
        "paceline.training.rank_arguments.preflight_findings_of_ranks", lambda *given, **more: (WRONG, NOTE)
    )
    assert looked_at(start, env, {**environ, MARK: "1"}) == start
    assert looked_at(Start(start.config, None, None, None), env, environ).notes == ()
    with pytest.raises(ConfigError, match="no such file"):
        looked_at(start, env, environ)


def test_what_a_look_remarks_is_said_by_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {**TORCHRUN, "PACELINE_CACHE": str(tmp_path)}
    start = parse_start(["--config", str(ROOT / "config.yaml")], environ)
    monkeypatch.setattr(
        "paceline.training.rank_arguments.preflight_findings_of_ranks", lambda *given, **more: (NOTE,)
    )
    assert looked_at(start, RankEnv.from_environ(environ), environ).notes == (*start.notes, NOTE)


WRONG = Diagnostic("data.missing", "there is no such file", "data.train", "/nowhere", "another")
NOTE = replace(WRONG, severity=Severity.NOTE)


@pytest.mark.parametrize(("ranks", "nodes"), [(1, 1), (4, 2), (4, 1)])
def test_other_ranks_than_the_plan_is_for_are_refused(ranks: int, nodes: int) -> None:
    plan, env = (
        SimpleNamespace(world_size=2, num_nodes=1),
        SimpleNamespace(world_size=2, num_nodes=1, launcher="mpirun"),
    )
    same_size(plan, env)
    env.world_size, env.num_nodes = ranks, nodes
    with pytest.raises(ConfigError, match=r"training\.plan_ranks") as caught:
        same_size(plan, env)
    assert f"{ranks} on {nodes}" in caught.value.diagnostics[0].found
