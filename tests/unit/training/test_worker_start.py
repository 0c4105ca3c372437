"""What a launcher's worker is told before it meets the others: where the YAML and the launcher disagree."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.config.load import Loaded, load_config
from paceline.core.diagnostics import Severity
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
