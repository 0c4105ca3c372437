"""``paceline doctor CONFIG`` on three nodes, each a network namespace: planted faults are named with node and
remedy, and nothing is found on healthy ones. ``pytest -m cluster tests/integration/test_doctor_nodes.py``.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster_nodes import COUNT, DEADLINE, Fault, Nodes, report_of, run, three_nodes, why_not
from support import write_rows, write_tokenizer

import paceline

pytestmark = [pytest.mark.integration, pytest.mark.cluster, pytest.mark.slow]
REPEATS = int(os.environ.get("REPEATS", "3"))  # of the healthy check; 100 were run by hand


class Job:
    """A folder that all nodes see, with a config, a model, rows, and a folder for the run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.config = folder, folder / "job.yaml"
        self.rows, self.out = folder / "rows" / "train.json", folder / "out"
        self.model = folder / "model"
        self.out.mkdir()
        self.rows.parent.mkdir()
        write_rows(self.rows, 60)
        write_tokenizer(self.model)
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        torch.manual_seed(0)
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
        LlamaForCausalLM(LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=512)).save_pretrained(
            self.model
        )
        self.config.write_text(
            f"model: {{name_or_path: {self.model}}}\n"
            f"data: {{train: {self.rows}, max_length: 96, cache_dir: {folder}/cache}}\n"
            f"training: {{output_dir: {self.out}/run, max_steps: 4, report_to: none, use_cpu: true}}\n"
        )

    def other(self, file: Path) -> str:
        """A shell line that puts another content of the same size in a file's place."""
        copy = self.folder / f"other-{file.name}"
        data = bytearray(file.read_bytes())
        data[-20] ^= 1
        copy.write_bytes(bytes(data))
        return f"mount --bind {copy} {file}"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    if reason := why_not():
        pytest.skip(reason)
    with three_nodes(tmp_path_factory.mktemp("nodes")) as up:
        yield up


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    return Job(tmp_path_factory.mktemp("job"))


