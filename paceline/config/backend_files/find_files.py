"""Find and read the files that a config names: Accelerate YAML, DeepSpeed JSON, FSDP JSON."""

from __future__ import annotations

from pathlib import Path

from paceline.config import codes
from paceline.config.backend_files import fsdp
from paceline.config.backend_files.accelerate.environment import Launched, Variables, blended
from paceline.config.backend_files.json_text import json_lines, parse_json
from paceline.config.backend_files.layer import Document, Foreign
from paceline.config.layers.merge import Merged
from paceline.config.source import FOREIGN
from paceline.config.written_values import leaves_of_data, misplaced
from paceline.config.yaml_text.read_file import read_text
from paceline.config.yaml_text.tree import parse_yaml
from paceline.core.diagnostics import Severity
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json

_ACCELERATE, _DEEPSPEED, _FSDP, _FSDP_CONFIG = (
    f"training.{name}" for name in ("accelerate_config", "deepspeed", "fsdp", "fsdp_config")
)
_WHAT = {_ACCELERATE: "Accelerate config", _DEEPSPEED: "DeepSpeed config", _FSDP_CONFIG: "FSDP config"}
FILE_KEYS = frozenset(_WHAT)
_SHARDING = ("fsdp", "pipeline")


def foreign_layer(upper: Merged, folder: Path, launched: Launched | None = None) -> Foreign:
    """Return the lowest layer, read from the files that the upper layers name.

    Relative paths are tried next to the YAML, then in the current directory. ``launched``: the launcher's
    FSDP and DeepSpeed options, merged with the config's.
    """
    layer = Foreign()
    blocks = launched.blocks if launched else {}
    document = _named(upper, _ACCELERATE, folder, layer)
    if document is not None:
        from paceline.config.backend_files.accelerate import accelerate_file

        accelerate_file.read(document, layer, upper.values)
    document = _deepspeed(upper, blocks.get(_DEEPSPEED), folder, layer)
    if document is not None:
        from paceline.config.backend_files.deepspeed import deepspeed_file

        deepspeed_file.read(document, layer, upper.values)
    _fsdp(upper, blocks.get(_FSDP_CONFIG), folder, layer)
    return layer


def _deepspeed(
    upper: Merged, launcher: Document | str | None, folder: Path, layer: Foreign
) -> Document | None:
    """Return DeepSpeed's settings: the launcher's file, or the config's with the launcher's options."""
    settings = _named(upper, _DEEPSPEED, folder, layer)
    if _DEEPSPEED not in upper.values:
        settings = _carried(_DEEPSPEED, folder, layer)
    else:
        _left_out(_DEEPSPEED, upper, layer)
    # --deepspeed_config_file: a file replaces the YAML's, options are merged into it
    if isinstance(launcher, str):
        option, _, name = launcher.partition("\n")
        if settings is not None:
            layer.notes.append(
                codes.LAUNCH_OPTION_WINS(
                    f"DeepSpeed is configured by {name}, the file passed to the launcher;"
                    f" {settings.place('')} configures it as well",
                    option,
                    name,
                    "keep one of the two",
                    Severity.WARNING,
                )
            )
        document = _file(name, _WHAT[_DEEPSPEED], Path("."), option, layer)
        if document is None:
            layer.contents[_DEEPSPEED] = name
        return document
    if isinstance(launcher, Variables) and settings is not None:
        return blended(settings, launcher, layer)
    return launcher or settings


def _left_out(path: str, upper: Merged, layer: Foreign) -> None:
    """Report that an Accelerate file's block is ignored in favour of the config's own."""
    block = layer.blocks.get(path)
    winner = upper.winners.get(path) or upper.winners.get(_FSDP if path == _FSDP_CONFIG else path)
    if block is None or winner is None:
        return
    ignored = block.partition("\n")[0] if isinstance(block, str) else block.place("")
    layer.notes.append(
        codes.CONFIG_FOREIGN_NOT_TAKEN(
            f"{path} at {winner.source.place()} takes precedence; the Accelerate file's setting is ignored",
            ignored,
            path,
            "keep one of the two",
            Severity.WARNING,
        )
    )


def find_file(name: str, folder: Path) -> Path | None:
    """Return the file's path next to the YAML, else from the current directory; None if neither exists."""
    try:
        file = Path(name).expanduser()
        tried = [file] if file.is_absolute() else [folder / file, file]
        return next((path for path in tried if path.exists()), None)
    except (OSError, ValueError, RuntimeError):  # invalid name: too long, a NUL byte, ~user unknown
        return None


def read_document(file: Path, kind: str, layer: Foreign) -> Document:
    """Read a YAML or JSON file. Raises ConfigError with ``file:line``."""
    name = str(file)
    text = read_text(name, f"the {kind}")
    if file.suffix in (".yaml", ".yml"):
        tree = parse_yaml(text, name)
        data, lines = (tree.data(), tree.lines()) if tree else (None, {})
    else:
        data, loose = parse_json(text, name, kind, lenient=kind == _WHAT[_DEEPSPEED])
        lines = json_lines(text)
        if loose:
            layer.notes.append(
                codes.CONFIG_FOREIGN_NOT_TAKEN(
                    "comments and trailing commas are dropped, as in DeepSpeed (Hjson); Transformers"
                    " would refuse the file",
                    name,
                    hint="plain JSON, which every tool reads",
                    severity=Severity.NOTE,
                )
            )
    if not isinstance(data, dict):
        raise ConfigError(
            codes.CONFIG_NOT_A_MAPPING(
                f"the {kind} must be a mapping of keys to values", where=f"{name}:1", hint="{ … }"
            )
        )
    layer.problems += misplaced(leaves_of_data(data, lines, name), FOREIGN)
    return Document(data, name, lines)


