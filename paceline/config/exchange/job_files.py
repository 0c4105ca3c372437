"""DeepSpeed's and Accelerate's files: how a job is distributed, read by the same code as beside a YAML."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from paceline.config.exchange.verdicts import Finding, Imported, KeyVerdict, Setting
from paceline.config.foreign.deepspeed_normal import table
from paceline.config.load import Loaded, NotLoaded, load_config
from paceline.config.source import FOREIGN
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.json_types import Json, JsonObject

_KEYS = {"deepspeed": "deepspeed", "accelerate": "accelerate_config"}
#: Settings that are blocks → the key of an Accelerate file that holds them
_BLOCKS = {"training.deepspeed": "deepspeed_config", "training.fsdp": "fsdp_config"}
_BLOCKS |= {"training.fsdp_config": "fsdp_config"}
_KEPT = {"deepspeed": ("training.deepspeed",), "accelerate": tuple(_BLOCKS)}
_OURS = "Paceline does this itself, or needs nothing for it; the training is the same"
_RECOMPUTE = "training.gradient_checkpointing"


def import_job(data: JsonObject, lines: Mapping[str, int], path: str, system: str) -> Imported:
    """Return what a file that distributes a job sets: precision, batch, optimizer, sharding, processes."""
    loaded, notes = _loaded(path, system)
    found = Imported("DeepSpeed" if system == "deepspeed" else "Accelerate", path)
    for ours, source in loaded.provenance.items():
        whole = ours.count(".") == 1 or ours.startswith("training.parallelism.")
        if source.layer == FOREIGN and source.file and whole:
            key = source.text.rpartition(" ")[2] or found.system
            if system == "deepspeed" and ours == "training.distributed_strategy":
                key = found.system  # the file as a whole
            found.settings[ours] = Setting(_at(loaded, ours), key, source.line or 0)
    for ours in _KEPT[system]:
        value = _at(loaded, ours)
        if value:
            key = found.system if system == "deepspeed" else _BLOCKS[ours]
            found.settings[ours] = Setting(value, key, lines.get(key, 1))
    recomputed = found.settings.get("training.fsdp_config")
    if recomputed is not None and isinstance(recomputed.value, dict) and _RECOMPUTE in found.settings:
        recomputed.value.pop("activation_checkpointing", None)  # gradient_checkpointing says it
    for key, value in data.items():
        found.findings[key] = _finding(key, value, lines, notes, path, found)
    if system == "deepspeed":
        _taken_out(found)
    found.notes = notes
    return found


def verdict_at(key: str, line: int, found: Imported, path: str) -> Finding:
    """Return the verdict on one key, or one key of a block, of a file with one key a line."""
    whole = found.findings[key.partition(".")[0]]
    if "." not in key:
        return whole
    place = f"{Path(path).resolve()}:{line}"
    mine = sorted(
        (item for item in found.notes if item.where == place), key=lambda item: item.severity is Severity.NOTE
    )
    if mine and mine[0].severity is not Severity.NOTE:
        return replace(whole, verdict=KeyVerdict.LOST, to=(), says=mine[0].what)
    held = tuple(ours for ours, setting in found.settings.items() if setting.line == line)
    if mine and not held:
        return replace(whole, verdict=KeyVerdict.NO_EFFECT, to=(), says=mine[0].what)
    return replace(whole, to=held or whole.to, says=mine[0].what if mine else "")


def _loaded(path: str, system: str) -> tuple[Loaded, list[Diagnostic]]:
    """Load a config that names the file alone. Raises ConfigError for a file that cannot be read."""
    with tempfile.TemporaryDirectory(prefix="paceline-import-") as folder:
        file = Path(folder) / "job.yaml"
        file.write_text(
            json.dumps({"training": {_KEYS[system]: str(Path(path).resolve())}}), encoding="utf-8"
        )
        try:
            loaded = load_config(str(file))
        except NotLoaded as exc:
            return exc.partial, [*exc.diagnostics, *exc.partial.notes]
    return loaded, list(loaded.notes)


def _finding(
    key: str,
    value: Json,
    lines: Mapping[str, int],
    notes: Sequence[Diagnostic],
    path: str,
    found: Imported,
) -> Finding:
    """The verdict on a top-level key, from the findings at its lines or of its name."""
    line = lines.get(key, 1)
    mine = _about(key, lines, notes, str(Path(path).resolve()))
    wrong = [item for item in mine if item.severity is Severity.ERROR]
    if wrong:
        return Finding(key, value, line, KeyVerdict.LOST, (), wrong[0].what)
    says = mine[0].what if mine else ""
    if found.system == "DeepSpeed" and key not in table() and not key.startswith(("_", "//", "#")):
        # DeepSpeed ignores what it does not know; a program that adds keys of its own (GPT-NeoX) reads them
        many = sum(name not in table() for name in lines if "." not in name) > 1
        verdict = KeyVerdict.LOST if many else KeyVerdict.NO_EFFECT
        return Finding(
            key, value, line, verdict, (), f"{key} is no key of DeepSpeed; its own program reads it"
        )
    held = tuple(ours for ours, setting in found.settings.items() if _of(setting.key, key, value))
    block = found.settings.get("training.deepspeed")
    if found.system == "DeepSpeed" and block and isinstance(block.value, dict) and key in block.value:
        held = (*held, "training.deepspeed")
    if held:
        return Finding(key, value, line, KeyVerdict.MAPPED, held, says)
    return Finding(key, value, line, KeyVerdict.NO_EFFECT, (), says or _OURS)


def _about(key: str, lines: Mapping[str, int], notes: Sequence[Diagnostic], name: str) -> list[Diagnostic]:
    """Return the findings at a key's lines; where several keys share a line, those that name it."""
    after = [line for other, line in lines.items() if "." not in other and line > lines.get(key, 1)]
    span = range(lines.get(key, 1), min(after, default=1 << 30))
    alone = sum(line in span for other, line in lines.items() if "." not in other) == 1
    mine: list[Diagnostic] = []
    for item in notes:
        at, _, line = item.where.rpartition(":")
        here = at.startswith(name) and line.isdecimal() and int(line) in span
        named = re.search(rf"(?<![\w.]){re.escape(key)}\b", f"{item.what} {item.found}")
        if (here and alone) or (here and named) or item.found.startswith(f"{key}."):
            mine.append(item)
    return mine


def _of(source: str, key: str, value: Json) -> bool:
    """Whether a setting comes from this key: by its dotted path, or by the name inside the key's block."""
    first = source.partition(".")[0]
    return first == key or (isinstance(value, dict) and first in value)


def _taken_out(found: Imported) -> None:
    """A block that cannot be kept is taken out of the JSON, with what was read off it (LAMB and its rate)."""
    lost = {key for key, finding in found.findings.items() if finding.verdict is KeyVerdict.LOST}
    for ours, setting in list(found.settings.items()):
        if setting.key.partition(".")[0] in lost:
            del found.settings[ours]
    block = found.settings.get("training.deepspeed")
    if block is not None and isinstance(block.value, dict):
        for key in lost & set(block.value):
            del block.value[key]


def _at(loaded: Loaded, path: str) -> Json:
    value: Json = loaded.config.to_json()
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
