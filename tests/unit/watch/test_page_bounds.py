"""The page over long histories: memory that does not grow, and a rank that does not notice a reader."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path

import pytest
from page_runs import begin, losses, step, view_of, write_run

from paceline.cli import main as cli
from paceline.core.rundir import RunDir
from paceline.watch.page import columns, tail
from paceline.watch.page.view import RunView


def peak_of(run: RunDir, cache: Path) -> int:
    """Return the most bytes that Python and numpy held while the run was read and one curve was asked for."""
    tracemalloc.start()
    view = view_of(run, cache)
    view.series(["steps/loss"], "step", 200, None, None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    view.close()
    return peak


def test_memory_does_not_grow_with_the_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "ROWS_HELD", 128)
    monkeypatch.setattr(tail, "BLOCK_BYTES", 1 << 14)
    short = write_run(tmp_path / "short", [begin(), *(step(n) for n in range(1, 1001))])
    long = write_run(tmp_path / "long", [begin(), *(step(n) for n in range(1, 6001))])
    few, many = peak_of(short, tmp_path / "a"), peak_of(long, tmp_path / "b")
    # Per step: 8 bytes of the peak memories, and what numpy holds for one curve; a line has 170
    assert many - few < 5000 * 60, (few, many)


def test_a_line_without_an_end_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "BLOCK_BYTES", 1 << 10)
    monkeypatch.setattr(tail, "MAX_LINE_BYTES", 1 << 12)
    run = write_run(tmp_path / "run", [begin(), step(1)], tail="x" * 50_000)
    view = RunView(run, tmp_path / "cache")
    for _ in range(80):
        view.advance(1.0)
    assert list(losses(view)) == [1]
    with run.events(0).open("a") as file:
        file.write("x\n")
    write_run(run.root, [step(2)])
    for _ in range(80):
        view.advance(1.0)
    assert list(losses(view)) == [1, 2]


def test_a_folder_deleted_while_it_is_watched(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [begin(), *(step(n) for n in range(1, 50))])
    view, stop = view_of(run, tmp_path / "cache"), threading.Event()
    remover = threading.Thread(target=lambda: (stop.wait(0.05), shutil.rmtree(run.root)))
    remover.start()
    try:
        for _ in range(40):
            view.advance(0.01)
            view.summary(), view.findings(), view.checkpoints()
            stop.wait(0.005)
    finally:
        remover.join()
    view.advance(1.0)
    assert view.summary()["state"]["name"] == "gone"


def test_the_verbs_name_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert paceline_of("watch", str(tmp_path / "none")) == 2 == paceline_of("report", str(tmp_path))
    assert "api.no_run" in capsys.readouterr().err
    run = write_run(tmp_path / "runs" / "a", [begin(), step(1)])
    assert paceline_of("report", str(run.root), "--to", str(tmp_path / "a.html")) == 0
    assert "a.html" in capsys.readouterr().out and (tmp_path / "a.html").stat().st_size > 50_000


def paceline_of(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert isinstance(stop.value.code, int)
    return stop.value.code


WRITER = """
import sys
from paceline.core.rundir import RunDir
from paceline.runlog.events import RunStarted, Step
from paceline.runlog.log import RunLog
run = RunDir.at(sys.argv[1])
log = RunLog(run, 0)
sys.stdout.write("begin\\n"); sys.stdout.flush(); sys.stdin.readline()
log.write(RunStarted("d", 1, None, 0, 400))
for n in range(1, 401):
    log.write(Step(n, 0.1, 2.0))
log.close()
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="counts system calls by strace")
def test_a_rank_makes_the_same_system_calls_with_a_reader(tmp_path: Path) -> None:
    counts, environment = [], os.environ | {"PYTHONHASHSEED": "0"}
    for watched in (False, True):
        run = write_run(tmp_path / f"run{int(watched)}", [])
        run.logs.mkdir()
        trace = tmp_path / f"trace{int(watched)}"
        command = ["strace", "-f", "-o", str(trace), sys.executable, "-c", WRITER, str(run.root)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        ) as writer:
            assert writer.stdin is not None and writer.stdout is not None
            assert writer.stdout.readline() == "begin\n"
            view, reads = RunView(run, tmp_path / f"cache{int(watched)}"), 0
            writer.stdin.write("\n")
            writer.stdin.flush()
            while writer.poll() is None:
                if watched:
                    view.advance(0.05)
                    view.summary()
                    reads += 1
        assert writer.returncode == 0 and (reads > 5 or not watched)
        calls = trace.read_text().partition('"begin\\n"')[2].splitlines()
        names = [line.split(None, 1)[1].partition("(")[0] for line in calls if "(" in line]
        counts.append([name for name in names if name not in ("brk", "mmap", "munmap")])  # the allocator's
    assert counts[0].count("write") > 400
    assert counts[0] == counts[1]


MEASURE = """
import json, resource, sys
from pathlib import Path
from paceline.core.rundir import RunDir
from paceline.watch.page.view import RunView
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
view = RunView(RunDir.at(sys.argv[1]), Path(sys.argv[2]))
while view.advance(5.0) < 1: pass
curve = view.series(["steps/loss"], "step", 600, None, None)["steps/loss"]
view.close()
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"points": curve["count"], "high": max(curve["high"]), "MiB": (after - before) / 1024}))
"""


@pytest.mark.slow
def test_a_million_steps_of_one_rank(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [begin(total=10**6)])
    with run.events(0).open("a") as file:
        for n in range(1, 10**6 + 1):
            line = step(n, 9.0 if n == 654_321 else 2.0 + 1 / n)
            file.write(json.dumps({"time": 100.0, "rank": 0, **line}, separators=(",", ":")) + "\n")
    command = [sys.executable, "-c", MEASURE, str(run.root), str(tmp_path / "cache")]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert found["points"] == 10**6 and found["high"] == 9.0
    assert found["MiB"] < 200, found
