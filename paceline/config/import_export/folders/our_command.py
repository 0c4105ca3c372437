"""The Paceline command for a job, with its nodes, processes, launcher, variables and directives."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.config.import_export.commands.launcher_options import STARTERS
from paceline.config.import_export.commands.launchers import SET
from paceline.config.import_export.folders.find_starts import TrainingStart
from paceline.config.import_export.verdicts import Imported, KeyVerdict
from paceline.config.source import shown
from paceline.core.json_types import Json
from paceline.core.security.secrets import SHAPED

#: beginnings of variables that act on any training: libraries, devices, the hub, trackers, the network
_ACTS = re.compile(
    r"(CUDA|NCCL|TORCH|PYTORCH|HF|HUGGINGFACE|TRANSFORMERS|TOKENIZERS|OMP|MKL|GLOO|UCX|FI|WANDB|MLFLOW|COMET"
    r"|SWANLAB|TRITON|HIP|ROCR|HSA|ASCEND|XDG_CACHE|KMP|RCCL|TENSORBOARD|AWS|S3|MODELSCOPE|DS|DEEPSPEED)_.*"
    r"|CUDA_VISIBLE_DEVICES|LD_LIBRARY_PATH|(?i:https?_proxy|no_proxy|all_proxy)|PATH|TMPDIR"
)
#: what operators set for each container; torchrun reads it
_OPERATORS = re.compile(r"PET_\w+|SKYPILOT_\w+|WORLD_SIZE|RANK|LOCAL_RANK|MASTER_(ADDR|PORT)")
_KUBEFLOW = ("TrainJob", "PyTorchJob")
_SECRET_OF_STORE = "several nodes need a secret: PACELINE_STORE_SECRET_FILE (docs/how-to/several-nodes.md)"
_LAUNCHERS = {"accelerate-launch": "accelerate", "accelerate launch": "accelerate"}
_NAMED = ("torchrun", "accelerate", "deepspeed", "mpirun")


@dataclass(frozen=True)
class OurCommand:
    """A shell line; ``sbatch``: a script for Slurm, or empty; ``notes``: what to do besides."""

    text: str
    sbatch: str = ""
    notes: tuple[str, ...] = ()


@dataclass
class _Parts:
    environment: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def our_command(start: TrainingStart | None, imported: Imported, yaml: str, folder: str) -> OurCommand:
    """Return the command for a job whose YAML is ``yaml``, run from ``folder`` (empty: the current one)."""
    parts = _Parts()
    environment = start.command.environment if start and start.command else {}
    _variables(environment, imported, parts)
    words = _launched(start, yaml) or _started(start, imported, yaml)
    counts = {path: setting.value for path, setting in imported.settings.items()}
    nodes = counts.get("launch.nnodes")
    if isinstance(nodes, int) and nodes > 1:
        parts.notes.append(_SECRET_OF_STORE)
        if words[0] == "paceline":
            parts.notes.append("the same command on every node, each with its own --node-rank")
    if start is not None and start.counts and not any("$" in word for word in words):
        parts.notes.append(f"in {start.file}: command: {json.dumps(words)}")
    line = " ".join([*parts.environment, *words])
    goes = f"cd {shlex.quote(folder)} && " if folder else ""
    sbatch = _sbatch(start, parts, " ".join(words), folder)
    return OurCommand(SHAPED.sub("***", f"{goes}{line}"), SHAPED.sub("***", sbatch), tuple(parts.notes))


def _variables(environment: Mapping[str, str], imported: Imported, parts: _Parts) -> None:
    """Keep the variables that act on any training and are not in the YAML."""
    left = []
    for name, value in environment.items():
        if _OPERATORS.fullmatch(name):
            continue
        finding = imported.findings.get(name)
        if finding is not None and finding.verdict is KeyVerdict.MAPPED and name != "CUDA_VISIBLE_DEVICES":
            continue
        if shown(name, value) != value:
            parts.notes.append(f"{name} is a secret: set it yourself")
        elif _ACTS.fullmatch(name):
            parts.environment.append(f"{name}={_quoted(value)}")
        else:
            left.append(name)
    if left:
        parts.notes.append(f"left out, of the other program: {', '.join(left)}")


def _launched(start: TrainingStart | None, yaml: str) -> list[str]:
    """Return the original launchers, to put before our command; empty where Paceline starts the ranks itself.

    Keep launchers that span nodes: Slurm's, MPI's, and torchrun's or DeepSpeed's with their options.
    """
    if start is None or start.command is None:
        return []
    launch = start.command.launch
    names = [_LAUNCHERS.get(name, name) for name in launch.launchers]
    outer = [name for name in names if name == "srun" or name.startswith(("mpi", "orte"))]
    several = any(
        option.name in ("nnodes", "num_nodes", "hostfile", "H", "include", "node_rank", "rdzv_endpoint")
        for option in launch.options
        if option.launcher in ("torchrun", "deepspeed")
    )
    if not outer and not several:
        return []
    words = [_quoted(word) for word in start.words[: launch.program] if not SET.match(word)]
    while words and (
        words[-1] == "-m" or re.fullmatch(r"(.*/)?python[\d.]*", words[-1]) or words[-1] == "-u"
    ):
        words.pop()
    inner = names[-1] if names else ""
    inner = next((name for name in reversed(names) if name in (*_NAMED, "srun")), inner)
    if inner == "accelerate":  # its file would set again what the YAML holds
        first = next(n for n, word in enumerate(words) if "accelerate" in word)
        return [*words[:first], "paceline", "train", _quoted(yaml)]
    if inner == "torchrun":
        return [*words, "-m", "paceline", "train", _quoted(yaml)]
    if inner == "deepspeed":
        return [*words, "--module", "paceline.cli.main", "train", _quoted(yaml)]
    return [*words, "paceline", "train", _quoted(yaml)]


def _started(start: TrainingStart | None, imported: Imported, yaml: str) -> list[str]:
    """Return ``paceline train`` with the counts of the script, and its launcher on one node."""
    words = ["paceline", "train", _quoted(yaml)]

    def value(path: str) -> Json:
        setting = imported.settings.get(path)
        return setting.value if setting else None

    nodes = value("launch.nnodes")
    several = isinstance(nodes, int) and nodes > 1
    if several and start is not None and start.label.startswith(_KUBEFLOW):
        return ["torchrun", "-m", *words]  # its variables (PET_…) say the rest
    if value("launch.nproc") is not None:
        words += ["--nproc", str(value("launch.nproc"))]
    if several:
        words += ["--nnodes", str(nodes), "--node-rank", str(value("launch.node_rank") or 0)]
        words += ["--master-addr", str(value("launch.master_addr") or "HOST")]
        return [*words, "--master-port", str(value("launch.master_port") or 29500)]
    launchers = start.command.launch.launchers if start and start.command else []
    named = [_LAUNCHERS.get(name, name) for name in launchers if name in STARTERS]
    return [*words, "--launcher", named[-1]] if named and named[-1] in _NAMED else words


def _sbatch(start: TrainingStart | None, parts: _Parts, command: str, folder: str) -> str:
    """Return a script for ``sbatch`` with the user's directives."""
    if start is None or not start.directives:
        return ""
    lines = ["#!/bin/bash", *start.directives]
    lines += [f"# load Paceline's environment here, as {start.holder} loads the other program's"]
    lines += [f"export {pair}" for pair in parts.environment]
    lines += [f"# {note}" for note in parts.notes]
    lines += [f"cd {shlex.quote(folder)}"] if folder else []
    return "\n".join([*lines, command]) + "\n"


def _quoted(word: str) -> str:
    """Quote a word for a shell; a variable known only at run time stays a variable."""
    if "$" not in word:
        return shlex.quote(word)
    return word if re.fullmatch(r"[\w${}.:/=,@%+-]+", word) else '"' + word.replace('"', '\\"') + '"'
