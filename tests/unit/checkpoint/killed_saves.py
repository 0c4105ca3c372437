"""``python killed_saves.py FOLDER KILLS SEED``: a training of one tensor that is killed KILLS times, by
SIGKILL in the middle of a save, and goes on from what it finds. Prints what it ends with as JSON.

Each life is a fork of this process: what it has in memory is gone, what it has written stays.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from checkpoint_samples import FILES, OneRank, whole

from paceline.checkpoint.checkpointer import Checkpointer
from paceline.checkpoint.load.find_checkpoint import find_checkpoint
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.core.rundir import RunDir

CALLS = ("open", "write", "fsync", "rename", "replace", "mkdir", "unlink", "rmdir")
CALLS_OF_TWO_SAVES = 120  # about


def main() -> None:
    folder, kills, draw = Path(sys.argv[1]), int(sys.argv[2]), random.Random(int(sys.argv[3]))
    run = RunDir.at(folder)
    told = folder / "told"  # of the last save that returned
    run.root.mkdir(parents=True)
    problems: list[str] = []
    for life in range(kills + 1):
        last = life == kills
        fatal = None if last else draw.randrange(1, CALLS_OF_TWO_SAVES)
        child = os.fork()
        if not child:
            os._exit(live(run, fatal, told))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code != (0 if last else -signal.SIGKILL):
            problems.append(f"life {life} ended with {code}")
    newest = find_checkpoint("latest", run)
    assert newest is not None
    with CheckpointReader(newest) as reader:
        steps, tensor = reader.step, reader.read("policy", "w", "param").tolist()
    print(json.dumps({"steps": steps, "problems": problems, "tensor": tensor, "wanted": trained(0, steps)}))


def trained(first: int, last: int, tensor: Any = None) -> Any:
    """Steps whose result depends on every one before."""
    tensor = torch.ones(3, dtype=torch.float64) if tensor is None else tensor
    for step in range(first, last):
        tensor = tensor * 1.25 + torch.sin(tensor) * step
    return tensor.tolist() if first == 0 else tensor


def live(run: RunDir, fatal: int | None, told: Path) -> int:
    """Resume and train, until the call of number ``fatal`` or, in the last life, for two steps more."""
    where = find_checkpoint("auto", run)
    step, tensor = 0, torch.ones(3, dtype=torch.float64)
    if where is not None:
        with CheckpointReader(where) as reader:
            step, tensor = reader.step, reader.read("policy", "w", "param")
    durable = int(told.read_text()) if told.exists() else 0
    if step < durable:
        return 3
    if fatal is not None:
        die_at(fatal)
    until = step + 2 if fatal is None else sys.maxsize
    while step < until:
        tensor = tensor * 1.25 + torch.sin(tensor) * step
        step += 1
        Checkpointer(run, OneRank(), 2).save(step, [whole("w", tensor)], {"step": step}, FILES)
        told.write_text(str(step))
    return 0


def die_at(number: int) -> None:
    left = [number]

    def counted(own: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return own(*args, **kwargs)

        return call

    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))


if __name__ == "__main__":
    main()
