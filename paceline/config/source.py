"""Where a config value comes from."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from paceline.core.json_types import Json
from paceline.core.security.secrets import SHAPED

DEFAULTS = "default"
FOREIGN = "foreign file"
YAML = "yaml"
ENVIRONMENT = "environment"
COMMAND_LINE = "command line"
ARGUMENT = "argument"  # of a program that calls the library, in place of the file or of the command line
LAYERS = (DEFAULTS, FOREIGN, YAML, ENVIRONMENT, COMMAND_LINE)

_SECRET_NAME = re.compile(
    r"(?i)(^|[_.-])(api[_-]?key|access[_-]?key|(hub|hf|wandb|auth|access)[_-]?token|token|secret|password"
    r"|passwd|credentials?)$"
)
# Names that end like a secret's and hold a token of the vocabulary
_INNOCENT = frozenset(
    {
        "cls_token",
        "pad_token",
        "eos_token",
        "bos_token",
        "unk_token",
        "sep_token",
        "mask_token",
        "reward_token",
    }
)
# A password in a URL: scheme://user:password@
_USER_INFO = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^/\s:@]+:[^/\s@]+@")
# ${NAME} stands for the secret without holding it
_REFERENCE = re.compile(r"^\$\{[A-Za-z_][A-Za-z0-9_]*\}$")


@dataclass(frozen=True)
class Source:
    """The source of a value.

    ``layer`` is one of LAYERS, or ARGUMENT. ``file`` and ``line`` (from 1) are empty for defaults,
    environment, command line and arguments. ``text`` is the key as written.
    """

    layer: str
    file: str = ""
    line: int | None = None
    text: str = ""

    def place(self) -> str:
        """Return ``config.yaml:12``, ``environment PACELINE_…``, ``command line training.seed=…`` etc."""
        if self.file:
            return f"{self.file}:{self.line}" if self.line else self.file
        return f"{self.layer} {self.text}".strip()


@dataclass(frozen=True)
class Entry:
    """One setting of one layer: a canonical path (``training.learning_rate``), its value and its source.

    ``sub``: the key inside a free-form mapping (``lr_scheduler_kwargs.num_cycles``). ``of_algorithm``: the
    option belongs to this run's algorithm if that has it. ``lines`` maps inner paths (``0.columns``) to line
    numbers, for messages about list items.
    """

    path: str
    value: Json
    source: Source
    sub: tuple[str, ...] = ()
    lines: dict[str, int] = field(default_factory=dict, compare=False)
    of_algorithm: bool = False


def is_secret_name(name: str) -> bool:
    """Whether a key's name says that its value is secret (``hub_token``, not ``pad_token`` or
    ``num_tokens``).
    """
    leaf = name.rsplit(".", 1)[-1]
    return leaf not in _INNOCENT and bool(_SECRET_NAME.search(leaf))


def holds_secret(name: str, value: Json) -> bool:
    """Whether a setting contains a literal secret: by its name, or a URL with a password.

    A reference ``${ENV}`` is no literal.
    """
    if isinstance(value, str):
        return bool(_USER_INFO.search(value)) or (
            is_secret_name(name) and bool(value) and not _REFERENCE.match(value)
        )
    return False


def shown(name: str, value: Json, limit: int = 120) -> str:
    """Format a value for people: short, on one line, secrets masked."""
    if is_secret_name(name) and value is not None:
        return "*** (not shown)"
    if isinstance(value, bool):
        text = "true" if value else "false"
    elif value is None:
        text = "null"
    elif isinstance(value, str):
        text = value if value and value.isprintable() and value.strip() == value else repr(value)
    else:
        text = (
            json.dumps(value, ensure_ascii=False, default=str)
            if isinstance(value, (list, tuple, dict))
            else repr(value)
        )
    text = SHAPED.sub("***", _USER_INFO.sub(r"\1***@", text))
    return text if len(text) <= limit else text[: limit - 1] + "…"
