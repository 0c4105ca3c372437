"""Recognise the program of a configuration file by its keys, and suggest what to write."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from paceline.config import codes
from paceline.config.backend_files.deepspeed.normalize import table
from paceline.config.yaml_text.read_file import names, read_table, texts
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.json_types import Json, JsonObject, as_object, value_at

KINDS = ("deepspeed", "accelerate", "fsdp", "config")
_KEYS = {"deepspeed": "deepspeed", "accelerate": "accelerate_config", "fsdp": "fsdp_config"}
_NAMES = {
    "deepspeed": "a DeepSpeed config",
    "accelerate": "an Accelerate config",
    "fsdp": "a file of FSDP settings",
}


def kind_of(data: Json) -> str:
    """Return ``deepspeed``, ``accelerate``, ``fsdp``, or ``config`` (training arguments of any kind)."""
    if not isinstance(data, dict):
        return "config"
    if "distributed_type" in data or "compute_environment" in data:
        return "accelerate"
    if "fsdp_config" in data and {key for key in data if not key.startswith("_")} <= {"fsdp", "fsdp_config"}:
        return "fsdp"
    # Before the marks: a tuning file has none of them
    if whole_deepspeed(data):
        return "deepspeed"
    marks = {"zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size", "fp16", "bf16"}
    blocks = [key for key in marks & set(data) if isinstance(data[key], dict) or key.startswith("train_")]
    return "deepspeed" if blocks else "config"


def whole_deepspeed(data: JsonObject) -> bool:
    """Whether all keys are DeepSpeed's and at least one is a block, as in ``{"autotuning": {…}}``."""
    keys = [key for key in data if not key.startswith(("_", "//", "#"))]
    return all(key in table() for key in keys) and any(isinstance(data[key], dict) for key in keys)


def not_a_config(data: Json, name: str) -> Diagnostic | None:
    """Return a finding if another system's file is given as the config, with the key to name it under."""
    kind = kind_of(data)
    if (
        not isinstance(data, dict)
        or kind == "config"
        or (kind == "deepspeed" and "zero_optimization" not in data and not whole_deepspeed(data))
    ):
        return None
    return codes.CONFIG_FOREIGN_AS_CONFIG(
        name, ", ".join(list(data)[:4]), names=_NAMES[kind], key=_KEYS[kind], name=name
    )


@dataclass(frozen=True)
class Program:
    """A training program, as ``keys/programs.toml`` describes it.

    ``needs``, ``any_of``, ``least`` and ``inside`` recognise its files. ``ours``: Paceline's key → the file's
    dotted path for it. ``flat``: its keys are Transformers' names, which Paceline reads too.
    """

    name: str
    needs: tuple[str, ...] = ()
    any_of: tuple[str, ...] = ()
    least: int = 1
    inside: str = ""
    ours: tuple[tuple[str, str], ...] = ()
    flat: bool = False

    def is_one(self, data: JsonObject) -> bool:
        """Whether this is a file of the program."""
        if self.inside:
            return _inside(data, self.inside)
        enough = (
            not self.any_of or sum(value_at(data, path) is not None for path in self.any_of) >= self.least
        )
        return enough and all(value_at(data, path) is not None for path in self.needs)


def _inside(data: Json, key: str) -> bool:
    """Whether a key, such as torchtune's ``_component_``, occurs at any depth."""
    if isinstance(data, dict):
        return key in data or any(_inside(value, key) for value in data.values())
    return isinstance(data, list) and any(_inside(value, key) for value in data)


def _program(row: JsonObject) -> Program:
    least = row.get("least")
    return Program(
        str(row["name"]),
        names(row.get("needs")),
        names(row.get("any_of")),
        least if isinstance(least, int) else 1,
        str(row.get("inside", "")),
        tuple(texts(row.get("ours")).items()),
        bool(row.get("flat")),
    )


@cache
def programs() -> tuple[Program, ...]:
    """Return the programs; the first that fits a file wins."""
    rows = read_table("programs", "backend_files")["program"]
    return tuple(_program(as_object(row)) for row in rows) if isinstance(rows, list) else ()


#: The programs whose files `paceline config import` reads
IMPORTED = ("axolotl", "ms-swift", "LLaMA-Factory", "TRL")
#: What a command line of another program holds → its name
_COMMANDS = {
    r"\bverl\.": "verl",
    r"\bopenrlhf\b": "OpenRLHF",
    r"\btune run\b": "torchtune",
    r"\blitgpt\b": "LitGPT",
    r"\bnemo(_rl)?\b": "NeMo",
    r"\bllmfoundry\b|\bcomposer train": "llm-foundry",
    r"\bprime[-_]rl\b": "prime-rl",
    r"\barctic_training\b": "ArcticTraining",
}


def not_imported(name: str) -> tuple[str, str]:
    """Return (what, what to do) of a program whose configs are not translated."""
    hint = f"write a Paceline YAML (docs/how-to/configure.md): imported are configs of {', '.join(IMPORTED)}"
    return f"this is a config or command of {name}, which is not imported", hint


def program_of_command(text: str) -> str | None:
    """Return the program that a shell text starts, if its configs are not translated."""
    return next((name for pattern, name in _COMMANDS.items() if re.search(pattern, text)), None)


def program_of(data: Json) -> Program | None:
    """Return the program whose file this is; None for Paceline's own or an unknown one."""
    if not isinstance(data, dict):
        return None
    return next((program for program in programs() if program.is_one(data)), None)