@pytest.fixture(autouse=True)
def as_before(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    request.getfixturevalue("nodes").reset()


@pytest.mark.parametrize("repeat", range(REPEATS))
def test_nothing_is_found_on_healthy_nodes(nodes: Nodes, job: Job, repeat: int) -> None:
    reports = nodes.doctor(job.config)
    for report in reports:
        assert report is not None and report.code == 0 and report.findings == [], (report, repeat)
        assert report.lines == reports[0].lines and "all-reduce" in report.lines[-1]  # type: ignore[union-attr]
    assert not list(job.out.iterdir()), "it leaves nothing behind"


def stub(folder: Path, name: str, version: str) -> Fault:
    """Another version of a package, as another environment has it."""
    info = folder / f"site-{name}" / f"{name}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return Fault(environ={"PYTHONPATH": str(info.parent)})


def shadowed(folder: Path, name: str) -> Fault:
    """A package of the user that hides the installed one."""
    package = folder / "shadow" / name
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").write_text("__version__ = '1.2.3'\n")
    return Fault(environ={"PYTHONPATH": str(package.parent)})


def other_checkout(folder: Path) -> Fault:
    root = folder / "checkout"
    if not root.exists():
        shutil.copytree(Path(paceline.__file__).parent, root / "paceline")
        with (root / "paceline/core/units.py").open("a") as file:
            file.write("# changed\n")
    return Fault(environ={"PYTHONPATH": str(root)})


def shifted_clock(folder: Path, seconds: float) -> Fault:
    site = folder / f"clock{seconds}"
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text(
        f"import time\n_now = time.time\ntime.time = lambda: _now() + {seconds}\n"
    )
    return Fault(environ={"PYTHONPATH": str(site)})


#: name → (the fault, its node, the code, and a word of the remedy)
Make = Callable[[Job], Fault]
ON_NODE: dict[str, tuple[Make, int, str, str]] = {
    "another version": (
        lambda job: stub(job.folder, "transformers", "4.0.1"),
        2,
        "node.version",
        "same version",
    ),
    "another NCCL": (
        lambda job: stub(job.folder, "nvidia_nccl_cu12", "2.1.0"),
        1,
        "node.version",
        "container image",
    ),
    "another checkout": (lambda job: other_checkout(job.folder), 1, "node.version", "same version"),
    "other data": (lambda job: Fault(job.other(job.rows)), 2, "node.files", "rsync"),
    "no data": (lambda job: Fault(f"mount -t tmpfs none {job.rows.parent}"), 2, "node.files", "rsync"),
    "another model file": (
        lambda job: Fault(job.other(job.model / "model.safetensors")),
        1,
        "node.files",
        "rsync",
    ),
    "another config": (
        lambda job: Fault(argv=("training.learning_rate=0.0002",)),
        2,
        "node.config",
        "same config",
    ),
    "another number of processes": (
        lambda job: Fault(argv=("--nproc", "2")),
        1,
        "node.config",
        "same overrides",
    ),
    "another variable": (
        lambda job: Fault(environ={"NCCL_ALGO": "Ring"}),
        1,
        "node.environment",
        "every node",
    ),
    "five minutes ahead": (lambda job: shifted_clock(job.folder, 300), 2, "node.clock", "chrony"),
    "four seconds behind": (lambda job: shifted_clock(job.folder, -4), 0, "node.clock", "chrony"),
    "a read-only disk": (
        lambda job: Fault(f"mount --bind {job.out} {job.out}; mount -o remount,bind,ro {job.out}"),
        2,
        "node.folder",
        "output_dir",
    ),
    "a full disk": (
        lambda job: Fault(f"mount -t tmpfs -o size=1m none {job.out}"),
        1,
        "node.disk_full",
        "df -h",
    ),
    "no files left": (
        lambda job: Fault(f"mount -t tmpfs -o nr_inodes=20 none {job.out}"),
        1,
        "node.inodes",
        "df -i",
    ),
    "a folder not shared": (
        lambda job: Fault(f"mount -t tmpfs none {job.out}"),
        2,
        "node.not_shared",
        "findmnt",
    ),
    "node 0 does not share": (
        lambda job: Fault(f"mount -t tmpfs none {job.out}"),
        0,
        "node.not_shared",
        "findmnt",
    ),
    "a name on loopback": (
        lambda job: Fault(hosts="127.0.1.1 gpu1\n10.97.0.1 gpu0\n10.97.0.3 gpu2\n"),
        1,
        "node.name_loopback",
        "127.0.1.1",
    ),
    "another's name on loopback": (
        lambda job: Fault(hosts="127.0.1.1 gpu2\n10.97.0.1 gpu0\n10.97.0.2 gpu1\n"),
        1,
        "node.name_wrong",
        "/etc/hosts",
    ),
    "tiny /dev/shm": (
        lambda job: Fault("mount -t tmpfs -o size=64m none /dev/shm"),
        2,
        "doctor.shm",
        "shm-size",
    ),
    "few open files": (lambda job: Fault("ulimit -n 512"), 1, "doctor.files", "ulimit -n"),
    "few processes": (lambda job: Fault("prlimit --nproc=50 --pid $$"), 1, "node.processes", "ulimit -u"),
    "few addresses": (lambda job: Fault("ulimit -v 4000000"), 2, "node.addresses", "ulimit -v unlimited"),
    "an interface that is not there": (
        lambda job: Fault(environ={"GLOO_SOCKET_IFNAME": "ib0"}),
        1,
        "node.interface",
        "GLOO_SOCKET_IFNAME=eth0",
    ),
    "an interface of another network": (
        lambda job: Fault(
            "ip link add dummy0 type bridge; ip addr add 10.99.0.1/24 dev dummy0; ip link set dummy0 up",
            environ={"GLOO_SOCKET_IFNAME": "dummy0"},
        ),
        *(2, "node.network", "same network"),
    ),
    "another file of a package": (
        lambda job: shadowed(job.folder, "transformers"),
        *(1, "node.version", "same version"),
    ),
    "loopback as interface": (
        lambda job: Fault(environ={"NCCL_SOCKET_IFNAME": "lo"}),
        2,
        "node.interface",
        "NCCL_SOCKET_IFNAME=eth0",
    ),
}


#: What is true of the same fault as well.
ALSO = {
    "no data": ("data.missing",),
    "a full disk": ("node.not_shared", "save.disk"),
    "no files left": ("node.not_shared",),
    "an interface of another network": ("runtime.first_reduce", "runtime.rendezvous", "node.ranks"),
}


@pytest.mark.parametrize("name", ON_NODE)
def test_a_fault_of_a_node_is_named_with_node_and_remedy(nodes: Nodes, job: Job, name: str) -> None:
    make, node, code, remedy = ON_NODE[name]
    reports = nodes.doctor(job.config, {node: make(job)})
    first = reports[0]
    assert first is not None
    found = first.of(code)
    assert f"gpu{node}" in found["where"] and remedy in found["hint"], found
    assert not any(f"gpu{other}" in found["where"] for other in range(COUNT) if other != node), found
    for report in reports:
        assert report is not None and report.findings == first.findings
        assert report.code == (1 if any(f["severity"] == "error" for f in first.findings) else 0)
    assert set(first.codes()) <= {code, *ALSO.get(name, ())}, first.codes()


SYN = "tcp flags & (syn | ack) == syn"
Plant = Callable[[Nodes], None]
#: name → (the fault of the network, the code, names in its place, a word of what was found, of the remedy)
IN_NETWORK: dict[str, tuple[Plant, str, set[str], str, str]] = {
    "a port closed one way": (
        lambda n: n.nft(2, f"ip saddr 10.97.0.2 {SYN} drop"),
        *("node.port", {"gpu2"}, "dropped, from node 1 (gpu1)", "nft list ruleset"),
    ),
    "ports closed both ways": (
        lambda n: (n.nft(2, f"ip saddr 10.97.0.2 {SYN} drop"), n.nft(1, f"ip saddr 10.97.0.3 {SYN} drop"))[0],
        *("node.port", {"gpu1", "gpu2"}, "dropped, from node", "nft list ruleset"),
    ),
    "ports that reject": (
        lambda n: n.nft(1, f"tcp dport != 29571 {SYN} reject with tcp reset"),
        *("node.port", {"gpu1"}, "refused, from node 0 (gpu0), node 2 (gpu2)", "nft list ruleset"),
    ),
    "a slow node": (
        lambda n: tc(n, 2, "tbf", "rate", "8mbit", "burst", "32kbit", "latency", "400ms"),
        *("node.link_slow", {"gpu0", "gpu1", "gpu2"}, "/s in the middle", "ethtool"),
    ),
    "a slow pair": (
        lambda n: n.nft(1, "ip saddr 10.97.0.3 limit rate over 800 kbytes/second drop"),
        *("node.link_slow", {"gpu2", "gpu1"}, "/s in the middle", "ethtool"),
    ),
    "large packets are lost": (
        lambda n: n.nft(1, "ip saddr 10.97.0.3 meta length > 1200 drop"),
        *("node.large_packets", {"gpu2", "gpu1"}, "0 of", "mtu"),
    ),
    "another MTU": (
        lambda n: ip(n, 1, "link", "set", "eth0", "mtu", "1400"),
        *("node.network", {"gpu1"}, "1400 there, 1500", "ip link"),
    ),
}


def tc(nodes: Nodes, node: int, *words: str) -> None:
    run("tc", "-n", nodes.names[node], "qdisc", "add", "dev", "eth0", "root", *words)


def ip(nodes: Nodes, node: int, *words: str) -> None:
    run("ip", "-n", nodes.names[node], *words)


@pytest.mark.parametrize("name", IN_NETWORK)
def test_a_fault_of_the_network_is_named_with_nodes_and_remedy(nodes: Nodes, job: Job, name: str) -> None:
    plant, code, places, shown, remedy = IN_NETWORK[name]
    plant(nodes)
    reports = nodes.doctor(job.config)
    first = reports[0]
    assert first is not None
    of_code = [finding for finding in first.findings if finding["code"] == code]
    assert {host for host in ("gpu0", "gpu1", "gpu2") for f in of_code if host in f["where"]} == places, first
    assert all(shown in f["found"] and remedy in f["hint"] for f in of_code), of_code
    assert first.codes() == [code] and all(r is not None and r.findings == first.findings for r in reports)


#: name → (faults by node, words for all, and by node the codes that it reports)
NO_MEETING: dict[str, tuple[Callable[[Job], dict[int, Fault]], str, list[str | None]]] = {
    "a missing node": (
        lambda job: {2: Fault(absent=True)},
        "10.97.0.1",
        ["node.missing", "node.missing", None],
    ),
    "node 0 is missing": (
        lambda job: {0: Fault(absent=True)},
        "10.97.0.1",
        [None, "node.no_master", "node.no_master"],
    ),
    "two nodes of one rank": (
        lambda job: {2: Fault(rank=1)},
        "10.97.0.1",
        ["node.rank_twice", "node.rank_twice", "node.rank_twice"],
    ),
    "two first nodes": (
        lambda job: {2: Fault(rank=0)},
        "10.97.0.1",
        ["node.missing", "node.missing", "node.master"],
    ),
    "another secret": (
        lambda job: {
            1: Fault(
                environ={
                    "PACELINE_STORE_SECRET_FILE": "",
                    "PACELINE_STORE_SECRET": "another secret than theirs",
                }
            )
        },
        *("10.97.0.1", ["node.other_secret", "node.other_secret", "node.other_secret"]),
    ),
    "no secret": (
        lambda job: {1: Fault(environ={"PACELINE_STORE_SECRET_FILE": ""})},
        *("10.97.0.1", ["node.missing", "launch.store_unsigned", "node.missing"]),
    ),
    "another number of nodes": (
        lambda job: {2: Fault(argv=("--nnodes", "4"))},
        *("10.97.0.1", ["node.other_nnodes", "node.other_nnodes", "node.other_nnodes"]),
    ),
    "a loopback master": (lambda job: {}, "127.0.0.1", ["node.master_loopback"] * 3),
    "a master by a name on loopback": (
        lambda job: {0: Fault(hosts="127.0.1.1 gpu0\n10.97.0.2 gpu1\n10.97.0.3 gpu2\n")},
        *("gpu0", ["node.master_loopback", "node.no_master", "node.no_master"]),
    ),
    "a master whose name is unknown": (
        lambda job: {2: Fault(hosts="10.97.0.3 gpu2\n")},
        *("gpu0", ["node.missing", "node.missing", "node.master"]),
    ),
}


@pytest.mark.parametrize("name", NO_MEETING)
def test_nodes_that_cannot_meet_are_named_by_those_that_are_there(nodes: Nodes, job: Job, name: str) -> None:
    faults, master, expected = NO_MEETING[name]
    reports = nodes.doctor(job.config, faults(job), "--wait", "8", master=master)
    for report, code in zip(reports, expected, strict=True):
        if report is None:
            assert code is None
            continue
        assert report.code == 1 and code in report.codes("error"), (name, reports)
        assert all(f["hint"] and f["where"] for f in report.findings), report


def test_a_closed_port_of_node_0_is_named_on_both_sides(nodes: Nodes, job: Job) -> None:
    nodes.nft(0, "ip saddr 10.97.0.3 tcp dport 29571 drop")
    first, second, third = nodes.doctor(job.config, None, "--wait", "8")
    assert first is not None and second is not None and third is not None
    assert "node 2" in first.of("node.missing")["where"] and second.findings == first.findings
    found = third.of("node.no_master")
    assert "10.97.0.1:29571: no answer" in found["found"] and "firewall" in found["hint"]


@pytest.mark.parametrize("node", [1, 0])
def test_a_node_that_leaves_during_the_check_is_named(nodes: Nodes, job: Job, node: int) -> None:
    processes = nodes.begin(job.config)
    deadline = time.monotonic() + DEADLINE
    while not list(job.out.glob(f".paceline-doctor-*-{node}")):  # it is there from a step in the middle on
        assert time.monotonic() < deadline
        time.sleep(0.01)
    leaving = processes[node]
    assert leaving is not None
    leaving.kill()
    for rank, process in enumerate(processes):
        assert process is not None
        one = report_of(process)
        if rank != node:
            assert one is not None and one.code == 1
            assert one.of("node.lost")["where"].startswith(f"node {node}"), one
    for left in job.out.glob(".paceline-doctor-*"):  # a killed node cannot delete its own
        left.unlink()


def test_too_little_memory_of_a_container_is_named(nodes: Nodes, job: Job) -> None:
    group = f"/sys/fs/cgroup/memory/pc-{os.getpid()}"
    root = "/sys/fs/cgroup"
    mounted = f"mount -t tmpfs none {root}; mkdir {root}/memory; mount -t cgroup -o memory none {root}/memory"
    limit = f"mkdir -p {group}; echo 240M > {group}/memory.limit_in_bytes; echo $$ > {group}/tasks"
    first, *_ = nodes.doctor(job.config, {2: Fault(f"{mounted}; {limit}")})
    assert first is not None
    found = next(f for f in first.findings if "memory" in f["what"] and "gpu2" in f["where"])
    assert found["hint"], first


def test_a_disk_that_is_slow_to_flush_is_named(nodes: Nodes, job: Job) -> None:
    if not Path("/sys/fs/cgroup/blkio").is_dir():
        pytest.skip("no blkio controller of cgroup v1, which slows a disk down")
    device = os.stat(job.out).st_dev
    root, group = job.folder / "blkio", f"pc-{os.getpid()}"
    limits = f"{os.major(device)}:{os.minor(device)} 4"
    slow = f"mkdir -p {root}/{group}; echo '{limits}' > {root}/{group}/blkio.throttle.write_iops_device"
    shell = f"mkdir -p {root}; mount -t cgroup -o blkio none {root}; {slow}; echo $$ > {root}/{group}/tasks"
    first, *_ = nodes.doctor(job.config, {1: Fault(shell)})
    assert first is not None and first.codes() == ["node.fsync"]
    found = first.of("node.fsync")
    assert "gpu1" in found["where"] and "save_async" in found["hint"] and "all-reduce" in first.lines[-1]


BROKEN = """
import sys
class Broken:
    def find_spec(self, name, path=None, target=None):
        if name == "torch._C":
            raise ImportError("libtorch_cpu.so: invalid ELF header")
sys.meta_path.insert(0, Broken())
"""


def test_a_rank_that_cannot_start_is_named_by_the_all_reduce(nodes: Nodes, job: Job) -> None:
    """The files of torch are there and alike; only an import shows that its library cannot be loaded."""
    site = job.folder / "broken"
    site.mkdir()
    (site / "sitecustomize.py").write_text(BROKEN)
    for report in nodes.doctor(job.config, {2: Fault(environ={"PYTHONPATH": str(site)})}):
        assert report is not None and report.code == 1
        found = report.of("node.ranks")
        assert "gpu2" in found["where"] and "invalid ELF header" in found["found"]
