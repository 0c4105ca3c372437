"""DeepSpeed's and Accelerate's files: how a job is distributed. The same code reads them next to a YAML."""

from __future__ import annotations

import json
import re
import tempfile
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from paceline.config.backend_files.deepspeed.normalize import table
from paceline.config.import_export.verdicts import Finding, Imported, KeyVerdict, Setting
from paceline.config.load import Loaded, NotLoaded, load_config
from paceline.config.source import FOREIGN
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.json_types import Json, JsonObject, value_at

_KEYS = {"deepspeed": "deepspeed", "accelerate": "accelerate_config"}
#: Settings that are blocks → the key of an Accelerate file that holds them
_BLOCKS = {"training.deepspeed": "deepspeed_config", "training.fsdp": "fsdp_config"}
_BLOCKS |= {"training.fsdp_config": "fsdp_config"}
_KEPT = {"deepspeed": ("training.deepspeed",), "accelerate": tuple(_BLOCKS)}
_OURS = "Paceline does this itself, or needs nothing for it; the training is the same"
_RECOMPUTE = "training.gradient_checkpointing"


def import_job(data: JsonObject, lines: Mapping[str, int], path: str, system: str) -> Imported:
    """Import a file of DeepSpeed or Accelerate: precision, batch, optimizer, sharding, processes."""
    loaded, notes = _loaded(path, system)
    values = loaded.config.to_json()
    imported = Imported("DeepSpeed" if system == "deepspeed" else "Accelerate", path)
    for ours, source in loaded.provenance.items():
        is_setting = ours.count(".") == 1 or ours.startswith("training.parallelism.")
        if source.layer == FOREIGN and source.file and is_setting:
            key = source.text.rpartition(" ")[2] or imported.system
            if system == "deepspeed" and ours == "training.distributed_strategy":
                key = imported.system  # the file as a whole
            imported.settings[ours] = Setting(value_at(values, ours), key, source.line or 0)
    for ours in _KEPT[system]:
        value = value_at(values, ours)
        if value:
            key = imported.system if system == "deepspeed" else _BLOCKS[ours]
            imported.settings[ours] = Setting(value, key, lines.get(key, 1))
    recomputed = imported.settings.get("training.fsdp_config")
    if recomputed is not None and isinstance(recomputed.value, dict) and _RECOMPUTE in imported.settings:
        recomputed.value.pop("activation_checkpointing", None)  # gradient_checkpointing says it
    findings = _Notes(lines, notes, str(Path(path).resolve()))
    for key, value in data.items():
        imported.findings[key] = _finding(key, value, lines.get(key, 1), findings, imported)
    if system == "deepspeed":
        _taken_out(imported)
    imported.notes = notes
    return imported


def verdict_at(key: str, line: int, imported: Imported, path: str) -> Finding:
    """Return the verdict on one key, or one key of a block, of a file with one key a line."""
    outer = imported.findings[key.partition(".")[0]]
    if "." not in key:
        return outer
    where = f"{Path(path).resolve()}:{line}"
    mine = sorted(
        (item for item in imported.notes if item.where == where),
        key=lambda item: item.severity is Severity.NOTE,
    )
    if mine and mine[0].severity is not Severity.NOTE:
        return replace(outer, verdict=KeyVerdict.LOST, to=(), says=mine[0].what)
    held = tuple(ours for ours, setting in imported.settings.items() if setting.line == line)
    if mine and not held:
        return replace(outer, verdict=KeyVerdict.NO_EFFECT, to=(), says=mine[0].what)
    return replace(outer, to=held or outer.to, says=mine[0].what if mine else "")


def _loaded(path: str, system: str) -> tuple[Loaded, list[Diagnostic]]:
    """Load a config that names only this file. Raises ConfigError for a file that cannot be read."""
    with tempfile.TemporaryDirectory(prefix="paceline-import-") as folder:
        # Read by our own loader, so that an import and a start agree
        file = Path(folder) / "job.yaml"
        file.write_text(
            json.dumps({"training": {_KEYS[system]: str(Path(path).resolve())}}), encoding="utf-8"
        )
        try:
            loaded = load_config(str(file))
        except NotLoaded as exc:
            return exc.partial, [*exc.diagnostics, *exc.partial.notes]
    return loaded, list(loaded.notes)


