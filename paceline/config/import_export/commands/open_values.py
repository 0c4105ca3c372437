"""Values of a shell script that are known only when it runs, and the options that may keep them.

A rank's number and the address where ranks meet do not change what is trained. Everywhere else an open value
stops the import.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# Private-use characters, which no script has, around the number of an open value
_MARKED = re.compile("\ue000(\\d+)\ue001")
#: options of launchers that name a job, or say where it writes
OF_ONE_JOB = frozenset(("jobid", "rdzv_id", "log_dir", "job_name", "J", "output", "o", "error", "e"))
#: the same, and those that say where ranks meet and which number a node has
MEETING = OF_ONE_JOB | frozenset(
    (
        *("main_process_ip", "main_process_port", "machine_rank", "master_addr", "master_port", "node_rank"),
        *("rdzv_endpoint", "rdzv_conf", "rdzv_backend", "nodelist", "w"),
    )
)
#: variables that say the same
MEETING_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "MACHINE_RANK")


class NotKnown(Exception):
    """A value that is known only when the script runs: ``what`` is wrong, and what to write."""

    def __init__(self, what: str, hint: str = "write the value in place of it") -> None:
        super().__init__(what)
        self.what, self.hint = what, hint


class OpenValues:
    """The open values of a script; marks replace them in its texts until their use is known."""

    def __init__(self) -> None:
        self._found: list[tuple[NotKnown, str]] = []

    def __deepcopy__(self, memo: object) -> OpenValues:
        return self  # a subshell's marks are the script's

    def mark(self, problem: NotKnown, written: str) -> str:
        """Return the mark of a value; ``written``: how the script writes it."""
        self._found.append((problem, written))
        return f"\ue000{len(self._found) - 1}\ue001"

    def problems(self, text: str) -> list[NotKnown]:
        """Return why the open values in a text are not known."""
        return [self._found[int(number)][0] for number in _MARKED.findall(text)]

    def refuse(self, value: str | Iterable[str]) -> None:
        """Raise the NotKnown of the first open value."""
        for problem in self.problems(value if isinstance(value, str) else "".join(value)):
            raise problem

    def written(self, text: str) -> str:
        """Return a text with its open values as the script writes them."""
        return _MARKED.sub(lambda found: self._found[int(found[1])][1], text)

    def assigned(self, text: str, name: str, line: int) -> str:
        """Return the text of an assignment; its open values now belong to the variable."""

        def of_variable(found: re.Match[str]) -> str:
            problem, written = self._found[int(found[1])]
            if " is not certain (line " not in problem.what:
                why = f"{name} is not certain (line {line}): {problem.what}"
                problem = NotKnown(why, f"write the value there, or in place of {name}")
            return self.mark(problem, f"${name}" if found[0] == text else written)

        return _MARKED.sub(of_variable, text)


def is_open(text: str) -> bool:
    """Whether a text holds an open value."""
    return _MARKED.search(text) is not None


def only_open(text: str) -> bool:
    """Whether a text is nothing but open values, so that it may be empty."""
    return is_open(text) and not _MARKED.sub("", text)


def before_open(text: str) -> str:
    """Return what stands before the first open value."""
    return _MARKED.split(text)[0]


def may_stay_open(words: list[str], index: int) -> bool:
    """Whether an argument of a launcher may stay unresolved: it is a rendezvous address or a rank number."""
    option, equals, _ = words[index].partition("=")
    if not equals and index:
        option = words[index - 1]
    return option.startswith("-") and option.lstrip("-").replace("-", "_") in MEETING
