"""Nodes without a scheduler, reached by ssh: one launcher on each; what ends one ends all."""

from __future__ import annotations

import shlex
from dataclasses import replace

from paceline.schedulers.hosts import hosts_of
from paceline.schedulers.job import ClusterJob, Rendering
from paceline.schedulers.local import local_job
from paceline.schedulers.script_job import RemoteNode, script_job, variables_of

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
