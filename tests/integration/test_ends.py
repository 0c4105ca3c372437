"""One truth table: every end of a run (``ends.py``), made for real, is the same to every reader of it: the
exit code, result.json, exits.json, the page, the report, ``paceline runs`` and ``paceline.Run``.
"""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import warm
from ends import CALLBACK, ENDS, End
from support import ROOT, worker_environment, write_yaml
from test_killed_ranks import ranks_of
from test_train import wait_for_step
from typer.testing import CliRunner

from paceline.api.run import Run
from paceline.api.several_runs import facts_below
from paceline.cli.main import application_of
from paceline.core.rundir import RunDir
from paceline.runlog.events import Finished, Step, read_events
from paceline.watch.page.glance import LIVE, glance
from paceline.watch.page.report import write_report
from paceline.watch.page.view import RunView

pytestmark = [pytest.mark.integration]
MEMORY = Path("/sys/fs/cgroup/memory")


class Start:
    """A run under way."""

    def __init__(self, end: End, config: Mapping[str, Any], folder: Path) -> None:
        self.end, self.folder, self.run = end, folder, RunDir.at(config["training"]["output_dir"])
        self.yaml = write_yaml(folder / "größe.yaml", config)
        self.environ = worker_environment({"PYTHONPATH": f"{folder}:{ROOT}", **end.environ})
        self.argv = [sys.executable, "-m", "paceline.cli.main", "train", str(self.yaml)]
        self.argv += ["--nproc", str(end.nproc)]

    def begin(self, stdout: Any = None, **given: Any) -> subprocess.Popen[Any]:
        with (self.folder / "out").open("ab") as out, (self.folder / "err").open("ab") as err:
            streams = {"stdout": out if stdout is None else stdout, "stderr": err, **given}
            return warm.Popen(self.argv, env=self.environ, cwd=self.folder, start_new_session=True, **streams)

    def printed(self) -> str:
        texts = [self.folder / name for name in ("out", "err") if (self.folder / name).exists()]
        return "\n".join(path.read_text(errors="replace") for path in texts)

    def until_step(self, process: subprocess.Popen[Any], step: int = 2) -> None:
        wait_for_step(self.run.root, step, process)


def ended(process: subprocess.Popen[Any]) -> int:
    try:
        return process.wait(120)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise AssertionError(f"did not end: {process.args}") from None


def plainly(start: Start) -> int:
    process = start.begin()
    return signalled(start, process)


def signalled(start: Start, process: subprocess.Popen[Any]) -> int:
    for count, number in enumerate(start.end.sent):
        if not count:
            start.until_step(process)
        else:
            time.sleep(0.5)
        process.send_signal(number)
    return ended(process)


def agent(start: Start) -> int:
    start.argv += ["--launcher", "torchrun"]
    return plainly(start)


def little_memory(start: Start) -> int:
    """Rank 0 takes more than its cgroup has, once it is in one (v1)."""
    group = MEMORY / Path("/proc/self/cgroup").read_text().split(":memory:")[1].split()[0][1:] / "ends"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(1 << 30))
    except OSError:
        pytest.skip("no memory cgroup of version 1 that can be written")
    process = start.begin()
    try:
        start.until_step(process)
        (rank,) = ranks_of(process, 1).values()
        (group / "cgroup.procs").write_text(str(rank))
        time.sleep(1.5)
        (start.folder / "go").touch()
        return ended(process)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        group.rmdir()


def closed_terminal(start: Start) -> int:
    """The terminal's other end is closed; the kernel then sends SIGHUP to the session's leader."""
    ours, theirs = pty.openpty()
    process = start.begin(stdout=theirs, stderr=theirs, stdin=theirs)
    os.close(theirs)
    drain = subprocess.Popen(["cat"], stdin=ours, stdout=subprocess.DEVNULL)
    start.until_step(process)
    drain.kill()
    drain.wait()
    os.close(ours)
    process.send_signal(signal.SIGHUP)
    return ended(process)


def stopped_early(start: Start) -> int:
    process = start.begin()
    ranks_of(process, 1)
    process.terminate()
    return ended(process)


