"""Whether the kernel's out-of-memory killer has ended a process: the count that its cgroup keeps, before and after. No guess from the signal.

cgroup v2: ``oom_kill`` of ``memory.events``; v1: ``oom_kill`` of ``memory.oom_control`` (Linux 4.13). Both count processes of the group that were
killed, whoever's limit it was. See Documentation/admin-guide/cgroup-v2.rst.
"""

from __future__ import annotations

from pathlib import Path

_FILES = {"cgroup2": "memory.events", "cgroup": "memory.oom_control"}


class MemoryKills:
    """Counts of the cgroups of the processes that are watched."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._before: dict[Path, int] = {}
        self._of: dict[int, Path] = {}

    def watch(self, pid: int) -> None:
        """Remember where ``pid`` is counted, and the count there; called again for one that may have been moved."""
        path = counter_of(pid, self._proc)
        if path is None or self._of.get(pid) == path:
            return
        count = _count(path)
        if count is not None:
            self._of[pid] = path
            self._before.setdefault(path, count)

    def killed(self, pid: int) -> bool | None:
        """Whether a kill has been counted in the cgroup of ``pid`` since it is watched; None where no count can be read."""
        path = self._of.get(pid)
        after = _count(path) if path is not None else None
        return None if path is None or after is None else after > self._before[path]


def counter_of(pid: int, proc: Path = Path("/proc")) -> Path | None:
    """The file that counts the out-of-memory kills of the cgroup of ``pid``; None where there is none to be read."""
    try:
        groups = (proc / str(pid) / "cgroup").read_text().splitlines()
        mounts = (proc / "self" / "mountinfo").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    places: dict[str, str] = {}  # type of file system → path inside it
    for line in groups:
        hierarchy, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if hierarchy == "0" and not controllers:
            places["cgroup2"] = path
        elif "memory" in controllers.split(","):
            places["cgroup"] = path
    for line in mounts:
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), (after.split() or [""])[0]
        if kind not in places or len(fields) < 5 or (kind == "cgroup" and "memory" not in after.split()[-1].split(",")):
            continue
        root, at = fields[3], Path(fields[4].replace("\\040", " "))
        inside = places[kind]
        if root != "/" and not f"{inside}/".startswith(f"{root}/"):
            continue
        file = at / inside.removeprefix(root).lstrip("/") / _FILES[kind]
        if _count(file) is not None:
            return file
    return None


def _count(path: Path) -> int | None:
    try:
        lines = path.read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    except (OSError, StopIteration, ValueError, IndexError):
        return None
