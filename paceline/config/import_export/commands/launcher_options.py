"""Translate the options of torchrun, DeepSpeed's launcher, srun and mpirun, each with its verdict."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from paceline.config.import_export.commands.launchers import Launch, Option
from paceline.config.import_export.commands.open_values import MEETING, OF_ONE_JOB
from paceline.config.import_export.verdicts import Finding, Imported, KeyVerdict, Setting
from paceline.config.yaml_text.read_file import read_text
from paceline.config.yaml_text.scalars import resolve_plain
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json, as_object

_NODES, _NPROC = "launch.nnodes", "launch.nproc"
_STARTS = "it says how processes are started, watched or logged; the training is the same"
_PLAIN = {
    "nnodes": _NODES,
    "num_nodes": _NODES,
    "nodes": _NODES,
    "nproc_per_node": _NPROC,
    "num_gpus": _NPROC,
    "num_accelerators": _NPROC,
    "ntasks_per_node": _NPROC,
    "npernode": _NPROC,
    "N": _NPROC,
    "ppn": _NPROC,
    "node_rank": "launch.node_rank",
    "master_addr": "launch.master_addr",
    "master_port": "launch.master_port",
    "max_restarts": "launch.max_restarts",
}
#: option → why it cannot be kept, but for a value that asks for nothing
_LOST = {
    "autotuning": "DeepSpeed's autotuner is not used: `paceline plan` compares layouts",
    "virtual_local_rank": "each process sees LOCAL_RANK as it is",
    "exclude": "name the devices that are used: CUDA_VISIBLE_DEVICES, and launch.nproc",
}
_NOTHING = {
    "max_restarts": ("0",),
    "nproc_per_node": ("auto", "gpu", "cpu"),
    "num_gpus": ("-1",),
    "num_nodes": ("-1",),
    "node_rank": ("-1",),
    "exclude": ("",),
}
#: variables of ms-swift's and LLaMA-Factory's own commands, which hand them to torchrun
VARIABLES = {
    "NPROC_PER_NODE": _NPROC,
    "NNODES": _NODES,
    "NODE_RANK": "launch.node_rank",
    "MASTER_ADDR": "launch.master_addr",
    "MASTER_PORT": "launch.master_port",
}
#: variables that ms-swift's Qwen-VL templates read → options of the image processor
_PIXELS = {"MAX_PIXELS": "max_pixels", "MIN_PIXELS": "min_pixels"}
_TOTAL = ("n", "np", "ntasks")
STARTERS = ("torchrun", "deepspeed", "accelerate launch", "accelerate-launch")


def options(launch: Launch, imported: Imported) -> None:
    """Decide the options of every launcher but Accelerate's; an inner launcher's win over an outer one's."""
    starters = [name for name in launch.launchers if name in STARTERS]
    # Outer launchers first; a total needs the number of nodes
    for option in sorted(launch.options, key=lambda each: (_is_outer(each), each.name in _TOTAL)):
        if option.launcher.startswith("accelerate"):
            continue
        outer = _is_outer(option)
        if outer and starters and _PLAIN.get(option.name) == _NPROC:
            _decide(
                imported, option, KeyVerdict.NO_EFFECT, (), f"{starters[-1]} starts the processes of a node"
            )
        elif option.launcher == "sbatch" and "srun" not in launch.launchers:
            _decide(imported, option, KeyVerdict.NO_EFFECT, (), "without srun the command runs on one node")
        elif option.launcher in ("torchrun", "deepspeed", "srun", "sbatch") or outer:
            _one(option, imported, bool(starters))
        else:
            _decide(imported, option, KeyVerdict.NO_EFFECT, (), f"of {option.launcher}: {_STARTS}")
    counted = any(option.name == "nproc_per_node" for option in launch.options)
    if "torchrun" in launch.launchers and not counted:
        imported.settings.setdefault(
            _NPROC, Setting(1, "torchrun", 0, "one process, without --nproc_per_node")
        )


def left_open(launch: Launch, imported: Imported) -> None:
    """Remove the options whose values are known only at a start; the command keeps the script's text for
    them."""
    says = "left open, known at the start: srun's tasks find one another; else give it to `paceline train`"
    for option in [each for each in launch.options if each.name in MEETING and "$" in (each.value or "")]:
        launch.options.remove(option)
        if option.name in OF_ONE_JOB:
            _decide(imported, option, KeyVerdict.NO_EFFECT, (), _STARTS)
        else:
            _decide(imported, option, KeyVerdict.DIFFERS, (), says)


