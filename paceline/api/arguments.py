"""Convert a caller's arguments (config, rows, own functions) to JSON and names that other processes can read.

A config is a YAML file, a mapping, or ``load_config``'s answer; rows are written to a file.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from paceline.api import codes
from paceline.config.source import ARGUMENT
from paceline.core.errors import ConfigError
from paceline.core.json_types import NO_UTF8, Json, JsonObject

if TYPE_CHECKING:
    from paceline.config.load import Loaded
    from paceline.config.schema import Config


@dataclass(frozen=True)
class ConfigSource:
    """The source of settings; ``overrides`` win."""

    path: Path | None
    tree: JsonObject | None
    overrides: JsonObject

    def with_overrides(self, more: Mapping[str, Json]) -> ConfigSource:
        """Return the source with an option's overrides; None: the option was not given."""
        options = {key: value for key, value in more.items() if value is not None}
        return ConfigSource(self.path, self.tree, {**self.overrides, **options})

    def settings(self) -> list[str]:
        """Return the overrides as ``key=value``, as a command line has them."""
        return [f"{key}={json.dumps(value)}" for key, value in self.overrides.items()]

    @contextmanager
    def file(self) -> Iterator[Path]:
        """Yield the config as a file for other processes. The file of a mapping exists inside the context
        only.
        """
        if self.path is not None:
            yield self.path
            return
        with tempfile.TemporaryDirectory(prefix="paceline-config-") as folder:
            path = Path(folder) / "run.yaml"
            text = json.dumps(self.tree, indent=1, ensure_ascii=False) + "\n"
            path.write_bytes(text.encode("utf-8", NO_UTF8))
            yield path


@dataclass(frozen=True)
class JobConfig:
    """A config as read and checked; every function of the library takes it in place of the file.

    ``config``: every value, validated; ``source``: the caller's argument.
    """

    config: Config
    source: ConfigSource

    def __str__(self) -> str:
        """Return every effective value with the place that set it, as ``paceline config show`` prints it."""
        from paceline.config.render.effective_values import render_show

        return render_show(read(self.source, ruled=True))


def bad_argument(what: str, argument: str, found: str, remedy: str) -> ConfigError:
    """Return the error of an argument that cannot be used."""
    return ConfigError(codes.API_ARGUMENT(what, argument, found, remedy))


Overrides = Mapping[str, object]
ConfigLike = str | PathLike[str] | Mapping[str, object] | JobConfig


def source_of(config: ConfigLike, overrides: Overrides | None) -> ConfigSource:
    """Return the source of a caller's config. Raises ConfigError for anything else."""
    more = {} if overrides is None else _object(overrides, "overrides")
    if isinstance(config, JobConfig):
        return replace(config.source, overrides={**config.source.overrides, **more})
    if isinstance(config, Mapping):
        return ConfigSource(None, _object(config, "config"), more)
    if isinstance(config, (str, PathLike)):
        return ConfigSource(Path(config), None, more)
    raise bad_argument(
        "this is no config",
        "config",
        type(config).__name__,
        "the path of a YAML file, a dict with the sections model, data and training, or load_config(…)",
    )


def read(source: ConfigSource, *, ruled: bool) -> Loaded:
    """Load and check a config; with ``ruled`` also apply the rules, which else wait until the machine is
    known."""
    from paceline.launch.preflight.load_config import load, load_to_start

    arguments = source.path, (), source.overrides
    if ruled:
        return load(*arguments, tree=source.tree, flags_from=ARGUMENT)
    return load_to_start(*arguments, tree=source.tree, flags_from=ARGUMENT)


def load_config(config: ConfigLike, overrides: Overrides | None = None) -> JobConfig:
    """Read and check a config without starting anything.

    ``config``: the path of a YAML file, or a mapping with its sections; ``overrides``: values by dotted key,
    e.g. ``{"training.learning_rate": 1e-4}``; None is null. Raises ConfigError with every violation at once.
    """
    source = source_of(config, overrides)
    return JobConfig(read(source, ruled=True).config, source)


def _object(mapping: Mapping[str, object], name: str) -> JsonObject:
    return {str(key): as_json(value, f"{name}[{str(key)!r}]") for key, value in mapping.items()}


