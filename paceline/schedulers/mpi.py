"""MPI's own command starts one launcher on each node: Open MPI, MPICH and Intel MPI."""

from __future__ import annotations

from dataclasses import replace

from paceline.schedulers.hosts import hosts_of
from paceline.schedulers.job import ClusterJob, Rendering
from paceline.schedulers.script_job import script_job, variables_of

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
