"""What a node finds out about itself: its plan, versions, files, network, disk, limits and cards.

Files that a config names are hashed whole where they are small, else by samples.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import ConfigError, PacelineError
from paceline.core.files import open_file
from paceline.core.json_types import Json, leaves
from paceline.core.package import PACKAGE, PACKAGE_VERSION
from paceline.core.rundir import RunDir
from paceline.core.security.secrets import without_secrets
from paceline.core.units import human_bytes
from paceline.doctor import codes as doctor_codes
from paceline.doctor.inspect import Inspection, inspect
from paceline.doctor.nodes import codes
from paceline.doctor.nodes.cards import card_facts, card_findings
from paceline.doctor.nodes.messages import FileDigest, NodeFacts
from paceline.doctor.nodes.network import interface_facts, interface_findings
from paceline.doctor.nodes.partners import addresses_of
from paceline.doctor.nodes.run_folder import folder_findings
from paceline.doctor.report import findings as machine_findings
from paceline.launch import codes as launch_codes
from paceline.launch.preflight.load_config import load
from paceline.launch.preflight.plan_job import planned
from paceline.launch.process_spec import Cluster, LaunchOptions
from paceline.plan.cost.memory.fits import room_of
from paceline.plan.hardware.device_files import driver_version
from paceline.plan.hardware.probe import probe
from paceline.plan.model.read_config import cached_model_dir
from paceline.runlog.redact import Redactor

if TYPE_CHECKING:
    from paceline.config.load import Loaded
    from paceline.config.schema import Config
    from paceline.plan.hardware.probe import Hardware
    from paceline.plan.plan import Plan


THREADS = 64  # of a rank: torch's, the loaders', NCCL's
_ADDRESSES = 16 << 30  # bytes of address space that a rank with torch reserves at least
#: Notes about one machine that matter on each of several.
_MATTERS = (doctor_codes.DOCTOR_SHM.name, doctor_codes.DOCTOR_FILES.name)


def of_several(findings: tuple[Diagnostic, ...]) -> list[Diagnostic]:
    """Return the findings about one machine that count for a node: notes about tools are left out."""
    kept = [f for f in findings if f.severity is not Severity.NOTE or f.code in _MATTERS]
    return [replace(f, severity=Severity.WARNING) if f.severity is Severity.NOTE else f for f in kept]


def memory_findings(plan: Plan, hardware: Hardware, available: int) -> Iterator[Diagnostic]:
    """Compare the host memory that is free now with what the plan needs in any case.

    The whole memory, and a cgroup's limit, are compared where the plan is made.
    """
    room = room_of(plan, hardware)
    need = max(room.start_host, room.states_host or 0) if room is not None else 0
    if 0 < available < need:
        yield codes.NODE_MEMORY(
            "host memory",
            f"{human_bytes(available)} of {human_bytes(hardware.host_memory_bytes)} are free",
            need=human_bytes(need),
        )


def limit_findings(ranks: int) -> Iterator[Diagnostic]:
    """Look at the limits of this process, which the ``ranks`` of this node inherit."""
    addresses = resource.getrlimit(resource.RLIMIT_AS)[0]
    if addresses != resource.RLIM_INFINITY:
        severity = Severity.ERROR if addresses < _ADDRESSES else Severity.WARNING
        yield codes.NODE_ADDRESSES("ulimit -v", human_bytes(addresses), severity=severity)
    processes = process_limit()
    if processes is not None and processes < ranks * THREADS:
        yield codes.NODE_PROCESSES(
            "ulimit -u, pids.max", f"{processes} can still be started", need=ranks * THREADS, ranks=ranks
        )


def process_limit(root: Path = Path("/")) -> int | None:
    """Return how many processes and threads the cgroup or the user may still start; None without a limit."""
    left = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, group = (line.split(":", 2) + ["", ""])[:3]
        if controllers in ("", "pids"):
            top = root / "sys/fs/cgroup" / controllers
            for folder in (top / group.lstrip("/"), *(top / group.lstrip("/")).parents):
                most, now = _read(folder / "pids.max").strip(), _read(folder / "pids.current").strip()
                if most.isdecimal() and now.isdecimal():
                    left.append(int(most) - int(now))
                if folder == top:
                    break
    soft = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if soft != resource.RLIM_INFINITY:
        left.append(soft)
    return min(left, default=None)


def memory_available(root: Path = Path("/")) -> int:
    """Return the bytes of host memory that are free or can be freed; 0 if unknown."""
    lines = _read(root / "proc/meminfo").splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), 0)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


#: Variables that change a run and should be alike on all nodes.
_PREFIXES = (
    *("NCCL_", "GLOO_", "TORCH_", "PYTORCH_", "CUDA_", "OMP_", "MKL_", "UCX_", "FI_", "HF_HUB_"),
    *("TRANSFORMERS_", "TOKENIZERS_", "PYTHONHASHSEED", "LD_PRELOAD", "LD_LIBRARY_PATH"),
)
#: They may differ: names of interfaces and devices, and folders of a node's own.
_OWN_LIMIT = ("_IFNAME", "_HCA", "VISIBLE_DEVICES", "_DIR", "_HOME", "_FILE", "_CACHE", "_TOKEN")


def environment_facts(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are compared over the nodes."""
    return {
        name: value[:200]
        for name, value in sorted(environ.items())
        if name.startswith(_PREFIXES) and not name.endswith(_OWN_LIMIT)
    }


