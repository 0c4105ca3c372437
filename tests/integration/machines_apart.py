"""Machines for a test: network and host-name namespaces of this one, each with an sshd of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from ranks import base_environment

_PROGRAMS = ("ip", "unshare", "ssh", "sshd", "ssh-keygen")


def missing(*programs: str) -> str:
    """Why such machines cannot be made here; empty if they can."""
    absent = [name for name in (*_PROGRAMS, *programs) if _found(name) is None]
    if absent:
        return f"not installed: {', '.join(absent)}"
    return "" if os.geteuid() == 0 else "a network namespace needs root"


def _found(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


class MachinesApart:
    """``hosts`` are their addresses; ``environ`` has an ``ssh`` on PATH that knows their keys."""

    def __init__(self, folder: Path, count: int = 2) -> None:
        self.folder, self._mark = folder, f"pl{os.getpid() % 10000}"
        self._net = f"10.{os.getpid() % 200 + 20}.{os.getpid() // 200 % 250}"
        self.hosts = [f"{self._net}.{number + 1}" for number in range(count)]
        self._spaces = [f"{self._mark}n{number}" for number in range(count)]
        self._daemons: list[subprocess.Popen[bytes]] = []
        folder.mkdir(parents=True)
        (folder / "bin").mkdir()
        self.environ = {**base_environment(), "PATH": f"{folder}/bin:{os.environ['PATH']}:/usr/sbin:/sbin"}
        self.environ |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

    def __enter__(self) -> MachinesApart:
        bridge = f"{self._mark}br"
        self._ip("link", "add", bridge, "type", "bridge")
        self._ip("addr", "add", f"{self._net}.254/24", "dev", bridge)
        self._ip("link", "set", bridge, "up")
        # This machine may have other networks, and a name that leads the others to themselves
        self.environ |= {"HYDRA_IFACE": bridge, "OMPI_MCA_oob_tcp_if_include": f"{self._net}.0/24"}
        keys = self.folder / "key", self.folder / "host-key"
        for key in keys:
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
        shutil.copy(self.folder / "key.pub", self.folder / "authorized")
        (self.folder / "ssh.conf").write_text(
            f"Host *\n User root\n IdentityFile {self.folder}/key\n IdentitiesOnly yes\n"
            " StrictHostKeyChecking no\n UserKnownHostsFile /dev/null\n LogLevel ERROR\n"
        )
        ssh = self.folder / "bin/ssh"
        ssh.write_text(f'#!/bin/sh\nexec {_found("ssh")} -F {self.folder}/ssh.conf "$@"\n')
        ssh.chmod(0o755)
        Path("/run/sshd").mkdir(exist_ok=True)  # where sshd gives up its rights
        for number, (space, host) in enumerate(zip(self._spaces, self.hosts, strict=True)):
            self._ip("netns", "add", space)
            self._ip("link", "add", f"{space}h", "type", "veth", "peer", "name", "eth0", "netns", space)
            self._ip("link", "set", f"{space}h", "master", bridge, "up")
            self._ip("-n", space, "addr", "add", f"{host}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                self._ip("-n", space, "link", "set", device, "up")
            options = [f"HostKey={self.folder}/host-key", f"AuthorizedKeysFile={self.folder}/authorized"]
            options += [
                "StrictModes=no",
                "PidFile=none",
                "UsePAM=no",
                "PermitRootLogin=yes",
                "SetEnv=OMP_NUM_THREADS=1",
            ]
            words = [word for option in options for word in ("-o", option)]
            daemon = ["ip", "netns", "exec", space, "unshare", "--uts", "sh", "-c"]
            daemon += [
                f'hostname node{number}; exec "$@"',
                "sh",
                str(_found("sshd")),
                "-D",
                "-e",
                "-f",
                "/dev/null",
                *words,
            ]
            with (self.folder / f"sshd-{number}.log").open("wb") as log:
                self._daemons.append(subprocess.Popen(daemon, stdout=log, stderr=log, env=self.environ))
        for host in self.hosts:
            end = time.monotonic() + 60
            while subprocess.run(["ssh", host, "true"], env=self.environ, capture_output=True).returncode:
                assert time.monotonic() < end, [path.read_text() for path in self.folder.glob("sshd-*.log")]
                time.sleep(0.2)
        return self

    def _ip(self, *arguments: str, check: bool = True) -> None:
        subprocess.run(["ip", *arguments], env=self.environ, check=check, capture_output=not check)

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for daemon in self._daemons:
            daemon.terminate()
            daemon.wait(20)
        for space in self._spaces:
            inside = subprocess.run(["ip", "netns", "pids", space], env=self.environ, capture_output=True)
            for pid in inside.stdout.split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            self._ip("netns", "del", space, check=False)
        self._ip("link", "del", f"{self._mark}br", check=False)
