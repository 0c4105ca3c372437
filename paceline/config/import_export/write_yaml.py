"""Write settings as a commented YAML that Paceline accepts."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.config.import_export.verdicts import Finding, Imported, KeyVerdict, Setting, shortened
from paceline.config.load import Rules, load_config
from paceline.config.schema import SECTIONS
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json
from paceline.core.security.secrets import SHAPED


@dataclass(frozen=True)
class Composed:
    """The text of a YAML, and our dotted path at each of its lines (from 1)."""

    text: str
    paths: Mapping[int, str]


def compose(imported: Imported, title: str) -> Composed:
    """Return the YAML: a header, each section with the source of every value, and the settings that are left
    out.
    """
    explained = 'Each value names the key it comes from; "default" is a default of that system.'
    lines: list[tuple[str, str]] = [(line, "") for line in [f"# {title}", f"# {explained}", ""]]
    tree, lost = _tree(imported.settings), imported.lost_algorithm()
    for section in SECTIONS:
        if section in tree:
            lines += [*_lines({section: tree[section]}, "", ""), ("", "")]
        if section == "training" and lost is not None:
            of = f"  # {lost.key}, line {lost.line}: cannot be kept; choose one, else this trains sft"
            lines[-1:] = [(f"  # algorithm: {scalar(lost.value)}{of}", ""), ("", "")]
    for verdict in (KeyVerdict.LOST, KeyVerdict.DIFFERS):
        listed = imported.of(verdict)
        if listed:
            shown, left_out = shortened(listed)
            lines.append((f"# {verdict.value}:", ""))
            lines += [
                (f"#   {f.key}{f' (line {f.line})' if f.line else ''}: {_one_line(f.says)}", "")
                for f in shown
            ]
            if left_out:
                lines.append(
                    (f"#   and {left_out:,} more: `paceline config import --all` lists every key", "")
                )
    text = SHAPED.sub("***", "\n".join(line for line, _ in lines).rstrip() + "\n")
    return Composed(text, {number: path for number, (_, path) in enumerate(lines, 1) if path})


def _tree(settings: Mapping[str, Setting]) -> dict[str, object]:
    tree: dict[str, object] = {}
    for path, setting in settings.items():
        inner = tree
        *outer, leaf = path.split(".")
        for part in outer:
            inner = inner.setdefault(part, {})  # type: ignore[assignment]
        inner[leaf] = setting
    return tree


def _lines(tree: Mapping[str, object], indent: str, path: str) -> list[tuple[str, str]]:
    lines: list[tuple[str, str]] = []
    for key, value in tree.items():
        if isinstance(value, Setting):
            lines += [(line, f"{path}{key}") for line in _setting(key, value, indent)]
        elif isinstance(value, dict):
            lines += [(f"{indent}{key}:", ""), *_lines(value, f"{indent}  ", f"{path}{key}.")]
    return lines


def _setting(key: str, setting: Setting, indent: str) -> list[str]:
    comment = _comment(setting)
    if isinstance(setting.value, str) and "\n" in setting.value and _fits_block(setting.value):
        body = [f"{indent}  {line}".rstrip() if line else "" for line in setting.value.split("\n")]
        return [f"{indent}{key}: |-{comment}", *body]
    if isinstance(setting.value, list) and any(isinstance(item, dict) for item in setting.value):
        return [f"{indent}{key}:{comment}", *(f"{indent}  - {scalar(item)}" for item in setting.value)]
    return [f"{indent}{key}: {scalar(setting.value)}{comment}"]


def _fits_block(text: str) -> bool:
    return (
        not text.startswith((" ", "\n"))
        and not text.endswith("\n")
        and all(line == line.rstrip() for line in text.split("\n"))
    )


def _comment(setting: Setting) -> str:
    if not setting.key:
        return ""
    origin = f"{setting.key}, line {setting.line}" if setting.line else f"{setting.key}, default"
    note = f"; {_one_line(setting.note)}" if setting.note else ""
    return f"  # {origin}{note}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def scalar(value: Json) -> str:
    """Return a value as one line of YAML; texts that YAML would read as something else are quoted."""
    if isinstance(value, float) and abs(value) < 1e15 and value == int(value):
        return f"{value:.1f}"
    if isinstance(value, str) and value and _plain(value):
        return value
    return json.dumps(value, ensure_ascii=False)


def _plain(text: str) -> bool:
    words = ("true", "false", "null", "yes", "no", "on", "off", "~")
    simple = all(c.isalnum() or c in "_-./" for c in text) and text[0].isalpha()
    return simple and text.lower() not in words


# What the file is about: without it another run would be left
_STAYS = ("training.algorithm", "model.name_or_path", "data.train")
_ROUNDS = 16  # an error may hide another one


def accepted(imported: Imported, title: str, rules: Rules | None = None) -> tuple[Composed, list[Diagnostic]]:
    """Return a YAML of ``imported`` that Paceline accepts, and the errors that no key causes.

    A value that is refused is taken out, and its key gets the reason as its verdict.
    """
    for _ in range(_ROUNDS):
        composed = compose(imported, title)
        problems = _problems(composed.text)
        to_drop = {
            path: problem for problem in problems if (path := _path(composed, problem)) in imported.settings
        }
        if not problems and rules:
            # one at a time: two findings may blame two settings of one conflict
            to_drop = dict(_refused(composed, imported, _problems(composed.text, rules))[:1])
        if not to_drop:
            return composed, problems
        for path, problem in to_drop.items():
            _drop(imported, path, problem)
    return compose(imported, title), problems


def _refused(
    composed: Composed, imported: Imported, problems: list[Diagnostic]
) -> list[tuple[str, Diagnostic]]:
    """Return the settings that rules refuse; of a finding's several keys, the last removable one."""
    refused = []
    for problem in problems:
        paths = [path for path in _paths(composed, problem) if path in imported.settings]
        refused += [(path, problem) for path in paths[::-1] if path not in _STAYS][:1]
    return refused


