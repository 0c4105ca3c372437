"""``python warm_server.py LINK``: imports everything, then forks a child of the process at LINK's other end
for each request.

A child of who asked, not of this process: the fork is made twice, the process between ends, and the orphan
goes to the nearest subreaper above, which who asks is for as long as it asks. A child whose program starts
others has a server of its own, forked off before it runs: what it starts in turn is as pristine.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import importlib
import io
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import weakref
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NoReturn

import numpy
import torch
import warm

HERE = Path(__file__).resolve().parent
MODULES = HERE / "warm_modules.txt"
STREAMS = 3
MOST_FILES = 16  # that a process is given
_ABOVE = 512  # numbers of files that no program here has
KEEPS_ITS_THREAD = {"jemalloc_bg_thd"}  # Arrow's allocator starts it again in a child (pthread_atfork)
HUGE = 2 << 20  # bytes
_MADV_COLLAPSE = 25  # linux/mman.h, since 6.1; an older kernel answers EINVAL
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_ENV_START, _ENV_END = 50, 51  # fields of /proc/PID/stat, proc_pid_stat(5)


def main() -> NoReturn:
    """The first server, of the test process."""
    link = socket.socket(fileno=int(sys.argv[1]))
    warm.Popen.allowed = False  # here; torchrun's module keeps the name that it finds when it is imported
    subprocess.Popen = warm.Popen  # type: ignore[misc]
    gc.disable()  # what is imported stays
    for line in MODULES.read_text().split():
        name, _, function = line.partition(":")
        module = importlib.import_module(name)
        if function:  # what each process reads once and keeps
            getattr(module, function)()
    if find_spec("deepspeed") is not None and not torch.cuda.is_available():
        os.environ["DS_ACCELERATOR"] = "cpu"  # it takes a device for good when it is imported
        importlib.import_module("deepspeed")
    threads = [
        Path(f"/proc/self/task/{task}/comm").read_text().strip() for task in os.listdir("/proc/self/task")
    ]
    if lost := set(threads[1:]) - KEEPS_ITS_THREAD:
        raise SystemExit(f"threads that a fork would lose: {sorted(lost)}")
    forget_what_ends_here()
    gc.collect()
    gc.enable()
    gc.freeze()  # a collection in a child would touch, and so copy, every page
    take_huge_pages()
    link.send(b"+")
    serve(link)


def forget_what_ends_here() -> None:
    """A child's end runs what it has registered itself. What imports have (torch's operators are taken out of
    their tables one by one) is of this process: half of a short program's time.
    """
    for inherited in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        inherited.atexit = False
    atexit.unregister(torch._dynamo.utils.dump_compile_times)


def take_huge_pages() -> None:
    """Put this process's memory into pages of 2 MiB where the kernel does so: a fork copies one entry for
    each, in a third of the time.
    """
    collapse = ctypes.CDLL(None).madvise
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, permissions, _, _, inode, *_ = line.split()
        start, stop = (int(end, 16) for end in place.split("-"))
        start, stop = -(-start // HUGE) * HUGE, stop // HUGE * HUGE
        if permissions == "rw-p" and inode == "0" and start < stop:
            collapse(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), _MADV_COLLAPSE)


def serve(link: socket.socket) -> NoReturn:
    """Children until the other end is gone. What is sent to who asks as a group (a stop, a Ctrl-C) is not
    for this process.
    """
    for number in (
        signal.SIGTERM,
        signal.SIGINT,
        signal.SIGHUP,
        signal.SIGQUIT,
        signal.SIGUSR1,
        signal.SIGUSR2,
    ):
        signal.signal(number, signal.SIG_IGN)
    while True:
        head, streams, _, _ = socket.recv_fds(link, 8, MOST_FILES)
        if not head:
            os._exit(0)
        wanted = json.loads(received(link, int.from_bytes(head, "big")))
        (answer, say), (adopted, adopt) = os.pipe(), os.pipe()
        between = os.fork()
        if not between:
            os.close(adopt)
            child = os.fork()
            if child:
                os.write(say, child.to_bytes(8, "big"))
                os._exit(0)
            for end_of_server in (link.detach(), answer, say):
                os.close(end_of_server)
            os.read(adopted, 1)  # ends when the server closes its end
            os.close(adopted)
            live(wanted, streams)
        os.waitpid(between, 0)  # from now on the child is of who asks
        link.send(os.read(answer, 8))
        for used in (*streams, answer, say, adopted, adopt):
            os.close(used)


def received(link: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        part = link.recv(length - len(data))
        if not part:  # who asked has ended in the middle of it
            os._exit(0)
        data += part
    return data


def live(wanted: Mapping[str, Any], streams: Sequence[int]) -> NoReturn:
    """The child: everything that an exec would have given it, a server of its own, its program, its end."""
    hear_signals(wanted["ignored"])
    if wanted["dies_with_parent"]:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != wanted["parent"]:
            os._exit(143)
    if wanted["session"]:
        os.setsid()
    nursery = nursery_of_child() if warm.starts_others(wanted["module"], wanted["argv"]) else None
    # out of the way of the numbers that they get
    held = [fcntl.fcntl(stream, fcntl.F_DUPFD_CLOEXEC, _ABOVE) for stream in streams]
    for stream in streams:
        os.close(stream)
    for own, stream in zip(wanted["files"], held, strict=True):
        os.dup2(stream, own)
        os.close(stream)
    warm.Popen.nursery, warm.Popen.allowed = nursery, nursery is not None
    os.execv = become  # type: ignore[assignment]
    take_over(wanted["environ"], wanted["at_once"])
    os.chdir(wanted["cwd"])
    end(run(wanted["module"], wanted["argv"]))


def nursery_of_child() -> warm.Nursery:
    """A server for what this process starts, forked off before its program changes anything."""
    ours, theirs = socket.socketpair()
    if not os.fork():
        ours.close()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in range(STREAMS):
            os.dup2(nowhere, stream)
        serve(theirs)
    theirs.close()
    return warm.Nursery(ours, os.environ)


def become(path: str, argv: Sequence[str]) -> NoReturn:
    """``os.execv`` of a program of ours: this process goes on as that one."""
    program = warm.program_of(argv)
    if program is None:
        raise OSError(f"a warm process was asked to become {argv}")
    hear_signals(warm.ignored())
    take_over(dict(os.environ), program["at_once"])
    end(run(program["module"], program["argv"]))


def hear_signals(ignored: Sequence[int]) -> None:
    """As a new interpreter does: what was ignored stays so."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if number < signal.SIGRTMIN:
            signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    if signal.SIGINT not in ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def take_over(environ: Mapping[str, str], at_once: bool) -> None:
    """The environment (in /proc too: who looks for a process by its variables finds it), streams
    (``at_once``: without buffers) and random numbers of a new interpreter.
    """
    write_environment(environ)
    os.environ.clear()
    os.environ.update(environ)
    at_once = at_once or bool(environ.get("PYTHONUNBUFFERED"))
    files = [io.FileIO(number, mode, closefd=False) for number, mode in enumerate(("rb", "wb", "wb"))]
    out, err = files[1:] if at_once else map(io.BufferedWriter, files[1:])
    sys.stdin = io.TextIOWrapper(io.BufferedReader(files[0]), "utf-8")
    sys.stdout = io.TextIOWrapper(out, "utf-8", line_buffering=os.isatty(1), write_through=at_once)
    sys.stderr = io.TextIOWrapper(
        err, "utf-8", "backslashreplace", line_buffering=True, write_through=at_once
    )
    random.seed()
    numpy.random.seed()
    torch.default_generator.seed()
    tempfile.tempdir = None
    if "COVERAGE_PROCESS_START" in environ:  # scripts/mutants.py cover
        importlib.import_module("coverage").process_startup()


