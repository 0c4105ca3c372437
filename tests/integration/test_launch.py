"""The launcher on real processes, with a worker of a few lines: ranks, exit codes, signals, nothing left
behind, two nodes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import worker_environment

from paceline.launch.network import free_port

pytestmark = [pytest.mark.integration]
fresh = pytest.mark.fresh  # of each kind of end one test whose processes are started as a user's are
DEADLINE = 240.0  # a hang is what it finds
LAUNCHERS = ["spawn", "torchrun"]
#: what torchrun adds is tested by exit codes and a stop; who its ranks are, by the guide's commands
MOSTLY_SPAWN = ["spawn", pytest.param("torchrun", marks=pytest.mark.full)]

DRIVER = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell's background job has it: a stop asked for is obeyed all the same
from paceline.launch.supervision import supervisor
from paceline.launch.process_spec import Cluster
from paceline.launch.start_run import launch
launcher, nproc, nodes, node, port, peer_seconds, *worker = sys.argv[1:]
os.environ.pop("OMP_NUM_THREADS", None)  # which the launcher sets
supervisor.PEER_SECONDS = supervisor.TERM_SECONDS = float(peer_seconds)
cluster = Cluster(int(nproc), int(nodes), int(node), master_port=int(port) or None)
sys.exit(launch((sys.executable, *worker), cluster, launcher=launcher, environ=os.environ, cores=2))
"""  # noqa: E501

WORKER = """
import os, signal, subprocess, sys, time
mode, folder = sys.argv[1:3]
rank = int(os.environ["RANK"])
open(f"{folder}/pid-{rank}", "w").write(str(os.getpid()))
def up():
    os.rename(f"{folder}/pid-{rank}", f"{folder}/up-{rank}")
def line(text):  # one write: under PYTHONUNBUFFERED print makes several, which the ranks' lines on one pipe tear apart
    os.write(1, (text + "\\n").encode())
stop = []
def graceful():
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
def until_stopped():
    while not stop:
        time.sleep(0.02)
if mode == "env":
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS")
    line(" ".join(os.environ[n] for n in names) + f" {int(os.environ['MASTER_PORT']) > 0}")
elif mode == "code":
    sys.exit(int(sys.argv[3 + rank]))
elif mode == "wait":
    graceful(); up(); until_stopped(); line("saved"); sys.exit(75)
elif mode == "slow-save":  # rank 1 saves for a while after rank 0 has ended
    graceful(); up(); until_stopped(); time.sleep(1.0 * rank); line("saved"); sys.exit(75)
elif mode == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN); up(); time.sleep(3600)
elif mode == "deaf-unless-killed":
    if rank == 1:
        time.sleep(0.5); os.kill(os.getpid(), signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.SIG_IGN); up(); time.sleep(3600)
elif mode == "killed":  # rank 1 of 3 dies; rank 0 listens, rank 2 has no line yet
    if rank == 1:
        while len([n for n in os.listdir(folder) if n.startswith("up-")]) < 2:
            time.sleep(0.02)
        os.kill(os.getpid(), int(sys.argv[3]))
    if rank == 0:
        from paceline.launch.supervision.worker_channel import LauncherConnection
        def leave(word):
            line(f"heard of rank {word.rank}: {word.code} {word.finding.found}"); os._exit(76)
        LauncherConnection.join(os.environ, rank, leave)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    up(); time.sleep(3600)
elif mode == "frozen":  # rank 1 stands still; rank 0 has noticed
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    def still(path):
        pid = open(path).read() if os.path.exists(path) else ""
        return pid and open(f"/proc/{pid}/stat").read().split(") ")[1].startswith("T")
    while not still(f"{folder}/pid-1"):
        time.sleep(0.05)
    sys.exit(77)
elif mode == "early":
    up(); time.sleep(3600)
elif mode == "daemon":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"], start_new_session=True)
    open(f"{folder}/daemon-{rank}", "w").write(str(child.pid))
elif mode == "sum":
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    total = torch.tensor([float(rank + 1)]); dist.all_reduce(total)
    line(f"sum {total.item()} {dist.get_world_size()}")
    dist.barrier(); dist.destroy_process_group()
"""  # noqa: E501


