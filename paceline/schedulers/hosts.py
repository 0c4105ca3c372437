"""Jobs on named hosts, without a scheduler: DeepSpeed's hostfile (``NAME slots=PROCESSES``), MPI and ssh.

Either starts one launcher on each host (MPI: Open MPI, MPICH, Intel MPI); by ssh, what ends one ends all.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.core.files import read_text
from paceline.schedulers import codes
from paceline.schedulers.job import ClusterJob, Rendering
from paceline.schedulers.script_job import RemoteNode, local_job, script_job, variables_of

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


HOSTS = "hosts"


def mpi_job(job: ClusterJob) -> Rendering:
    """Return a script with the command line of ``launch.mpi``, and its file of hosts."""
    hosts = hosts_of(job)
    first = {"MASTER_ADDR": hosts[0]} if hosts else {}
    names = [*variables_of(job, "mpi"), *first, *job.secrets]
    launcher = (*job.command(), "--master-port", str(job.port)) if job.nodes > 1 else job.command()
    argv, line = (
        _hydra(job, names, bool(hosts)) if job.site.mpi != "openmpi" else _open_mpi(job, names, bool(hosts))
    )
    made = script_job(job, "mpi", (*argv, *launcher), first, through_run=True)
    lines = "".join(line.format(host=host) + "\n" for host in hosts)
    return replace(made, files={**made.files, **({HOSTS: lines} if hosts else {})})


def _open_mpi(job: ClusterJob, names: list[str], hosts: bool) -> tuple[list[str], str]:
    # Bound to one core, a launcher would bind its ranks there too
    argv = ["mpirun", "-np", str(job.nodes), "--map-by", "ppr:1:node", "--bind-to", "none"]
    argv += ["--hostfile", str(job.out / HOSTS)] if hosts else []
    argv += [word for name in names for word in ("-x", name)]
    return argv, "{host} slots=1"


def _hydra(job: ClusterJob, names: list[str], hosts: bool) -> tuple[list[str], str]:
    argv = ["mpiexec.hydra", "-n", str(job.nodes), "-ppn", "1"]
    argv += ["-f", str(job.out / HOSTS)] if hosts else []
    argv += ["-genvlist", ",".join(names)]
    argv += ["-genv", "I_MPI_PIN", "off"] if job.site.mpi == "intel" else []
    return argv, "{host}:1"


#: On the node: the secret comes first on its input, not in a command line, where every user could read it.
#: The end of the input, as when this connection is lost, stops the launcher, which saves.
_ON_NODE = """exec 3<&0
secret=$(mktemp) && trap 'rm -f -- "$secret"' EXIT
IFS= read -r line <&3 && printf %s "$line" > "$secret"
[ -z "$line" ] || export PACELINE_STORE_SECRET_FILE="$secret"
"$@" </dev/null & child=$!
( while read -r line; do :; done; kill -TERM "$child"; sleep "$grace"; kill -KILL "$child" ) \\
  <&3 >/dev/null 2>&1 &
watch=$!
wait "$child"; code=$?
kill "$watch" 2>/dev/null
exit "$code\""""


def ssh_job(job: ClusterJob) -> Rendering:
    """Return the script that starts every node; on one node without ``launch.hostfile`` a local job."""
    hosts = hosts_of(job)
    if not hosts:
        return local_job(job)
    nodes = [RemoteNode(host, _remote(job, rank, hosts[0])) for rank, host in enumerate(hosts)]
    made = script_job(job, "ssh", (), {}, nodes)
    notes = ("config, data and program must be at the same paths on all hosts",)
    return replace(made, notes=notes)


def _remote(job: ClusterJob, rank: int, first: str) -> str:
    """Return the text that the remote login shell runs; it may be any POSIX shell."""
    variables = variables_of(job, "ssh")
    variables.pop("PACELINE_STORE_SECRET_FILE", None)
    address = first.rpartition("@")[2]
    meeting = ("--node-rank", str(rank), "--master-addr", address, "--master-port", str(job.port))
    command = shlex.join((*job.command(), *(meeting if job.nodes > 1 else ())))
    lines = [f"cd -- {shlex.quote(str(job.folder))} || exit 2", f"grace={2 * job.site.save_seconds}"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    for name, path in job.secrets.items():
        lines += [f"{name}=$(cat -- {shlex.quote(path)}) || exit 2", f"export {name}"]
    lines += [f"module load {shlex.quote(module)} || exit 2" for module in job.site.modules]
    lines += [f"set -- {command}", _ON_NODE]
    # A login shell that is no POSIX shell gets two words only
    return shlex.join(("bash", "-c", "\n".join(lines)))
