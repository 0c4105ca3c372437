"""What the launcher knows of a rank's end: which failure is the root, whether memory ran out, what is said
on the line, what is left in the run folder.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from pathlib import Path

import pytest

from paceline.core.diagnostics import Diagnostic
from paceline.core.rundir import RunDir
from paceline.launch.supervision.exit_codes import Failure, MemoryKills, killed_diagnostic, root_of
from paceline.launch.supervision.exit_record import Exit, LaunchRecord
from paceline.launch.supervision.worker_channel import (
    AGENT,
    MESSAGE_BYTES,
    SOCKET,
    LauncherConnection,
    PeerExit,
    WorkerServer,
    encoded,
)
from paceline.runlog.events import Error, read_events
from paceline.runlog.redact import Redactor

V2 = "36 32 0:31 / {mount} rw - cgroup2 cgroup2 rw\n"
V1 = "35 31 0:32 / {mount} rw - cgroup cgroup rw,memory\n34 31 0:9 / {mount}/cpu rw - cgroup cgroup rw,cpu\n"


@pytest.mark.parametrize(
    ("failures", "expected"),
    [
        ([], None),
        ([(1, 1, 5.0)], (1, 1)),
        # words that nobody foresaw, a moment before the dead process is seen
        ([(0, 1, 5.0), (1, -9, 5.1)], (1, -9)),
        ([(0, 1, 5.0), (1, -9, 9.0)], (0, 1)),  # an error, and later a kill
        ([(1, -11, 5.0), (0, 1, 6.0)], (1, -11)),
        ([(0, -6, 5.0), (1, 1, 5.5)], (1, 1)),  # a library aborts when its peer fails
        ([(0, 1, 5.0), (1, -6, 5.1)], (0, 1)),
        ([(0, -6, 5.0), (1, 1, 9.0)], (0, -6)),
        ([(0, -6, 5.0), (1, -9, 5.0)], (1, -9)),
        ([(3, -7, 5.0), (1, -9, 6.0)], (3, -7)),
    ],
)
def test_the_root_is_what_the_others_follow_from(
    failures: list[tuple[int, int, float]], expected: tuple[int, int] | None
) -> None:
    root = root_of([Failure(rank, code, at) for rank, code, at in failures])
    assert (None if root is None else (root.rank, root.code)) == expected


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGTERM, 63]
)
def test_every_signal_answers_128_and_its_number(number: int) -> None:
    assert Failure(2, -number, 0.0).answer == 128 + number


def test_an_out_of_memory_kill_is_said_denied_or_not_known() -> None:
    said, denied, unknown = (killed_diagnostic(1, -9, known) for known in (True, False, None))
    assert said.code == "launch.out_of_memory" and "per_device_train_batch_size" in said.hint
    assert denied.code == "launch.worker_killed" and "memory did not run out" in denied.hint
    assert unknown.code == "launch.worker_killed" and "unknown" in unknown.hint
    assert "/r/logs/x.log" in killed_diagnostic(1, -11, None, "/r/logs/x.log").hint


def fake_proc(folder: Path, groups: str, mounts: str) -> Path:
    for pid in ("self", "7"):
        (folder / "proc" / pid).mkdir(parents=True, exist_ok=True)
        (folder / "proc" / pid / "cgroup").write_text(groups)
        (folder / "proc" / pid / "mountinfo").write_text(mounts.format(mount=folder / "sys"))
    return folder / "proc"


@pytest.mark.parametrize(
    ("groups", "mounts", "file"),
    [
        ("0::/job/step\n", V2, "job/step/memory.events"),
        ("0::/\n", V2, "memory.events"),
        ("4:memory:/job\n1:cpu:/other\n0::/\n", V1, "job/memory.oom_control"),
        ("4:cpu,memory:/job\n", V1, "job/memory.oom_control"),
        # a container sees its own part
        ("0::/outer/job\n", V2.replace(" / ", " /outer ", 1), "job/memory.events"),
        # hybrid: v2 is there and does not count
        ("4:memory:/job\n0::/\n", V2 + V1, "job/memory.oom_control"),
    ],
)
def test_the_kill_is_read_from_either_version_of_the_cgroup(
    tmp_path: Path, groups: str, mounts: str, file: str
) -> None:
    counter = tmp_path / "sys" / file
    counter.parent.mkdir(parents=True, exist_ok=True)
    counter.write_text("oom_kill_disable 0\nunder_oom 0\noom 7\noom_kill 3\n")
    memory = MemoryKills(fake_proc(tmp_path, groups, mounts))
    memory.watch(7)
    assert memory.killed(7) is False
    counter.write_text("oom_kill_disable 0\nunder_oom 0\noom 9\noom_kill 4\n")
    memory.watch(7)  # seen again: the count before it stands
    assert memory.killed(7) is True


def test_a_dying_process_is_counted_where_it_lived(tmp_path: Path) -> None:
    """Under v1 the kernel shows a dying process in the root group, and may be asked at that very moment."""
    (tmp_path / "sys/job").mkdir(parents=True)
    for group in ("", "job/"):
        (tmp_path / f"sys/{group}memory.oom_control").write_text("oom_kill 0\n")
    proc = fake_proc(tmp_path, "4:memory:/job\n", V1)
    memory = MemoryKills(proc)
    memory.watch(7)
    (tmp_path / "sys/job/memory.oom_control").write_text("oom_kill 1\n")
    (proc / "7/cgroup").write_text("4:memory:/\n")
    memory.watch(7)
    assert memory.killed(7) is True


@pytest.mark.parametrize("text", [None, "", "oom_kill_disable 0\nunder_oom 0\n", "oom_kill many\n"])
def test_where_no_count_can_be_read_it_is_not_known(tmp_path: Path, text: str | None) -> None:
    (tmp_path / "sys").mkdir()
    if text is not None:
        (tmp_path / "sys/memory.events").write_text(text)
    memory = MemoryKills(fake_proc(tmp_path, "0::/\n", V2))
    memory.watch(7)
    assert memory.killed(7) is None and memory.killed(8) is None
    assert MemoryKills(tmp_path / "no-proc").killed(7) is None


def until(exchange: WorkerServer, done: object) -> None:
    deadline = time.monotonic() + 120
    while not done() and time.monotonic() < deadline:  # type: ignore[operator]
        exchange.poll()
        time.sleep(0.005)
    assert done()  # type: ignore[operator]


def hang_up(exchange: WorkerServer, *lines: LauncherConnection) -> None:
    for line in lines:
        line.close()
    until(exchange, lambda: all(caller.gone for caller in exchange.workers.values()))
    exchange.close()
    for thread in threading.enumerate():
        if thread.name == "paceline-launch-line":
            thread.join(20)


def test_the_line_carries_errors_up_and_the_word_down() -> None:
    exchange, heard, came = WorkerServer(2), [], threading.Event()
    folder = Path(exchange.environ()[SOCKET]).parent
    assert folder.stat().st_mode & 0o777 == 0o700

    def hear(word: PeerExit) -> None:
        heard.append(word)
        came.set()

    lines = [LauncherConnection.join(exchange.environ(), rank, hear) for rank in (0, 1)]
    assert all(line.held for line in lines)
    until(exchange, lambda: len(exchange.workers) == 2)
    assert not folder.exists()  # all are there: nothing to be left behind should the launcher be killed
    lines[1].failed(1, Diagnostic("a.b", "row 17", "x:1"))
    until(exchange, lambda: exchange.workers[1].finding is not None)
    assert (exchange.workers[1].code, exchange.workers[1].finding) == (1, Diagnostic("a.b", "row 17", "x:1"))
    word = PeerExit(3, 137, Diagnostic("launch.worker_killed", "rank 3 was ended by SIGKILL"))
    exchange.send(word)
    exchange.send(word)
    assert came.wait(20) and heard == [word]  # once, and not to the rank that has an error of its own
    lines[0].ended(76)
    until(exchange, lambda: exchange.workers[0].code == 76)
    hang_up(exchange, *lines)
    assert all(caller.gone for caller in exchange.workers.values())


def test_without_a_launcher_the_line_does_nothing(tmp_path: Path) -> None:
    for environ in ({}, {SOCKET: str(tmp_path / "gone")}):
        line = LauncherConnection.join(environ, 0, lambda word: pytest.fail("nobody speaks"))
        assert not line.held
        line.failed(1, Diagnostic("a.b", "x"))
        line.ended(0)


def test_what_is_no_message_harms_nothing() -> None:
    import socket

    exchange = WorkerServer(1)
    stranger = socket.socket(socket.AF_UNIX)
    stranger.connect(exchange.environ()[SOCKET])
    stranger.sendall(b'\xff\xfe\n[1]\n{"rank": "x"}\n{"rank": 1}\n{"failed": 1}\n' + b"x" * 200_000)
    for _ in range(50):
        exchange.poll()
    assert exchange.workers == {}
    stranger.close()
    exchange.poll()
    exchange.close()


def test_a_long_finding_is_cut_and_not_lost() -> None:
    long = Diagnostic("a.b", "w" * 100_000, evidence={"x": "e" * 200_000})
    line = encoded({"failed": 1, "finding": long.to_json()})
    assert len(line) < MESSAGE_BYTES and json.loads(line)["finding"]["code"] == "a.b"


def test_exits_last_words_and_a_result_are_left_in_the_folder(tmp_path: Path) -> None:
    run = RunDir.at(tmp_path / "run")
    run.root.mkdir()
    finding = killed_diagnostic(1, -9, True)
    exits = [Exit.of(0, 10, 76), Exit.of(1, 11, -9, out_of_memory=True), Exit.of(2, 12, -15, by_us=True)]
    assert LaunchRecord(run, 0, Redactor()).write(exits, 137, Failure(1, -9, 0.0, finding)) == []
    data = json.loads(run.exits().read_text())
    assert (data["exit_code"], data["rank"], data["cause"]["code"]) == (137, 1, "launch.out_of_memory")
    assert [one["cause"] for one in data["ranks"]] == ["another_rank", "out_of_memory", "the_launcher"]
    assert [one["signal"] for one in data["ranks"]] == [None, "SIGKILL", "SIGTERM"]
    assert finding.what in run.rank_log(1).read_text()
    assert [record.event for record in read_events(run.events(1))] == [Error(1, finding)]
    result = json.loads(run.result_json.read_text())
    assert (result["outcome"], result["exit_code"]) == ("failed", 137)


def test_a_result_of_rank_0_stands_and_one_of_an_earlier_attempt_does_not(tmp_path: Path) -> None:
    run = RunDir.at(tmp_path / "run")
    run.root.mkdir()
    root = Failure(1, -9, 0.0, killed_diagnostic(1, -9))
    run.result_json.write_text('{"outcome": "completed"}')
    record = LaunchRecord(run, 0, Redactor())
    record.write([], 137, root)
    assert json.loads(run.result_json.read_text())["outcome"] == "failed"
    record = LaunchRecord(run, 0, Redactor())
    run.result_json.unlink()
    run.result_json.write_text('{"outcome": "stopped"}')
    record.write([], 137, root)
    assert json.loads(run.result_json.read_text())["outcome"] == "stopped"


def test_a_folder_that_is_gone_is_not_made_again_and_a_refusal_is_said(tmp_path: Path) -> None:
    run = RunDir.at(tmp_path / "run")
    assert (
        LaunchRecord(run, 0, Redactor()).write([], 137, Failure(0, -9, 0.0, killed_diagnostic(0, -9))) == []
    )
    assert not run.root.exists()
    run.root.mkdir()
    run.events_dir.write_text("a file in the way")
    (said,) = LaunchRecord(run, 0, Redactor()).write([], 137, Failure(0, -9, 0.0, killed_diagnostic(0, -9)))
    assert said.code == "launch.exits_lost"


def test_the_agent_s_place_is_no_rank() -> None:
    exchange = WorkerServer(1)
    line = LauncherConnection.join(exchange.environ(), AGENT, lambda word: None)
    line.codes({0: -9, 1: 76})
    until(exchange, lambda: AGENT in exchange.workers and exchange.workers[AGENT].codes != {})
    assert exchange.workers[AGENT].codes == {0: -9, 1: 76} and exchange.environ()
    hang_up(exchange, line)
