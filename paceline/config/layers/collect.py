"""Turn one layer's settings into entries at canonical paths; handles flat files, aliases and unknown keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from paceline.config import codes
from paceline.config.keys.aliases import ALIASES, SECTION_ALIASES, SKIP, Alias, NoTranslation
from paceline.config.keys.nearest import MOST_UNKNOWN
from paceline.config.keys.suggest import suggestion
from paceline.config.keys.valid_keys import (
    APEX_LEVEL,
    RECOGNISED,
    RECOGNISED_IN,
    Recognised,
    known_names,
    same,
)
from paceline.config.layers.merge import NAMED_FILES, leaf_of, takes_items
from paceline.config.migrations import KEY as VERSION_KEY
from paceline.config.migrations import migrated
from paceline.config.schema import SECTIONS, field_of, is_text, nested_model, takes_mapping
from paceline.config.source import Entry, Source, shown
from paceline.config.written_values import leaves, misplaced
from paceline.config.yaml_text.tree import Node
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.json_types import Json

# Where two sections have a key of one name, a flat file means the first
_FLAT_ORDER = ("training", "data", "model", "launch", "generation")
# Paths that no section has: they are merged into others
_PSEUDO = frozenset({"training.fp16", "training.bf16", "data.max_rows", "lora"})
_SHORTHAND = {"model": "model.name_or_path", "data": "data.train"}
_GROUPS = frozenset(
    name[:dot] for name in (*ALIASES, *RECOGNISED) for dot, letter in enumerate(name) if letter == "."
) - {"deepspeed"}
_EXTENSION = "x-"  # convention for blocks that only define YAML anchors


def _inside(node: Node, source: Source, path: str) -> Iterator[tuple[str, Node, Source]]:
    """Yield each key of the mapping at ``path`` with its value and its own source."""
    for key, child in node.children().items():
        line = node.key_lines.get(key)
        yield key, child, replace(source, line=line, text=f"{path}.{key}") if source.file else source


class Collector:
    """Collects the entries of one layer; ``problems`` are errors, ``notes`` inform the user."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.problems: list[Diagnostic] = []
        self.notes: list[Diagnostic] = []
        self.version: int | None = None  # of the schema, if the file states one
        self.meant: list[tuple[str, Node, Source]] = []  # what an unknown key must mean, and its value
        # An alias and its key with one value are one setting, not a conflict
        self._seen: dict[tuple[str, tuple[str, ...]], list[Json]] = {}
        self._secret_places: set[str] = set()
        self._unknown_keys = 0
        self._further: int | None = None  # index in ``problems`` of the unknown keys beyond the limit

    def root(self, node: Node, file: str, layer: str) -> None:
        """Collect all settings of a YAML file."""
        if not isinstance(node.value, dict):
            kind = "a list" if isinstance(node.value, list) else "a single value"
            self.problems.append(
                codes.CONFIG_NOT_A_MAPPING(
                    "the file must be a mapping of keys to values",
                    f"{file}:{node.line}",
                    kind,
                    "training:\n             learning_rate: 5e-5",
                )
            )
            return
        self.look_at(node, Source(layer, file))
        for key, child in node.value.items():
            if key == VERSION_KEY:
                continue
            source = Source(layer, file, node.key_lines[key], key)
            if key.startswith(_EXTENSION):
                self.notes.append(
                    codes.CONFIG_EXTENSION(
                        f"{key}: is a block for anchors (&name); the block itself is not read",
                        source.place(),
                        "",
                        "put *name where its value is needed, or <<: *name to merge its keys",
                        Severity.NOTE,
                    )
                )
            else:
                self.setting((key,), child, source)

    def written_for(self, version: int | None) -> None:
        """Convert the collected settings from this schema version."""
        self.version = version
        self.entries, notes = migrated(self.entries, version)
        self.notes += notes

    def look_at(self, node: Node, source: Source, path: tuple[str, ...] = ()) -> None:
        """Report secrets and shell variables in the values under ``node``, whatever their keys."""
        for finding in misplaced(leaves(node, source, path), source.layer):
            self.problems.append(finding)
            if finding.code == codes.SEC_SECRET_ON_CLI.name:
                self._secret_places.add(finding.where)

    def written(self, parts: tuple[str, ...], node: Node, source: Source) -> None:
        """Collect one setting that is not from a file, after checking its value."""
        self.look_at(node, source, parts)
        self.setting(parts, node, source)

    def setting(self, parts: tuple[str, ...], node: Node, source: Source) -> None:
        """Collect one setting: ``parts`` is its path as written, ``node`` its value."""
        # A key at the top level of a flat file, a key of a section, or a section itself
        if parts[0] not in SECTIONS:
            self._in_section("", parts, node, source)
        elif len(parts) > 1:
            self._in_section(parts[0], parts[1:], node, source)
        elif isinstance(node.value, dict):
            if parts[0] == "lora":
                self._emit(Entry("lora", {}, source), node)
            for key, child, place in _inside(node, source, parts[0]):
                self.setting((parts[0], key), child, place)
        elif parts[0] == "lora" and (node.value is None or isinstance(node.value, bool)):
            self._emit(Entry("lora", {} if node.value else None, source), node)
        elif node.value is None and source.file:
            return  # a section without keys
        elif parts[0] in _SHORTHAND and isinstance(node.value, (str, list)):
            self._emit(Entry(_SHORTHAND[parts[0]], node.data(), source), node)
        else:
            self.problems.append(
                codes.CONFIG_SECTION(
                    f"{parts[0]}: is a section and must contain keys",
                    source.place(),
                    shown(parts[0], node.data()),
                    f"{parts[0]}: with indented keys below it",
                )
            )

    def _in_section(self, section: str, rest: tuple[str, ...], node: Node, source: Source) -> None:
        for candidate in (section,) if section else _FLAT_ORDER:
            path = f"{candidate}.{rest[0]}"
            info = field_of(path)
            if info is not None:
                self._field(path, info, rest[1:], node, source)
                return
        self._other(section, rest, node, source)

    def _field(self, path: str, info: FieldInfo, inner: tuple[str, ...], node: Node, source: Source) -> None:
        if path == "training.deepspeed":
            self._deepspeed(inner, node, source)
        elif nested_model(info) is not None and (inner or isinstance(node.value, dict)):
            self._nested(path, inner, node, source)
        elif inner and (takes_mapping(info) or takes_items(info) or path in NAMED_FILES):
            self._emit(Entry(path, node.data(), source, inner), node)
        elif inner:
            self.problems.append(
                codes.CONFIG_UNKNOWN_KEY(
                    f"{path} has no keys inside it",
                    source.place(),
                    ".".join((path, *inner)),
                    f"{path}: the complete value",
                )
            )
        else:
            self._emit(Entry(path, node.data(), source), node)

    def _nested(self, path: str, inner: tuple[str, ...], node: Node, source: Source) -> None:
        if not inner:
            for key, child, place in _inside(node, source, path):
                self._nested(path, (key,), child, place)
            return
        leaf = ".".join((path, *inner))
        alias = SECTION_ALIASES.get(leaf.removeprefix("training."))
        if field_of(leaf) is not None:
            self._emit(Entry(leaf, node.data(), source), node)
        elif takes_items(field_of(f"{path}.{inner[0]}")):
            self._emit(Entry(f"{path}.{inner[0]}", node.data(), source, inner[1:]), node)
        elif alias is not None:
            self._alias(alias, leaf, node, source)
        else:
            info = field_of(path)
            model = nested_model(info) if info is not None else None
            self._unknown(".".join(inner), tuple(model.model_fields) if model else (), path, node, source)

    def _deepspeed(self, inner: tuple[str, ...], node: Node, source: Source) -> None:
        if inner and inner != ("config_path",):
            self._emit(Entry("training.deepspeed", node.data(), source, inner), node)
            return
        value = node.value
        if isinstance(value, dict) and "config_path" in value:
            if len(value) > 1:
                others = ", ".join(key for key in value if key != "config_path")
                self.problems.append(
                    codes.CONFIG_DEEPSPEED_BOTH(
                        "deepspeed has both a file and settings",
                        source.place(),
                        f"config_path and {others}",
                        "give config_path alone, or the settings alone",
                    )
                )
                return
            if source.file:
                source = replace(source, line=node.key_lines["config_path"])
            node = value["config_path"]
        self._emit(Entry("training.deepspeed", node.data(), source), node)

    def _other(self, section: str, rest: tuple[str, ...], node: Node, source: Source) -> None:
        # A key that is no field: an alias, a known key without effect, a group of such keys, or unknown
        name = ".".join(rest)
        alias = SECTION_ALIASES.get(f"{section}.{name}") or ALIASES.get(name)
        if alias is not None and section not in ("", "training") and alias.to.split(".")[0] != section:
            alias = None
        if alias is not None:
            self._alias(alias, name, node, source)
        elif (
            recognised := RECOGNISED_IN.get(section, RECOGNISED if section in ("", "training") else {}).get(
                name
            )
        ) is not None:
            self._recognised(name, recognised, node, source)
        elif name in _GROUPS and (isinstance(node.value, dict) or node.value is None):
            for key, child, place in _inside(node, source, source.text):
                self._in_section(section, (*rest, key), child, place)
        elif len(rest) > 1 and rest[0] in _GROUPS:
            group = [
                recognised.partition(".")[2]
                for recognised in (*ALIASES, *RECOGNISED)
                if recognised.startswith(f"{rest[0]}.")
            ]
            self._unknown(rest[-1], tuple(group), f"{section}.{rest[0]}".strip("."), node, source)
        else:
            self._unknown(name, known_names(section), section, node, source)

    def _alias(self, alias: Alias, name: str, node: Node, source: Source) -> None:
        info = field_of(alias.to)
        if alias.value is None and info is not None and isinstance(node.value, dict):
            self._field(alias.to, info, (), node, source)
            return
        value = node.data()
        try:
            translated = alias.value(value) if alias.value is not None and value is not None else value
        except (NoTranslation, PydanticCustomError) as exc:
            message, remedy = (
                (exc.what, exc.hint)
                if isinstance(exc, NoTranslation)
                else (f"{name} {exc.message()}", f"see {alias.to}")
            )
            self.problems.append(
                codes.CONFIG_VALUE(message, source.place(), f"{name}: {shown(name, value)}", remedy)
            )
            return
        if translated is SKIP:
            return
        self._emit(Entry(alias.to, translated, source, of_algorithm=alias.of_algorithm), node)
        if alias.note:
            self.notes.append(
                codes.CONFIG_TRANSLATED(
                    f"{name} is read as {alias.to}: {shown(alias.to, translated)}",
                    source.place(),
                    f"{name}: {shown(name, value)}",
                    alias.note,
                    Severity.NOTE,
                )
            )

    def _recognised(self, name: str, key: Recognised, node: Node, source: Source) -> None:
        value, place = node.data(), source.place()
        written = f"{name}: {shown(name, value)}"
        if name == "fp16_opt_level" and str(value).strip().lower() == "o0":
            self.entries.append(Entry(APEX_LEVEL, "o0", source))
            self.notes.append(
                codes.CONFIG_TRANSLATED(
                    f"{name}: O0 is read as float32, as in Apex: fp16 is off",
                    place,
                    written,
                    "mixed_precision: no",
                    Severity.NOTE,
                )
            )
        elif key.accepts(value):
            self.notes.append(
                codes.CONFIG_NO_EFFECT(
                    f"{name} is ignored: {key.says}", place, written, "you can remove the line", Severity.NOTE
                )
            )
        elif key.refuses(value):
            fine = f"{name}: {shown(name, key.fine[0])}, or " if key.fine else ""
            self.problems.append(
                codes.CONFIG_NOT_SUPPORTED(f"{name}: {key.says}", place, written, f"{fine}remove the line")
            )
        else:
            self.notes.append(
                codes.CONFIG_NOT_GRANTED(
                    f"{name} is not supported: {key.says}",
                    place,
                    written,
                    "remove the line",
                    Severity.WARNING,
                )
            )

    def _unknown(
        self, name: str, valid_names: tuple[str, ...], where: str, node: Node, source: Source
    ) -> None:
        where_written = source.place()
        if where_written in self._secret_places or where_written.split("=")[0] in self._secret_places:
            return
        # A file of another program may have thousands of unknown keys
        self._unknown_keys += 1
        if self._unknown_keys > MOST_UNKNOWN:
            self._count_further(where_written)
            return
        likely = suggestion(name, where, valid_names)
        if likely is not None and likely.path is not None:
            self.meant.append((likely.path, node, source))
        remedy = likely.hint if likely is not None else None
        if remedy is None and where:
            remedy = f"a key of {where}: {', '.join(valid_names[:6])}, … (docs/reference/config.md lists all)"
        shown_name = f"{where}.{name}" if where else name
        self.problems.append(
            codes.CONFIG_UNKNOWN_KEY(
                f"unknown key '{name}'" + (f" under {where}:" if where else ""),
                where_written,
                shown_name,
                remedy or "docs/reference/config.md lists every key",
            )
        )

    def _count_further(self, where_written: str) -> None:
        """Report the unknown keys beyond the limit as one finding, at the first of them."""
        many = self._unknown_keys - MOST_UNKNOWN
        first = where_written if self._further is None else self.problems[self._further].where
        keys = "unknown keys" if many > 1 else "unknown key"
        finding = codes.CONFIG_UNKNOWN_KEY(
            f"{many:,} more {keys}",
            first,
            "",
            "is this a Paceline config? docs/reference/config.md lists every key",
        )
        if self._further is None:
            self._further = len(self.problems)
            self.problems.append(finding)
        else:
            self.problems[self._further] = finding

    def _emit(self, entry: Entry, node: Node) -> None:
        """Add an entry with its value at ``node``, once."""
        value = entry.value
        if entry.path not in _PSEUDO:
            info = leaf_of(entry.path, entry.sub)
            if (
                info is not None
                and is_text(info)
                and isinstance(value, (int, float))
                and not isinstance(value, bool)
                and node.raw
            ):
                value = node.raw
        lines = node.lines() if entry.source.file else {}
        before = self._seen.setdefault((entry.path, entry.sub), [])
        if any(same(other, value) for other in before):
            return
        before.append(value)
        self.entries.append(replace(entry, value=value, lines=lines))