def _finding(key: str, value: Json, line: int, notes: _Notes, imported: Imported) -> Finding:
    """The verdict on a top-level key, from the findings at its lines or of its name."""
    mine = notes.about(key)
    wrong = [item for item in mine if item.severity is Severity.ERROR]
    if wrong:
        return Finding(key, value, line, KeyVerdict.LOST, (), wrong[0].what)
    other = [item for item in mine if item.severity is Severity.WARNING]
    says = "; ".join(item.what for item in (*other, *(item for item in mine if item not in other)))
    if imported.system == "DeepSpeed" and key not in table() and not key.startswith(("_", "//", "#")):
        # DeepSpeed ignores what it does not know; a program that adds keys of its own (GPT-NeoX) reads them
        verdict = KeyVerdict.LOST if notes.others > 1 else KeyVerdict.NO_EFFECT
        return Finding(
            key, value, line, verdict, (), f"{key} is no key of DeepSpeed; its own program reads it"
        )
    held = tuple(ours for ours, setting in imported.settings.items() if _of(setting.key, key, value))
    block = imported.settings.get("training.deepspeed")
    if imported.system == "DeepSpeed" and block and isinstance(block.value, dict) and key in block.value:
        held = (*held, "training.deepspeed")
    if held:
        verdict = KeyVerdict.DIFFERS if other else KeyVerdict.MAPPED
        return Finding(key, value, line, verdict, held, says)
    return Finding(key, value, line, KeyVerdict.NO_EFFECT, (), says or _OURS)


class _Notes:
    """The findings about a file, indexed by the top-level key at whose lines they are."""

    def __init__(self, lines: Mapping[str, int], notes: Sequence[Diagnostic], name: str) -> None:
        self._lines, self._notes = lines, notes
        top = {key: line for key, line in lines.items() if "." not in key}
        self._starts = sorted({1, *top.values()})
        self._keys_at = Counter(top.values())
        self._at: dict[int, list[int]] = defaultdict(list)
        self._inside: dict[str, list[int]] = defaultdict(list)
        for number, item in enumerate(notes):
            file, _, line = item.where.rpartition(":")
            if file.startswith(name) and line.isdecimal():
                self._at[self._start(int(line))].append(number)
            # A finding inside a block belongs to each block around it
            for dot in re.finditer(r"\.", item.found):
                self._inside[item.found[: dot.start()]].append(number)
        self.others = sum(key not in table() for key in top)

    def _start(self, line: int) -> int:
        """Return the line of the top-level key in which a line is."""
        return self._starts[max(0, bisect_right(self._starts, line) - 1)]

    def about(self, key: str) -> list[Diagnostic]:
        """Return the findings at a key's lines; where several keys share a line, those that name it."""
        line = self._lines.get(key, 1)
        alone, word = self._keys_at[line] == 1, re.compile(rf"(?<![\w.]){re.escape(key)}\b")
        here = {
            number
            for number in self._at[self._start(line)]
            if alone or word.search(f"{self._notes[number].what} {self._notes[number].found}")
        }
        return [self._notes[number] for number in sorted(here | set(self._inside.get(key, ())))]


def _of(source: str, key: str, value: Json) -> bool:
    """Whether a setting comes from this key: by its dotted path, or by the name inside the key's block."""
    first = source.partition(".")[0]
    return first == key or (isinstance(value, dict) and first in value)


def _taken_out(imported: Imported) -> None:
    """Remove a block that cannot be kept from the JSON, and the settings read from it (LAMB and its rate)."""
    lost = {key for key, finding in imported.findings.items() if finding.verdict is KeyVerdict.LOST}
    for ours, setting in list(imported.settings.items()):
        if setting.key.partition(".")[0] in lost:
            del imported.settings[ours]
    block = imported.settings.get("training.deepspeed")
    if block is not None and isinstance(block.value, dict):
        for key in lost & set(block.value):
            del block.value[key]
