"""Whether the kernel's out-of-memory killer ended a process, from its cgroup's counter.

cgroup v2: ``oom_kill`` in ``memory.events``; v1: ``oom_kill`` in ``memory.oom_control`` (Linux 4.13). Both
count killed processes of the group, whichever limit was exceeded. See
Documentation/admin-guide/cgroup-v2.rst.
"""

from __future__ import annotations

from pathlib import Path

# by the type of file system in mountinfo
_FILES = {"cgroup2": "memory.events", "cgroup": "memory.oom_control"}


class MemoryKills:
    """The out-of-memory counters of the watched processes' cgroups."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._before: dict[Path, int] = {}
        self._of: dict[int, list[Path]] = {}  # of each process, all groups that it was seen in

    def watch(self, pid: int) -> None:
        """Record the counter of ``pid``'s cgroup and its current value.

        Call again if the process may have been moved. A process that is dying is moved too: under v1 to the
        root, so groups that it was seen in before count on.
        """
        path = counter_of(pid, self._proc)
        count = None if path is None or path in self._of.get(pid, ()) else _count(path)
        if path is not None and count is not None:
            self._of.setdefault(pid, []).append(path)
            self._before.setdefault(path, count)

    def killed(self, pid: int) -> bool | None:
        """Whether the counter of ``pid``'s cgroup has grown since ``watch``; None if it cannot be read."""
        paths = self._of.get(pid, [])
        after = {path: _count(path) for path in paths}
        if any(count is not None and count > self._before[path] for path, count in after.items()):
            return True
        return None if not paths or None in after.values() else False


def counter_of(pid: int, proc: Path = Path("/proc")) -> Path | None:
    """Return the file with the out-of-memory counter of ``pid``'s cgroup.

    None if there is none that can be read.
    """
    try:
        groups = (proc / str(pid) / "cgroup").read_text().splitlines()
        mounts = (proc / "self" / "mountinfo").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    inside_of: dict[str, str] = {}  # type of file system → the cgroup's path in its hierarchy
    for line in groups:
        hierarchy, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if hierarchy == "0" and not controllers:
            inside_of["cgroup2"] = path
        elif "memory" in controllers.split(","):
            inside_of["cgroup"] = path
    # Find where that hierarchy is mounted; inside a container only a part of it may be.
    for line in mounts:
        before, _, after = line.partition(" - ")
        fields, (kind, *options) = before.split(), after.split() or [""]
        of_memory = kind != "cgroup" or "memory" in options[-1].split(",")
        if kind not in inside_of or len(fields) < 5 or not of_memory:
            continue
        root, mount, inside = fields[3], Path(fields[4].replace("\\040", " ")), inside_of[kind]
        if root == "/" or f"{inside}/".startswith(f"{root}/"):
            file = mount / inside.removeprefix(root).lstrip("/") / _FILES[kind]
            if _count(file) is not None:
                return file
    return None


def _count(path: Path) -> int | None:
    try:
        lines = path.read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    except (OSError, StopIteration, ValueError, IndexError):
        return None
