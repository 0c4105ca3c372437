"""``python -m paceline.training.spare LINK``: import what ranks have imported, then fork one per request
(``launch/supervision/spare.py``).
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import socket
import sys
import sysconfig
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from paceline.core.package import ROOT
from paceline.launch.processes import die_with_parent
from paceline.launch.program import redacted
from paceline.launch.supervision.spare import LENGTH, READY, ForkRequest, take_over
from paceline.plan.hardware.device_kinds import CUDA

_WORKER = "paceline.training.worker"
_STREAMS = (1, 2)
_TASKS = Path("/proc/self/task")
_STARTS_AGAIN = "jemalloc_bg_thd"  # Arrow's allocator starts it again in a child


@redacted
def main() -> tuple[ForkRequest, Sequence[int]] | None:
    """Serve; return, in a child, what it is to be, and its streams; None when the launcher is gone."""
    link = socket.socket(fileno=int(sys.argv[1]))
    if not imported(json.loads(_message(link)[0])):
        return None
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page
    link.send(READY)
    while True:
        text, streams = _message(link)
        if not text:
            return None
        answer, reply = os.pipe()
        adopted, adopt = os.pipe()
        between = os.fork()
        if not between:
            os.close(adopt)
            child = os.fork()
            if child:
                os.write(reply, child.to_bytes(LENGTH, "big"))
                os._exit(0)
            for end in (link.detach(), answer, reply):
                os.close(end)
            os.read(adopted, 1)  # ends when the parent has been waited for: this process has another one now
            os.close(adopted)
            return ForkRequest(*json.loads(text)), streams
        os.waitpid(between, 0)
        link.send(os.read(answer, LENGTH))
        for used in (*streams, answer, reply, adopted, adopt):
            os.close(used)


def imported(names: Sequence[str]) -> bool:
    """Import the modules; return whether this process may be forked afterwards."""
    importlib.import_module("numpy")  # its BLAS has threads, and stops them before a fork
    before = len(os.listdir(_TASKS))
    from paceline.runtime.library_noise import import_without_torchao

    import_without_torchao()
    for name in (_WORKER, *names):
        with suppress(Exception):  # the rank that needs it says why it cannot be imported
            importlib.import_module(name)
    import torch

    threads = [(_TASKS / task / "comm").read_text().strip() for task in os.listdir(_TASKS)]
    uses_device: Callable[[], bool] = torch.get_device_module(CUDA.name).is_initialized
    return not uses_device() and len(threads) - threads.count(_STARTS_AGAIN) <= before


def of_libraries() -> list[str]:
    """Return the modules of libraries and of this package that this process has imported, none of a user."""
    places = (f"{ROOT / 'paceline'}{os.sep}", *(sysconfig.get_path(name) for name in ("purelib", "platlib")))
    specs = {name: getattr(module, "__spec__", None) for name, module in list(sys.modules.items())}
    return [name for name, spec in specs.items() if spec and (spec.origin or "").startswith(places)]


def _message(link: socket.socket) -> tuple[bytes, Sequence[int]]:
    """Return a message and the files that come with it; empty when the launcher is gone."""
    head, files, _, _ = socket.recv_fds(link, LENGTH, len(_STREAMS))
    length, data = int.from_bytes(head, "big"), b""
    while len(data) < length:
        part = link.recv(length - len(data))
        if not part:
            return b"", files
        data += part
    return data, files


def become(wanted: ForkRequest, streams: Sequence[int]) -> int:
    """Run what was asked for, with a session, streams and variables of its own; return the exit code."""
    os.setsid()
    if (dies := die_with_parent(wanted.parent)) is not None:
        dies()
    for own, stream in zip(_STREAMS, streams, strict=True):
        os.dup2(stream, own)
        os.close(stream)
    take_over(wanted.environ)
    return int(importlib.import_module(wanted.module).main(*wanted.arguments))


if __name__ == "__main__":
    child = main()
    sys.exit(0 if child is None else become(*child))
