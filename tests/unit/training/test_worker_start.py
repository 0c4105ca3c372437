"""What a launcher's worker is told before it meets the others: where the YAML and the launcher disagree."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.config.load import Loaded, load_config
from paceline.core.diagnostics import Severity
from paceline.launch.line import Line
from paceline.training import worker
from paceline.training.start import other_processes, parse_start, restarts

ROOT = Path(__file__).resolve().parents[3]
TORCHRUN = {
    "RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_MAX_RESTARTS": "0",
}  # fmt: skip


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
    [("null", "3", True), ("ckpt/step-5", "1", True), ("auto", "3", False), ("latest", "3", False), ("null", "0", False)],
)  # fmt: skip
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


SRUN = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_STEP_NUM_NODES": "2", "SLURM_JOB_ID": "5"}  # fmt: skip


@pytest.mark.parametrize(("rank", "told"), [(0, True), (1, False), (2, True), (3, False)])
def test_what_is_wrong_with_the_yaml_is_said_once_a_node(
    tmp_path: Path, rank: int, told: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worker, "_LATER_SECONDS", 0.0)
    (tmp_path / "c.yaml").write_text("training:\n  lerning_rate: 1\n")
    environ = {**SRUN, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank % 2)}
    line = Line.join({}, rank, lambda word: None)
    assert worker.run_rank(["--config", str(tmp_path / "c.yaml")], environ, line) == 2
    assert ("lerning_rate" in capsys.readouterr().err) == told
    assert worker.place_on_node({"PMIX_RANK": "3"}) == 0  # of how many nobody says: every rank tells it
