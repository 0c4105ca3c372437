"""Options of the surrounding launcher, read from its variables like the YAML of ``accelerate config``.

An option that the user gave ranks above the YAML and below ``PACELINE_…`` variables and the command line; the
launcher's default ranks below the YAML. Every conflict is reported with both places.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from paceline.config import codes
from paceline.config.backend_files.layer import Document, Foreign, inside
from paceline.config.keys.valid_keys import same
from paceline.config.source import ENVIRONMENT, Entry, Source, shown
from paceline.config.yaml_text.read_file import names, read_table, texts
from paceline.config.yaml_text.scalars import resolve_plain
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.json_types import (
    Json,
    JsonObject,
    as_object,
    inner_object,
    leaves,
    nearest_key,
    put_at,
    value_at,
)

_STRATEGY, _DEEPSPEED = "training.distributed_strategy", "training.deepspeed"
# What accelerate writes for an option that is not set
_OFF = ("", "none", "no", "false", "0")
# The launcher's strategy → more specific strategies of the same engine, which the YAML may name.
_SAME_ENGINE = {"deepspeed": ("zero1", "zero2", "zero3"), "fsdp": ("pipeline",)}


@dataclass(frozen=True)
class Variables(Document):
    """Settings from the environment.

    ``names``: the variable of each path; ``requested``: the paths whose value the user gave.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    requested: frozenset[str] = frozenset()

    def source(self, path: str) -> Source:
        """Return the variable that sets ``path``."""
        return Source(ENVIRONMENT, text=self._variable(path))

    def part(self, block: str) -> Variables:
        """Return the variables of an inner block."""
        names = inside(self.names, block) | {"": self._variable(block)}
        requested = frozenset(inside(dict.fromkeys(self.requested, ""), block))
        return Variables(as_object(self.data[block]), self.name, {}, None, names, requested)

    def bare(self, path: str) -> Variables:
        """Return an empty document at the variable of ``path``."""
        return Variables({}, self.name, {}, None, {"": self._variable(path)})

    def made(self, data: JsonObject, origin: Mapping[str, str]) -> Variables:
        """Return a document derived from these settings."""
        names = {path: self._variable(key) for path, key in origin.items()}
        requested = frozenset(path for path, key in origin.items() if key in self.requested)
        return Variables(data, self.name, {}, None, names | {"": self._variable("")}, requested)

    def _variable(self, path: str) -> str:
        return self.names.get(nearest_key(self.names, path), "")


@dataclass
class Launched:
    """Entries ``above`` and ``below`` the YAML; ``blocks``: FSDP and DeepSpeed settings to merge with it."""

    above: list[Entry] = field(default_factory=list)
    below: list[Entry] = field(default_factory=list)
    blocks: dict[str, Document | str] = field(default_factory=dict)
    problems: list[Diagnostic] = field(default_factory=list)
    notes: list[Diagnostic] = field(default_factory=list)


def launched_layer(
    environ: Mapping[str, str], yaml: Mapping[str, Json], winners: Mapping[str, Entry]
) -> Launched:
    """Return the settings of the launcher's variables.

    ``yaml`` and ``winners``: values and entries of the layer that they are compared with.
    """
    launched = Launched()
    variables = with_todays_names(dict(environ))
    if not any(name in variables for name in _MARKS):
        return launched
    from paceline.config.backend_files.accelerate import accelerate_file

    # Read the variables as if they were the YAML of accelerate config
    _check_environ(variables, launched)
    document = _document(variables)
    layer = Foreign()
    accelerate_file.read(document, layer, yaml)
    launched.blocks = dict(layer.blocks)
    launched.problems += layer.problems
    launched.notes += layer.notes
    _clipping(variables, layer)
    # Options the user gave rank above the YAML, the launcher's defaults below
    for entry in layer.entries:
        (launched.above if _is_requested(entry.source.text, environ=variables) else launched.below).append(
            entry
        )
    # Report what is used, and every conflict with the YAML
    _same_engine(launched, yaml)
    launched.notes += _taken(launched)
    launched.notes += [
        _wins(entry, winners[entry.path].source.place(), winners[entry.path].value)
        for entry in launched.above
        if _differs(entry, yaml)
    ]
    # the launcher's defaults are reported too: without the YAML they would apply
    launched.notes += [
        _gives_way(entry, winners[entry.path]) for entry in launched.below if _differs(entry, yaml)
    ]
    return launched


def _taken(launched: Launched) -> list[Diagnostic]:
    """Return one note that lists all options given to the launcher."""
    parts = [f"{e.path}: {shown(e.path, e.value)} ({e.source.text})" for e in launched.above]
    for block in launched.blocks.values():
        if isinstance(block, Variables):
            parts += [f"{path} ({block.names.get(path, '')})" for path in sorted(block.requested)]
    if not parts:
        return []
    return [codes.LAUNCH_OPTIONS_TAKEN(ENVIRONMENT, parts=", ".join(parts))]


