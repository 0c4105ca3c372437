"""A run whose folder or disk goes away says so at once, on the console, and does not end as if all were
well.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import warm
from support import Run, worker_environment, write_yaml
from test_train import end, start, wait_for_step

from paceline.core.rundir import RunDir

pytestmark = [pytest.mark.integration]
Tiny = Callable[..., dict[str, Any]]


@pytest.mark.parametrize(
    ("harm", "nproc"),
    [("deleted", 2), ("moved", 1)]
    + [pytest.param(*other, marks=pytest.mark.full) for other in (("deleted", 1), ("moved", 2))],
)
def test_a_folder_that_is_taken_away_ends_the_run_by_name(
    harm: str, nproc: int, tiny: Tiny, tmp_path: Path
) -> None:
    run = RunDir.at(tmp_path / "run")
    process = start(tiny(max_steps=100_000, logging_steps=1000), tmp_path, nproc)
    wait_for_step(run.root, 3, process)
    if harm == "deleted":
        for _ in range(100):  # a heartbeat may be written into what is being taken away
            shutil.rmtree(run.root, ignore_errors=True)
            if not run.root.exists():
                break
    else:
        run.root.rename(tmp_path / "elsewhere")
    done = end(process)
    assert done.code == 1, done
    assert "error[run.folder_gone]" in done.err and "Traceback" not in done.err
    assert harm in done.err and not run.root.exists()
    if harm == "moved":
        assert str(tmp_path / "elsewhere") in done.err
        assert "run.folder_gone" in (tmp_path / "elsewhere/logs/training.log").read_text()


def run_with(limit: int, config: dict[str, Any], folder: Path) -> Run:
    """A run whose files may have ``limit`` bytes: the kernel refuses the rest, to any user, without a
    mount.
    """
    yaml = write_yaml(folder / "limited.yaml", config)
    done = subprocess.run(
        [sys.executable, "-m", "paceline.cli.main", "train", str(yaml)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        cwd=folder,
        env=worker_environment(),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    return Run(done.returncode, done.stdout, done.stderr)


@pytest.mark.full
@pytest.mark.fresh  # its limit is set between fork and exec
def test_logs_that_cannot_grow_are_said_once_and_the_run_goes_on(
    tiny: Tiny, tmp_path: Path, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(max_steps=120, logging_steps=1000)
    with monkeypatch.context() as patch:  # this one has no limit: the data's own files are larger than it
        patch.setattr(warm.Popen, "allowed", not pytestconfig.getoption("--fresh-processes"))
        assert run_process_to_prepare(config, tmp_path).code == 0
    done = run_with(40_000, config, tmp_path)
    said = done.out + done.err
    assert done.code == 0, said
    assert said.count("[runlog.lost]") == 1 and said.count("[runlog.events_lost]") == 1, said
    run = RunDir.at(tmp_path / "run")
    result = json.loads(run.result_json.read_text())
    assert (result["outcome"], result["step"]) == ("completed", 120)
    assert "runlog.events_lost" in [one["code"] for one in result["diagnostics"]]
    assert run.events(0).read_bytes().endswith(b"\n")  # no half a line


def run_process_to_prepare(config: dict[str, Any], folder: Path) -> Run:
    yaml = write_yaml(folder / "prepare.yaml", config)
    argv = [sys.executable, "-m", "paceline.cli.main", "prepare", str(yaml)]
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=200, check=False, cwd=folder, env=worker_environment()
    )
    return Run(done.returncode, done.stdout, done.stderr)


def on_a_small_disk(options: str, folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """A command that sees a file system of its own at ``folder``; skips the test where the kernel permits
    no mounts.
    """
    own = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "sh", "-c"]
    mount = f"mount -t tmpfs -o {options} tmpfs {folder}"
    if (
        shutil.which("unshare") is None
        or subprocess.run([*own, mount], capture_output=True, check=False).returncode
    ):
        pytest.skip("this kernel permits no mount of one's own")
    script = f'{mount} && "$@"; code=$?; find {folder} >&2; exit $code'
    return subprocess.run(
        [*own, script, "sh", *argv],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        cwd=folder.parent,
        env=worker_environment(),
    )


@pytest.mark.parametrize(
    ("options", "words", "code"),
    [("size=64k", "the disk is full", 1), pytest.param("nr_inodes=13", "inodes", 1, marks=pytest.mark.slow)],
)
def test_a_full_disk_is_named_when_it_is_full_and_the_end_is_honest(
    options: str, words: str, code: int, tiny: Tiny, tmp_path: Path
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    config = tiny(max_steps=150, logging_steps=1000, output_dir=str(disk / "run"))
    yaml = write_yaml(tmp_path / "full.yaml", config)
    done = on_a_small_disk(options, disk, sys.executable, "-m", "paceline.cli.main", "train", str(yaml))
    said = done.stdout + done.stderr
    assert done.returncode == code, said
    assert words in said and "Traceback" not in said and "training.exception" not in said
    if words == "the disk is full":
        assert said.count("warning[runlog.lost]") == 1 and "error[run.result_lost]" in said
