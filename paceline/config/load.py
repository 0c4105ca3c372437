"""Load a Config from files, environment and command line; the only way in.

Layers, later ones win: defaults < DeepSpeed, FSDP and Accelerate files < files that the YAML extends < YAML
< options of the surrounding launcher (``accelerate launch``) < environment
(``PACELINE_TRAINING__LEARNING_RATE``) < command line (``training.learning_rate=1e-4`` and dedicated flags).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from paceline.config import codes
from paceline.config.backend_files.accelerate.environment import launched_layer, overridden
from paceline.config.backend_files.detect import gathered, read_as_ours
from paceline.config.backend_files.find_files import FILE_KEYS, foreign_layer
from paceline.config.extends import trees
from paceline.config.keys.valid_keys import known_names
from paceline.config.layers.build import build, unreliable_keys, without_code
from paceline.config.layers.collect import Collector
from paceline.config.layers.merge import Merged, merge
from paceline.config.migrations import KEY as VERSION_KEY
from paceline.config.migrations import newest, older_defaults, version_of
from paceline.config.schema import SECTIONS, Config, field_of, fields
from paceline.config.source import ARGUMENT, COMMAND_LINE, DEFAULTS, ENVIRONMENT, FOREIGN, YAML, Entry, Source
from paceline.config.written_values import held_secrets, masked
from paceline.config.yaml_text.lookalike_characters import in_value, plain
from paceline.config.yaml_text.scalars import resolve_plain
from paceline.config.yaml_text.tree import Node, parse_yaml
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json, as_object
from paceline.core.rundir import RunDir

_PREFIX = "PACELINE_"
Rules = Callable[[Config, Mapping[str, Source]], Sequence[Diagnostic]]


@dataclass(frozen=True)
class Loaded:
    """A Config, the source of each of its values, and notes about how it was read. ``version``: of the schema
    that the file states, or the newest.
    """

    config: Config
    provenance: Mapping[str, Source]
    notes: tuple[Diagnostic, ...]
    path: str | None = None
    version: int = field(default_factory=newest)


class NotLoaded(ConfigError):
    """A config with errors.

    ``partial``: the config with defaults in place of invalid values, and the values of unknown keys under the
    one key that each must mean. ``doubt``: which of its keys are unreliable
    (``config/layers/build.py``).
    """

    def __init__(self, problems: Sequence[Diagnostic], partial: Loaded, doubt: frozenset[str]) -> None:
        super().__init__(*problems)
        self.partial, self.doubt = partial, doubt


def load_config(
    path: str | None,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Json] | None = None,
    rules: Rules | None = None,
    tree: Mapping[str, Json] | None = None,
    flags_from: str = COMMAND_LINE,
) -> Loaded:
    """Read, translate, merge and validate a config.

    ``path`` may be None (defaults and the upper layers only); ``overrides`` are ``key=value`` texts;
    ``flags`` are values of dedicated CLI flags by dotted path (None: not given); the findings of ``rules``
    are reported along with the others; ``tree`` is a config that a program gives in place of a file, and
    ``flags_from`` the layer that messages about flags name. Raises ConfigError with all violations; NotLoaded
    if the valid part of the config is usable.
    """
    files, others, problems, top = _layers(path, tree, overrides, environ or {}, (flags or {}, flags_from))
    collectors, version = [*files, *others], files[-1].version if files else None
    # Foreign files are named by upper layers: merge those first, read the files, then merge all
    yaml = [collector.entries for collector in files]
    # The launcher's options are compared with the YAML, not with what ranks above them
    below = merge(yaml)
    launched = launched_layer(environ or {}, below.values, below.winners)
    problems += launched.problems
    uppers = [*yaml, launched.above, *(collector.entries for collector in others)]
    first = merge(uppers)
    foreign = foreign_layer(first, Path(path).parent if path else Path("."), launched)
    problems += foreign.problems
    meant = _meant(collectors, first)
    older, migrations = older_defaults(version, [*first.winners])
    # Foreign entries lie below the YAML, its own keys of these files above: both are merged anew
    merged = merge([older, launched.below, foreign.entries, *uppers, meant.entries])
    merged.notes += overridden(launched, merged.values, merged.winners)
    # A path of a file gives way to what the file holds
    merged.values.update(foreign.contents)
    problems += [*meant.problems, *merged.problems]
    _spread_max_rows(merged)
    problems += _of_all_machines(merged)
    # Validate, run the rules, and search the result for secrets of the environment
    config, misfits = build(merged)
    if path and config.training.experiment_name is None:  # the run directory is named after the file
        training = config.training.model_copy(update={"experiment_name": Path(path).stem})
        config = config.model_copy(update={"training": training})
    problems += misfits
    provenance = _provenance(merged, config)
    if path and _is_of_run(Path(path)):
        provenance = _without_defaults(provenance, config)
    # Before the rules run: they would refuse what is switched off here
    config, code_notes = without_code(config, provenance)
    problems += rules(config, provenance) if rules else ()
    held = list(held_secrets(config.to_json(), provenance, environ or {}))
    notes = [*migrations, *(note for collector in collectors for note in collector.notes)]
    all_notes = (*notes, *launched.notes, *foreign.notes, *merged.notes, *code_notes)
    loaded = Loaded(config, provenance, all_notes, path, version or newest())
    if findings := [masked(problem) for problem in _in_order([*problems, *held])]:
        if held or not top:  # never pass on a secret; and a file that cannot be parsed has no valid part
            raise ConfigError(*findings)
        doubt = _unreliable(problems, loaded, top, meant, first)
        raise NotLoaded(findings, loaded, doubt)
    return loaded


def _unreliable(
    problems: Sequence[Diagnostic], loaded: Loaded, top: Mapping[str, int], meant: Collector, first: Merged
) -> frozenset[str]:
    """Return the keys in doubt, including keys that name an invalid foreign file."""
    files = {
        Path(value).name: key
        for key, value in first.values.items()
        if key in FILE_KEYS and isinstance(value, str)
    }
    places = frozenset(entry.source.place() for entry in meant.entries)
    return unreliable_keys(problems, loaded.provenance, str(loaded.path), top, places, files)


def _layers(
    path: str | None,
    arguments: Mapping[str, Json] | None,
    overrides: Sequence[str],
    environ: Mapping[str, str],
    flags: tuple[Mapping[str, Json], str],
) -> tuple[list[Collector], list[Collector], list[Diagnostic], dict[str, int]]:
    """Read each layer separately, so that an error in one does not hide errors in others.

    Collect the layers: the file, below it the files that it extends, and the other layers. Return them with
    all problems and the lines of the file's top keys.
    """
    problems: list[Diagnostic] = []
    files: list[Collector] = []
    top: dict[str, int] = {}
    try:
        documents = trees(path, environ)
        top.update(documents[-1][1].key_lines if documents else {})
    except ConfigError as exc:
        documents, problems = [], list(exc.diagnostics)
    for name, tree in documents:
        collector = Collector()
        version = version_of(tree, name)
        collector.root(tree, name, YAML)
        collector.written_for(version)
        collector.problems = gathered(collector.problems, tree.data(), name)
        alone = len(documents) == 1  # no file is extended
        if alone and (theirs := read_as_ours(tree.data(), str(name))) is not None:
            kept = "the import keeps its meaning"  # another program's key is translated, not removed
            collector.notes = [
                theirs,
                *(replace(n, hint=kept) if n.hint == "remove the line" else n for n in collector.notes),
            ]
        files.append(collector)
    if arguments is not None:
        files.append(_tree(arguments))
    others: list[Collector] = []
    readers: tuple[Callable[[Collector], None], ...] = (
        lambda collector: _environment(environ, collector),
        lambda collector: _command_line(overrides, *flags, collector),
    )
    for collect in readers:
        collector = Collector()
        try:
            collect(collector)
        except ConfigError as exc:
            problems += exc.diagnostics
        others.append(collector)
    return files, others, [*problems, *(p for c in (*files, *others) for p in c.problems)], top


def _meant(collectors: Sequence[Collector], first: Merged) -> Collector:
    """Collect the values of unknown keys under the keys that they must mean, where those are not given.

    They only serve to find further errors: the unknown keys remain errors.
    """
    collected = Collector()
    for collector in collectors:
        for path, node, source in collector.meant:
            reading = Collector()
            reading.setting(tuple(path.split(".")), node, source)
            taken = {*first.winners, *(entry.path for entry in collected.entries)}
            # A suggestion that has to be suggested itself leads nowhere
            if not reading.meant and not any(entry.path in taken for entry in reading.entries):
                collected.entries += reading.entries
                collected.problems += reading.problems
    return collected


def _tree(tree: Mapping[str, Json]) -> Collector:
    """Collect the settings of a program's own mapping, key by key; they have no lines."""
    collector = Collector()
    version = version_of(_as_node(dict(tree)), ARGUMENT)
    for name, value in tree.items():
        settings = {name: value} if name != VERSION_KEY else {}
        if isinstance(value, Mapping) and name != "lora":
            settings = {f"{name}.{key}": item for key, item in value.items()}
        for path, item in settings.items():
            collector.written(tuple(path.split(".")), _as_node(item), Source(ARGUMENT, text=path))
    collector.written_for(version)
    return collector


