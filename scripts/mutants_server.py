"""The process of ``scripts/mutants.py`` that runs tests: libraries are imported once, each mutant is a fork.

Reads a line of JSON, ``{"arguments": [...], "seconds": 60}``; answers with one, ``{"code": 0, "out": "…"}``.
It is alone with its children in a namespace of processes, and ends what a mutant has left there.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import NoReturn

OUT = Path("/tmp/out.txt")  # noqa: S108 - the sandbox's own
KEPT = 3000  # characters of the end of what pytest said


def child(arguments: list[str]) -> NoReturn:
    descriptor = os.open(OUT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.setsid()
    import pytest

    code = 70
    try:
        code = int(pytest.main(arguments))
    except BaseException:  # noqa: BLE001 - this process ends here, whatever it was
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def judge(arguments: list[str], seconds: float) -> dict[str, object]:
    """Run pytest in a fork; its exit code (124: too long) and the end of what it said."""
    pid, deadline, code = os.fork(), time.monotonic() + seconds, None
    if pid == 0:
        child(arguments)
    while code is None and time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        code = os.waitstatus_to_exitcode(status) if done else None
        time.sleep(0 if done else 0.05)
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) not in (1, os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(entry), signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
    return {"code": 124 if code is None else code, "out": OUT.read_text(errors="replace")[-KEPT:]}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints when it is imported is no answer
    sys.path[:0] = [os.getcwd()]
    for name in Path("tests/warm_modules.txt").read_text().split():
        if not name.startswith("paceline"):
            importlib.import_module(name)
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        wanted = json.loads(line)
        found = judge(wanted["arguments"], wanted["seconds"])
        print(json.dumps(found), file=answers, flush=True)


if __name__ == "__main__":
    main()
