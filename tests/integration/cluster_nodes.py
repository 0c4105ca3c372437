"""Three network namespaces at a bridge as nodes: each with its own name, /etc/hosts and mounts."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

COUNT = 3
DEADLINE = 240.0  # finds a hang
#: In a node's namespaces: its name, its names of hosts, a fault, and then the command.
INSIDE = """
set -e
mount --make-rprivate /
hostname "$1"; mount --bind "$2" /etc/hosts
{fault}
shift 2
exec "$@"
"""


def why_not() -> str:
    """Why there are no such nodes here; empty where there are."""
    if os.geteuid() != 0:
        return "network namespaces as nodes need root"
    name = f"pc-try-{os.getpid()}"
    try:
        subprocess.run(["ip", "netns", "add", name], check=True, capture_output=True)
        inside = "ip link add t0 type bridge && nft list ruleset && mount --make-rprivate /"
        subprocess.run(["ip", "netns", "exec", name, "sh", "-c", inside], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no network namespaces with bridges and nftables here: {error}"
    finally:
        with contextlib.suppress(OSError):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
    return ""


@dataclass
class Fault:
    """What is wrong on one node: ``shell`` runs before the command, in its namespaces; ``argv`` is added."""

    shell: str = ""
    argv: tuple[str, ...] = ()
    environ: dict[str, str] = field(default_factory=dict)
    rank: int | None = None
    absent: bool = False
    hosts: str | None = None


class Nodes:
    """The namespaces; node r has the address 10.97.0.(r+1), the name gpu(r) and the interface eth0."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.switch, self.names = f"pc-{os.getpid()}-sw", [f"pc-{os.getpid()}-{r}" for r in range(COUNT)]

    def up(self) -> None:
        run("ip", "netns", "add", self.switch)
        run("ip", "-n", self.switch, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", self.switch, "link", "set", "br0", "up")
        for r, name in enumerate(self.names):
            port = f"p{r}"
            run("ip", "netns", "add", name)
            run(
                "ip",
                "-n",
                self.switch,
                "link",
                "add",
                port,
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                name,
            )
            run("ip", "-n", self.switch, "link", "set", port, "master", "br0", "up")
            run("ip", "-n", name, "addr", "add", f"{address(r)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                run("ip", "-n", name, "link", "set", device, "up")

    def down(self) -> None:
        for name in (*self.names, self.switch):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def nft(self, node: int, *rules: str) -> None:
        """Filter what arrives at a node."""
        text = "".join(f"add rule inet t i {rule}\n" for rule in rules)
        chain = "add table inet t\nadd chain inet t i { type filter hook input priority 0; }\n"
        argv = ["ip", "netns", "exec", self.names[node], "nft", "-f", "-"]
        subprocess.run(argv, input=chain + text, text=True, check=True, capture_output=True)

    def reset(self) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "exec", name, "nft", "flush", "ruleset"], check=True)
            subprocess.run(
                ["tc", "-n", name, "qdisc", "del", "dev", "eth0", "root"], check=False, capture_output=True
            )
            run("ip", "-n", name, "link", "set", "eth0", "mtu", "1500")

    def start(
        self, node: int, argv: Sequence[str], fault: Fault, environ: dict[str, str]
    ) -> subprocess.Popen[str]:
        hosts = self.folder / f"hosts{node}"
        names = "".join(f"{address(r)} gpu{r}\n" for r in range(COUNT))
        hosts.write_text(f"127.0.0.1 localhost\n{names if fault.hosts is None else fault.hosts}")
        script = INSIDE.format(fault=fault.shell)
        inside = ["unshare", "--mount", "--uts", "sh", "-c", script, "sh", f"gpu{node}", str(hosts), *argv]
        return subprocess.Popen(
            ["ip", "netns", "exec", self.names[node], *inside],
            env={**environ, **fault.environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd=self.folder,
        )

    def doctor(
        self, config: Path, faults: dict[int, Fault] | None = None, *words: str, master: str = "10.97.0.1"
    ) -> list[Report | None]:
        """``paceline doctor CONFIG`` on all nodes; None for one that is absent or was killed."""
        processes = self.begin(config, faults, *words, master=master)
        return [None if process is None else report_of(process) for process in processes]

    def begin(
        self, config: Path, faults: dict[int, Fault] | None = None, *words: str, master: str = "10.97.0.1"
    ) -> list[subprocess.Popen[str] | None]:
        """Start it on all nodes."""
        processes: list[subprocess.Popen[str] | None] = []
        environ = clean_environment(self.folder)
        for node in range(COUNT):
            fault = (faults or {}).get(node, Fault())
            rank = node if fault.rank is None else fault.rank
            argv = [sys.executable, "-m", "paceline.cli.main", "doctor", str(config), "--json"]
            place = ("--nnodes", str(COUNT), "--node-rank", str(rank), "--master-addr", master)
            argv += [*place, "--master-port", "29571", *words, *fault.argv]
            processes.append(None if fault.absent else self.start(node, argv, fault, environ))
        return processes


@dataclass(frozen=True)
class Report:
    """What a node printed: its exit code, lines, and findings."""

    code: int
    lines: list[str]
    findings: list[dict[str, Any]]
    stderr: str

    def codes(self, *severities: str) -> list[str]:
        chosen = severities or ("error", "warning")
        return sorted({finding["code"] for finding in self.findings if finding["severity"] in chosen})

    def of(self, code: str) -> dict[str, Any]:
        return next(finding for finding in self.findings if finding["code"] == code)


def report_of(process: subprocess.Popen[str]) -> Report | None:
    try:
        stdout, stderr = process.communicate(timeout=DEADLINE)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        raise
    if process.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL):
        return None
    try:
        data = json.loads(stdout)
    except ValueError:
        raise AssertionError(f"exit code {process.returncode}\n{stdout}\n{stderr}") from None
    return Report(process.returncode, data["lines"], data["findings"], stderr)


def clean_environment(folder: Path) -> dict[str, str]:
    """An environment without launchers, with a secret."""
    secret = folder / "secret"
    if not secret.exists():
        secret.write_text("a secret of the nodes in this test\n")
        secret.chmod(0o600)
    names = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "SLURM_", "OMPI_", "PMI_")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(names)}
    return {
        **kept,
        "OMP_NUM_THREADS": "1",
        "PACELINE_STORE_SECRET_FILE": str(secret),
        "PACELINE_CACHE": str(folder / "cache"),
    }


def address(node: int) -> str:
    return f"10.97.0.{node + 1}"


def run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@contextlib.contextmanager
def three_nodes(folder: Path) -> Iterator[Nodes]:
    nodes = Nodes(folder)
    try:
        nodes.up()
        yield nodes
    finally:
        nodes.down()
