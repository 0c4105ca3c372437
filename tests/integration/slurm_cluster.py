"""A real Slurm of this machine: slurmctld and two slurmd in a folder, with ports of their own."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from ranks import base_environment, free_port

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel")
_SIZE = "CPUs=8 RealMemory=1024"
_NODES = ("node1", "node2")


def missing() -> str:
    """Why no Slurm can run here; empty if one can."""
    gone = [name for name in PROGRAMS if _program(name) is None]
    if gone:
        return f"not installed: {', '.join(gone)} (Debian: slurmctld, slurmd, slurm-client)"
    return "" if os.geteuid() == 0 else "slurmd starts jobs as root alone"


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")


class SlurmCluster:
    """Two nodes, one after another address of this host; ``call`` runs a command of Slurm."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._daemons = folder, dict[str, subprocess.Popen[bytes]]()
        host, user = socket.gethostname(), getpass.getuser()
        (folder / "state").mkdir(parents=True)
        nodes = "".join(
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} {_SIZE}\n"
            for node in _NODES
        )
        (folder / "slurm.conf").write_text(
            f"""ClusterName=paceline
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={free_port()}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
MailProg=/bin/true
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
SlurmdParameters=config_overrides
KillWait=20
OverTimeLimit=0
SlurmdTimeout=20
ReturnToService=2
{nodes}PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
""",
            encoding="utf-8",
        )
        self.environ = {
            **base_environment(),
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": f"{os.environ['PATH']}:/usr/sbin",
        }

    def __enter__(self) -> SlurmCluster:
        self._start("slurmctld", "slurmctld", "-D", "-i")
        for node in _NODES:
            self.start_node(node)
        end = time.monotonic() + 60
        while self.call("sinfo", "-h", "-o", "%t %D").strip() != f"idle {len(_NODES)}":
            assert time.monotonic() < end, self.logs()
            time.sleep(0.5)
        return self

    def start_node(self, node: str) -> None:
        self._start(node, "slurmd", "-D", "-N", node)

    def kill_node(self, node: str) -> None:
        """End a node's slurmd and what it runs, as a machine that goes away."""
        daemon = self._daemons.pop(node)
        daemon.kill()
        daemon.wait()

    def _start(self, name: str, program: str, *arguments: str) -> None:
        path = _program(program)
        assert path is not None
        with (self.folder / f"{name}.out").open("wb") as out:
            self._daemons[name] = subprocess.Popen(
                [path, *arguments], env=self.environ, stdout=out, stderr=out, start_new_session=True
            )

    def call(self, *argv: str, check: bool = True) -> str:
        """Run a command and return what it prints, standard error included where it fails."""
        done = subprocess.run(argv, env=self.environ, capture_output=True, text=True, timeout=60, check=False)
        assert not check or done.returncode == 0, (argv, done.stdout, done.stderr)
        return done.stdout if done.returncode == 0 else done.stdout + done.stderr

    def state(self, job: str) -> str:
        """Return a job's state, as RUNNING; of an array's task as ``ID_TASK``."""
        shown = self.call("scontrol", "-o", "show", "job", job)
        return shown.partition("JobState=")[2].split()[0]

    def logs(self) -> str:
        texts = [path.read_text(errors="replace")[-3000:] for path in sorted(self.folder.glob("*.log"))]
        return "\n".join([*texts, *(path.read_text(errors="replace") for path in self.folder.glob("*.out"))])

    def __exit__(self, *_: object) -> None:
        subprocess.run(
            ["scancel", "--user", getpass.getuser()],
            env=self.environ,
            capture_output=True,
            timeout=60,
            check=False,
        )
        for daemon in reversed(self._daemons.values()):
            daemon.send_signal(signal.SIGTERM)
        for daemon in self._daemons.values():
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(daemon.pid, signal.SIGKILL)
                daemon.wait()
