"""Read a config file: limited in size, UTF-8, with a diagnostic for every failure."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from paceline.config import codes
from paceline.core.errors import ConfigError
from paceline.core.files import open_file
from paceline.core.json_types import Json, JsonObject, as_object

# A config of this size is data
MAX_BYTES = 1 << 20
_OPEN_ALREADY = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")


def read_text(path: str, kind: str = "the config file") -> str:
    """Read a file of at most 1 MiB of UTF-8 text.

    Raises ConfigError if it is missing, a folder, too large or not UTF-8.
    """
    file = Path(path)
    try:
        if file.is_dir():
            raise ConfigError(
                codes.CONFIG_IS_DIRECTORY(
                    f"{kind} is a directory",
                    path,
                    hint="give the YAML file inside it, e.g. " + str(file / "config.yaml"),
                )
            )
        if not file.exists():
            raise ConfigError(codes.CONFIG_MISSING_FILE(f"{kind} does not exist", path, hint=_nearby(file)))
        # Process substitution of a shell, paceline plan <(…), is a pipe that does end
        with file.open("rb") if str(file).startswith(_OPEN_ALREADY) else open_file(file) as stream:
            # One byte more tells a file that is too large, without reading it
            raw = stream.read(MAX_BYTES + 1)
    except OSError as exc:
        raise ConfigError(
            codes.CONFIG_UNREADABLE(
                f"{kind} cannot be read",
                path,
                found=exc.strerror or str(exc),
                hint="give a file that this user can read",
            )
        ) from exc
    if len(raw) > MAX_BYTES:
        raise ConfigError(
            codes.CONFIG_TOO_LARGE(
                f"{kind} is larger than 1 MiB",
                path,
                hint="put only settings in it; name data files under data:",
            )
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = raw[: exc.start].count(b"\n") + 1
        raise ConfigError(
            codes.CONFIG_NOT_UTF8(
                f"{kind} is not UTF-8 text",
                f"{path}:{line}",
                found=f"byte 0x{raw[exc.start]:02x}",
                hint="save the file as UTF-8",
            )
        ) from exc


def _nearby(file: Path) -> str:
    folder = file.parent
    if not folder.is_dir():
        return f"give a path that exists; there is no folder {folder}"
    names = sorted(p.name for p in folder.iterdir() if p.suffix in (".yaml", ".yml", ".json"))[:5]
    return (
        f"give a path that exists; {folder}/ contains {', '.join(names)}"
        if names
        else "give a path that exists"
    )


@cache
def read_table(name: str, room: str = "") -> JsonObject:
    """Return ``keys/NAME.toml`` of this room, or of one inside it: other programs' keys, as data.

    ``$NAME`` in a text stands for one of the table's ``sentences``.
    """
    file = Path(__file__).parents[1] / room / "keys" / f"{name}.toml"
    table: JsonObject = tomllib.loads(file.read_text(encoding="utf-8"))
    sentences = texts(table.pop("sentences", None))
    return as_object(_filled(table, sentences)) if sentences else table


def _filled(value: Json, sentences: Mapping[str, str]) -> Json:
    if isinstance(value, dict):
        return {key: _filled(inner, sentences) for key, inner in value.items()}
    if isinstance(value, str) and "$" in value:
        return re.sub(r"\$([A-Z_]+)", lambda match: sentences[match[1]], value)
    return value


def texts(value: Json) -> dict[str, str]:
    """Return a table of texts, as ``read_table`` has them."""
    return {key: str(text) for key, text in as_object(value).items()}


def names(value: Json) -> tuple[str, ...]:
    """Return a list of names, as ``read_table`` has them."""
    return tuple(map(str, value)) if isinstance(value, list) else ()