WHOLE_BYTES = 64 << 20  # files up to this size are hashed whole
_SAMPLE, _SAMPLES = 1 << 20, 16  # of larger ones: this many pieces, from the first to the last byte
SECONDS = 30.0  # for all files; what comes later has its size alone
_MOST_FILES = 20_000  # of a folder that are looked at, in the order of their names
_NAMED = 200  # files in a message; the rest is one entry


def named_files(
    config: Config, environ: Mapping[str, str], seconds: float = SECONDS
) -> tuple[FileDigest, ...]:
    """Return the model's and the data's files that are on this machine."""
    deadline = time.monotonic() + seconds
    digests = []
    for key, path in _paths(config, environ).items():
        for file in islice(_files(path), _MOST_FILES):
            name = file.name if file == path else str(file.relative_to(path))
            try:
                size = file.stat().st_size
                digest = digest_of(file, size) if time.monotonic() < deadline else ""
            except OSError as error:
                digests.append(FileDigest(key, name, -1, error.strerror or "unreadable"))
            else:
                digests.append(FileDigest(key, name, size, digest))
        if not path.exists():
            digests.append(FileDigest(key, str(path), -1, "missing"))
    return _bounded(digests)


def _bounded(digests: list[FileDigest]) -> tuple[FileDigest, ...]:
    first, rest = digests[:_NAMED], digests[_NAMED:]
    if not rest:
        return tuple(first)
    whole = hashlib.sha256("\n".join(map(repr, rest)).encode()).hexdigest()[:16]
    return (*first, FileDigest(rest[0].key, f"{len(rest)} further files", sum(f.size for f in rest), whole))


