"""Texts of files for schedulers, in which every value is quoted: templates, and YAML.

YAML that all parsers read alike quotes each text, so that ``no``, ``1e3`` and ``~`` stay texts.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from io import StringIO
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import DoubleQuotedScalarString, LiteralScalarString

from paceline.core.json_types import Json
from paceline.launch.supervision.exit_codes import AFTER, After

SHARED = Path(__file__).parent / "scripts"


def environment(folder: Path) -> Environment:
    """Return the environment of ``*.jinja`` in a folder and in the shared one; an unset name is an error.

    Filters: ``sh`` quotes a word for a POSIX shell, ``argv`` a command.
    """
    # Scripts, no pages: a shell's quotes are what a value needs
    made = Environment(  # noqa: S701
        loader=FileSystemLoader((folder, SHARED)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
        comment_start_string="<#",  # {# stands in ${#array[@]}
        comment_end_string="#>",
    )
    made.filters["sh"] = _word
    made.filters["argv"] = shlex.join
    return made


def codes_after(after: After) -> str:
    """Return the exit codes that are followed by ``after`` as a pattern of a shell's ``case``: ``0|70``."""
    return "|".join(str(int(code)) for code, follows in AFTER.items() if follows is after)


def _word(value: str | int | Path) -> str:
    return shlex.quote(str(value))


_PLAIN_KEY = re.compile(r"[A-Za-z][\w./-]*")
#: words that YAML 1.1 reads as true, false or null
_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
#: lines that mean the same as a literal block in every version of YAML
_BLOCK = re.compile(r"[!-~][ -~]*\n(?:(?:[!-~ ][ -~]*)?\n)*", re.ASCII)
_NEVER_FOLDED = 2**20


def documents(*values: Json) -> str:
    """Return YAML text with one document a value. Texts are double-quoted; plain ASCII lines are a block."""
    yaml = YAML(typ="rt")
    yaml.width = _NEVER_FOLDED
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.explicit_start = len(values) > 1
    stream = StringIO()
    yaml.dump_all([_quoted(value) for value in values], stream)
    return stream.getvalue()


def _quoted(value: Json) -> Json:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return {_key(key): _quoted(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_quoted(item) for item in value]
    return value


def _text(text: str) -> str:
    if _BLOCK.fullmatch(text) and text.count("\n") > 1 and not text.endswith("\n\n"):
        return LiteralScalarString(text)
    return DoubleQuotedScalarString(text)


def _key(key: str) -> str:
    plain = _PLAIN_KEY.fullmatch(key) and key.lower() not in _WORDS
    return key if plain else DoubleQuotedScalarString(key)