def _environment(environ: Mapping[str, str], collector: Collector) -> None:
    # In order, so that two runs report the same finding first
    for name in sorted(environ):
        if not name.startswith(_PREFIX):
            continue
        if "__" not in name:
            _one_underscore(name, collector)
            continue
        parts = tuple(name.removeprefix(_PREFIX).lower().split("__"))
        source = Source(ENVIRONMENT, text=name)
        if parts[0] not in SECTIONS or not all(parts):
            collector.problems.append(
                codes.CONFIG_UNKNOWN_VARIABLE(
                    f"{name} names no section",
                    where=source.place(),
                    found=name,
                    hint="PACELINE_<SECTION>__<KEY>, with one of these sections:"
                    f" {', '.join(s.upper() for s in SECTIONS)}",
                )
            )
            continue
        collector.written(parts, _value(environ[name], name), source)


def _one_underscore(name: str, collector: Collector) -> None:
    """Report ``PACELINE_TRAINING_LEARNING_RATE``, which would set nothing.

    Paceline's other variables, such as PACELINE_CACHE, do not start with a section.
    """
    section, _, key = name.removeprefix(_PREFIX).partition("_")
    if section.lower() not in SECTIONS or not key:
        return
    is_key = field_of(f"{section}.{key}".lower()) or key.lower() in known_names(section.lower())
    (collector.problems if is_key else collector.notes).append(
        codes.CONFIG_UNKNOWN_VARIABLE(
            f"{name} has no effect: two underscores are needed between section and key",
            Source(ENVIRONMENT, text=name).place(),
            name,
            f"{_PREFIX}{section}__{key}, or unset it",
            Severity.ERROR if is_key else Severity.WARNING,
        )
    )


