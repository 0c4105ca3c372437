"""The look before a start is a fork of the command: it imports nothing anew, and ends as any child does."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")

# Names are looked up in a module of the test's folder; ``main`` of ours writes through an RedactedStream.
PROGRAM = """
import os, sys, threading
from pathlib import Path
from paceline.launch import child
from paceline.launch.program import redacted
folder = Path({folder!r})
sys.path.insert(0, str(folder))

@redacted
def main():
{body}
main()
"""


def run(folder: Path, body: str, module: str = "") -> subprocess.CompletedProcess[str]:
    """What a program of ours says, whose ``main`` is ``body`` and that can import ``module`` as looked."""
    (folder / "looked.py").write_text(module)
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.format(folder=str(folder), body=lines)],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def forked(folder: Path, module: str, seconds: float = 30.0) -> tuple[str, str]:
    """(what ``run_in_fork`` returns of this module, what its child has printed)."""
    output = folder / "output"
    body = f'print(child.run_in_fork("looked", ("an", "argument"), {seconds}, folder / "output"))'
    done = run(folder, body, module)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), output.read_text()


def test_only_a_program_of_ours_with_one_thread_forks(tmp_path: Path) -> None:
    body = """print(child.can_fork())
wait = threading.Event()
thread = threading.Thread(target=wait.wait)
thread.start()
print(child.can_fork())
wait.set()
thread.join()"""
    assert run(tmp_path, body).stdout.split() == ["True", "False"]
    library = "from paceline.launch.child import can_fork; print(can_fork())"
    done = subprocess.run(
        [sys.executable, "-c", library],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout.strip() == "False", done.stderr


def test_a_program_that_has_asked_the_hub_s_library_forks_no_look(tmp_path: Path) -> None:
    """It asks once whether it is offline, when it is imported: the look must be."""
    body = "import sys\nsys.modules['huggingface_hub'] = sys\nprint(child.can_fork())"
    assert run(tmp_path, body).stdout.split() == ["False"]


def test_it_has_what_is_imported_and_a_session_of_its_own(tmp_path: Path) -> None:
    module = """import os, sys
def main(*arguments):
    print(arguments, os.getsid(0) == os.getpid(), "paceline.launch.child" in sys.modules,
        os.environ["HF_HUB_OFFLINE"], sys.stdin.read() == "")
    print("a warning", file=sys.stderr)
    return 7
"""
    code, printed = forked(tmp_path, module)
    assert code == "7"
    assert printed.splitlines()[0] == "('an', 'argument') True True 1 True"
    assert "a warning" in printed


@pytest.mark.parametrize(
    ("line", "code", "last"),
    [
        ("return 0", "0", ""),
        ("raise ValueError('no such row')", "1", "ValueError: no such row"),
        ("import signal; os.kill(os.getpid(), signal.SIGKILL)", "-9", ""),
    ],
)
def test_how_it_ended_is_told(tmp_path: Path, line: str, code: str, last: str) -> None:
    found, printed = forked(tmp_path, f"import os\ndef main(*arguments):\n    {line}\n")
    assert found == code
    assert (printed.strip().splitlines() or [""])[-1] == last


def test_one_that_does_not_end_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    module = """import subprocess, sys
def main(*arguments):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print(child.pid, flush=True)
    child.wait()
"""
    code, printed = forked(tmp_path, module, seconds=2.0)
    assert code == "None"
    ended(int(printed))


def test_nothing_is_left_of_it_when_its_parent_is_killed(tmp_path: Path) -> None:
    module = """import os, signal, time
def main(*arguments):
    print(os.getpid(), flush=True)
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)
"""
    (tmp_path / "output").touch()
    done = run(tmp_path, 'child.run_in_fork("looked", (), 60.0, folder / "output")', module)
    assert done.returncode == -9
    ended(int((tmp_path / "output").read_text()))


def ended(pid: int) -> None:
    """The process is gone, or goes now."""
    try:
        opened = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([opened], [], [], 30)[0], "it is still there"
    finally:
        os.close(opened)


# A job whose files answer every question, and one whose tokenizer must be loaded.
LOOKS = """
import json, sys
from pathlib import Path
from paceline.launch import child
asked, looked, started = child.started_child, child.run_in_fork, []
child.started_child = lambda *a: (started.append("interpreter"), asked(*a))[1]
def fork(module, arguments, *rest):
    started.append("fork")
    code = looked(module, arguments, *rest)
    print("IMPORTED", json.loads(Path(arguments[1]).read_text())["imported"], file=sys.stderr)
    return code
child.run_in_fork = fork
sys.argv = ["paceline", "train", *{arguments!r}]
from paceline.cli.main import main
import gc
before = sum(one["collections"] for one in gc.get_stats())
try:
    main()
finally:
    print("STARTED", *started, file=sys.stderr)
    print("COLLECTIONS", sum(one["collections"] for one in gc.get_stats()) - before, file=sys.stderr)
    print("COLLECTS", gc.isenabled(), "LEFT OUT", gc.get_freeze_count() > 10_000, file=sys.stderr)
"""


def config(folder: Path) -> Path:
    path = folder / "job.yaml"
    path.write_text(
        "model: {config: {model_type: llama, hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 4,"
        f" vocab_size: 768}}, tokenizer: {ROOT}/examples/tokenizer}}\n"
        f"data: {{train: {ROOT}/examples/data/train.json, max_length: 128}}\n"
        f"training: {{output_dir: {folder}/out, use_cpu: true}}\n"
    )
    return path


@pytest.mark.parametrize(
    ("setting", "started"),
    [
        ("training.seed=1", "fork"),  # the files say all
        ("training.callbacks=[{name: 'my_code:Callback'}]", "interpreter"),  # the user's code
        ("data.train=my_code:rows", "fork interpreter"),  # as the look has found out
    ],
)
def test_a_start_forks_to_look_and_only_an_import_starts_an_interpreter(
    tmp_path: Path, setting: str, started: str
) -> None:
    (tmp_path / "my_code.py").write_text("class Callback:\n    pass\ndef rows():\n    yield from ()\n")
    arguments = [str(config(tmp_path)), "--nproc", "1", "--dry-run", setting]
    done = subprocess.run(
        [sys.executable, "-c", LOOKS.format(arguments=arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PACELINE_CACHE": str(tmp_path / "cache")},
    )
    assert f"STARTED {started}\n" in f"{done.stderr}\n", done.stderr
    if started == "fork":
        assert done.returncode == 0 and "IMPORTED []" in done.stderr, done.stderr
    # Half a second of imports and a plan: typer's come before, and collect some dozens of times
    assert int(done.stderr.partition("COLLECTIONS ")[2].split()[0]) < 100, done.stderr
    assert "COLLECTS True LEFT OUT True" in done.stderr


def test_a_look_imports_neither_what_reads_checkpoints_nor_what_prepares_rows(tmp_path: Path) -> None:
    """They cost as much as all the rest of it, and a look without ``resume`` needs none."""
    code = "import paceline.training.preflight.trial, sys; print('\\n'.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    modules = set(done.stdout.split())
    assert "paceline.training.preflight.inputs" in modules
    unwanted = {
        "numpy",
        "torch",
        "transformers",
        "paceline.data.prepare.prepare",
        "paceline.checkpoint.format.verify_files",
    }
    assert not modules & unwanted