class Job:
    """A driver process with its worker's folder."""

    def __init__(
        self,
        folder: Path,
        launcher: str,
        nproc: int,
        mode: str,
        *more: str,
        nodes: int = 1,
        node: int = 0,
        port: int = 0,
        peer: float = 20,
    ) -> None:
        self.folder = folder
        for name, text in (("driver.py", DRIVER), ("worker.py", WORKER)):
            (folder / name).write_text(text)
        settings = [launcher, str(nproc), str(nodes), str(node), str(port), str(peer)]
        self.process = subprocess.Popen(
            [
                sys.executable,
                str(folder / "driver.py"),
                *settings,
                str(folder / "worker.py"),
                mode,
                str(folder),
                *more,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=worker_environment(),
            start_new_session=True,
        )

    def wait_for(self, *names: str) -> None:
        """Until all these files are there."""
        deadline = time.monotonic() + DEADLINE
        while not all((self.folder / name).exists() for name in names):
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline, f"{names} did not come"
            time.sleep(0.02)

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=DEADLINE)
        return self.process.returncode, out, err

    def pids(self) -> list[int]:
        return [
            int(path.read_text())
            for path in self.folder.iterdir()
            if path.name.split("-")[0] in ("pid", "up", "daemon")
        ]


def alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def none_left(pids: list[int], seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return bool(pids) and not any(map(alive, pids))


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    made: list[Job] = []

    def make(*args: object, **kw: object) -> Job:
        made.append(Job(tmp_path, *args, **kw))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        for pid in [one.process.pid, *one.pids()]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        one.process.communicate()


@fresh
@pytest.mark.parametrize("launcher", MOSTLY_SPAWN)
def test_two_ranks_know_who_they_are(job: Callable[..., Job], launcher: str) -> None:
    code, out, err = job(launcher, 2, "env").end()
    assert code == 0, err
    assert sorted(out.splitlines()) == ["0 0 2 2 127.0.0.1 1 True", "1 1 2 2 127.0.0.1 1 True"]
    assert err == ""


@pytest.mark.parametrize(
    ("launcher", "codes", "expected"),
    [
        pytest.param("spawn", ("2", "2"), 2, marks=pytest.mark.full),
        ("spawn", ("75", "75"), 75),
        ("spawn", ("0", "70"), 70),
        pytest.param("torchrun", ("0", "2"), 2, marks=pytest.mark.full),
    ],
)
def test_the_workers_exit_code_comes_back(
    job: Callable[..., Job], launcher: str, codes: tuple[str, str], expected: int
) -> None:
    code, _, err = job(launcher, 2, "code", *codes).end()
    assert code == expected, err
    assert "Traceback" not in err and "ChildFailedError" not in err


def test_the_cause_wins_over_the_ranks_that_it_took_along(job: Callable[..., Job]) -> None:
    assert job("spawn", 2, "code", "76", "1").end()[0] == 1


@pytest.mark.parametrize(
    ("launcher", "number"),
    [
        ("spawn", signal.SIGTERM),
        pytest.param("spawn", signal.SIGINT, marks=pytest.mark.full),
        ("torchrun", signal.SIGTERM),
    ],
)
def test_a_stop_request_reaches_every_worker_once_and_they_may_save(
    job: Callable[..., Job], launcher: str, number: int
) -> None:
    one = job(launcher, 2, "slow-save")
    one.wait_for("up-0", "up-1")
    one.process.send_signal(number)
    code, out, err = one.end()
    assert (code, out.count("saved")) == (75, 2), err
    assert "stopping after this step" in err and "death signal" not in err
    assert none_left(one.pids())


@pytest.mark.parametrize("launcher", MOSTLY_SPAWN)
def test_a_second_ctrl_c_ends_everything_at_once(job: Callable[..., Job], launcher: str) -> None:
    one = job(launcher, 2, "deaf")
    one.wait_for("up-0", "up-1")
    one.process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert one.process.poll() is None  # the first one only asks
    one.process.send_signal(signal.SIGINT)
    code, _, err = one.end()
    assert code == 130, err
    assert none_left(one.pids())


@fresh
def test_a_killed_worker_is_named_and_takes_the_others_along(job: Callable[..., Job]) -> None:
    one = job("spawn", 2, "deaf-unless-killed", peer=1)
    code, _, err = one.end()
    assert (
        code == 128 + signal.SIGKILL
        and "launch.worker_killed" in err
        and "rank 1 was ended by SIGKILL" in err
    )
    assert err.count("launch.worker_killed") == 1  # rank 0, which we ended, is no finding
    assert none_left(one.pids())


@pytest.mark.parametrize(
    "number",
    [signal.SIGKILL]
    + [
        pytest.param(other, marks=pytest.mark.full)
        for other in (signal.SIGTERM, signal.SIGSEGV, signal.SIGABRT)
    ],
)
def test_the_others_hear_which_rank_was_killed_and_the_run_answers_its_signal(
    job: Callable[..., Job], number: int
) -> None:
    # not the minute that a rank's own error is waited for
    one = job("spawn", 3, "killed", str(int(number)), peer=60)
    code, out, err = one.end()
    assert code == 128 + number, err
    assert out.strip() == f"heard of rank 1: {128 + number} {signal.Signals(number).name}"
    assert err.count("launch.worker_killed") == 1 and none_left(one.pids())


@pytest.mark.parametrize("number", [signal.SIGHUP, pytest.param(signal.SIGTERM, marks=pytest.mark.full)])
def test_a_hang_up_asks_for_a_stop_too(job: Callable[..., Job], number: int) -> None:
    one = job("spawn", 2, "wait")
    one.wait_for("up-0", "up-1")
    one.process.send_signal(number)
    code, out, err = one.end()
    assert (code, out.count("saved")) == (75, 2), err
    assert none_left(one.pids())


@pytest.mark.parametrize("launcher", MOSTLY_SPAWN)
def test_a_detached_child_of_a_worker_does_not_stay(job: Callable[..., Job], launcher: str) -> None:
    one = job(launcher, 2, "daemon")
    code, _, err = one.end()
    assert code == 0, err
    assert len(one.pids()) == 4 and none_left(one.pids())


@fresh
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_workers_save_and_end_when_the_supervisor_is_killed(job: Callable[..., Job], launcher: str) -> None:
    one = job(launcher, 2, "wait")
    one.wait_for("up-0", "up-1")
    one.process.kill()
    assert none_left(one.pids())
    assert one.end()[1].count("saved") == 2


def test_a_stop_before_the_workers_listen_says_that_nothing_was_saved(job: Callable[..., Job]) -> None:
    one = job("spawn", 2, "early")
    one.wait_for("up-0", "up-1")
    one.process.terminate()
    code, _, err = one.end()
    assert code == 128 + signal.SIGTERM and "saved nothing" in err and "launch.worker_killed" not in err


def test_a_port_in_use_is_refused_before_anything_starts(job: Callable[..., Job]) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        _, out, err = job("spawn", 2, "env", port=taken.getsockname()[1]).end()
    assert "launch.port_in_use" in err and out == ""


@pytest.mark.full  # ``test_apart`` has two nodes through the whole program
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_two_nodes_on_loopback_add_up(job: Callable[..., Job], tmp_path: Path, launcher: str) -> None:
    port, nproc, nodes = free_port(), 1 if launcher == "spawn" else 2, []
    for node in (0, 1):
        (tmp_path / str(node)).mkdir()
        nodes.append(Job(tmp_path / str(node), launcher, nproc, "sum", nodes=2, node=node, port=port))
    try:
        ends = [node.end() for node in nodes]
    finally:
        for node in nodes:
            node.process.kill()
    assert [code for code, _, _ in ends] == [0, 0], ends
    total = sum(range(1, 2 * nproc + 1))
    assert [out for _, out, _ in ends] == [f"sum {total}.0 {2 * nproc}\n" * nproc] * 2


@pytest.mark.parametrize("launcher", MOSTLY_SPAWN)
def test_a_stopped_process_does_not_hold_the_launcher(job: Callable[..., Job], launcher: str) -> None:
    running = job(launcher, 2, "frozen", peer=3600)
    code, _, err = running.end()  # fails after DEADLINE, which is shorter than any other wait for it
    assert code == 77, err
    assert none_left(running.pids())
