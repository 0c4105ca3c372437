"""What a caller gives as a config: a YAML file, a mapping, or ``load_config``'s answer; with overrides."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.api import codes
from paceline.config.source import ARGUMENT
from paceline.core.errors import ConfigError
from paceline.core.json_types import NO_UTF8, Json, JsonObject

if TYPE_CHECKING:
    from paceline.config.load import Loaded
    from paceline.config.schema import Config


@dataclass(frozen=True)
class GivenConfig:
    """Where settings come from; ``overrides`` win."""

    path: Path | None
    tree: JsonObject | None
    overrides: JsonObject

    def with_overrides(self, more: Mapping[str, Json]) -> GivenConfig:
        """Return the source with an option's overrides; None: the option was not given."""
        given = {key: value for key, value in more.items() if value is not None}
        return GivenConfig(self.path, self.tree, {**self.overrides, **given})

    def settings(self) -> list[str]:
        """Return the overrides as ``key=value``, as a command line has them."""
        return [f"{key}={json.dumps(value)}" for key, value in self.overrides.items()]

    @contextmanager
    def file(self) -> Iterator[Path]:
        """Yield the config as a file for other processes; a mapping is one only as long as this lasts."""
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

    ``config``: every value, validated; ``source``: what was given.
    """

    config: Config
    source: GivenConfig

    def __str__(self) -> str:
        """Return every effective value with the place that set it, as ``paceline config show`` prints it."""
        from paceline.config.render.effective_values import render_show

        return render_show(read(self.source, ruled=True))


ConfigLike = str | PathLike[str] | Mapping[str, object] | JobConfig


def source_of(config: ConfigLike, overrides: Mapping[str, object] | None) -> GivenConfig:
    """Return the source of what a caller gave. Raises ConfigError for anything that is no config."""
    more = {} if overrides is None else _object(overrides, "overrides")
    if isinstance(config, JobConfig):
        return replace(config.source, overrides={**config.source.overrides, **more})
    if isinstance(config, Mapping):
        return GivenConfig(None, _object(config, "config"), more)
    if isinstance(config, (str, PathLike)):
        return GivenConfig(Path(config), None, more)
    hint = "the path of a YAML file, a dict with the sections model, data and training, or load_config(…)"
    raise ConfigError(codes.API_ARGUMENT("this is no config", "config", type(config).__name__, hint))


def read(source: GivenConfig, *, ruled: bool) -> Loaded:
    """Load and check a config; unless ``ruled``, the rules are left for when the machine is known."""
    from paceline.launch.preflight.load_config import load, load_to_start

    given = source.path, (), source.overrides
    if ruled:
        return load(*given, tree=source.tree, flags_from=ARGUMENT)
    return load_to_start(*given, tree=source.tree, flags_from=ARGUMENT)


def load_config(config: ConfigLike, overrides: Mapping[str, object] | None = None) -> JobConfig:
    """Read and check a config without starting anything.

    ``config``: the path of a YAML file, or a mapping with its sections; ``overrides``: values by dotted key,
    e.g. ``{"training.learning_rate": 1e-4}``; None is null. Raises ConfigError with every violation at once.
    """
    source = source_of(config, overrides)
    return JobConfig(read(source, ruled=True).config, source)


def _object(given: Mapping[str, object], name: str) -> JsonObject:
    return {str(key): as_json(value, f"{name}[{str(key)!r}]") for key, value in given.items()}


def as_json(value: object, where: str) -> Json:
    """Return ``value`` in JSON types: paths become texts, tuples lists, numpy's numbers Python's.

    Raises ConfigError (``api.argument``) for anything else.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, PathLike):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): as_json(item, f"{where}[{str(key)!r}]") for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [as_json(item, f"{where}[{index}]") for index, item in enumerate(value)]
    tolist = getattr(value, "tolist", None)  # numpy's arrays and numbers, tensors
    if callable(tolist):
        return as_json(tolist(), where)
    hint = "text, a number, true, false, None, a path, a list or a mapping of these"
    raise ConfigError(codes.API_ARGUMENT("a config has no such value", where, type(value).__name__, hint))
