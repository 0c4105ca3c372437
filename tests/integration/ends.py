"""Every end of a run as data: what makes it, and what every reader must say of it (``test_ends.py``)."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: A callback that acts on one rank, once a step is over; ``what`` is Python.
CALLBACK = """
import os, signal, sys, time
class Act:
    def __init__(self, what="", on=0, at=2, rank=0):
        self.what, self.due, self.at = what, rank == on, at
    def on_step_end(self, event):
        if self.due and event.step == self.at:
            exec(self.what)
def held(row):
    while "RANK" in os.environ:
        time.sleep(0.1)
    return row
"""


@dataclass(frozen=True)
class End:
    """``act``: what a rank does after step 2, on rank ``on``; ``sent``: signals to the launcher after step 2.

    ``way``: another way to make the end, a function of ``test_ends.py``; ``code``, ``outcome``: the exit code
    (also in result.json and exits.json) and the state that every reader says; ``found``: a code that every
    reader of diagnostics has; ``printed``: words of the console. ``kind``: the class that the doctor says.
    """

    name: str
    code: int
    outcome: str
    found: str = ""
    printed: str = ""
    act: str = ""
    on: int = 0
    nproc: int = 1
    sent: tuple[int, ...] = ()
    way: str = ""
    training: Mapping[str, Any] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    quick: bool = False  # in the default suite
    kind: str = ""


LEFT, KILLED, EARLY = "launch.rank_left", "launch.worker_killed", "launch.stopped_early"
STOP = (signal.SIGTERM,)
SHORT = {"max_steps": 8}
ENDS = (
    End("completed", 0, "completed"),
    End("completed on two ranks", 0, "completed", nproc=2),
    End(
        "exit code 0 in the middle",
        1,
        "failed",
        LEFT,
        "without reporting",
        "os._exit(0)",
        quick=True,
        kind="user code",
    ),
    End(
        "exit code 0 on rank 1",
        1,
        "failed",
        LEFT,
        "rank 1 exited",
        "os._exit(0)",
        on=1,
        nproc=2,
        kind="user code",
    ),
    End("exit code 75 in the middle", 1, "failed", LEFT, act="os._exit(75)"),
    End("exit code 2 in the middle", 1, "failed", LEFT, act="os._exit(2)"),
    End("exit code 3 in the middle", 3, "failed", LEFT, act="os._exit(3)"),
    End(
        "exit code 0 behind torchrun",
        1,
        "failed",
        "launch.rank_gone",
        act="os._exit(0)",
        on=1,
        nproc=2,
        way="agent",
    ),
    End("SystemExit in a callback", 0, "completed", "callback.failed", act="sys.exit(0)", training=SHORT),
    End("SIGKILL", 137, "failed", KILLED, act="os.kill(os.getpid(), 9)", kind="unknown"),
    End(
        "SIGSEGV on rank 1",
        139,
        "failed",
        KILLED,
        act="os.kill(os.getpid(), 11)",
        on=1,
        nproc=2,
        kind="user code",
    ),
    End("out of memory", 137, "failed", "launch.out_of_memory", way="little_memory", kind="memory"),
    End("SIGTERM", 75, "stopped", printed="resume      paceline train", sent=STOP, quick=True),
    End("SIGHUP", 75, "stopped", sent=(signal.SIGHUP,)),
    End("Ctrl-C", 75, "stopped", printed="--resume latest", sent=(signal.SIGINT,), nproc=2),
    End(
        "Ctrl-C twice",
        130,
        "stopped",
        EARLY,
        sent=(signal.SIGINT, signal.SIGINT),
        kind="preemption",
        act="time.sleep(60)",
    ),
    End("closed terminal", 75, "stopped", way="closed_terminal"),
    End(
        "SIGTERM before the first step",
        143,
        "stopped",
        EARLY,
        "saved nothing",
        way="stopped_early",
        kind="preemption",
    ),
    End("SIGTERM while the plot is drawn", 0, "completed", way="while_drawing"),
    End("a reader that leaves", 0, "completed", "launch.output_lost", way="head", quick=True),
    End("a reader that leaves two ranks", 0, "completed", "launch.output_lost", way="head", nproc=2),
    End("a reader that leaves a run that stops", 75, "stopped", "launch.output_lost", sent=STOP, way="head"),
    End("a full standard output", 0, "completed", "launch.output_lost", way="full_output"),
    End(
        "ASCII",
        0,
        "completed",
        environ={"LANG": "C", "PYTHONIOENCODING": "ascii"},
        training={"run_name": "Größe"},
    ),
    End("no docstrings", 0, "completed", environ={"PYTHONOPTIMIZE": "2"}),
    End("a file's name that no encoding has", 0, "completed", environ={"LC_ALL": "C", "PYTHONUTF8": "0"}),
    End("rotated logs", 0, "completed", way="rotated", training={"max_steps": 300}),
    End(
        "a disk that is too small",
        2,
        "",
        "",
        "save.disk",
        way="full_disk",
        training={"save_strategy": "steps", "save_steps": 3},
    ),
    End("a read-only disk", 2, "", "", "run.not_writable", way="read_only"),
    End("the launcher is killed", 75, "stopped", way="launcher_killed"),
    End("all are killed", -9, "vanished", way="all_killed", kind="unknown"),
    End("nodes that differ", 1, "failed", "world.mismatch", way="nodes_differ", kind="launcher"),
    End("a second start", 75, "stopped", way="second_start"),
)
