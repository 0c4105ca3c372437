"""Commands and files of other programs that do not train, and the Paceline command for each."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from paceline.config import codes
from paceline.config.import_export.commands.launchers import launch_of
from paceline.config.yaml_text.read_file import names, read_table, read_text
from paceline.config.yaml_text.tree import parse_yaml
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json, JsonObject, as_object, value_at

_FILES = (".yaml", ".yml", ".json")
_OPTIONAL, _VALUE = re.compile(r"\[([^]]*)\] ?"), re.compile(r"\{([^:}]*)(?::([^}]*))?\}")


@dataclass(frozen=True)
class OtherJob:
    """A row of ``keys/other_jobs.toml``."""

    starts: tuple[str, ...]
    when: tuple[str, ...]
    files: tuple[str, ...]
    unless: tuple[str, ...]
    says: str
    use: str
    instead: str

    def fits(self, arguments: Mapping[str, Json]) -> bool:
        """Whether the command's arguments ask for this job of its verb."""
        return not self.when or any(_is_on(value_at(arguments, key)) for key in self.when)

    def remedy(self, arguments: Mapping[str, Json]) -> str:
        """Return the command that does the job here, with the arguments that are known, or what to do."""
        if not self.use:
            return self.instead
        text = _OPTIONAL.sub(lambda part: f"{part[1]} " if _given(part[1], arguments) else "", self.use)
        words = [_filled(word, arguments) for word in text.split()]
        return f"`{' '.join(words)}` does that here{'; ' * bool(self.instead)}{self.instead}"


def is_other_job(words: Sequence[str], lines: Sequence[int]) -> bool:
    """Whether a command line is one of a known program that does not train."""
    return bool(_of_command(words, lines)[0])


def refuse_other_job(words: Sequence[str], lines: Sequence[int], place: str) -> None:
    """Raise ConfigError for a command that does not train, with the command that does its job here."""
    jobs, rest = _of_command(words, lines)
    arguments = _arguments(rest) if jobs else {}
    if job := next((job for job in jobs if job.fits(arguments)), None):
        what = f"this command does not train: {job.says}"
        raise ConfigError(codes.CONFIG_IMPORT_COMMAND(what, place, " ".join(words), job.remedy(arguments)))


def refuse_other_file(data: JsonObject, path: str) -> None:
    """Raise ConfigError for the file of a command that does not train."""
    for job in known_jobs():
        keys = [key for key in job.files if data.get(key) is not None]
        if keys and job.fits(data) and not any(data.get(key) is not None for key in job.unless):
            what = f"this file is of a command that does not train: {job.says}"
            raise ConfigError(
                codes.CONFIG_IMPORT_COMMAND(what, f"{path}:1", ", ".join(keys), job.remedy(data))
            )


@cache
def known_jobs() -> tuple[OtherJob, ...]:
    """Return the rows of the table in their order."""
    rows = read_table("other_jobs", "import_export")["job"]
    return tuple(_job(as_object(row)) for row in rows) if isinstance(rows, list) else ()


def _job(row: JsonObject) -> OtherJob:
    starts, when, files, unless = (names(row.get(key)) for key in ("starts", "when", "files", "unless"))
    says, use, instead = (str(row.get(key) or "") for key in ("says", "use", "instead"))
    return OtherJob(starts, when, files, unless, says, use, instead)


def _of_command(words: Sequence[str], lines: Sequence[int]) -> tuple[list[OtherJob], list[str]]:
    """Return the jobs that a command's program and verb may mean, and the words after these."""
    rest = list(words[launch_of(words, lines).program :])
    if not rest:
        return [], []
    name = Path(rest[0]).name
    module = f".{rest[0].removesuffix('.py').replace('/', '.')}"
    verb = " ".join([name, *rest[1:2]])
    if jobs := [job for job in known_jobs() if verb in job.starts]:
        return jobs, rest[2:]
    modules = [start for job in known_jobs() for start in job.starts if "." in start and " " not in start]
    if start := next((start for start in modules if module.endswith(f".{start}")), None):
        return [job for job in known_jobs() if start in job.starts], rest[1:]
    return [], []


def _arguments(words: Sequence[str]) -> JsonObject:
    """Return flags, ``key=value`` words, words before them by number, and the keys of a YAML named there."""
    given: JsonObject = {}
    below: JsonObject = {}
    key, position = "", 0
    for word in words:
        if word.startswith("--"):
            key, equals, value = word.removeprefix("--").partition("=")
            key = key.replace("-", "_")
            given[key] = value if equals else True
            key = "" if equals else key
        elif key:
            given[key], key = word, ""
        elif "=" in word:
            given[word.partition("=")[0]] = word.partition("=")[2]
        else:
            position += 1
            given[str(position)] = word
    for name in (given.get("1"), given.get("config")):
        if isinstance(name, str) and Path(name).suffix in _FILES and Path(name).is_file():
            tree = parse_yaml(read_text(name), name)
            below |= as_object(tree.data() if tree else None)
    return below | given


def _is_on(value: Json) -> bool:
    return value not in (None, False, "", 0) and str(value).lower() not in ("false", "no", "none", "null")


def _given(text: str, arguments: Mapping[str, Json]) -> bool:
    return all(_value(part[1], arguments) for part in _VALUE.finditer(text))


def _value(keys: str, arguments: Mapping[str, Json]) -> str:
    """Return the value of the first key that has one, of several the first; "" if none has."""
    for key in keys.split("|"):
        value = value_at(arguments, key)
        value = value[0] if isinstance(value, list) and value else value
        if isinstance(value, (str, int, float)) and _is_on(value) and not isinstance(value, bool):
            return str(value)
    return ""


def _filled(word: str, arguments: Mapping[str, Json]) -> str:
    if not _VALUE.search(word):
        return word
    return shlex.quote(_VALUE.sub(lambda part: _value(part[1], arguments) or part[2], word))
