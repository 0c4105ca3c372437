"""A job of remote nodes: whose code decides, what starts again, and that nobody is left behind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from remote_jobs import job_in, rendered

from paceline.core.errors import ConfigError
from paceline.launch.supervision.exit_codes import decisive
from paceline.schedulers.ray.attempts import Stop, repeat, run_to_end
from paceline.schedulers.ray.task import RayTask

#: what nodes do: leave with a code, leave with 75 once they are stopped, or not leave
LEAVES = "import sys; sys.exit({})"
SAVES = "import signal, sys; signal.signal(15, lambda *_: sys.exit(75)); print(flush=True); signal.pause()"
STAYS = "import signal; signal.signal(15, signal.SIG_IGN); print(flush=True); signal.pause(); signal.pause()"


class LocalNodes:
    """Processes of this machine in place of Ray's actors."""

    def __init__(self, *programs: str) -> None:
        self.programs = programs
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        for text in self.programs:
            process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE)
            assert process.stdout is not None
            process.stdout.read(1)  # it is ready, or has ended
            self.processes.append(process)

    def wait(self, running: Sequence[int]) -> list[int | None]:
        codes = (self._code(node) for node in running)
        return [code if code is None or code >= 0 else 128 - code for code in codes]

    def _code(self, node: int) -> int | None:
        try:
            return self.processes[node].wait(0.02)
        except subprocess.TimeoutExpired:
            return None

    def stop(self, running: Sequence[int]) -> None:
        for node in running:
            self.processes[node].terminate()

    def kill(self, running: Sequence[int]) -> None:
        for node in running:
            self.processes[node].kill()

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


@pytest.mark.parametrize(
    ("programs", "stop", "code"),
    [
        ((LEAVES.format(0), LEAVES.format(0)), False, 0),
        ((LEAVES.format(76), LEAVES.format(3)), False, 3),
        ((LEAVES.format(0), STAYS), True, 137),
        ((SAVES, SAVES), True, 75),
        ((LEAVES.format(2), STAYS), False, 2),  # the one that stays is killed: 137
    ],
)
def test_the_node_that_failed_by_itself_decides(programs: tuple[str, ...], stop: bool, code: int) -> None:
    nodes = LocalNodes(*programs)
    try:
        assert run_to_end(nodes, len(programs), 0.2, Stop(stop)) == code
        assert all(process.poll() is not None for process in nodes.processes)
    finally:
        nodes.close()


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        ([0, 0], 0),
        ([0, 75], 75),
        ([76, 1], 1),
        ([1, 76], 1),
        ([76, 77], 77),
        ([76, 137, 2], 2),
        ([75, 76], 76),
        ([70, 0], 70),
        ([139, 1], 139),
    ],
)
def test_peers_say_less(codes: list[int], code: int) -> None:
    assert decisive(codes) == code


@pytest.mark.parametrize(
    ("codes", "answer", "attempts"),
    [
        ([0], 0, 1),
        ([70], 0, 1),
        ([2], 2, 1),
        ([130], 130, 1),
        ([75, 75, 75, 75, 75, 0], 0, 6),  # without counting
        ([1, 76, 0], 0, 3),
        ([1, 75, 137, 75, 77, 0], 77, 5),  # two restarts
    ],
)
def test_what_follows_is_what_the_one_table_says(codes: list[int], answer: int, attempts: int) -> None:
    left = iter(codes)
    started = []

    def attempt() -> int:
        started.append(True)
        return next(left)

    assert repeat(attempt, 2, Stop()) == answer
    assert len(started) == attempts


def test_a_stopped_job_never_starts_again() -> None:
    assert repeat(lambda: 75, 2, Stop(True)) == 75
    assert repeat(lambda: 137, 2, Stop(True)) == 137


def test_the_task_comes_back_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "task.json"
    file.write_text(rendered("ray", job_in(tmp_path)).files["ray/task.json"])
    task = RayTask.read(file)
    assert (task.nodes, task.nproc, task.gpus, task.cpus, task.signs) == (4, 8, 8, 32, True)
    assert task.arguments[:2] == ("train", "@here@/my.yaml")
    file.write_text(file.read_text().replace('"nodes": 4', '"nodes": "many"'))
    with pytest.raises(ConfigError, match=r"schedulers\.task"):
        RayTask.read(file)
