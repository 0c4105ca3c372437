#!/usr/bin/env python
"""What becomes of configuration files of other systems:
`python scripts/intake.py [--kind KIND] [--notes] FILE ...`.

One line a file (taken, refused with every reason, template, unparseable), then the counts. Kinds: deepspeed,
accelerate, fsdp, config.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from paceline.config import codes
from paceline.config.backend_files.detect import KINDS, kind_of
from paceline.config.backend_files.json_text import parse_json
from paceline.config.load import Loaded, Rules, load_config
from paceline.config.yaml_text.read_file import read_text
from paceline.config.yaml_text.tree import parse_yaml
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json
from paceline.rules import of_config

_UNPARSEABLE = frozenset(
    [
        codes.CONFIG_JSON_SYNTAX.name,
        codes.CONFIG_YAML_SYNTAX.name,
        codes.CONFIG_NOT_UTF8.name,
        codes.CONFIG_YAML_TAB.name,
        codes.CONFIG_EMPTY_FILE.name,
    ]
)
# ``{{ … }}``, ``<YOUR_PATH>``, ``<your model>``, ``$DATA``, ``CONFIG_LR`` or a word like TODO;
# not ``<|im_end|>``, ``<s>`` or ``${other.key}``.
_PLACEHOLDER = re.compile(
    r"\{\{[^{}]*\}\}|<[A-Z][A-Z0-9_ /-]*>|<(?i:your|path|enter|insert|fill|put|some|name"
    r" of|my)\b[^|>]*>|\$\{?[A-Z_][A-Z0-9_]*\}?|CONFIG_[A-Z0-9_]+$|(PLACEHOLDER|TODO|FIXME|XXX)$"
)
_MODEL_TEXT = ("token", "prompt", "template", "stop", "delimiter", "separator")


@dataclass(frozen=True)
class Intake:
    """``verdict`` is taken, refused, template (placeholders were not filled in) or unparseable."""

    path: str
    kind: str
    verdict: str
    problems: tuple[Diagnostic, ...] = ()
    notes: tuple[Diagnostic, ...] = ()
    loaded: Loaded | None = None


def intake(path: str, kind: str | None = None, rules: Rules | None = None) -> Intake:
    """Load one file through ``load_config``, named by an otherwise empty config, under ``rules``.

    With ``kind`` config the file is the config itself.
    """
    try:
        data = _data(path)
    except ConfigError as exc:
        verdict = "template" if exc.diagnostics[0].code == codes.CONFIG_JSON_TEMPLATE.name else "unparseable"
        if exc.diagnostics[0].code not in (*_UNPARSEABLE, codes.CONFIG_JSON_TEMPLATE.name):
            verdict = "refused"
        return Intake(path, kind or "config", verdict, exc.diagnostics)
    kind = kind or kind_of(data)
    name = {"deepspeed": "deepspeed", "accelerate": "accelerate_config", "fsdp": "fsdp_config"}.get(kind)
    try:
        if name is None:
            loaded = load_config(path, rules=rules)
        else:
            flags: dict[str, Json] = {f"training.{name}": str(Path(path).resolve())}
            loaded = load_config(None, flags=flags, rules=rules)
    except ConfigError as exc:
        template = _template(data) or any(
            item.code == codes.ZERO_TUNING_SPACE.name for item in exc.diagnostics
        )
        return Intake(path, kind, "template" if template else "refused", exc.diagnostics)
    return Intake(path, kind, "taken", (), loaded.notes, loaded)


def _data(path: str) -> Json:
    text = read_text(path, "the file")
    if Path(path).suffix == ".json":
        return parse_json(text, path, "file", lenient=True)[0]
    tree = parse_yaml(text, path)
    return tree.data() if tree else {}


def _template(data: Json, key: str = "") -> bool:
    """Whether a value is an unfilled placeholder; tokens, prompts and chat templates do not count."""
    if isinstance(data, dict):
        return any(_template(value, name) for name, value in data.items())
    if isinstance(data, list):
        return any(_template(value, key) for value in data)
    if not isinstance(data, str) or any(part in key.lower() for part in _MODEL_TEXT):
        return False
    return bool(_PLACEHOLDER.match(data.strip()))


def main() -> None:
    """Reads the files named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--notes", action="store_true", help="show what was translated or left out")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    for file in options.files:
        found = intake(file, options.kind, of_config)
        counts[found.verdict] += 1
        print(f"{found.verdict:12s} {found.kind:10s} {file}")
        for item in (*found.problems, *(found.notes if options.notes else ())):
            print(
                f"      {item.code}: {item.where.rpartition('/')[2]}: {item.what} [{item.found}] ->"
                f" {item.hint}"
            )
    judged = counts["taken"] + counts["refused"]
    share = f", {100 * counts['taken'] / judged:.0f} % of the parseable ones taken" if judged else ""
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()) + share)


if __name__ == "__main__":
    main()
