"""LLaMA-Factory's flags on main.py: ``main.py --stage sft --do_train --model_name_or_path … --dataset …``.

They are imported as ``paceline config import`` does; the YAML that they become is kept in the cache folder.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cli import codes
from paceline.config.schema import SECTIONS
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.core.package import cache_folder

if TYPE_CHECKING:
    from paceline.config.import_export.commands.command_line import Command
    from paceline.config.import_export.verdicts import Finding

_THEIRS = ("stage", "do_train", "model_name_or_path")  # one of these says whose flags they are
# flags of main.py that LLaMA-Factory does not have
_OURS = ("config", "mode", "algorithm", "resume", "deepspeed_config")
_OVERRIDE = re.compile(rf"({'|'.join(SECTIONS)})\.[\w.]+=")


@dataclass(frozen=True)
class Flags:
    """The YAML that the flags became, our own ``key=value`` words, and the launcher's rank on this node."""

    config: Path
    overrides: tuple[str, ...]
    local_rank: int | None


def are_llamafactory(arguments: Sequence[str]) -> bool:
    """Whether these arguments of main.py are LLaMA-Factory's."""
    return any(_name(word) in _THEIRS for word in arguments)


def from_llamafactory(arguments: Sequence[str], environ: Mapping[str, str]) -> Flags:
    """Write the YAML of the flags, and say on stderr (once a node) what is not kept as it is.

    Raises ConfigError, before anything is written, for flags that cannot be kept.
    """
    from paceline.config.import_export.commands.command_line import read_command
    from paceline.config.import_export.import_config import import_command
    from paceline.config.import_export.verdicts import KeyVerdict, as_text
    from paceline.config.import_export.write_yaml import accepted, left_over
    from paceline.rules import of_config

    command = read_command(["main.py", *(word for word in arguments if not _OVERRIDE.match(word))])
    local_rank = command.data.pop("local_rank", None)
    _checked(command)
    imported = import_command(command, "llamafactory")
    written, refused = accepted(imported, "LLaMA-Factory's flags, as main.py has read them", of_config)
    lost = [finding for finding in imported.of(KeyVerdict.LOST) if finding.line]
    if lost or refused:
        # The start checks the rules, with the machine known; where there is none, they are checked here
        others = refused or left_over(written.text, of_config)
        raise ConfigError(*(_not_kept(finding) for finding in lost), *others)
    file = _kept(written.text, cache_folder(environ) / "imported")
    if environ.get("LOCAL_RANK", "0") == "0" and local_rank in (None, 0):
        print(f"{as_text(imported)}\nas a config: {file}", file=sys.stderr, flush=True)
    overrides = tuple(word for word in arguments if _OVERRIDE.match(word))
    return Flags(file, overrides, local_rank if isinstance(local_rank, int) else None)


def _checked(command: Command) -> None:
    """Raise ConfigError for main.py's own flags among them, and for a run that would not train."""
    names = {*command.data, *(["config"] if command.config else [])}
    mixed = [name for name in _OURS if name in names]
    if mixed:
        raise ConfigError(
            codes.CLI_TWO_COMMAND_LINES(
                "main.py",
                ", ".join(f"--{name}" for name in (*mixed, *(key for key in _THEIRS if key in command.data))),
            )
        )
    if command.data.get("do_train") is not True:
        others = [f"--{key}" for key in ("do_eval", "do_predict", "do_train") if key in command.data]
        raise ConfigError(
            codes.CLI_MODE(
                "without --do_train these flags train nothing",
                "main.py",
                ", ".join(others) or "no --do_train",
                "add --do_train (evaluation is part of it: --eval_strategy)",
            )
        )


def _not_kept(finding: Finding) -> Diagnostic:
    from paceline.config.source import shown

    return codes.CLI_FLAG_NOT_KEPT(
        f"main.py, argument {finding.line - 1}",
        f"--{finding.key} {shown(finding.key, finding.value, 60)}",
        key=finding.key,
        says=finding.says,
    )


def _name(word: str) -> str:
    return word[2:].partition("=")[0].replace("-", "_") if word.startswith("--") else ""


def _kept(text: str, folder: Path) -> Path:
    """Write the YAML under a name of its content, once whole; ranks that write it at once do no harm."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"llamafactory-{hashlib.sha256(text.encode()).hexdigest()[:16]}.yaml"
    with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".part", delete=False, encoding="utf-8") as part:
        part.write(text)
    os.replace(part.name, file)
    return file