def _paths(config: Config, environ: Mapping[str, str]) -> dict[str, Path]:
    """Return the files and folders by key. A name of the hub is the folder in its cache, if it is there."""
    paths = {}
    names = {"model.name_or_path": config.model.name_or_path, "model.tokenizer": config.model.tokenizer}
    home = Path(environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    cache = Path(environ.get("HF_HUB_CACHE") or home / "hub")
    for key, name in names.items():
        if not name:
            continue
        local = Path(name).expanduser()
        folder = local if local.exists() else cached_model_dir(name, config.model.revision, cache)
        if folder is not None:
            paths[key] = folder
    for key, sections in (("data.train", config.data.train), ("data.eval", config.data.eval or ())):
        for number, section in enumerate(sections):
            path = Path(section.path).expanduser()
            if path.suffix or path.exists():  # else a name of the hub, or of a function
                paths[f"{key}.{number}.path"] = path
    return {key: path for key, path in paths.items() if "://" not in str(path) and ":" not in path.name}


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    elif path.is_dir():
        for folder, names, files in os.walk(path):
            names[:] = sorted(name for name in names if not name.startswith("."))
            yield from (Path(folder) / name for name in sorted(files) if not name.startswith("."))


def digest_of(file: Path, size: int) -> str:
    """Return a hash of a file: of its bytes, or of its size and samples over its whole length."""
    hashed = hashlib.sha256(str(size).encode())
    with open_file(file) as stream:
        if size <= WHOLE_BYTES:
            while part := stream.read(_SAMPLE):
                hashed.update(part)
        else:
            for number in range(_SAMPLES):
                stream.seek((size - _SAMPLE) * number // (_SAMPLES - 1))
                hashed.update(stream.read(_SAMPLE))
    return hashed.hexdigest()[:16]


def source_digest(package: str) -> str:
    """Return a hash of the file that ``import package`` reads first; ``none`` without one."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return "none"
    return hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()[:12]


def package_digest() -> str:
    """Return a hash of this package's own sources: two checkouts of one version may differ."""
    hashed = hashlib.sha256()
    for file in sorted(PACKAGE.rglob("*.py")):
        hashed.update(str(file.relative_to(PACKAGE)).encode() + b"\0" + file.read_bytes())
    return hashed.hexdigest()[:12]


_SHOWN = 80  # characters of a config's value
_IMPORTED = ("torch", "transformers")  # a folder on PYTHONPATH goes before what pip has installed
_NCCL = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")
#: Findings of a start that the check makes by itself.
_OWN = (
    launch_codes.LAUNCH_LOOPBACK.name,
    launch_codes.LAUNCH_PORT_IN_USE.name,
    launch_codes.RUN_NOT_WRITABLE.name,
)


@dataclass(frozen=True)
class NodeJob:
    """The job of the config as this node reads it.

    - ``loaded``: the config, or its valid part; None if it cannot be read
    - ``cluster``: the nodes, and this one among them
    - ``findings``: errors of the config
    """

    loaded: Loaded | None
    cluster: Cluster
    findings: tuple[Diagnostic, ...]
    environ: Mapping[str, str]

    @property
    def run_folder(self) -> Path:
        """The run's folder, absolute."""
        name = self.loaded.config.run_directory() if self.loaded is not None else "outputs"
        return RunDir.at(name).root.absolute()


def open_job(
    config: Path, overrides: Sequence[str], options: LaunchOptions, environ: Mapping[str, str]
) -> NodeJob:
    """Read the config. An unreadable one is a finding, as other nodes may have a better one."""
    from paceline.config.load import NotLoaded

    wrong: tuple[Diagnostic, ...] = ()
    loaded: Loaded | None = None
    try:
        loaded = load(config, overrides, options.flags(), ruled=False)
    except NotLoaded as error:
        loaded, wrong = error.partial, error.diagnostics
    except ConfigError as error:
        wrong = error.diagnostics
    if loaded is not None:
        cluster = Cluster.of(loaded.config.launch)
    else:
        nodes, node = options.nnodes or 1, options.node_rank or 0
        cluster = Cluster(
            options.nproc or 1, nodes, node, options.master_addr or "127.0.0.1", options.master_port
        )
    return NodeJob(loaded, cluster, wrong, environ)


def plan_of(job: NodeJob) -> tuple[Plan | None, tuple[Diagnostic, ...]]:
    """Return the plan on this node, and its findings."""
    if job.loaded is None or job.findings:
        return None, job.findings
    try:
        plan, warnings = planned(job.loaded, imports=False)
    except PacelineError as error:
        return None, error.diagnostics
    return plan, warnings


def node_facts(job: NodeJob, address: str) -> NodeFacts:
    """Look at this node. ``address``: its own, on the way to node 0."""
    plan, found_by_plan = plan_of(job)
    seen = inspect(job.environ)
    route = interface_facts(address, job.environ)
    redactor = Redactor.of(job.environ)
    kept = [d for d in found_by_plan if d.code not in _OWN]
    findings = [
        *kept,
        *of_several(tuple(d for d in machine_findings(seen) if d not in kept)),
        *_limits(job, plan),
        *folder_findings(job.run_folder),
        *interface_findings(route, address, job.environ),
        *card_findings(),
    ]
    config = job.loaded.config if job.loaded is not None else None
    names = Counter(device.name for device in seen.choice.devices)
    return NodeFacts(
        versions=_versions(seen),
        environment=redactor.data(environment_facts(without_secrets(job.environ))),
        config=redactor.data(dict(_values(job))),
        files=named_files(config, job.environ) if config is not None else (),
        network=route,
        cards=card_facts(names),
        own_name=addresses_of(socket.gethostname())[0],
        address=address,
        device=plan.device if plan is not None else "cpu",
        ranks=plan.ranks_per_node if plan is not None else job.cluster.nproc,
        line=_line(seen, route, address),
        findings=tuple(redactor.diagnostic(finding).to_json() for finding in findings),
    )


def _limits(job: NodeJob, plan: Plan | None) -> Iterator[Diagnostic]:
    yield from limit_findings(plan.ranks_per_node if plan is not None else job.cluster.nproc)
    if plan is not None:
        use_cpu = plan.config.training.use_cpu
        hardware = probe(job.environ, use_cpu=use_cpu, num_nodes=plan.num_nodes).hardware
        yield from memory_findings(plan, hardware, memory_available())


def _versions(seen: Inspection) -> dict[str, str]:
    wheel = seen.sights.wheel
    nccl = next(filter(None, map(_installed, _NCCL)), "none")
    named = {
        "python": seen.python,
        "paceline": PACKAGE_VERSION,
        "paceline's files": package_digest(),
        "CUDA of torch": str(wheel.cuda or wheel.hip or "none"),
        "NCCL": nccl,
        "driver": driver_version() or "none",
        "kernel": os.uname().release,
    }
    hashes = {f"file of {name}": source_digest(name) for name in _IMPORTED}
    return {**named, **seen.packages, **hashes}


def _installed(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _values(job: NodeJob) -> Iterator[tuple[str, str]]:
    """Yield the values that the ranks compare, and the number of processes, as short JSON."""
    if job.loaded is None:
        return
    config = job.loaded.config
    values: dict[str, Json] = {**leaves(config.deciding()), "launch.nproc": config.launch.nproc}
    for key, value in sorted(values.items()):
        text = json.dumps(value, sort_keys=True, ensure_ascii=False)
        yield key, text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text)} characters)"


def _line(seen: Inspection, route: Mapping[str, str], address: str) -> str:
    devices = Counter(device.name for device in seen.choice.devices)
    cards = ", ".join(f"{count} × {name}" for name, count in devices.items()) or "no accelerator"
    via = f" ({', '.join(route[name] for name in ('interface', 'speed') if name in route)})" if route else ""
    return (
        f"{address}{via}: {cards}, {seen.cores} CPU cores, {human_bytes(seen.host_bytes)} of memory,"
        f" torch {seen.sights.wheel.version or 'none'}"
    )
