"""Run a module as a child process for one job: ``python -m MODULE JOB ANSWER`` (JSON files).

``main(job, answer)`` of the module reads the first and writes the second. It may write several times, so that
its findings survive its death.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from paceline.launch.process_spec import import_path, module_argv
from paceline.launch.processes import die_with_parent, send_group
from paceline.launch.program import is_own_program

_THREADS = Path("/proc/self/task")  # libraries' too


def run_job(
    module: str,
    job: Mapping[str, Any],
    seconds: float | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    fork: bool = False,
    forked: Callable[[str, Sequence[str]], int | None] = lambda module, arguments: None,
) -> tuple[Any, str]:
    """Run a module on a job; return (its answer or None, the reason of an early end or empty).

    ``environ``: in place of this process's; ``fork``: in a fork of this process, not in a fresh interpreter;
    ``forked``: runs it in a fork of another process and returns its exit code, None if it cannot.
    """
    with tempfile.TemporaryDirectory(prefix="paceline-job-") as folder:
        request, answer = Path(folder) / "job.json", Path(folder) / "answer.json"
        request.write_text(json.dumps(job), encoding="utf-8")
        if fork:
            output = Path(folder) / "output"
            code = run_in_fork(module, (str(request), str(answer)), seconds, output)
            ended = _ended(code, output.read_bytes() if code else b"", seconds)
        elif (ended_with := forked(module, (str(request), str(answer)))) is not None:
            ended = _ended(ended_with, b"", seconds)
        else:
            ended = wait_for_child(started_child(environ, module, str(request), str(answer)), seconds)
        try:
            return json.loads(answer.read_text(encoding="utf-8")), ended
        except (OSError, ValueError):
            return None, ended or "gave no answer"


def started_child(environ: Mapping[str, str] | None, module: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a module of this package as a quiet child process: its own session, no network downloads."""
    environ = os.environ if environ is None else environ
    return subprocess.Popen(
        module_argv(module, *arguments),
        env={**environ, **import_path(environ), "HF_HUB_OFFLINE": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=die_with_parent(),  # noqa: PLW1509 (one prctl call): it dies too if a signal ends us early
    )


def wait_for_child(child: subprocess.Popen[bytes], seconds: float | None) -> str:
    """Wait for the child; return why it failed, or an empty string on success.

    Kills its process group on a timeout.
    """
    try:
        _, stderr = child.communicate(timeout=seconds)
    except BaseException as error:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            return _ended(None, b"", seconds)
        raise
    return _ended(child.returncode, stderr, seconds)


def _ended(code: int | None, printed: bytes, seconds: float | None) -> str:
    """Return why a child failed, with the last line it printed; empty for success.

    ``code`` None: it exceeded its time.
    """
    if code is None:
        return f"did not finish within {seconds:.0f} s"
    if code == 0:
        return ""
    last = printed.decode("utf-8", "replace").strip().splitlines()[-1:]
    return f"exit code {code}" + (f": {last[0][:300]}" if last else "")


def can_fork() -> bool:
    """Whether this process runs a program of ours in a single thread: a fork has no other threads.

    The hub's library must not be imported either, since it reads the offline setting at import.
    """
    single = _THREADS.is_dir() and len(os.listdir(_THREADS)) == 1
    return is_own_program() and single and "huggingface_hub" not in sys.modules


def run_in_fork(module: str, arguments: Sequence[str], seconds: float | None, output: Path) -> int | None:
    """Call ``main`` of a module in a fork; return its exit code, or -N after signal N.

    None if it did not end within ``seconds`` and was killed with its children. ``output``: the file for its
    output.
    """
    output.touch(0o600)
    dies = die_with_parent()

    def run() -> None:
        os.setsid()
        if dies is not None:
            dies()
        file = os.open(output, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(file, stream)
        os.environ["HF_HUB_OFFLINE"] = "1"
        raise SystemExit(import_module(module).main(*arguments))

    child = multiprocessing.get_context("fork").Process(target=run)
    child.start()
    try:
        child.join(seconds)
        return child.exitcode
    finally:
        if child.exitcode is None:
            send_group(child.pid or 0, signal.SIGKILL)
            child.kill()
            child.join()