_SHELL, _SHEBANG = (
    (".sh", ".bash", ".slurm", ".sbatch", ".sub", ".zsh"),
    re.compile(r"#!.*\b(ba|da|z|k)?sh\b"),
)
_BUILD = re.compile(r"(GNU)?[Mm]akefile(\..+)?|(?i:(docker|container)file)(\..+)?")
#: Transformers' arguments: what a file of nothing else has
_ARGUMENTS = {"output_dir", "per_device_train_batch_size", "num_train_epochs", "learning_rate"}


def no_config(path: str | Path) -> Diagnostic | None:
    """Return the finding for a path whose name shows that it is not a config: a folder, a script, a command
    line."""
    file, path = Path(path), str(path)
    line = " ".join(path.split())
    if file.is_dir():
        message = "this is a folder, not a config"
        inside = f"give the YAML file inside it, e.g. {file / 'config.yaml'}"
        return codes.CONFIG_IS_DIRECTORY(message, path, hint=f"{inside}; {_migrates(path)}")
    if not file.exists():
        if " " in line and re.search(r"\s--?\w|\.ya?ml\b", line):
            message = "this is a command line, not a config"
            return codes.CONFIG_OTHER_PROGRAM(
                message, "", line, f"paceline config import '{line}' --to ours.yaml"
            )
        return None
    if _BUILD.fullmatch(file.name):
        return codes.CONFIG_OTHER_PROGRAM(
            "this file starts programs; it is no config", path, "", _migrates(path)
        )
    if file.suffix in _SHELL or file.suffix == ".py":
        kind = "a program in Python" if file.suffix == ".py" else "a shell script"
        return codes.CONFIG_OTHER_PROGRAM(f"this is {kind}, not a config", path, "", imports(path))
    return None


def no_config_text(text: str, path: str) -> Diagnostic | None:
    """Return the finding for a text that is not a config: a script without a suffix, a manifest."""
    if _SHEBANG.match(text):
        return codes.CONFIG_OTHER_PROGRAM("this is a shell script, not a config", path, "", _migrates(path))
    if re.search(r"^apiVersion:", text, re.M) and re.search(r"^kind:", text, re.M):
        message = "this is a manifest of Kubernetes, not a config"
        return codes.CONFIG_OTHER_PROGRAM(message, path, "", _migrates(path))
    return None


def imports(path: str) -> str:
    """Return the command that imports a file."""
    return f"paceline config import {shlex.quote(path)} --to ours.yaml"


def _migrates(path: str) -> str:
    return f"paceline migrate {shlex.quote(path)} --to ours translates what a person has of another program"


def read_as_ours(data: Json, name: str) -> Diagnostic | None:
    """Return the warning for a file of another program with Transformers' key names: Paceline's defaults
    apply."""
    if not isinstance(data, dict) or {"model", "data", "training"} & {*data}:
        return None
    program = program_of(data)
    program_name = program.name if program and program.flat else None
    if program_name is None and {"model_name_or_path", "dataset_name"} <= {*data}:
        program_name = "TRL"
    elif program_name is None and name.endswith(".json") and "model_name_or_path" not in data:
        program_name = "Transformers" if len(_ARGUMENTS & {*data}) > 2 else None
    if program_name is None:
        return None
    message = f"this is a config of {program_name}, read with Paceline's meanings and defaults"
    severity = Severity.WARNING
    return codes.CONFIG_OTHER_PROGRAM(message, f"{name}:1", "", f"{imports(name)} translates it", severity)


def another_structure(data: Json, name: str) -> Diagnostic | None:
    """Return the finding for a file whose keys are laid out differently; None otherwise."""
    program = program_of(data)
    if not isinstance(data, dict) or program is None or program.flat:
        return None
    settings = [
        f"{ours}: {value}"
        for ours, path in program.ours
        if isinstance(value := value_at(data, path), (str, int, float))
    ]
    begins = f", which begins {', '.join(settings)}" if settings else ""
    by_hand = f"write a Paceline YAML (docs/how-to/configure.md){begins}"
    return codes.CONFIG_OTHER_PROGRAM(
        f"this is a config of {program.name}, whose keys and structure are different; none of it was read",
        where=f"{name}:1",
        found=", ".join(list(data)[:4]),
        hint=imports(name) if program.name in IMPORTED else by_hand,
    )


def gathered(problems: Sequence[Diagnostic], data: Json, name: str) -> list[Diagnostic]:
    """Combine unknown keys of a file with Transformers' names into one finding; keep the other findings."""
    program = program_of(data)
    unknown = [
        p for p in problems if p.code == codes.CONFIG_UNKNOWN_KEY.name and p.where.rpartition(":")[0] == name
    ]
    if program is None or not unknown:
        return list(problems)
    keys = ", ".join(f"{p.found} (line {p.where.rpartition(':')[2]}{_near(p)})" for p in unknown)
    many = "1 of its keys has" if len(unknown) == 1 else f"{len(unknown)} of its keys have"
    what = f"this is a config of {program.name}; {many} no meaning here, the others were read"
    translates = f"{imports(name)} translates the whole file" if program.name in IMPORTED else "remove them"
    hint = (
        f"{translates}; docs/reference/config.md describes the keys of training, docs/how-to/data.md the data"
    )
    rest = [p for p in problems if p not in unknown]
    return [codes.CONFIG_OTHER_PROGRAM(what, where=unknown[0].where, found=keys, hint=hint), *rest]


def _near(problem: Diagnostic) -> str:
    """Return the suggestion for an unknown key if it is a likely misspelling."""
    _, suggests, word = problem.hint.partition("did you mean '")
    close = difflib.SequenceMatcher(None, problem.found, word.rstrip("'?")).ratio() > 0.85
    return f": {problem.hint}" if suggests and close else ""