def _is_outer(option: Option) -> bool:
    """Whether the launcher starts processes on several nodes, which may be launchers themselves."""
    return option.launcher in ("srun", "sbatch") or option.launcher.startswith(("mpi", "orte"))


def _one(option: Option, imported: Imported, started: bool) -> None:
    special: Mapping[str, Callable[[Option, Imported], None]] = {
        "rdzv_endpoint": _endpoint,
        "include": _include,
        "hostfile": _hosts,
        "H": _hosts,
        "host": _hosts,
    }
    value = option.value or ""
    if value in _NOTHING.get(option.name, ()):
        _decide(imported, option, KeyVerdict.NO_EFFECT, (), "it is what happens without it")
    elif option.name in special:
        special[option.name](option, imported)
    elif option.name in _TOTAL and not started:
        _total(option, imported)
    elif option.name in _PLAIN:
        _plain(option, imported)
    elif option.name in _LOST:
        _decide(imported, option, KeyVerdict.LOST, (), _LOST[option.name])
    else:
        _decide(imported, option, KeyVerdict.NO_EFFECT, (), _STARTS)


def _plain(option: Option, imported: Imported) -> None:
    path, value = _PLAIN[option.name], option.value or ""
    least, _, most = value.partition(":")
    if option.name == "nnodes" and most and least == most:
        value = least
    number = resolve_plain(value)
    if path == "launch.master_addr":
        _keep(imported, option, path, value)
    elif isinstance(number, int) and not isinstance(number, bool):
        _keep(imported, option, path, number)
    elif option.name == "nnodes" and least.isdecimal() and most.isdecimal():
        imported.settings["launch.nodes"] = Setting(value, option.key, option.line)
        _keep(imported, option, path, int(most))
    else:
        _decide(imported, option, KeyVerdict.LOST, (), f"{value} is no whole number: set {path}")


def _endpoint(option: Option, imported: Imported) -> None:
    host, _, port = (option.value or "").rpartition(":")
    if not host or not port.isdecimal():
        host, port = option.value or "", ""
    if not host:
        _decide(imported, option, KeyVerdict.NO_EFFECT, (), _STARTS)
        return
    _keep(imported, option, "launch.master_addr", host)
    if port and port != "0":
        imported.settings["launch.master_port"] = Setting(int(port), option.key, option.line)


def _include(option: Option, imported: Imported) -> None:
    """``localhost:4,5``, or ``a:0,1@b:0,1``: as many devices on each host."""
    hosts = [part.partition(":") for part in (option.value or "").split("@")]
    counts = {len(slots.split(",")) if slots else 0 for _, _, slots in hosts}
    slots = ", ".join(dict.fromkeys(slots for _, _, slots in hosts if slots))
    if len(counts) != 1:
        _decide(imported, option, KeyVerdict.LOST, (), "each node has as many processes: set launch.nproc")
        return
    says = f"start it with CUDA_VISIBLE_DEVICES={slots} to use these devices" if slots else ""
    count = counts.pop()
    if count:
        imported.settings[_NPROC] = Setting(count, option.key, option.line, says)
    if len(hosts) > 1:
        imported.settings[_NODES] = Setting(len(hosts), option.key, option.line)
    to = (*((_NPROC,) if count else ()), *((_NODES,) if len(hosts) > 1 else ()))
    verdict = KeyVerdict.MAPPED if to else KeyVerdict.NO_EFFECT
    _decide(imported, option, verdict, to, says or "the one node, and all its devices")