def while_drawing(start: Start) -> int:
    process = start.begin()
    deadline = time.monotonic() + 120
    while not start.run.result_json.exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    while not any("paceline.watch.plot" in line for line in commands()) and process.poll() is None:
        time.sleep(0.005)
    process.terminate()
    return ended(process)


def commands() -> Iterator[str]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield path.read_bytes().replace(b"\0", b" ").decode(errors="replace")


def head(start: Start) -> int:
    reads, writes = os.pipe()
    process = start.begin(stdout=writes)
    os.close(writes)
    os.read(reads, 1)
    os.close(reads)
    return signalled(start, process)


def full_output(start: Start) -> int:
    with open("/dev/full", "wb") as full:
        return ended(start.begin(stdout=full))


def rotated(start: Start) -> int:
    process = start.begin()
    start.until_step(process)
    logs = (start.run.training_log, start.run.rank_log(0))
    for path in logs:
        path.rename(path.with_name(f"{path.name}.1"))
    code = ended(process)
    assert all("step 300" in path.read_text() for path in logs)
    return code


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def full_disk(start: Start) -> int:
    return plainly(start)


read_only = full_disk


def launcher_killed(start: Start) -> int:
    """The ranks save by themselves; a second start waits for them and goes on."""
    process = start.begin()
    start.until_step(process)
    process.kill()
    process.wait()
    first = list(start.argv)
    start.argv += ["--resume", "latest", "training.max_steps=100000"]
    again = start.begin()
    deadline = time.monotonic() + 120
    while len([e for e in read_events(start.run.events(0)) if isinstance(e.event, Finished)]) < 1:
        assert time.monotonic() < deadline and again.poll() is None, start.printed()
        time.sleep(0.1)
    count = len(read_events(start.run.events(0)))
    while not any(isinstance(e.event, Step) for e in read_events(start.run.events(0))[count:]):
        assert time.monotonic() < deadline and again.poll() is None, start.printed()
        time.sleep(0.1)
    start.argv = first
    again.terminate()
    return ended(again)


def all_killed(start: Start) -> int:
    process = start.begin()
    start.until_step(process)
    ranks = ranks_of(process, 1)
    for pid in (process.pid, *ranks.values()):
        os.kill(pid, signal.SIGKILL)
    code = ended(process)
    time.sleep(6)  # until its heartbeat is old
    return code


