"""The cache key of prepared data: everything that can change the tokens is part of it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from paceline.core.json_types import Json, JsonObject
from paceline.data.digests import digest_files, versions
from paceline.data.locate import Located
from paceline.data.own_rows import own_digest

FORMAT_VERSION = 6
# Modules that do not affect the tokens. A test checks that preparation imports no others.
BESIDE_THE_TOKENS = ("progress", "digests", "store", "starter", "identity", "fingerprint")
_CODE = (  # and every module of kinds/
    "answers",
    "beside",
    "build",
    "calls",
    "card",
    "cells",
    "chat_form",
    "examples",
    "fields",
    "folders",
    "formats",
    "guess",
    "json_turns",
    "left_out",
    "renderer",
    "rendering",
    "sandbox",
    "schemas",
    "settle",
    "locate",
    "looking",
    "own_rows",
    "packed",
    "problems",
    "readers",
    "sets",
    "strict",
    "suffixes",
    "table",
    "template",
    "template_options",
    "template_problems",
    "tokenise",
    "tokenizer",
    "turns",
    "split",
    "hashing",
    "jinja",
)

_TEXTS = re.compile(
    r'''(?P<docstring>^[ ]*"""(?:[^\\]|\\.)*?"""[ ]*$)'''
    r'''|(?P<string>"""(?:[^\\]|\\.)*?"""|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')'''
    r"|(?P<comment>#[^\n]*)",
    re.MULTILINE | re.DOTALL,
)


def fingerprint(parts: Mapping[str, Json]) -> str:
    """Return 40 hex digits of the sha256 of canonical JSON."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, ensure_ascii=True).encode()).hexdigest()[:40]


def code_version() -> JsonObject:
    """Return what in the program determines the tokens: our sources and templates, library versions.

    Comments, docstrings and empty lines of the sources are no part of it.
    """
    own, here = hashlib.sha256(), Path(__file__).parent
    named = (here / f"{name}.py" for name in _CODE)
    for path in (*named, *sorted(here.glob("kinds/*.py")), *sorted(here.glob("templates/*.jinja"))):
        text = path.read_text(encoding="utf-8")
        own.update((without_comments(text) if path.suffix == ".py" else text).encode())
    return {"format": FORMAT_VERSION, "source": own.hexdigest()[:16], **versions()}


def without_comments(source: str) -> str:
    """Return a Python source without comments, docstrings and empty lines: the same under every Python.

    A docstring: a string in three quotes on lines of its own. By one expression, since every start of a run
    asks: a parser takes fifteen times as long.
    """
    bare = _TEXTS.sub(lambda found: found["string"] or "", source)
    return "\n".join(line.rstrip() for line in bare.splitlines() if line.strip())


def definition() -> str:
    """Return ``code_version`` as text.

    Fingerprints are comparable only if it is equal: another version gives the same data another fingerprint.
    """
    return ", ".join(f"{name} {value}" for name, value in code_version().items())


def located_digest(located: Located, split: str, cache_dir: Path) -> list[str]:
    """Return the content digests of a data set: one per file, in reading order."""
    if located.kind == "own":
        return [own_digest(located.own)]
    if located.kind == "hub":
        from paceline.data.readers import load_hub

        return [str(load_hub(located, split)._fingerprint)]
    files: Sequence[Path] = located.files
    if located.folder is not None:
        files = sorted(
            p for p in located.folder.rglob("*") if p.is_file() and not p.name.startswith((".", "cache-"))
        )
    return list(digest_files(files, cache_dir).values())
