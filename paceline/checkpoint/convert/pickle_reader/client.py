"""Client of the sandboxed child: sends pickles as bytes, receives inert values. No torch."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time

from paceline.checkpoint import codes
from paceline.checkpoint.convert.pickle_reader.machine import MAX_BYTES
from paceline.checkpoint.convert.pickle_reader.sandboxed_reader import LENGTH
from paceline.checkpoint.convert.pickle_reader.values import MAX_ANSWER, Refused, Value, decode, parse_answer
from paceline.core.errors import CheckpointError
from paceline.core.package import ROOT

_BOOT = """
import sys
sys.path.insert(0, sys.argv[1])
from paceline.checkpoint.convert.pickle_reader.sandboxed_reader import main
sys.exit(main())
"""
START_SECONDS = 60.0
ANSWER_SECONDS = 300.0


class PickleReader:
    """One child that reads pickles in turn; ``close`` ends it.

    ``walls``: a description of its sandbox. Raises CheckpointError ``convert.no_walls`` if it cannot be
    sandboxed.
    """

    def __init__(self) -> None:
        argv = [sys.executable, "-I", "-S", "-c", _BOOT, str(ROOT)]
        environment = {"LC_ALL": "C.UTF-8"}
        self._child = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd="/",
            close_fds=True,
        )
        self._rest = b""
        try:
            first = parse_answer(self._line(START_SECONDS))
        except Refused as exc:
            output = self._ended()
            raise CheckpointError(
                codes.CONVERT_NO_WALLS("checkpoints convert", f"{exc}; {output}"[:500])
            ) from None
        walls = first.get("walls") if isinstance(first, dict) else None
        self.walls = [str(wall) for wall in walls] if isinstance(walls, list) else []

    def read(self, pickle: bytes | memoryview) -> Value:
        """Return the values in a pickle. Raises Refused."""
        if len(pickle) > MAX_BYTES:
            raise Refused(f"a pickle of {len(pickle)} bytes; at most {MAX_BYTES} are read")
        stdin = self._child.stdin
        assert stdin is not None
        try:
            stdin.write(len(pickle).to_bytes(LENGTH, "little"))
            stdin.write(pickle)
            stdin.flush()
        except OSError:
            raise Refused("the process that reads pickles has ended") from None
        answer = parse_answer(self._line(ANSWER_SECONDS))
        if isinstance(answer, dict) and "value" in answer:
            return decode(answer["value"])
        refused = answer.get("refused") if isinstance(answer, dict) else answer
        raise Refused(str(refused)[:500])

    def close(self) -> None:
        """End the child."""
        self._ended()

    def _line(self, seconds: float) -> bytes:
        """Return the next line of the child's output. Raises Refused."""
        out, until = self._child.stdout, time.monotonic() + seconds
        assert out is not None
        parts, long = [self._rest], len(self._rest)
        while b"\n" not in parts[-1]:
            left = until - time.monotonic()
            if left <= 0 or not select.select([out], [], [], left)[0]:
                self._child.kill()
                raise Refused(f"it was not read within {seconds:.0f} seconds")
            part = os.read(out.fileno(), 1 << 20)
            if not part:
                raise Refused("the process that reads pickles has ended: it met a limit of memory or time")
            parts.append(part)
            long += len(part)
            if long > MAX_ANSWER:
                self._child.kill()
                raise Refused(f"more than {MAX_ANSWER >> 20} MiB of values")
        line, _, self._rest = b"".join(parts).partition(b"\n")
        return line

    def _ended(self) -> str:
        """End the child; return the last of what it wrote as errors."""
        child = self._child
        if child.stdin is not None and not child.stdin.closed:
            try:
                child.stdin.close()
            except OSError:
                child.kill()
        try:
            child.wait(5)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        output = b"" if child.stderr is None or child.stderr.closed else child.stderr.read()
        for stream in (child.stdout, child.stderr):
            if stream is not None:
                stream.close()
        return output.decode("utf-8", "replace")[-300:].strip()