def _command_line(
    overrides: Sequence[str], flags: Mapping[str, Json], flags_from: str, collector: Collector
) -> None:
    for path, value in flags.items():
        if value is not None or flags_from != COMMAND_LINE:  # a program's None is a value
            collector.written(tuple(path.split(".")), _as_node(value), Source(flags_from, text=path))
    for override in overrides:
        key, equals, value = override.partition("=")
        key = key.strip().lstrip("-")
        if not equals or not key or not all(key.split(".")):
            written = override.split("=")[0] if equals else override
            remedy = (
                plain(override) if not equals and "=" in plain(override) else "training.learning_rate=1e-4"
            )
            if not equals and override.endswith((".yaml", ".yml")):
                remedy = (
                    f"one config is read; a file that says extends: [FIRST.yaml, {override}] joins several"
                )
            collector.problems.append(codes.CONFIG_OVERRIDE(COMMAND_LINE, written, hint=remedy))
            continue
        source = Source(COMMAND_LINE, text=f"{key}=…" if len(override) > 60 else override)
        collector.written(tuple(key.split(".")), _value(value, f"command line {key}"), source)


def _value(text: str, name: str) -> Node:
    """Parse a one-line value: a YAML scalar, ``[a, b]`` or ``{a: 1}``. Raises ConfigError."""
    stripped = text.strip()
    if stripped[:1] in ("[", "{", '"', "'"):
        return parse_yaml(stripped, name) or Node(None, 1)
    if character := in_value(stripped):
        raise ConfigError(
            codes.CONFIG_LOOKALIKE(
                f"{character} is used where a plain character is expected",
                name,
                stripped[:80],
                plain(stripped)[:80],
            )
        )
    return Node(resolve_plain(stripped), 1, raw=stripped)


