"""Remedies as a reader takes them: the YAML lines that a hint offers, and a config with these lines."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from paceline.config.schema import SECTIONS, field_of, homes_of
from paceline.core.diagnostics import Diagnostic

_LINE = re.compile(
    r"remove (?:the )?(?P<removed>[a-z_][\w.]*)|--nproc (?P<processes>\d+)|"
    r"(?<![\w.\"-])(?P<key>[a-z_][\w.]*): (?P<value>\{.*?\}|\[.*?\]|\"[^\"]*\"|[^\s,;]+?)(?=[\s,;]|: |$)"
)
_MORE = re.compile(r"(?: to |, or |, | or )(?P<value>[a-z]\w*)(?=[,;]| to | or | with |$)")
_FURTHER = re.compile(r"(?P<names>\w+(?: and \w+)*) also needs? (?P<lines>.+)")
_INSTEAD = re.compile(r"(?P<key>\w+) takes the place of (?P<written>\w+)")
#: Keys of DeepSpeed's JSON that a hint names alone, and other names of keys.
_IN_FILE = {
    "autotp_size": "training.deepspeed.tensor_parallel.autotp_size",
    "sequence_parallel_size": "training.deepspeed.sequence_parallel_size",
    "bf16": "training.bf16",
    "fp16": "training.fp16",
}


@dataclass(frozen=True)
class Line:
    """``key`` as the hint writes it; value None removes it. The key ``--nproc`` is the option."""

    key: str
    value: Any


def _lines(text: str) -> list[list[Line]]:
    """Return the alternatives of a text: lines that ``and`` or ``with`` joins belong to the same one."""
    found: list[list[Line]] = []
    end = 0
    for match in _LINE.finditer(text):
        between, key = text[end : match.start()], match["removed"] or match["key"] or "--nproc"
        written = match["value"] or match["processes"]
        line = Line(key, None if written is None else yaml.load(written, yaml.BaseLoader))
        joined = re.search(r"\b(and|with)\b", between) and not re.search(r"\bor\b|;", between)
        if found and joined:
            found[-1].append(line)
        else:
            found.append([line])
        end = match.end()
        while match["key"] and (more := _MORE.match(text, end)):
            found.append([*found[-1][:-1], Line(key, more["value"])])
            end = more.end()
    return found


def alternatives(hint: str) -> list[tuple[Line, ...]]:
    """Return what a hint offers: the lines of each alternative."""
    here = re.sub(r"\([^)]*\)|[^,;]* on a device that [^,;]*", "", hint)
    parts = here.split("; ")
    further: dict[str, list[Line]] = {}
    for part in parts:
        if match := _FURTHER.fullmatch(part):
            for name in match["names"].split(" and "):
                further.setdefault(name, []).extend(_lines(match["lines"])[0])
        elif match := _INSTEAD.fullmatch(part):
            further.setdefault(match["key"], []).append(Line(match["written"], None))
    offered = _lines("; ".join(p for p in parts if not (_FURTHER.fullmatch(p) or _INSTEAD.fullmatch(p))))
    return [
        (
            *lines,
            *(
                more
                for line in lines
                for name in (line.key, line.value)
                for also in further.get(str(name), ())
                for more in (also, *further.get(also.key, ()))
            ),
        )
        for lines in offered
    ]


def place_of(key: str, finding: Diagnostic) -> str | None:
    """Return the dotted path at which a reader writes ``key``: beside the finding's, else its only home."""
    if key.partition(".")[0] in SECTIONS:
        return key
    for where in finding.where.replace("argument ", "").split(" and "):
        head = where
        if where.endswith(f".{key}"):
            return where
        while "." in head:
            head = head.rpartition(".")[0]
            if field_of(f"{head}.{key}"):
                return f"{head}.{key}"
    homes = homes_of(key)
    return f"{homes[0]}.{key}" if len(homes) == 1 else _IN_FILE.get(key)


def applied(config: Mapping[str, Any], lines: tuple[Line, ...], finding: Diagnostic) -> dict[str, Any] | None:
    """Return ``config`` with the lines; None where one of them has no place in a config."""
    result: dict[str, Any] = copy.deepcopy(dict(config))
    for line in lines:
        if line.key == "--nproc":
            continue
        path = place_of(line.key, finding)
        if path is None:
            return None
        *parents, last = path.split(".")
        node = result
        for name in parents:
            if not isinstance(node.get(name), dict):
                node[name] = {}
            node = node[name]
        if line.value is None or line.value == "null":
            node.pop(last, None)
        else:
            node[last] = (
                yaml.safe_load(line.value)
                if isinstance(line.value, str) and line.value not in ("no", "yes")
                else line.value
            )
    return result