def as_json(value: object, where: str, *, row: bool = False) -> Json:
    """Return ``value`` in JSON types: paths become texts, tuples lists, numpy's numbers Python's.

    ``row``: the value is from a row: no paths and sets, and null for numbers that are not finite. Raises
    ConfigError (``api.argument``, ``api.rows``) for anything else.
    """
    if isinstance(value, float) and row and not math.isfinite(value):
        return None  # what pandas has in place of nothing
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, PathLike) and not row:
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): as_json(item, f"{where}[{str(key)!r}]", row=row) for key, item in value.items()}
    if isinstance(value, (list, tuple) if row else (list, tuple, set, frozenset)):
        return [as_json(item, f"{where}[{index}]", row=row) for index, item in enumerate(value)]
    tolist = getattr(value, "tolist", None)  # numpy's arrays and numbers, tensors
    if callable(tolist):
        return as_json(tolist(), where, row=row)
    kind = type(value).__name__
    if row:
        remedy = "texts, numbers, true, false, None, lists and mappings of these"
        raise ConfigError(codes.API_ROWS("a row cannot hold this", where, kind, remedy))
    remedy = "text, a number, true, false, None, a path, a list or a mapping of these"
    raise bad_argument("a config has no such value", where, kind, remedy)


_Rows = Iterable[Mapping[str, Any]]
Rows = str | PathLike[str] | _Rows | Callable[[], _Rows]


def dataset_setting(rows: Rows | None, name: str, cache: Path) -> Json:
    """Return the value of data.train or data.eval: a path is kept, a function becomes its name, rows are
    written to ``cache``.

    Raises ConfigError (``api.rows``) for anything that is not a row.
    """
    if rows is None or isinstance(rows, str):
        return rows
    if isinstance(rows, PathLike):
        return str(rows)
    if callable(rows):
        return importable_name(rows, name)
    return [{"path": str(written(rows, name, cache / "rows"))}]


def written(rows: _Rows, name: str, folder: Path) -> Path:
    """Write rows as JSON lines under the digest of their content, and return the file.

    The same rows always get the same file, so that their prepared data is found again.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    digest, count = hashlib.sha256(), 0
    with tempfile.NamedTemporaryFile("wb", dir=folder, prefix=".rows-", delete=False) as file:
        try:
            for count, row in enumerate(_each(rows, name), 1):
                line = json.dumps(_row(row, f"{name}[{count - 1}]"), ensure_ascii=False).encode() + b"\n"
                digest.update(line)
                file.write(line)
            if not count:
                raise ConfigError(
                    codes.API_ROWS(
                        "there are no rows",
                        name,
                        "",
                        "a list of mappings, e.g. [{'prompt': …, 'completion': …}]",
                    )
                )
        except BaseException:
            os.unlink(file.name)
            raise
    path = folder / f"{digest.hexdigest()[:32]}.jsonl"
    os.replace(file.name, path)
    return path


def _each(rows: _Rows, name: str) -> Iterator[Mapping[str, Any]]:
    records = getattr(rows, "to_dict", None)
    if hasattr(rows, "iterrows") and callable(records):  # a pandas frame
        yield from records(orient="records")
        return
    if isinstance(rows, Mapping):
        raise ConfigError(
            codes.API_ROWS(
                "this is one mapping, not rows", name, type(rows).__name__, "a list of mappings, one a row"
            )
        )
    yield from rows


def _row(row: object, where: str) -> Json:
    if not isinstance(row, Mapping):
        kind = type(row).__name__
        raise ConfigError(
            codes.API_ROWS("this is not a row", where, kind, "a mapping of column names to values")
        )
    return as_json(row, where, row=True)


#: A part of a training: its name, or what the user wrote (a function, a class, a spec).
Part: TypeAlias = object


def named_parts(parts: Sequence[Part] | Part | None, argument: str) -> Json:
    """Return functions, classes and names as names that the ranks import; None stays None.

    Raises ConfigError (``api.not_importable``) for an object that other processes cannot import.
    """
    if parts is None:
        return None
    listed = [parts] if isinstance(parts, (str, Mapping)) or callable(parts) else parts
    if not isinstance(listed, Iterable):
        raise bad_argument(
            "this is neither a name nor a function", argument, type(listed).__name__, "module:function"
        )
    return [
        as_json(part, f"{argument}[{index}]")
        if isinstance(part, (str, Mapping))
        else importable_name(part, f"{argument}[{index}]")
        for index, part in enumerate(listed)
    ]


def importable_name(part: Part, where: str) -> str:
    """Return the ``module:attr`` under which the ranks find an object of this process."""
    module, name = getattr(part, "__module__", None), getattr(part, "__qualname__", None)
    if name is None:  # an object without a name of its own, such as an algorithm's spec
        names = (
            (home, attribute)
            for home, imported in list(sys.modules.items())
            for attribute, value in list(getattr(imported, "__dict__", {}).items())
            if value is part and attribute.isidentifier()
        )
        module, name = next(names, (module, None))
    here = getattr(sys.modules.get(str(module)), str(name), None)
    if module is None or module in ("__main__", "builtins") or here is not part:
        raise ConfigError(codes.API_NOT_IMPORTABLE(where, f"{module}:{name or repr(part)[:80]}"))
    return f"{module}:{name}"