def overridden(
    launched: Launched, values: Mapping[str, Json], winners: Mapping[str, Entry]
) -> list[Diagnostic]:
    """Report options of the launcher that ``PACELINE_…`` variables or the command line override."""
    return [
        _gives_way(e, winners[e.path])
        for e in launched.above
        if e.path in winners and not same(values.get(e.path), e.value)
    ]


def _document(environ: Mapping[str, str]) -> Variables:
    data: JsonObject = {}
    names: dict[str, str] = {}
    requested: set[str] = set()
    on = {block: variable for variable, (block, _) in SWITCHES.items() if _is_on(environ.get(variable, ""))}
    switched = {block for block, _ in SWITCHES.values()}
    # Values: those the user gave, and all of a block that is switched on
    for variable, (path, _) in READ.items():
        text, block = environ.get(variable), path.partition(".")[0]
        if text is None or text.strip().lower() in ("", "none") or (block in switched and block not in on):
            continue
        if not (block in on or _is_requested(variable, environ=environ)) and path != "mixed_precision":
            continue
        # It is no key of the block outside DeepSpeed: `_clipping` reads it
        if path == "gradient_clipping":
            continue
        put_at(data, path.split("."), resolve_plain(text.strip()))
        names[path] = variable
        if _is_requested(variable, environ=environ):
            requested.add(path)
    # Switched-on blocks decide the distributed type
    for block, variable in on.items():
        data.setdefault(block, {})
        names[block] = variable
        kind = SWITCHES[variable][1]
        if kind:
            data["distributed_type"], names["distributed_type"] = kind, variable
    if "fsdp_config" in on:
        _one_version(inner_object(data, "fsdp_config"), names, requested)
    if "parallelism_config" in data:
        # Mesh axes that the user did not give are the YAML's
        axes = inner_object(data, "parallelism_config")
        for key in [key for key in axes if f"parallelism_config.{key}" not in requested]:
            del axes[key]
            names.pop(f"parallelism_config.{key}", None)
    return Variables(data, ENVIRONMENT, {}, None, names, frozenset(requested))


def _one_version(block: JsonObject, names: dict[str, str], requested: set[str]) -> None:
    """Drop the options of the other FSDP version, and the size without SIZE_BASED_WRAP.

    accelerate launch sets the options of both versions; each version reads its own.
    """
    # Version 1 shards by sharding_strategy, version 2 by reshard_after_forward
    idle = ["fsdp_reshard_after_forward" if block.get("fsdp_version", 1) == 1 else "fsdp_sharding_strategy"]
    if str(block.get("fsdp_auto_wrap_policy")).upper() != "SIZE_BASED_WRAP":
        idle.append("fsdp_min_num_params")
    for key in idle:
        if f"fsdp_config.{key}" not in requested:
            block.pop(key, None)
            names.pop(f"fsdp_config.{key}", None)


def _is_requested(variable: str, *, environ: Mapping[str, str]) -> bool:
    """Whether the value differs from the launcher's default."""
    if variable in SWITCHES:
        return True
    default, value = READ.get(variable, ("", None))[1], environ.get(variable, "").strip().lower()
    return default is None or value != default.lower()


def _clipping(environ: Mapping[str, str], layer: Foreign) -> None:
    name = "ACCELERATE_GRADIENT_CLIPPING"
    limit = environ.get(name, "auto").strip().lower()
    if limit not in ("auto", "none", ""):
        layer.entries.append(
            Entry("training.max_grad_norm", resolve_plain(limit), Source(ENVIRONMENT, text=name))
        )


def _check_environ(environ: Mapping[str, str], launched: Launched) -> None:
    for name, value in sorted(environ.items()):
        where = f"{ENVIRONMENT} {name}"
        if name in REFUSED:
            if value.strip().lower() not in _OFF:
                launched.problems.append(
                    codes.ACCELERATE_NOT_BUILT(
                        f"{name}: {REFUSED[name]}", where, value, "unset it, or start without that option"
                    )
                )
        elif name in NOTES_BY_KEY:
            if value.strip().lower() not in _OFF or not name.startswith("ACCELERATE_"):
                launched.notes.append(
                    codes.LAUNCH_NO_EFFECT(
                        f"{name} has no effect here: {NOTES_BY_KEY[name]}",
                        where,
                        value,
                        severity=Severity.NOTE,
                    )
                )
        elif (
            name.startswith("ACCELERATE_")
            and name not in READ
            and name not in SWITCHES
            and name not in OTHERS
        ):
            launched.notes.append(
                codes.LAUNCH_NO_EFFECT(
                    f"{name} is not a known variable of accelerate 1.15, and has no effect",
                    where,
                    value,
                    severity=Severity.WARNING,
                )
            )
    for variable, (block, _) in SWITCHES.items():
        idle = [n for n, (path, _) in READ.items() if path.startswith(f"{block}.") and n in environ]
        if idle and not _is_on(environ.get(variable, "")):
            launched.notes.append(
                codes.LAUNCH_NO_EFFECT(
                    f"{', '.join(idle)}: no effect without {variable}=true, as in accelerate",
                    f"{ENVIRONMENT} {idle[0]}",
                    environ[idle[0]],
                    severity=Severity.NOTE,
                )
            )


