"""Ends of processes as launchers, schedulers and shells report them: rank, node, exit code."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

_NAMES = {
    "killed": -9,
    "segmentation fault": -11,
    "bus error": -7,
    "aborted": -6,
    "terminated": -15,
    "illegal instruction": -4,
    "out of memory": -9,
}
_CODE = re.compile(
    r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<rank>\d+)"
    r"|exitcode\s*:\s*(?P<code2>-?\d+)"
    r"|(?:--local_rank=(?P<rank3>\d+).{0,200})?exits with return code = (?P<code3>-?\d+)"
    r"|error: (?P<node4>[\w.-]+): tasks? (?P<rank4>\d+)[\d,-]*: (?:Exited with exit code (?P<code4>\d+)"
    r"|(?P<name4>[A-Z][a-z]+(?: [a-z]+)?))"
    r"|returned non-zero exit status (?P<code5>\d+)"
    r"|died with <Signals\.(?P<sig6>SIG\w+)"
    r"|Exit Code:\s+(?P<code7>\d+)"
    r"|process rank (?P<rank8>\d+) with PID \d+ on node (?P<node8>\S+) exited on signal (?P<code8>\d+)"
    r"|process \d+ terminated with (?:signal (?P<sig14>SIG\w+)|exit code (?P<code14>\d+))"
    r"|rank (?P<rank9>\d+) was ended by (?P<sig9>SIG\w+)"
    r"|line \d+: +\d+ (?P<name10>Killed|Terminated|Aborted|Bus error|Segmentation fault|Illegal instr\w+)\b"
    r"|exited with (?:exit )?code (?P<code11>\d+)|exit code:? (?P<code12>\d+)\b"
    r"|EXIT CODE: (?P<code13>\d+)"
)
_WORDS = (
    "exit",
    "error:",
    "died with",
    "was ended",
    "terminated",
    "killed",
    "abort",
    "fault",
    "bus err",
    "illegal",
)
_BOX_RANK = re.compile(r"^\s*rank\s*: (\d+) \(local_rank: \d+\)")
_BOX_HOST = re.compile(r"^\s*host\s*: (\S+)")


@dataclass(frozen=True)
class Death:
    """``code``: as ``Popen.returncode``, negative for a signal."""

    code: int
    rank: int | None
    node: str
    number: int
    text: str

    @property
    def signal_name(self) -> str:
        try:
            return signal.Signals(-self.code).name
        except ValueError:
            return f"signal {-self.code}"


class DeathReader:
    """Reads the ends out of lines; keeps the rank and host of torchrun's summary until its exit code."""

    def __init__(self) -> None:
        self.deaths: list[Death] = []
        self._rank: int | None = None
        self._host = ""

    def read(self, number: int, text: str) -> bool:
        """Take in a line; whether it reports an end."""
        if "host" in text and (host := _BOX_HOST.match(text)):
            self._host = host[1]
        elif "rank" in text and (box := _BOX_RANK.match(text)):
            self._rank = int(box[1])
        lower = text.lower()
        if not any(word in lower for word in _WORDS) or (match := _CODE.search(text)) is None:
            return False
        groups = {re.sub(r"\d+$", "", name): value for name, value in match.groupdict().items() if value}
        code = _code(groups.get("code"), groups.get("name"), groups.get("sig"))
        if match["code8"]:
            code = -code
        if code == 0 or code is None:
            return False
        rank = groups.get("rank")
        if match["code2"]:
            self.deaths.append(Death(code, self._rank, self._host, number, text))
            self._rank = None
        else:
            self.deaths.append(Death(code, int(rank) if rank else None, groups.get("node", ""), number, text))
        return True


def _code(code: str | None, name: str | None, sig: str | None) -> int:
    if code is not None:
        value = int(code)
        return 128 - value if 128 < value < 160 else value
    if sig is not None:
        return -int(getattr(signal, sig, 0))
    return next((number for word, number in _NAMES.items() if (name or "").lower().startswith(word)), 0)
