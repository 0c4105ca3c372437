"""Find secrets and shell variables in config values, as written and in the result."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from paceline.config import codes
from paceline.config.source import ENVIRONMENT, FOREIGN, Source, holds_secret
from paceline.config.yaml_text.tree import Node
from paceline.core.diagnostics import Diagnostic
from paceline.core.json_types import Json, nearest_key
from paceline.core.security.secrets import SHAPED, is_bare_key, secrets_in, shape_of_secret

#: (path of keys, the text found there, its place, whether the text is a key itself)
Leaf = tuple[tuple[str, ...], str, str, bool]

# ``${NAME…}``, ``$NAME``, ``$(command)``, ``%NAME%``; ``$name`` only as a whole part of a path. ``\$`` and
# ``$$`` are a dollar sign.
_VARIABLE = re.compile(
    r"(?<![\\$])(\$\{[^{}]*\}|\$\{\{[^{}]*\}\}|\$\([A-Za-z][^()]*\)|\$env:[A-Za-z_]\w*"
    r"|\$[A-Z_][A-Z0-9_]+(?![a-z])|(?:(?<=/)|^)\$[a-z_]\w*(?=/|$)|%[A-Z][A-Z0-9_]+%)"
)
# The environment's NAME in cmd (%NAME%), PowerShell ($env:NAME) and OmegaConf (${oc.env:NAME,default}).
_ELSEWHERE = re.compile(
    r"%([A-Z][A-Z0-9_]+)%|\$env:([A-Za-z_]\w*)|\$\{(?:oc\.)?env:([A-Za-z_]\w*)(?:,[^{}]*)?\}"
)
_HOME = re.compile(r"~[A-Za-z_][\w.-]*(/|$)")  # another user's home, ``~name/…``
# Keys with free text: a dollar sign belongs to a template, a prompt or a regular expression.
_TEXT = (
    "template",
    "prompt",
    "pattern",
    "regex",
    "text",
    "stop",
    "tokens",
    "special_token",
    "cls_token",
    "eos_token",
    "bos_token",
    "pad_token",
    "unk_token",
    "modules",
    "delimiter",
    "separator",
    "prefix",
    "suffix",
    "tags",
    "system",
    "instruction",
)
_TEMPLATE = re.compile(r"\n|\{\{|\{%")  # what no path has
_COMMIT = ("revision", "commit", "sha", "hash", "digest", "fingerprint", "ref", "version")
_SECRET_WORDS = ("TOKEN", "KEY", "SECRET", "PASS", "CREDENTIAL", "AUTH")


def leaves(node: Node, source: Source, path: tuple[str, ...] = ()) -> Iterator[Leaf]:
    """Yield every text under ``node``, and every key."""
    if isinstance(node.value, dict):
        for key, child in node.value.items():
            yield (*path, key), key, _place(source, node.key_lines.get(key, node.line)), True
            yield from leaves(child, source, (*path, key))
    elif isinstance(node.value, list):
        for child in node.value:
            yield from leaves(child, source, path)
    elif isinstance(node.value, (str, int, float)) and not isinstance(node.value, bool):
        yield path, node.raw or str(node.value), _place(source, node.line), False


def leaves_of_data(
    data: Json, places: dict[str, int], file: str, path: tuple[str, ...] = ()
) -> Iterator[Leaf]:
    """Like ``leaves`` for plain data, whose line numbers are given by dotted path."""
    location = f"{file}:{places[name]}" if (name := ".".join(path)) in places else file
    if isinstance(data, dict):
        for key, value in data.items():
            line = places.get(".".join((*path, str(key))))
            yield (*path, str(key)), str(key), f"{file}:{line}" if line else location, True
            yield from leaves_of_data(value, places, file, (*path, str(key)))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from leaves_of_data(value, places, file, (*path, str(index)))
    elif isinstance(data, (str, int)) and not isinstance(data, bool):
        yield path, str(data), location, False


_PLACES = ("secrets",)


def misplaced(texts: Iterable[Leaf], layer: str) -> Iterator[Diagnostic]:
    """Yield a finding for each leaf that contains a secret or a variable."""
    for path, text, location, is_key in texts:
        name = next((part for part in reversed(path) if not part.isdecimal()), "")
        if is_key:
            if kind := shape_of_secret(text):
                yield _secret("a key", kind, location)
            continue
        # The values of this key say where a secret is
        by_name = "" if path[-2:-1] == _PLACES else name
        if kind := _kind_of_secret(by_name, text, layer):
            yield _secret(f"'{name}'", kind, location)
        elif "$" in text or "%" in text:
            yield from _variable(name, text, location)
        # A user that this machine knows is expanded; others are used literally
        elif _HOME.match(text) and not _is_text(name, text) and os.path.expanduser(text) == text:
            yield codes.CONFIG_VARIABLE(
                f"'{name}' begins with the home of a user unknown to this machine",
                location,
                text[:120],
                f"{name}: an absolute path, or ~/… for your own home",
            )


def masked(finding: Diagnostic) -> Diagnostic:
    """Return the finding with secrets in its texts masked."""
    what, where, found, hint = (
        SHAPED.sub("***", s) for s in (finding.what, finding.where, finding.found, finding.hint)
    )
    return replace(finding, what=what, where=where, found=found, hint=hint)


def _place(source: Source, line: int) -> str:
    return f"{source.file}:{line}" if source.file else f"{source.layer} {source.text.split('=')[0]}"


def _kind_of_secret(name: str, text: str, layer: str) -> str | None:
    if kind := shape_of_secret(text):
        return kind
    if is_bare_key(text) and _is_of_wandb(name):
        return "a Weights & Biases key"
    secret_by_name = layer not in (ENVIRONMENT, FOREIGN) and holds_secret(name, text)
    return "a secret" if secret_by_name else None


def _is_of_wandb(name: str) -> bool:
    plain = name.lower()
    return any(
        word in plain for word in ("wandb", "api", "key", "login", "report_to")
    ) and not plain.endswith(_COMMIT)


def _secret(where: str, kind: str, location: str) -> Diagnostic:
    return codes.SEC_SECRET_ON_CLI(
        f"{where} contains {kind} in plain text; it would appear in logs, trackers and saved configs",
        location,
        "*** (not shown)",
        "remove it, and set the tool's own variable (HF_TOKEN, WANDB_API_KEY) in the environment",
    )


def _is_text(name: str, text: str) -> bool:
    plain = name.lower()
    return any(word in plain for word in _TEXT) and not ("template" in plain and not _TEMPLATE.search(text))


def _variable(name: str, text: str, location: str) -> Iterator[Diagnostic]:
    match = None if _is_text(name, text) else _VARIABLE.search(text)
    if match is None:
        return
    variable = match[0]
    what = f"'{name}' contains {variable}, which is not expanded here: it would be used literally"
    if any(word in variable.upper() for word in _SECRET_WORDS):
        remedy = "remove the line: programs read such variables from the environment themselves"
    elif variable.strip("${}%") in ("HOME", "USERPROFILE", "home"):
        remedy = f"{name}: {text.replace(variable, '~', 1)}"
    else:
        of_a_shell = _for_the_shell(variable)
        line = text.replace(variable, of_a_shell, 1)
        remedy = "write the value itself"
        if of_a_shell:
            remedy += (
                "; or set it on the command line, where the shell expands it in double quotes:"
                f' "…{name}={line}"'
            )
    yield codes.CONFIG_VARIABLE(what, location, text if len(text) <= 120 else f"{text[:119]}…", remedy)


def _for_the_shell(variable: str) -> str:
    """Return the variable in POSIX shell syntax; empty if no shell expands it (a template's, or a key's)."""
    if match := _ELSEWHERE.fullmatch(variable):
        return f"${{{match[1] or match[2] or match[3]}}}"
    return (
        ""
        if re.match(r"\$\{(\{|[\w.]*[.:][\w.])", variable) and not re.match(r"\$\{\w+:[-=?+]", variable)
        else variable
    )


def held_secrets(
    config: Mapping[str, Json], provenance: Mapping[str, Source], environ: Mapping[str, str]
) -> Iterator[Diagnostic]:
    """Report each config value (JSON) that contains the value of a variable named like a secret."""
    secrets = secrets_in(environ, certain=True)
    for path, text in _leaves("", config) if secrets else ():
        for secret in secrets:
            if secret in text:
                source = provenance.get(nearest_key(provenance, path))
                yield codes.SEC_SECRET_VALUE(
                    (source.place() if source else path).split("=")[0],
                    "*** (not shown)",
                    path=path,
                    names=" or ".join(f"${name}" for name, value in environ.items() if secret in value),
                )
                # One finding a value is enough
                break


def _leaves(path: str, value: Json) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(f"{path}.{key}".lstrip("."), item)
            yield path, str(key)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(path, item)
    elif isinstance(value, str):
        yield path, value