def _named(upper: Merged, path: str, folder: Path, layer: Foreign) -> Document | None:
    """Return the settings that the upper layers give at ``path``: a mapping, or the content of a file."""
    value, entry = upper.values.get(path), upper.winners.get(path)
    if entry is None or not value or not isinstance(value, (str, dict)):
        return None
    if isinstance(value, dict):
        return Document(
            value, entry.source.file or entry.source.place(), dict(entry.lines), entry.source.line
        )
    beside = Path(entry.source.file).parent if entry.source.file else folder  # of a file that is extended
    document = _file(value, _WHAT[path], beside, entry.source.place(), layer, folder)
    return document and document.with_keys(upper.file_keys.get(path, ()))


def _carried(path: str, folder: Path, layer: Foreign) -> Document | None:
    """Return the settings that an Accelerate file has for ``path``: a block, or the content of a file.

    The file is looked for next to the Accelerate file, then next to the YAML and in the current directory.
    """
    block = layer.blocks.get(path)
    if not isinstance(block, str):
        return block
    origin, _, name = block.partition("\n")
    document = _file(
        name, _WHAT[path], Path(origin.rpartition(":")[0] or origin).parent, origin, layer, folder
    )
    if document is None:
        layer.contents[path] = name
    return document


def _file(
    name: str, kind: str, folder: Path, origin: str, layer: Foreign, other: Path | None = None
) -> Document | None:
    file = find_file(name, folder) or (find_file(name, other) if other else None)
    if file is None:
        places = f"{folder / name}" + ("" if str(folder) in (".", "") else f" and {name}")
        layer.notes.append(
            codes.CONFIG_FOREIGN_MISSING(
                f"the {kind} does not exist, so its settings are unknown",
                where=origin,
                found=f"no file {places}",
                hint=(
                    "give a path relative to the YAML or to the current directory; a start is"
                    " refused until the file exists"
                ),
                severity=Severity.WARNING,
            )
        )
        return None
    try:
        return read_document(file, kind, layer)
    except ConfigError as exc:
        layer.problems += exc.diagnostics
        return None


def _fsdp(upper: Merged, launcher: Document | str | None, folder: Path, layer: Foreign) -> None:
    # The config's own settings, or the block of an Accelerate file
    words: Json = upper.values.get(_FSDP)
    entry = upper.winners.get(_FSDP)
    # The environment and the command line give texts
    if isinstance(words, str) and words.strip().lower() in ("true", "false"):
        words = words.strip().lower() == "true"
    words_place = entry.source.place() if entry else ""
    in_config = _FSDP in upper.values or _FSDP_CONFIG in upper.values
    document = _named(upper, _FSDP_CONFIG, folder, layer)
    carried = None if in_config else _carried(_FSDP_CONFIG, folder, layer)
    if in_config:
        _left_out(_FSDP_CONFIG, upper, layer)
    # The launcher's options are merged into them
    if isinstance(launcher, Variables):
        settings, words, words_place = _inner(document or carried, words, words_place)
        plain = settings is None and not words
        document = (
            launcher
            if plain
            else blended(settings or Document({}, words_place, {}), launcher, layer, fsdp.plain_name)
        )
        carried = document
    if document is None and carried is None and not words:
        return
    # fsdp_config alone enables nothing: the strategy, fsdp or Accelerate must name FSDP
    requested = (
        upper.values.get("training.distributed_strategy") in _SHARDING or bool(words) or carried is not None
    )
    on = requested or (bool(document and "fsdp" in document.data))
    other_engine = upper.values.get(_DEEPSPEED) or any(
        path.startswith("training.parallelism") for path in upper.values
    )
    if not on and words is None and document is not None and not other_engine:
        layer.notes.append(
            document.note(
                "", "fsdp_config without fsdp shards nothing, as in Transformers", "set fsdp: full_shard"
            )
        )
    used = (
        document
        or carried
        or Document({}, entry.source.file if entry else "", {}, entry.source.line if entry else None)
    )
    # Only a replicated mesh makes reshard_after_forward: true hybrid
    replicas = any(
        path == "training.parallelism.dp_replicate_size" and isinstance(size, int) and size > 1
        for path, size in [*upper.values.items(), *((item.path, item.value) for item in layer.entries)]
    )
    reader = fsdp.FsdpReader(used, layer, replicas)
    reader.read(words, words_place, 1 if carried is not None else None)
    layer.contents["training.fsdp"] = reader.sharding if on else None
    layer.contents["training.fsdp_config"] = reader.options or None


def _inner(document: Document | None, words: Json, words_place: str) -> tuple[Document | None, Json, str]:
    """Return the inner settings, words and place of a file that has both ``fsdp`` and ``fsdp_config``.

    The words are the file's only if the config has none.
    """
    if document is None or not isinstance(document.data.get("fsdp_config"), dict):
        return document, words, words_place
    if words is None and document.data.get("fsdp"):
        words, words_place = document.data["fsdp"], document.place("fsdp")
    return document.part("fsdp_config"), words, words_place
