"""A callback that plants a fault in one rank of a run: it wraps what the run calls in its main thread."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from paceline.runlog.events import Step
from paceline.runtime.time_limit import exit_now
from paceline.training.checkpointing.saver import RunCheckpointer
from paceline.training.loop.trainer import Trainer

WHERE: dict[str, tuple[type, str]] = {
    "start": (Trainer, "train"),
    "step": (Trainer, "_step"),
    "eval": (Trainer, "measure"),
    "save": (RunCheckpointer, "save"),
}


def no_space() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/full/disk")


def stop() -> None:
    time.sleep(2.5)  # a heartbeat says in which phase: the limit of a silent rank is that of its last one
    os.kill(os.getpid(), signal.SIGSTOP)


def wrong() -> None:
    raise ValueError("planted")


def act(kind: str) -> None:
    """Do it, in this process."""
    {
        "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "stop": stop,
        "raise": wrong,
        "full": no_space,
        "exit": lambda: exit_now(0),
        "sleep": lambda: time.sleep(600),
        "mismatch": lambda: dist.all_reduce(torch.zeros(3)),
        "recv": lambda: dist.recv(torch.zeros(1), 0),
    }[kind]()


class Planted:
    """``kind`` happens at the ``nth`` call ``where``, on ``of`` alone."""

    def __init__(self, kind: str, where: str, of: int, nth: int, mark: str) -> None:
        if os.environ.get("RANK") != str(of):
            return
        owner, name = WHERE[where]
        real: Callable[..., Any] = getattr(owner, name)
        calls = [0]

        def wrapped(*args: Any, **options: Any) -> Any:
            calls[0] += 1
            if calls[0] == nth:
                with open(mark, "w") as file:  # noqa: PTH123
                    file.write(str(time.time()))
                act(kind)
            return real(*args, **options)

        setattr(owner, name, wrapped)

    def on_step_end(self, event: Step) -> None:
        """Nothing: a callback has a method."""