def _as_node(value: Json) -> Node:
    if isinstance(value, Mapping):
        return Node(
            {str(key): _as_node(item) for key, item in value.items()},
            1,
            key_lines={str(key): 1 for key in value},
        )
    if value is None or isinstance(value, (bool, int, float, str)):
        return Node(value, 1, raw="" if value is None else str(value))
    return Node([_as_node(item) for item in value], 1)


def _spread_max_rows(merged: Merged) -> None:
    """Apply LLaMA-Factory's max_samples to every data set."""
    limit = merged.values.get("data.max_rows")
    if limit is None:
        return
    from paceline.config.sections.data import to_datasets

    for path in ("data.train", "data.eval"):
        sets: Json = to_datasets(merged.values.get(path))
        if isinstance(sets, list):
            merged.values[path] = [
                {"max_rows": limit, **item} if isinstance(item, dict) else item for item in sets
            ]


def _of_all_machines(merged: Merged) -> list[Diagnostic]:
    """Refuse Accelerate's num_processes as launch.nproc on several nodes: it counts all processes."""
    winner, nodes = merged.winners.get("launch.nproc"), merged.values.get("launch.nnodes", 1)
    if winner is None or not isinstance(nodes, int) or nodes < 2 or winner.source.layer == FOREIGN:
        return []
    # Only the alias counts all machines; launch.nproc written as such is taken as meant
    if winner.source.text.split("=")[0].rpartition(".")[2] != "num_processes":
        return []
    what = f"num_processes counts the processes of all {nodes} nodes, launch.nproc those of one node"
    remedy = (
        f"launch.nproc: {winner.value // nodes}"
        if isinstance(winner.value, int)
        else "launch.nproc: the processes of one node"
    )
    return [codes.CONFIG_VALUE(what, winner.source.place(), f"num_processes: {winner.value}", remedy)]


def _provenance(merged: Merged, config: Config) -> dict[str, Source]:
    default = Source(DEFAULTS)
    sources: dict[str, Source] = {}
    winners: Mapping[str, Entry] = merged.winners
    sources["training.experiment_name"] = Source(DEFAULTS, text="name of the config file")
    for path in fields():
        if config.lora is None and path.startswith("lora."):
            continue
        winner = winners.get(path)
        if winner is None and path.count(".") > 1:
            # A key inside a mapping that was set as a whole has the mapping's source
            winner = winners.get(path.rpartition(".")[0])
        if winner or path not in sources:
            sources[path] = winner.source if winner else default
    for path, entry in winners.items():
        sources.setdefault(path, entry.source)
    return {**merged.inner, **sources}


def _is_of_run(path: Path) -> bool:
    """Whether the file is the effective config that a run has written: it holds every key."""
    run = RunDir.at(path.parent)
    return run.config_json == path.absolute() and run.plan_json.is_file()


def _without_defaults(provenance: Mapping[str, Source], config: Config) -> dict[str, Source]:
    """Return the sources; keys of a run's own file whose values are the defaults count as not written."""
    values, sources, known = config.to_json(), dict(provenance), fields()
    for path, source in provenance.items():
        section, name = values, path
        while "." in name:
            first, _, name = name.partition(".")
            section = as_object(section.get(first))
        default = known[path].get_default(call_default_factory=True) if path in known and section else None
        usual = section.get(name) == (list(default) if isinstance(default, tuple) else default)
        if source.layer == YAML and usual:
            sources[path] = Source(DEFAULTS)
    return sources


def _in_order(problems: Sequence[Diagnostic]) -> list[Diagnostic]:
    """Return the findings without duplicates, sorted by file and line."""

    def key(item: Diagnostic) -> tuple[str, int]:
        file, _, line = item.where.split(" and ")[0].rpartition(":")
        return (file, int(line)) if line.isdigit() else (item.where, 0)

    # Two layers may report one thing; unhashable evidence is left out of the key
    return sorted({json.dumps([p.code, p.where, p.what, p.found]): p for p in problems}.values(), key=key)
