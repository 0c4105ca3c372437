"""The hosts of a job without a scheduler: a file in DeepSpeed's format, ``NAME slots=PROCESSES``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.core.files import read_text
from paceline.schedulers import codes
from paceline.schedulers.job import ClusterJob

_KEY, _LINE = "launch.hostfile", "NAME slots=PROCESSES"
#: a name, an address, or USER@NAME; nothing that ssh would take for an option
_HOST = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9_\[][A-Za-z0-9_.:\]-]*", re.ASCII)


@dataclass(frozen=True)
class HostLine:
    """One host and the processes that it holds."""

    name: str
    slots: int | None


def hosts_of(job: ClusterJob) -> tuple[str, ...]:
    """Return the hosts of the job's nodes, none without a file and on one node. Raises ConfigError."""
    if job.site.hostfile is None:
        if job.nodes == 1:
            return ()
        raise ConfigError(
            codes.SCHEDULERS_HOSTFILE(
                "no file names the hosts of the nodes",
                _KEY,
                "not given",
                f"{_KEY}: FILE, with a line a node: {_LINE}",
            )
        )
    path = Path(job.site.hostfile).expanduser()
    try:
        lines = read_hosts(read_text(job.folder / path))
    except (OSError, ValueError) as error:
        why = f"the file of hosts cannot be read: {error}"
        hint = f"a line a node: {_LINE}"
        raise ConfigError(codes.SCHEDULERS_HOSTFILE(why, _KEY, str(path), hint)) from error
    problems = [*_problems(lines, job, str(path))]
    if problems:
        raise ConfigError(*problems)
    return tuple(line.name for line in lines[: job.nodes])


def read_hosts(text: str) -> list[HostLine]:
    """Return the hosts of a file; comments and empty lines are left out. Raises ValueError."""
    hosts = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        slots = re.fullmatch(r"slots=(\d{1,5})", words[1]) if len(words) == 2 else None
        if not _HOST.fullmatch(words[0]) or len(words) > 2 or (len(words) == 2 and slots is None):
            raise ValueError(f"line {number}: {line.strip()[:80]!r} is not {_LINE}")
        hosts.append(HostLine(words[0], int(slots[1]) if slots else None))
    return hosts


def _problems(lines: list[HostLine], job: ClusterJob, path: str) -> list[Diagnostic]:
    names = [line.name for line in lines]
    problems = []
    if len(lines) < job.nodes:
        why = f"it has {len(lines)} hosts, and the job {job.nodes} nodes"
        hint = f"--nodes {len(lines)}, or further hosts" if lines else f"a line a node: {_LINE}"
        problems.append(codes.SCHEDULERS_HOSTFILE(why, _KEY, path, hint))
    if twice := sorted({name for name in names if names.count(name) > 1}):
        why, hint = "a host stands in it twice", "a line a host, with its slots together"
        problems.append(codes.SCHEDULERS_HOSTFILE(why, _KEY, ", ".join(twice), hint))
    few = [line.name for line in lines[: job.nodes] if line.slots is not None and line.slots < job.nproc]
    if few:
        why = f"hosts have fewer slots than the {job.nproc} ranks of a node"
        hint = f"slots={job.nproc} where a host has as many devices; else a smaller --nproc"
        problems.append(codes.SCHEDULERS_HOSTFILE(why, _KEY, ", ".join(few), hint))
    return problems
