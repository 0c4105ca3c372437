"""The files of a job: its config for nodes without this disk, what it renders to, and its ranks' secret."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from paceline.config.backend_files.find_files import FILE_KEYS
from paceline.config.extends import trees
from paceline.config.yaml_text.read_file import read_text
from paceline.core.errors import ConfigError
from paceline.core.json_types import NO_UTF8, value_at
from paceline.core.security.file_permissions import written_for
from paceline.schedulers import codes
from paceline.schedulers.job import SECRET_NAME, Rendering


def write_job(out: Path, rendering: Rendering, access: str) -> list[Path]:
    """Write the files into ``out``, with the permissions of the run's; return their paths.

    A secret that is there already stays: jobs of an earlier launch read it. Raises ConfigError.
    """
    written = []
    try:
        with written_for(out, access):
            out.mkdir(parents=True, exist_ok=True)
            for name, text in rendering.files.items():
                path = out / name
                path.parent.mkdir(parents=True, exist_ok=True)
                # A new file in its place: a link there is not followed, and no reader finds half of one
                staged = path.with_name(f".{path.name}.{os.getpid()}")
                mode = 0o777 if name in rendering.executable else 0o666
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
                with open(os.open(staged, flags, mode), "wb") as file:
                    file.write(text.encode("utf-8", NO_UTF8))
                staged.replace(path)
                written.append(path)
            if rendering.store_secret:
                _make_secret(out / SECRET_NAME)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(codes.SCHEDULERS_FILE(str(error.filename or out), reason=reason)) from error
    return written


def _make_secret(path: Path) -> None:
    with suppress(FileExistsError):
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with open(number, "w") as file:
            file.write(secrets.token_hex(32))


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
