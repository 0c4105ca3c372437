"""DeepSpeed's and Accelerate's files: how a job is distributed, read by the same code as beside a YAML."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from paceline.config.exchange.verdicts import Finding, Imported, KeyVerdict, Setting
from paceline.config.load import Loaded, NotLoaded, load_config
from paceline.config.source import FOREIGN
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json, JsonObject

_KEYS = {"deepspeed": "deepspeed", "accelerate": "accelerate_config"}
_KEPT = {
    "deepspeed": ("training.deepspeed",),
    "accelerate": ("training.deepspeed", "training.fsdp", "training.fsdp_config"),
}
_OURS = "Paceline does this itself, or needs nothing for it; the training is the same"


def import_job(data: JsonObject, lines: Mapping[str, int], path: str, system: str) -> Imported:
    """Return what a file that distributes a job sets: precision, batch, optimizer, sharding, processes."""
    loaded, notes = _loaded(path, system)
    found = Imported("DeepSpeed" if system == "deepspeed" else "Accelerate", path)
    for ours, source in loaded.provenance.items():
        if source.layer == FOREIGN and source.file:
            value = _at(loaded, ours)
            if ours.count(".") == 1 or ours.startswith("training.parallelism."):
                found.settings[ours] = Setting(
                    value, source.text.rpartition(" ")[2] or system, source.line or 0
                )
    for ours in _KEPT[system]:
        value = _at(loaded, ours)
        if value:
            found.settings[ours] = Setting(value, system, 1)
    for key, value in data.items():
        found.findings[key] = _finding(key, value, lines.get(key, 1), notes, path, found)
    return found


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
        except ConfigError:
            raise
    return loaded, list(loaded.notes)


def _finding(
    key: str, value: Json, line: int, notes: Sequence[Diagnostic], path: str, found: Imported
) -> Finding:
    """The verdict on a top-level key, from the findings at its lines or of its name."""
    name = str(Path(path).resolve())
    mine = [
        item
        for item in notes
        if item.where.startswith(f"{name}:{line}") and item.where.rpartition(":")[2] == str(line)
    ]
    mine += [item for item in notes if item not in mine and item.found.startswith(f"{key}.")]
    wrong = [item for item in mine if item.severity is Severity.ERROR]
    if wrong:
        return Finding(key, value, line, KeyVerdict.LOST, (), wrong[0].what)
    held = tuple(
        path_
        for path_, setting in found.settings.items()
        if setting.line == line or setting.key.startswith(key)
    )
    if held or any(path_ in found.settings for path_ in ("training.deepspeed", "training.fsdp_config")):
        return Finding(key, value, line, KeyVerdict.MAPPED, held, mine[0].what if mine else "")
    return Finding(key, value, line, KeyVerdict.NO_EFFECT, (), mine[0].what if mine else _OURS)


def _at(loaded: Loaded, path: str) -> Json:
    value: Json = loaded.config.to_json()
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