def left_over(text: str, rules: Rules) -> list[Diagnostic]:
    """Return the rules' findings about a composed YAML, with its lines."""
    return _problems(text, rules)


def _problems(text: str, rules: Rules | None = None) -> list[Diagnostic]:
    with tempfile.TemporaryDirectory(prefix="paceline-import-") as folder:
        file = Path(folder) / "imported.yaml"
        file.write_text(text, encoding="utf-8")
        try:
            load_config(str(file), rules=rules)
        except ConfigError as exc:
            return [
                replace(item, where=item.where.replace(str(file), "imported.yaml"))
                for item in exc.diagnostics
            ]
    return []


def _path(composed: Composed, problem: Diagnostic) -> str:
    """Return our path at the (last) line that a finding names."""
    return _paths(composed, problem)[-1]


def _paths(composed: Composed, problem: Diagnostic) -> list[str]:
    """Return our path at each line that a finding names; empty for a line without one of ours."""
    lines = [place.rpartition(":")[2] for place in problem.where.split(" and ")]
    return [composed.paths.get(int(line), "") if line.isdigit() else "" for line in lines]


def _drop(imported: Imported, path: str, problem: Diagnostic) -> None:
    """Remove a refused setting, and mark its keys as not kept."""
    setting = imported.settings.pop(path)
    says = f"{problem.what} ({problem.hint})" if problem.hint else problem.what
    for key, finding in list(imported.findings.items()):
        of_it = path in finding.to and not any(stands(imported, to) for to in finding.to)
        if key == setting.key or of_it or key.startswith(f"{setting.key}."):
            imported.findings[key] = replace(finding, verdict=KeyVerdict.LOST, to=(), says=says)
    if setting.key not in imported.findings:
        imported.findings[setting.key] = Finding(setting.key, setting.value, 0, KeyVerdict.LOST, (), says)


def stands(imported: Imported, to: str) -> bool:
    """Whether one of our keys, or one of a section, is set."""
    return any(
        path == to or path.startswith(f"{to}.") or to.startswith(f"{path}.") for path in imported.settings
    )