def nodes_differ(start: Start) -> int:
    """Two nodes, both here; the second has another seed, which rank 0 finds when they have met."""
    from paceline.launch.network import free_port

    nodes = ["--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    start.environ["PACELINE_STORE_SECRET"] = "0123456789abcdef0123456789abcdef"
    first = list(start.argv)
    start.argv = [*first, *nodes, "--node-rank", "0"]
    process = start.begin()
    start.argv = [*first, *nodes, "--node-rank", "1", "training.seed=8"]
    other = start.begin()
    code = ended(process)
    assert ended(other) == code
    return code


def second_start(start: Start) -> int:
    """A second start is refused for now, and says nothing into the first's folder."""
    process = start.begin()
    start.until_step(process)
    assert ended(start.begin()) == 75
    assert "run.in_use" in start.printed()
    assert Run(start.run.root).outcome == "running"
    process.terminate()
    return ended(process)


def readings(run: RunDir, cache: Path) -> dict[str, Any]:
    """What each reader says of a run's end."""
    view = RunView(run, cache)
    while view.advance(1.0) < 1:
        pass
    write_report(view, cache / "report.html", lambda line: None)
    text = (cache / "report.html").read_text()
    report = json.loads(re.findall(r'id="report-data">(.*?)</script>', text, re.DOTALL)[0])
    (row,) = facts_below(run.root)
    one = Run(run.root)
    states = {
        "list": glance(run)["state"],
        "page": view.summary()["state"],
        "report": report["summary"]["state"],
    }
    named = {name: str(state["name"]) for name, state in states.items()}  # type: ignore[index,call-overload]
    rows = view.findings()["findings"]
    return {
        **{name: "running" if state in LIVE else state for name, state in named.items()},
        "runs": row.outcome,
        "Run": one.outcome,
        "found": [
            {str(r["code"]) for r in rows},  # type: ignore[index,call-overload,union-attr]
            {str(r["code"]) for r in report["findings"]["findings"]},
            {d.code for d in one.diagnostics},
        ],
    }


def config_of(end: End, tiny: Callable[..., dict[str, Any]], folder: Path) -> dict[str, Any]:
    act = end.act or (
        "\nwhile not os.path.exists('go'): time.sleep(0.05)\nheld = bytearray(3 << 30)"
        if end.way == "little_memory"
        else ""
    )
    (folder / "own_acts.py").write_text(CALLBACK)
    options = {"name": "own_acts:Act", "options": {"what": act, "on": end.on}}
    stays = end.sent or end.way in ("little_memory", "closed_terminal", "stopped_early", "launcher_killed")
    stays = stays or end.way in ("all_killed", "second_start") or end.act
    given = {
        "callbacks": [options],
        "max_steps": 100_000 if stays else 8,
        "logging_steps": 1,
        "report_to": "tensorboard" if end.way == "while_drawing" else "none",
        **end.training,
    }
    config = tiny(**given)
    if end.way == "stopped_early":
        config["data"]["converter"] = "own_acts:held"
    return config


def doctor_says(run: RunDir) -> dict[str, Any]:
    """What ``paceline doctor RUN --json`` says; its exit code agrees, and what it quotes is there."""
    done = CliRunner().invoke(application_of("doctor"), [str(run.root), "--json"])
    told: dict[str, Any] = json.loads(done.stdout)
    assert done.exit_code == int(told["failed"]), done.output
    if told["failed"]:
        assert told["cause"] and told["lost"] and "paceline train" in told["go_on"], told
    for line in told["evidence"]:
        text = Path(line["file"]).read_text(errors="replace").splitlines()
        assert line["line"] is None or line["line"] <= len(text), line
    return told


@pytest.mark.parametrize(
    "end",
    [pytest.param(one, id=one.name, marks=() if one.quick else pytest.mark.slow) for one in ENDS],
)
def test_an_end_is_the_same_to_every_reader(
    end: End, tiny: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    with ExitStack() as stack:
        config = config_of(end, tiny, tmp_path)
        if end.way in ("full_disk", "read_only"):
            options = "ro" if end.way == "read_only" else "size=160k"
            stack.enter_context(mounted(tmp_path / "disk", options))
            config["training"]["output_dir"] = str(tmp_path / "disk/run")
        start = Start(end, config, tmp_path)
        make: Callable[[Start], int] = globals()[end.way or "plainly"]
        code = make(start)
        assert code == end.code, start.printed()
        assert end.printed in start.printed()
        assert "Traceback" not in start.printed() and "Exception ignored" not in start.printed()
        if not end.outcome:
            assert not start.run.plan_json.exists()
            return
        said = readings(start.run, tmp_path / "page")
        found = said.pop("found")
        assert said == dict.fromkeys(said, end.outcome), start.printed()
        assert not end.found or all(end.found in codes for codes in found), found
        told = doctor_says(start.run)
        assert told["state"] == end.outcome or not told["failed"], told
        assert (told["class"] or "") == end.kind or (end.outcome == "failed" and not end.kind), told
        if end.outcome == "vanished":
            return
        exits = json.loads(start.run.exits().read_text())
        assert exits["exit_code"] == code
        result = json.loads(start.run.result_json.read_text())
        assert (result["outcome"], result["exit_code"]) == (end.outcome, code)
        assert result.get("seconds", 0) >= 0


def test_a_rank_without_docstrings_is_refused_before_it_loads_anything() -> None:
    """Another launcher starts it as it likes; Paceline's own lowers the level (a row above)."""
    argv = [sys.executable, "-OO", "-m", "paceline.training.rank", "--config", "there_is_none.yaml"]
    ran = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 2 and "error[runtime.docstrings] PYTHONOPTIMIZE" in ran.stderr, ran.stderr
