"""Bring an imported config to what our own reading accepts: keys of refused values cannot be kept."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from paceline.config.import_export.verdicts import Finding, Imported, KeyVerdict
from paceline.config.import_export.write_yaml import Composed, compose
from paceline.config.load import Rules, load_config
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError

_OF_RULES = (
    "training.optim",
    "training.optim_args",
    "training.optim_target_modules",
    "training.lr_scheduler_type",
    "training.lr_scheduler_kwargs",
)
_ROUNDS = 8  # an error may hide another one


def accepted(found: Imported, title: str, rules: Rules | None = None) -> tuple[Composed, list[Diagnostic]]:
    """Return the YAML of ``found`` that our reading accepts, and the errors that no key is to blame for.

    A value that is refused is taken out, and its key gets the reason as its verdict; ``rules`` refuse values
    of optimizers and schedules only.
    """
    for _ in range(_ROUNDS):
        made = compose(found, title)
        problems = _problems(made.text)
        to_drop = {path: problem for problem in problems if (path := _path(made, problem)) in found.settings}
        for problem in _problems(made.text, rules) if rules and not problems else ():
            if (path := _path(made, problem)) in found.settings and path in _OF_RULES:
                to_drop[path] = problem
        if not to_drop:
            return made, problems
        for path, problem in to_drop.items():
            _drop(found, path, problem)
    return compose(found, title), problems


def left_over(text: str, rules: Rules) -> list[Diagnostic]:
    """Return what the rules have against a composed YAML, at its lines."""
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


def _path(made: Composed, problem: Diagnostic) -> str:
    """Return our path at the (last) line that a finding names."""
    line = problem.where.split(" and ")[-1].rpartition(":")[2]
    return made.paths.get(int(line), "") if line.isdigit() else ""


def _drop(found: Imported, path: str, problem: Diagnostic) -> None:
    """Take out a refused setting: no key that it stood for is kept."""
    setting = found.settings.pop(path)
    says = f"{problem.what} ({problem.hint})" if problem.hint else problem.what
    for key, finding in list(found.findings.items()):
        of_it = path in finding.to and not any(stands(found, to) for to in finding.to)
        if key == setting.key or of_it or key.startswith(f"{setting.key}."):
            found.findings[key] = replace(finding, verdict=KeyVerdict.LOST, to=(), says=says)
    if setting.key not in found.findings:
        found.findings[setting.key] = Finding(setting.key, setting.value, 0, KeyVerdict.LOST, (), says)


def stands(found: Imported, to: str) -> bool:
    """Whether one of our keys, or one of a section, is set."""
    return any(
        path == to or path.startswith(f"{to}.") or to.startswith(f"{path}.") for path in found.settings
    )
