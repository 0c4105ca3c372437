"""The rank that fails is named, not those that are ended because of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from paceline.core.errors import ExitCode, PacelineError
from paceline.evaluation.processes import ranks
from paceline.evaluation.processes.ranks import compute_on_ranks
from paceline.evaluation.processes.work_folder import LOSSES, WorkFolder, WorkSettings

# A rank as ``launch.ending`` makes it: SIGTERM ends it with 128 + 15.
# Many short sleeps: a signal that comes just before a long one would wait for its end.
SETTINGS = WorkSettings((LOSSES,), "none", "float32", 1, 0, (), 1, 0.0, 1.0, 0, 1, 0)
WAITS = """import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
for _ in range(1200):
    time.sleep(0.05)
"""


def end(programs: dict[int, str], world_size: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def argv(module: str, work: str, rank: str, world_size: str) -> tuple[str, ...]:
        return (sys.executable, "-c", programs[int(rank)])

    monkeypatch.setattr(ranks, "module_argv", argv)
    work = WorkFolder(folder)
    work.write(SETTINGS)
    compute_on_ranks(work, world_size, lambda *_: None)


@pytest.mark.parametrize(
    ("program", "words", "code"),
    [
        ("import sys; sys.exit(1)", "exit code 1", ExitCode.FAILED),
        ("import sys; sys.exit(2)", "exit code 2", ExitCode.CONFIG),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", "SIGTERM", ExitCode.FAILED),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL", ExitCode.FAILED),
    ],
)
def test_the_rank_that_failed_is_named(
    program: str, words: str, code: ExitCode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PacelineError) as failed:
        end({0: WAITS, 1: program, 2: WAITS}, 3, tmp_path, monkeypatch)
    [diagnostic] = failed.value.diagnostics
    assert diagnostic.where == "rank 1" and words in diagnostic.what
    assert failed.value.exit_code == code


def test_ranks_that_end_well_raise_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end({0: "import time; time.sleep(0.5)", 1: ""}, 2, tmp_path, monkeypatch)