def write_environment(environ: Mapping[str, str]) -> None:
    """``environ`` over the environment that this process was started with, in its own memory."""
    fields = Path("/proc/self/stat").read_text().rpartition(") ")[2].split()
    start, stop = (int(fields[number - 3]) for number in (_ENV_START, _ENV_END))
    block = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environ.items())
    if len(block) >= stop - start:
        raise OSError(f"an environment of {len(block)} bytes is larger than the room for it ({stop - start})")
    os.environ.clear()  # nothing of this process reads the old one any more
    ctypes.memmove(start, block.ljust(stop - start, b"\0"), stop - start)


def run(module: str | None, argv: Sequence[str]) -> int:
    """The program as ``__main__``, and the exit code that the interpreter would give it."""
    main = ModuleType("__main__")
    code: CodeType | None
    paths = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    in_place = argv[0] == "-c"
    first = os.getcwd() if module else "" if in_place else str(Path(argv[0]).resolve().parent)
    sys.path[:] = [first, *paths, *BASE]
    importlib.invalidate_caches()
    try:
        if module:
            sys.modules.pop(module, None)  # as under -m: __main__ is another copy
            main.__spec__ = spec = find_spec(module)
            if spec is not None and spec.submodule_search_locations is not None:  # a package, as -m takes it
                module = f"{module}.__main__"
                sys.modules.pop(module, None)
                main.__spec__ = spec = find_spec(module)
            assert spec is not None and spec.origin is not None and spec.loader is not None
            main.__file__, main.__package__ = spec.origin, spec.parent
            code = spec.loader.get_code(module)  # type: ignore[attr-defined]
            sys.argv = [spec.origin, *argv[1:]]
        elif in_place:
            code = compile(warm.WORKER, "<string>", "exec")
            sys.argv = ["-c"]
        else:
            main.__file__ = argv[0]
            code = compile(Path(argv[0]).read_bytes(), argv[0], "exec")
            sys.argv = list(argv)
        assert code is not None
        main.__dict__["__builtins__"] = __builtins__
        sys.modules["__main__"] = main
        exec(code, main.__dict__)  # noqa: S102 - the program that the test has named
    except SystemExit as asked:
        if asked.code is None or isinstance(asked.code, int):
            return (asked.code or 0) & 0xFF
        print(asked.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:  # noqa: BLE001 - as the interpreter does at the top
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        return 1
    return 0


def end(code: int) -> NoReturn:
    """As an interpreter ends, but for freeing its memory."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 120  # as the interpreter does
    os._exit(code)


# what an interpreter adds by itself
BASE = [path for path in sys.path if path not in (str(HERE), str(HERE.parent))]

if __name__ == "__main__":
    main()
