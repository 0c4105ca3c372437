"""Server of isolated programs: each training process starts one, and it forks a process for each program.

    training process ── this server (user, process, mount and network namespaces; a read-only root)
                          └─ a keeper for each program
                               └─ the program: process 1 of its own tree, with its own files

The server reads neither programs nor tests: their texts, and the channel between the two, pass through it as
open files.
"""

from __future__ import annotations

import array
import contextlib
import gc
import json
import os
import select
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from paceline.algorithms.rewards.sandbox import isolation, judge, program, syscalls

if TYPE_CHECKING:
    from paceline.core.json_types import JsonObject

MAX_MESSAGE, MAX_FILES = 1 << 16, 8


class ProgramRequest(isolation.ProgramLimits):
    """One process to run, as ``program``, ``judge`` or ``script``: the names of its files, and the seconds of
    wall time after which the server kills it. The files themselves follow this message.
    """

    role: str
    files: list[str]
    wall: float


def main(control: int) -> None:
    """Serve the socket ``control`` until its other end is closed."""
    os.umask(0o022)  # every user inside must be able to read the new root's folders
    with socket.socket(fileno=control) as peer:
        spec = json.loads(peer.recv(MAX_MESSAGE))
        try:
            if not spec["namespaces"]:
                try:
                    _serve(peer, namespaces=False)
                finally:
                    shutil.rmtree(spec["folder"], ignore_errors=True)
            else:
                _inside(peer, spec["readable"])
        except (OSError, ValueError) as error:
            with contextlib.suppress(OSError):
                _send(peer, {"refused": str(error)})


def _inside(peer: socket.socket, readable: list[str]) -> None:
    """Serve from the first process of new namespaces. Raises OSError if the kernel grants none."""
    syscalls.machine()
    entered, mapped = os.pipe(), os.pipe()
    outer = os.fork()
    if not outer:
        os.close(mapped[1])
        _end_with(peer, lambda: _enter(peer, readable, entered[1], mapped[0]))
    os.close(entered[1])
    if os.read(entered[0], 1):
        isolation.map_ids(outer)
        os.write(mapped[1], b"1")
    os.waitpid(outer, 0)


def _enter(peer: socket.socket, readable: list[str], entered: int, mapped: int) -> None:
    parent = os.getppid()
    # the next child is the first process inside the new pid namespace
    syscalls.unshare("user", "pid", "mount", "net", "ipc", "uts")
    os.write(entered, b"1")
    if not os.read(mapped, 1):
        raise OSError("the user namespace could not map its users")
    syscalls.die_with_parent(parent)
    first = os.fork()
    if not first:
        _end_with(peer, lambda: _first(peer, readable))
    peer.close()
    os.waitpid(first, 0)


def _first(peer: socket.socket, readable: list[str]) -> None:
    syscalls.die_with_parent(0)
    isolation.build_root(readable)
    _serve(peer, namespaces=True)


def _end_with(peer: socket.socket, act: Callable[[], None]) -> None:
    """Run ``act`` as the rest of a forked process; report its failure and exit."""
    try:
        act()
    except BaseException as error:  # noqa: BLE001
        with contextlib.suppress(OSError):
            _send(peer, {"refused": f"{error}"})
        os._exit(1)
    os._exit(0)


def _send(peer: socket.socket, message: JsonObject) -> None:
    peer.send(json.dumps(message).encode())


def _serve(peer: socket.socket, *, namespaces: bool) -> None:
    """Fork a keeper for each request: JSON, with open files attached in the order of ``files``."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers are not waited for
    # a child that collects would copy every page of the server
    gc.collect()
    gc.freeze()
    _send(peer, {"ready": True, "landlock": isolation.version()})
    while True:
        data, ancillary, _, _ = peer.recvmsg(
            MAX_MESSAGE, socket.CMSG_SPACE(MAX_FILES * array.array("i").itemsize)
        )
        if not data:
            return
        numbers = array.array("i")
        for _, _, part in ancillary:
            numbers.frombytes(part[: len(part) - len(part) % numbers.itemsize])
        request: ProgramRequest = json.loads(data)
        files = dict(zip(request["files"], numbers, strict=True))
        if not os.fork():
            peer.close()
            _keep(request, files, namespaces)
        for number in numbers:
            os.close(number)


def _keep(request: ProgramRequest, files: dict[str, int], namespaces: bool) -> None:
    """Run the program until it ends, its time is up or the client is gone; then send its status."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    life, status = files.pop("life"), files.pop("status")
    status_line: JsonObject
    try:
        if namespaces:
            isolation.private_files(request["readable"])
        # The keeper's child is the program; the pidfd tells its end, ``life`` that of the client
        child = os.fork()
        if not child:
            os.close(life)
            _become(request, files, status, namespaces)
        for number in files.values():
            os.close(number)
        child_fd = os.pidfd_open(child)
        poll = select.poll()
        poll.register(child_fd, select.POLLIN)
        poll.register(life, select.POLLIN)
        ended = {number for number, _ in poll.poll(request["wall"] * 1000)}
        if child_fd not in ended:
            os.kill(child, signal.SIGKILL)
        status_line = {"status": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}
        status_line["overdue"] = not ended
    except OSError as error:
        status_line = {"refused": str(error)}
    with contextlib.suppress(OSError):
        os.write(status, json.dumps(status_line).encode() + b"\n")
    os._exit(0)


def _become(request: ProgramRequest, files: dict[str, int], status: int, namespaces: bool) -> None:
    """Become the program, or its judge."""
    try:
        text = _read(files.pop("text"))
        quiet = os.open("/dev/null", os.O_RDWR)
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            os.dup2(files.pop(name, quiet), number)
        _keep_only(*files.values(), status)
        isolation.shut_in(request, namespaces=namespaces)
    except BaseException as error:  # noqa: BLE001
        os.write(status, json.dumps({"refused": f"{error}"}).encode() + b"\n")
        os._exit(1)
    os.close(status)
    gc.enable()
    sys.set_int_max_str_digits(0)
    os._exit(_play(request["role"], text, files))


def _read(number: int) -> str:
    with open(number, encoding="utf-8", errors="replace") as file:
        return file.read()


def _keep_only(*numbers: int) -> None:
    """Close all other open files."""
    start = 3
    for number in sorted(numbers):
        os.closerange(start, number)
        start = number + 1
    os.closerange(start, 1 << 20)


def _play(role: str, text: str, files: dict[str, int]) -> int:
    if role == "script":
        return program.run_script(text)
    with socket.socket(fileno=files["channel"]) as channel:
        if role == "program":
            program.serve_program(text, channel)
            return 0
        verdict = judge.run_tests(text, channel)
    os.write(files["verdict"], json.dumps(verdict).encode())
    return 0