def _same_engine(launched: Launched, yaml: Mapping[str, Json]) -> None:
    """Let the YAML's strategy win if it is more specific than the launcher's and of the same engine."""
    block = launched.blocks.get(_DEEPSPEED)
    stage = isinstance(block, Variables) and "zero_optimization.stage" in block.requested
    for entry in [e for e in launched.above if e.path == _STRATEGY]:
        if (
            yaml.get(_STRATEGY) not in _SAME_ENGINE.get(str(entry.value), ())
            or stage
            or isinstance(block, str)
        ):
            continue
        launched.above.remove(entry)
        if isinstance(block, Variables):
            zero = {**as_object(block.data["zero_optimization"]), "stage": int(str(yaml[_STRATEGY])[-1])}
            launched.blocks[_DEEPSPEED] = replace(block, data={**block.data, "zero_optimization": zero})


def _differs(entry: Entry, yaml: Mapping[str, Json]) -> bool:
    written = yaml.get(entry.path)
    return entry.path in yaml and written not in (None, "auto") and not same(written, entry.value)


def _wins(entry: Entry, other_place: str, other: Json) -> Diagnostic:
    return codes.LAUNCH_OPTION_WINS(
        f"{entry.path} is {shown(entry.path, entry.value)}, as set for the launcher;"
        f" {other_place} sets {shown(entry.path, other)}",
        entry.source.place(),
        entry.source.text,
        "keep one of the two",
        Severity.WARNING,
    )


def _gives_way(entry: Entry, other: Entry) -> Diagnostic:
    return codes.LAUNCH_OPTION_OVERRIDDEN(
        f"{entry.path} is {shown(entry.path, other.value)}, as set at {other.source.place()}; the"
        f" launcher sets {shown(entry.path, entry.value)}",
        entry.source.place(),
        entry.source.text,
        "keep one of the two",
        Severity.NOTE,
    )


def _is_on(text: str) -> bool:
    return text.strip().lower() in ("true", "1", "yes", "y", "on", "t")


_TABLE = read_table("launcher_variables", "backend_files")
_READ = {name: texts(row) for name, row in as_object(_TABLE["read"]).items()}
READ = {name: (row["path"], row.get("default")) for name, row in _READ.items()}
SWITCHES = {
    name: (str(row["block"]), str(row["kind"]))
    for name, row in ((name, as_object(row)) for name, row in as_object(_TABLE["switches"]).items())
}
NOTES_BY_KEY, REFUSED = texts(_TABLE["said"]), texts(_TABLE["refused"])
OTHERS, OLD = frozenset(names(_TABLE["others"])), names(_TABLE["old"])
_MARKS = (
    "ACCELERATE_MIXED_PRECISION",
    *SWITCHES,
    *(f"ACCELERATE_{name}" for name in ("USE_CPU", "DYNAMO_BACKEND", "GRADIENT_ACCUMULATION_STEPS")),
)


def with_todays_names(environ: dict[str, str]) -> dict[str, str]:
    """Return the environment with the variables of accelerate before 0.16 under their current names too.

    Only if accelerate has set them, i.e. torchrun's or its own variables are present.
    """
    marks = "TORCHELASTIC_RUN_ID" in environ or "USE_CPU" in environ
    old = "MIXED_PRECISION" in environ and "ACCELERATE_MIXED_PRECISION" not in environ and marks
    half = "ACCELERATE_USE_DEEPSPEED" in environ and "ACCELERATE_DEEPSPEED_ZERO_STAGE" not in environ
    if not (old or (half and "DEEPSPEED_ZERO_STAGE" in environ)):
        return environ
    return {**{f"ACCELERATE_{name}": environ[name] for name in OLD if name in environ}, **environ}


@dataclass(frozen=True)
class MergedDocument(Document):
    """A document merged from both; ``variables`` has the places of the launcher's settings."""

    variables: Variables | None = None

    def source(self, path: str) -> Source:
        """Return the source of a setting: the file, or the launcher's variable."""
        launched = self.variables is not None and path in self.variables.requested
        return self.variables.source(path) if self.variables and launched else super().source(path)


def blended(
    document: Document, launcher: Variables, layer: Foreign, same_key: Callable[[str], str] = str
) -> Document:
    """Return the YAML's settings, or its file's, overridden by the options given to the launcher.

    Each difference adds a warning to ``layer``. ``same_key`` normalises the spelling of a key. The launcher's
    defaults do not override ``document``.
    """

    def canonical(path: str) -> str:
        return ".".join(map(same_key, path.split(".")))

    data, written = copy.deepcopy(document.data), {canonical(path): path for path in leaves(document.data)}
    options = leaves(launcher.data)
    for path, value in ((path, options[path]) for path in options if path in launcher.requested):
        if (before := written.get(canonical(path))) is not None:
            outer, _, key = before.rpartition(".")
            replaced = as_object(value_at(data, outer) if outer else data).pop(key)
            if replaced != "auto" and not same(replaced, value):
                layer.notes.append(_wins(launcher.entry(path, value, path), document.place(before), replaced))
        put_at(data, path.split("."), value)
    return MergedDocument(data, document.name, document.lines, document.line, launcher)