def _hosts(option: Option, imported: Imported) -> None:
    """A host file, or a list of hosts, says how many nodes and processes there are."""
    text, value = "", option.value or ""
    if option.name == "hostfile":
        try:
            text = read_text(value)
        except ConfigError:
            _decide(
                imported,
                option,
                KeyVerdict.LOST,
                (),
                f"{value} is not here: set launch.nnodes and launch.nproc as it says",
            )
            return
    else:
        text = "\n".join(value.split(","))
    hosts = [line for line in [line.partition("#")[0].strip() for line in text.splitlines()] if line]
    slots = {match[1] if (match := re.search(r"(?:slots=|:)(\d+)", host)) else "" for host in hosts}
    if not hosts or len(slots) != 1:
        _decide(
            imported,
            option,
            KeyVerdict.LOST,
            (),
            "its nodes have different numbers of processes: set launch.nnodes and launch.nproc",
        )
        return
    _keep(imported, option, _NODES, len(hosts))
    count = slots.pop()
    if count and _NPROC not in imported.settings:
        imported.settings[_NPROC] = Setting(int(count), option.key, option.line)
        imported.findings[option.key] = replace(imported.findings[option.key], to=(_NODES, _NPROC))


def _total(option: Option, imported: Imported) -> None:
    """Processes of all nodes together."""
    total, nodes = resolve_plain(option.value or ""), imported.settings.get(_NODES)
    count = nodes.value if nodes and isinstance(nodes.value, int) else 1
    if not isinstance(total, int) or total % count:
        _decide(
            imported,
            option,
            KeyVerdict.LOST,
            (),
            f"{option.value} processes over {count} nodes: set {_NPROC}",
        )
    elif _NPROC in imported.settings and imported.settings[_NPROC].line:
        set_by = imported.settings[_NPROC]
        _decide(
            imported,
            option,
            KeyVerdict.NO_EFFECT if (set_by.value == total // count) else KeyVerdict.LOST,
            (),
            f"{set_by.key} says {set_by.value} on each node",
        )
    else:
        _keep(imported, option, _NPROC, total // count)


def variables(
    environment: Mapping[str, str],
    places: Mapping[str, int],
    reads_variables: bool,
    counts: bool,
    imported: Imported,
    pixels: bool = False,
) -> None:
    """Decide the variables set for the process, each at its line of ``places``.

    ``reads_variables``: the program reads VARIABLES; ``counts``: it starts a process for each of
    CUDA_VISIBLE_DEVICES; ``pixels``: its image processor reads MAX_PIXELS.
    """
    for name, value in environment.items():
        path, number, line = VARIABLES.get(name), resolve_plain(value), places.get(name, 1)
        devices = len(value.split(",")) if name == "CUDA_VISIBLE_DEVICES" else 0
        if name in imported.findings:
            continue
        if reads_variables and path is not None and (path == "launch.master_addr" or isinstance(number, int)):
            setting: Json = value if path == "launch.master_addr" else number
            imported.settings.setdefault(path, Setting(setting, name, line))
            imported.findings[name] = Finding(name, value, line, KeyVerdict.MAPPED, (path,))
        elif pixels and name in _PIXELS and isinstance(number, int):
            _processor_option(imported, name, number, line)
        elif counts and devices and "NPROC_PER_NODE" not in environment and _NPROC not in imported.settings:
            says = "one process for each: set the variable for this run as well, to use these devices"
            imported.settings[_NPROC] = Setting(devices, name, line)
            imported.findings[name] = Finding(name, value, line, KeyVerdict.MAPPED, (_NPROC,), says)
        else:
            says = "of the process: set it for this run as well, if it should hold"
            imported.findings[name] = Finding(name, value, line, KeyVerdict.NO_EFFECT, (), says)


def _processor_option(imported: Imported, name: str, pixels: int, line: int) -> None:
    path = "model.processor_kwargs"
    before = imported.settings.get(path)
    options = {**as_object(before.value if before else None), _PIXELS[name]: pixels}
    imported.settings[path] = Setting(options, name, line)
    imported.findings[name] = Finding(name, pixels, line, KeyVerdict.MAPPED, (path,))


def _keep(imported: Imported, option: Option, path: str, value: Json) -> None:
    before = imported.settings.get(path)
    if before is not None and before.line and before.value != value and option.launcher not in STARTERS:
        _decide(imported, option, KeyVerdict.NO_EFFECT, (), f"{before.key} says {before.value}")
        return
    imported.settings[path] = Setting(value, option.key, option.line)
    _decide(imported, option, KeyVerdict.MAPPED, (path,), "")


def _decide(imported: Imported, option: Option, verdict: KeyVerdict, to: Sequence[str], says: str) -> None:
    value: Json = True if option.value is None else resolve_plain(option.value)
    imported.findings[option.key] = Finding(option.key, value, option.line, verdict, tuple(to), says)
