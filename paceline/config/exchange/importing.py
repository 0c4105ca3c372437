"""Import a config of another system: read it, decide each key, and compose a YAML of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from paceline.config import codes
from paceline.config.exchange import axolotl, llamafactory, swift, trl
from paceline.config.exchange.command_line import Command, processes
from paceline.config.exchange.common import transformers_keys
from paceline.config.exchange.detect import SYSTEMS, system_of
from paceline.config.exchange.job_files import import_job
from paceline.config.exchange.reading import KeyReader
from paceline.config.exchange.swift_machine import ENVIRONMENT
from paceline.config.exchange.tables import NO_TRACKERS, defaults
from paceline.config.exchange.verdicts import Finding, Imported, KeyVerdict, Setting
from paceline.config.foreign.json_text import json_lines, parse_json
from paceline.config.reading import read_text
from paceline.config.yaml_tree import parse_yaml
from paceline.core.errors import ConfigError
from paceline.core.json_types import JsonObject, as_object


def read_foreign(path: str) -> tuple[JsonObject, dict[str, int]]:
    """Return the mapping in a YAML or JSON file, and the line of every inner path. Raises ConfigError."""
    text = read_text(path)
    if Path(path).suffix == ".json":
        data, _ = parse_json(text, path, "config", lenient=True)
        lines = json_lines(text)
    else:
        tree = parse_yaml(text, path)
        data, lines = (tree.data(), tree.lines()) if tree else ({}, {})
    if not isinstance(data, dict):
        raise ConfigError(
            codes.CONFIG_NOT_A_MAPPING(
                "a config is a mapping of keys to values", f"{path}:1", hint="key: value"
            )
        )
    return data, lines


def import_config(path: str, system: str | None = None, algorithm: str | None = None) -> Imported:
    """Return the settings and verdicts of a foreign config file. Raises ConfigError."""
    data, lines = read_foreign(path)
    return import_data(data, lines, path, system, algorithm)


def import_command(command: Command, system: str | None = None, algorithm: str | None = None) -> Imported:
    """Return the settings and verdicts of a command line; its flags win over a config file that it names.

    Raises ConfigError.
    """
    data, lines, name = command.data, dict(command.lines), command.name
    if command.config is not None:
        below, places = read_foreign(command.config)
        data, lines, name = below | data, places | lines, f"{command.config} and {name}"
    chosen = system or command.system or system_of(data)
    count = processes(command)
    environment = dict(command.environment) | ({"NPROC_PER_NODE": str(count)} if count else {})
    if chosen == "swift":
        data = data | {ENVIRONMENT: {**environment, **as_object(data.get(ENVIRONMENT))}}
    found = import_data(data, lines, name, chosen, algorithm or command.algorithm)
    if chosen != "swift":
        for variable, value in command.environment.items():
            says = "of the process: set it for this run as well, if it should hold"
            found.findings[variable] = Finding(variable, value, 1, KeyVerdict.NO_EFFECT, (), says)
        if count:
            found.settings["launch.nproc"] = Setting(count, "the launcher", 1)
    return found


def import_data(
    data: JsonObject,
    lines: Mapping[str, int],
    path: str,
    system: str | None = None,
    algorithm: str | None = None,
) -> Imported:
    """``import_config`` for a mapping that has been read (a file, or a command line)."""
    chosen = system or system_of(data)
    if chosen is None:
        keys = ", ".join(list(data)[:4])
        hint = f"name the system: --from {' | '.join(SYSTEMS)}"
        raise ConfigError(
            codes.CONFIG_IMPORT_SYSTEM("the config's system is not recognised", f"{path}:1", keys, hint)
        )
    if chosen in _JOBS:
        return import_job(data, lines, path, chosen)
    found = TRANSLATORS[chosen](data, lines, path, algorithm)
    _rolled_up(found)
    _attention(found)
    return found


def _attention(found: Imported) -> None:
    """Context parallelism has attention of its own here: a kernel that a file names computes the same."""
    size = found.settings.get("training.parallelism.cp_size")
    kernel = found.settings.get("model.attn_implementation")
    if size is None or kernel is None or not isinstance(size.value, int) or size.value < 2:
        return
    del found.settings["model.attn_implementation"]
    says = f"{size.key} exchanges keys and values, for which Paceline's own kernel computes the attention"
    if kernel.key in found.findings:
        before = found.findings[kernel.key]
        found.findings[kernel.key] = replace(before, verdict=KeyVerdict.NO_EFFECT, to=(), says=says)


def _rolled_up(found: Imported) -> None:
    """A mapping or list of which a part cannot be kept is not kept itself."""
    for key, finding in list(found.findings.items()):
        outer = found.findings.get(key.partition(".")[0])
        if "." not in key or outer is None or finding.verdict not in (KeyVerdict.LOST, KeyVerdict.DIFFERS):
            continue
        if outer.verdict in (KeyVerdict.MAPPED, KeyVerdict.NO_EFFECT):
            found.findings[outer.key] = replace(outer, verdict=finding.verdict, says=f"{key}: {finding.says}")


def _trl(data: JsonObject, lines: Mapping[str, int], path: str, algorithm: str | None) -> Imported:
    chosen = algorithm or trl.algorithm_of(data)
    reading = KeyReader("TRL", path, flat(data), lines, trl.trl_defaults(chosen))
    trl.translate(reading, chosen)
    return reading.result


def _llamafactory(data: JsonObject, lines: Mapping[str, int], path: str, algorithm: str | None) -> Imported:
    reading = KeyReader("LLaMA-Factory", path, flat(data), lines, llamafactory.llamafactory_defaults())
    llamafactory.translate(reading)
    return reading.result


def _axolotl(data: JsonObject, lines: Mapping[str, int], path: str, algorithm: str | None) -> Imported:
    reading = KeyReader("axolotl", path, flat(data), lines, axolotl.axolotl_defaults())
    axolotl.translate(reading)
    return reading.result


def _swift(data: JsonObject, lines: Mapping[str, int], path: str, algorithm: str | None) -> Imported:
    command = swift.command_of(data, algorithm)
    reading = KeyReader("ms-swift", path, flat(data), lines, swift.swift_defaults(command))
    swift.translate(reading, command, algorithm)
    return reading.result


def _hf(data: JsonObject, lines: Mapping[str, int], path: str, algorithm: str | None) -> Imported:
    reading = KeyReader("Transformers", path, flat(data), lines, {**defaults("transformers"), **NO_TRACKERS})
    reading.set("training.algorithm", algorithm or "sft")
    transformers_keys(reading)
    return reading.result


Translator = Callable[[JsonObject, Mapping[str, int], str, str | None], Imported]
TRANSLATORS: dict[str, Translator] = {
    "trl": _trl,
    "llamafactory": _llamafactory,
    "axolotl": _axolotl,
    "swift": _swift,
    "hf": _hf,
}
_JOBS = ("deepspeed", "accelerate")


def flat(data: JsonObject, prefix: str = "") -> JsonObject:
    """Return the keys, and beside them those inside mappings and lists (``a``, ``a.b``, ``c.0.d``)."""
    found: JsonObject = {}
    for key, value in data.items():
        found[f"{prefix}{key}"] = value
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            for number, item in enumerate(value):
                if isinstance(item, dict):
                    found |= flat(item, f"{prefix}{key}.{number}.")
    return found
