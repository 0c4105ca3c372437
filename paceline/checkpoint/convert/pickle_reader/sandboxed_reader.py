"""The sandboxed child that reads pickles from its input; ``client`` starts it. No torch.

It holds nothing open but its three streams, and can open nothing more: no file, no socket. Each question is 8
bytes of length and a pickle; each answer is one line of JSON: ``{"value": …}`` or ``{"refused": "…"}``. The
first line describes its sandbox.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import sys
from collections.abc import Callable

from paceline.algorithms.rewards.sandbox import isolation, seccomp, syscalls
from paceline.checkpoint.convert.pickle_reader.allowed_names import LISTED
from paceline.checkpoint.convert.pickle_reader.machine import MAX_BYTES, PickleMachine
from paceline.checkpoint.convert.pickle_reader.values import Refused, ValueEncoder

MEMORY = 6 << 30
SECONDS = 3600
LENGTH = 8


def shut_in() -> list[str]:
    """Drop the rights that this process does not need; return them as text. Raises OSError if a file or a
    socket could still be opened.
    """
    walls = []
    steps: dict[str, Callable[[], None]] = {
        "a network namespace": lambda: syscalls.unshare("user", "net"),
        "no new privileges": syscalls.no_new_privileges,
        "Landlock": _landlock,
        "seccomp": lambda: seccomp.refuse_system_calls(outside=True),
    }
    for limit, most in (
        (resource.RLIMIT_AS, MEMORY),
        (resource.RLIMIT_CPU, SECONDS),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(limit)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(limit, (most, most))
    for wall, build in steps.items():
        with contextlib.suppress(OSError, AttributeError):  # not every machine has each
            build()
            walls.append(wall)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))  # what is open stays; nothing more
    walls.append("no further open file")
    _must_fail("a file can still be opened", lambda: os.close(os.open("/", os.O_RDONLY)))
    _must_fail("a socket can still be opened", lambda: socket.socket().close())
    return walls


def _landlock() -> None:
    if not isolation.restrict((), ()):
        raise OSError("no Landlock")


def _must_fail(breach: str, attempt: Callable[[], None]) -> None:
    with contextlib.suppress(OSError):
        attempt()
        raise RuntimeError(breach)


def main() -> int:
    """Answer until the input ends."""
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    _write({"walls": shut_in()})
    while header := source.read(LENGTH):
        size = int.from_bytes(header, "little")
        if size > MAX_BYTES:
            return 1
        data = source.read(size)
        try:
            line = json.dumps(
                {"value": ValueEncoder(size).encode(PickleMachine(data, LISTED).run())}, allow_nan=False
            )
        except Refused as exc:
            line = json.dumps({"refused": str(exc)})
        except (MemoryError, RecursionError) as exc:
            line = json.dumps({"refused": f"it needs more than the memory of {MEMORY >> 30} GiB: {exc}"})
        sink.write(line.encode() + b"\n")
        sink.flush()
    return 0


def _write(answer: dict[str, list[str]]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
