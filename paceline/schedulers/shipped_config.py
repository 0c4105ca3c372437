"""The files of a config, for nodes that do not see this machine's disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from paceline.config.backend_files.find_files import FILE_KEYS
from paceline.config.extends import trees
from paceline.config.yaml_text.read_file import read_text
from paceline.core.errors import ConfigError
from paceline.core.json_types import value_at
from paceline.schedulers import codes


def shipped_config(config: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the texts of a YAML and of the files that it names, by their path from the YAML's folder.

    The YAML is the first. Raises ConfigError for a file outside of that folder.
    """
    texts = {config.name: read_text(str(config))}
    wrong = []
    for file in _named_files(config, environ):
        try:
            name = file.resolve().relative_to(config.parent.resolve()).as_posix()
        except ValueError:
            wrong.append(codes.SCHEDULERS_OUTSIDE(str(config), str(file), folder=config.parent))
            continue
        texts[name] = read_text(str(file))
    if wrong:
        raise ConfigError(*wrong)
    return texts


def _named_files(config: Path, environ: Mapping[str, str]) -> Iterator[Path]:
    for path, tree in trees(str(config), environ):
        if Path(path) != config:
            yield Path(path)
        for key in sorted(FILE_KEYS):
            value = value_at(tree.data(), key)
            file = config.parent / value if isinstance(value, str) and value else None
            if file is not None and file.is_file():
                yield file
