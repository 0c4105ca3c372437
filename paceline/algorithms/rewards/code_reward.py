"""A reward that runs code: the answer's program is checked against the row's tests, in a sandbox.

Off unless ``training.rollout.allow_code_execution`` is set. The program sees a read-only root with the
system's folders and the Python that runs here. It writes into a memory file system with a limit of bytes and
files. It has no network, no other processes, no privileges and no secrets, and limits on time, memory and
threads (``sandbox/isolation.py``). Its tests run in another process of the same kind, which calls its
functions and gets plain values back. How the program exits, what it prints and how it modifies Python cannot
change the verdict.
"""

from __future__ import annotations

import json
import os
import queue
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from paceline.algorithms import codes
from paceline.algorithms.rewards.builtin import RowCheck, Sample
from paceline.algorithms.rewards.code_test_formats import RowTests, read_tests, same_output
from paceline.algorithms.rewards.sandbox.client import Sandbox, SandboxUnavailable, UnsuitableTests
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json
from paceline.launch.program import redacted
from paceline.rules import codes as rules_codes

T = TypeVar("T")
_FENCE = re.compile(r"```(?:python3?|py)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)
# The program that a new sandbox is tested with: it reads Python's libraries
_HONEST = """
import colorsys, os, sys
folders = [os.listdir(path) for path in sys.path if os.path.isdir(path)]
def f(x):
    return x
"""
# each is a server, a keeper, a program and a judge
_MOST_AT_ONCE = 32
_LEAST_MEMORY_MB = 128  # Python itself and what most programs import


def program_of(completion: str) -> str:
    """Return the last fenced Python block of an answer, or all of it if it has none."""
    blocks = _FENCE.findall(completion)
    return str(blocks[-1] if blocks else completion)


def check_limits(seconds: Json = 10, memory_mb: Json = 512, **others: Json) -> None:
    """Raise ConfigError (``rewards.options``) for invalid limits of a program; ignore other options."""
    for name, value, least in (("seconds", seconds, 1), ("memory_mb", memory_mb, _LEAST_MEMORY_MB)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(
                codes.REWARDS_OPTIONS(
                    f"{name} of the reward 'code' must be a whole number of {least} or more",
                    "training.rollout.rewards",
                    repr(value),
                    f"{name}: {10 * least}",
                )
            )


class CodeReward:
    """1 if the program of an answer passes all tests of its row (``code_tests``), else 0.

    - ``partial``: the share of the pairs of input and output that it passes
    - ``tests``: the column with the tests
    - ``entry_point``: the column with the name of the function under test, if any
    - ``at_once`` answers run in parallel, each in its own sandbox
    - ``seconds``: CPU time of the program, and of its tests (waiting: 5 s more)
    - ``memory_mb``: memory of each of the two

    Tests that turn out to be unusable while they run give 0 too, since a program may have led them there;
    ``warnings`` then names them. Raises KeyError for a row without tests, and ValueError for tests that no
    program could pass. Raises ConfigError, before anything runs, if this machine has no sandbox.
    """

    has_deadlines = True  # its own limits: ``reward_timeout`` is for functions that may hang

    def __init__(
        self,
        allow_unsandboxed: bool = False,
        at_once: int = 1,
        /,
        *,
        tests: str = "tests",
        entry_point: str = "entry_point",
        seconds: int = 10,
        memory_mb: int = 512,
        partial: bool = False,
    ) -> None:
        check_limits(seconds, memory_mb)
        self.partial = partial
        self.tests, self.entry_point, self.seconds, self.memory_mb = tests, entry_point, seconds, memory_mb
        self._allow_unsandboxed = allow_unsandboxed
        self._at_once = min(max(1, at_once), _MOST_AT_ONCE)
        self._warnings: dict[str, Diagnostic | None] = {}  # by the tests: each is named once
        self._free: queue.SimpleQueue[Sandbox] = queue.SimpleQueue()  # opened on demand
        self._free.put(open_sandbox(allow_unsandboxed))

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        with ThreadPoolExecutor(max(1, min(self._at_once, len(samples)))) as pool:
            try:
                return list(pool.map(self.judge, samples))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)  # the other samples need no score
                raise

    def close(self) -> None:
        """Close the sandboxes; they are also closed with this object."""
        while not self._free.empty():
            self._free.get().close()

    def judge(self, sample: Sample) -> float:
        """Return 1 for an answer that passes all tests, or with ``partial`` the share that it passes."""
        program, tests = program_of(sample.completion), self.tests_in(sample.columns)
        if not tests.python:
            passed = (self._answers(program, text, expected) for text, expected in tests.pairs)
            return sum(passed) / len(tests.pairs) if self.partial else float(all(passed))
        limits = {"seconds": self.seconds, "memory_bytes": self.memory_mb << 20}
        try:
            return float(self._in_sandbox(lambda box: box.passes(program, tests.python, **limits)))
        except UnsuitableTests as error:
            self._warnings.setdefault(
                tests.python,
                codes.REWARDS_TESTS(f"prompt {sample.prompt[-120:]!r}", str(error), tests=self.tests),
            )
            return 0.0

    @property
    def row_check(self) -> RowCheck:
        """The check of the rows' tests."""
        return RowCheck(self.unusable_rows, codes.REWARDS_CODE_TESTS)

    def warnings(self) -> tuple[Diagnostic, ...]:
        """Return what the last calls found in rows, each once."""
        findings = tuple(self._warnings.values())
        self._warnings = dict.fromkeys(self._warnings)
        return tuple(finding for finding in findings if finding is not None)

    def _answers(self, program: str, text: str, expected: str) -> bool:
        """Whether the program, given this input, ends well and writes what is expected."""
        limits = {"seconds": self.seconds, "memory_bytes": self.memory_mb << 20}
        longest = 2 * len(expected.encode("utf-8", "replace")) + (1 << 16)
        ended = self._in_sandbox(lambda box: box.output(program, text, longest=longest, **limits))
        return ended.status == 0 and same_output(ended.output, expected)

    def tests_in(self, columns: Mapping[str, Json]) -> RowTests:
        """Return the tests of a row. Raises KeyError if it has none, ValueError if they cannot be used."""
        return read_tests(columns[self.tests], str(columns.get(self.entry_point) or ""))

    def unusable_rows(self, rows: Iterable[tuple[str, Mapping[str, Json]]]) -> list[str]:
        """Return those of ``rows`` (name, columns) whose tests cannot be used, each with the reason."""
        wrong = []
        for name, columns in rows:
            try:
                self.tests_in(columns)
            except KeyError:
                wrong.append(f"{name}: no column '{self.tests}'")
            except ValueError as error:
                wrong.append(f"{name}: {error}"[:300])
        return wrong

    def _in_sandbox(self, act: Callable[[Sandbox], T]) -> T:
        """Run ``act`` on a free sandbox; retry once on a new one if its server was lost.

        The machine may have run out of memory or processes.
        """
        sandbox = self._take()
        try:
            try:
                return act(sandbox)
            except SandboxUnavailable:
                sandbox.close()
                sandbox = open_sandbox(self._allow_unsandboxed)
            return act(sandbox)
        except SandboxUnavailable as error:
            raise no_isolation(str(error)) from error
        finally:
            self._free.put(sandbox)

    def _take(self) -> Sandbox:
        try:
            return self._free.get_nowait()
        except queue.Empty:
            return open_sandbox(self._allow_unsandboxed)


def open_sandbox(allow_unsandboxed: bool = False) -> Sandbox:
    """Open a sandbox and test it. Raises ConfigError.

    On a machine without namespaces, ``allow_unsandboxed`` opens a sandbox without them.
    """
    try:
        return _tried(namespaces=True)
    except SandboxUnavailable as error:
        if not allow_unsandboxed:
            raise no_isolation(str(error)) from error
    try:
        return _tried(namespaces=False)
    except SandboxUnavailable as error:
        raise no_isolation(str(error)) from error


def _tried(*, namespaces: bool) -> Sandbox:
    """Raise SandboxUnavailable if a program cannot be isolated here, or a harmless one cannot run."""
    sandbox = Sandbox(namespaces=namespaces)
    try:
        if not sandbox.passes(_HONEST, "assert f(1) == 1", seconds=10, memory_bytes=512 << 20):
            who = "nobody, the user who runs them when root trains," if os.geteuid() == 0 else "this user"
            raise SandboxUnavailable(
                f"a valid program failed in the sandbox: can {who} read the Python in"
                f" {sys.prefix} and {sys.base_prefix}?"
            )
    except SandboxUnavailable:
        sandbox.close()
        raise
    return sandbox


def check_isolation() -> None:
    """Raise ConfigError if programs cannot be isolated on this machine."""
    open_sandbox().close()


def no_isolation(words: str) -> ConfigError:
    """Return the error for a machine without a sandbox."""
    return ConfigError(
        rules_codes.REWARDS_NO_ISOLATION(
            "this machine cannot isolate the model's programs in a sandbox, so none is run",
            "training.rollout.rewards",
            words,
            NO_ISOLATION_HINT,
        )
    )


NO_ISOLATION_HINT = (
    "use Linux 5.12 or newer on x86_64 or aarch64 with user namespaces for this user (sysctl"
    " user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns; for a container:"
    " --security-opt seccomp=unconfined), a reward that runs no code, or"
    " training.rollout.allow_unsandboxed_code: true where losing all files of this user is"
    " acceptable"
)


@redacted
def main(job: str, answer: str) -> int:
    """Write why programs cannot be isolated here, empty if they can (``launch.child``)."""
    refused = ""
    try:
        check_isolation()
    except ConfigError as error:
        refused = error.diagnostics[0].found
    Path(answer).write_text(json.dumps(refused), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
