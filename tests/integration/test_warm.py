"""A process forked from a warm one is as a fresh one: the same exit code, output, environment, signals,
family; and it has imported all.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import rewriting
import warm
from _pytest.assertion import rewrite
from _pytest.pathlib import import_path
from ranks import HANGS
from support import worker_environment

pytestmark = [pytest.mark.integration]


@pytest.fixture(autouse=True)
def warm_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also under --fresh-processes."""
    monkeypatch.setattr(warm.Popen, "allowed", True)


PROGRAMS = {
    "argv": "import sys; print(sys.argv[1:], __name__, __file__, sys.path[0], sys.stdin.read())",
    "code": "import sys; sys.exit(7)",
    "code text": "import sys; print('out'); sys.exit('said last')",
    "unhandled": "def f():\n    raise ValueError('é')\nf()",
    "at the end": (
        "import atexit, threading, time\natexit.register(print, 'b')\nthreading.Thread(target=lambda:"
        " (time.sleep(0.2), print('a'))).start()"
    ),
    "killed": "import os; os.kill(os.getpid(), 9)",
    "interrupted": "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
    "hard end": "import os; print('lost'); os._exit(3)",
    "signals": (
        "import signal; print([(n, signal.getsignal(n)) for n in (1, 2, 13, 15)], signal.pthread_sigmask(0,"
        " []))"
    ),
    "environment": "import os; print(sorted(os.environ.items()), os.getcwd(), os.path.realpath('.'))",
    "proc": "print(sorted(x for x in open('/proc/self/environ').read().split(chr(0)) if x))",
    "files": (
        "import os; print(sorted(map(int, os.listdir('/proc/self/fd')))[:4] == [0, 1, 2, 3], os.umask(0))"
    ),
    "torch": (
        "import torch; print(torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled())"
    ),
    "no reader": (
        "import sys\nprint(sys.stdout.encoding, sys.stderr.errors,"
        " sys.stdout.isatty())\nsys.stderr.write('half a line')"
    ),
    "child": (
        "import subprocess, sys; print(subprocess.run([sys.executable, sys.argv[0][:-3] + 'x.py'],"
        " capture_output=True, text=True))"
    ),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_it_ends_and_says_as_a_fresh_one(program: str, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAMS[program])
    (tmp_path / "programx.py").write_text(
        "import os; print(os.getppid() > 1, os.getcwd()); raise SystemExit(5)"
    )
    ended = []
    for make in (warm.Fresh, warm.Popen):
        process = make(
            [sys.executable, str(script), "a", "-b"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env=worker_environment({"PACELINE_OWN": "ö"}),
        )
        said = process.communicate("given", timeout=HANGS)
        ended.append((process.returncode, *said))
    fresh, forked = ended
    if program == "unhandled":
        assert fresh[2].splitlines()[-1] == forked[2].splitlines()[-1]
        fresh, forked = fresh[:2], forked[:2]
    if program == "interrupted":
        fresh, forked = fresh[:2], forked[:2]
    assert forked == fresh


def test_it_is_a_child_of_who_asks_with_everything_imported(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import os, sys\nearly = 'torch' in sys.modules\nprint(early, os.getppid(), os.getsid(0) =="
        " os.getpid(), flush=True)\nsys.stdin.read()"
    )
    process = warm.Popen(
        [sys.executable, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=worker_environment(),
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().split() == ["True", str(os.getpid()), "True"]
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=HANGS)
    assert process.returncode == -signal.SIGTERM


def test_each_draws_random_numbers_of_its_own(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "import numpy, random, torch; print(random.random(), numpy.random.rand(), torch.rand(1).item())"
    )
    argv = [sys.executable, str(script)]
    two = [warm.Popen(argv, stdout=subprocess.PIPE, text=True, env=worker_environment()) for _ in range(2)]
    one, other = (process.communicate(timeout=HANGS)[0].split() for process in two)
    assert len(one) == 3 and not set(one) & set(other)


@pytest.mark.parametrize("how", ["a variable that is read early", "a marked test", "no program of ours"])
def test_what_needs_a_fresh_one_gets_it(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "program.py"
    script.write_text("import sys; print('torch' in sys.modules)")
    if how == "a marked test":
        monkeypatch.setattr(warm.Popen, "allowed", False)
    extra = {"HF_HOME": str(tmp_path)} if how == "a variable that is read early" else {}
    argv = ["-c", script.read_text()] if how == "no program of ours" else [str(script)]
    done = warm.Popen(
        [sys.executable, *argv], stdout=subprocess.PIPE, text=True, env=worker_environment(extra)
    )
    assert done.communicate(timeout=HANGS)[0].strip() == "False"


def test_one_whose_devices_are_hidden_is_warm_too(tmp_path: Path) -> None:
    """As the plan starts each child that it asks for a model's class."""
    script = tmp_path / "program.py"
    script.write_text(
        "import os, sys; print('torch' in sys.modules, [os.environ['CUDA_VISIBLE_DEVICES']],"
        " sys.modules['torch'].cuda.device_count())"
    )
    env = worker_environment({"CUDA_VISIBLE_DEVICES": ""})
    done = warm.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=env)
    assert done.communicate(timeout=HANGS)[0].strip() == "True [''] 0"


def test_a_child_of_one_dies_with_it(tmp_path: Path) -> None:
    """The function that the supervisor runs between fork and exec is kept."""
    (tmp_path / "child.py").write_text("import time; time.sleep(100)")
    parent = tmp_path / "parent.py"
    parent.write_text(
        "import subprocess, sys, time\nfrom paceline.launch.processes import"
        f" die_with_parent\nprint(subprocess.Popen([sys.executable, {str(tmp_path / 'child.py')!r}],"
        " preexec_fn=die_with_parent()).pid, flush=True)\ntime.sleep(100)\n"
    )
    process = warm.Popen(
        [sys.executable, str(parent)], stdout=subprocess.PIPE, text=True, env=worker_environment()
    )
    assert process.stdout is not None
    child = Path("/proc", process.stdout.readline().strip(), "stat")
    assert child.exists()
    process.kill()
    process.communicate(timeout=HANGS)
    deadline = time.monotonic() + HANGS
    while child.exists() and ") Z" not in child.read_text():
        assert time.monotonic() < deadline, "it has outlived its parent"
        time.sleep(0.05)


def test_a_worker_of_xdist_is_forked_too(pytestconfig: pytest.Config) -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ or pytestconfig.getoption("--fresh-processes"):
        pytest.skip("asks a warm worker of xdist (scripts/test)")
    assert warm.Popen.nursery is not None


def test_assertions_that_were_rewritten_ahead_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    file = tmp_path / "test_rewritten_ahead.py"
    file.write_text("def fails(one):\n    assert one == 2\n")
    rewriting.write_ahead(pytestconfig, [file])
    monkeypatch.setattr(rewrite, "rewrite_asserts", None)  # who rewrites again, fails
    monkeypatch.syspath_prepend(tmp_path)
    module = import_path(file, root=tmp_path, consider_namespace_packages=False)
    with pytest.raises(AssertionError, match="assert 1 == 2"):
        module.fails(1)
