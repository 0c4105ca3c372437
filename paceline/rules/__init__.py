"""Rules over the config: functions that yield diagnostics; all rules run, and all findings are reported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from paceline.config.schema import Config
from paceline.config.source import Source
from paceline.core.diagnostics import Diagnostic, Severity, errors
from paceline.core.errors import ConfigError
from paceline.rules import codes
from paceline.rules.algorithm import ALGORITHM_RULES
from paceline.rules.backend import BACKEND_RULES
from paceline.rules.complete_remedies import complete_remedies
from paceline.rules.data import DATA_RULES
from paceline.rules.device import DEVICE_RULES, PRECISION_RULES
from paceline.rules.model import MODEL_RULES
from paceline.rules.optimizer import OPTIMISATION_RULES
from paceline.rules.parallel import PARALLEL_RULES
from paceline.rules.rollout import ROLLOUT_RULES
from paceline.rules.rule import Context, Facts, Rule
from paceline.rules.save import SAVE_RULES
from paceline.rules.steps import BATCH_RULES, SPIKE_RULES
from paceline.rules.strategy import STRATEGY_RULES

RULES: tuple[Rule, ...] = (
    *BATCH_RULES,
    *PRECISION_RULES,
    *OPTIMISATION_RULES,
    *BACKEND_RULES,
    *DEVICE_RULES,
    *PARALLEL_RULES,
    *STRATEGY_RULES,
    *ALGORITHM_RULES,
    *ROLLOUT_RULES,
    *SAVE_RULES,
    *SPIKE_RULES,
    *DATA_RULES,
    *MODEL_RULES,
)


def check(
    config: Config, facts: Facts, *, starting: bool = False, provenance: Mapping[str, Source] | None = None
) -> list[Diagnostic]:
    """Run all rules and return their findings.

    ``starting`` adds checks that only matter when a run starts (a model, data, files that exist);
    ``provenance`` lets findings name ``file:line``. Raises ConfigError, at the key's line, for a user-defined
    spec that cannot be loaded or that fails: no other rule could run then.
    """
    context = Context(config, facts, starting, provenance or {})
    try:
        findings = [finding for rule in RULES for finding in rule(context)]
    except ConfigError as error:
        raise ConfigError(*(replace(d, where=context.place(d.where)) for d in error.diagnostics)) from error
    return complete_remedies(findings, config, facts, provenance or {})


def of_config(config: Config, provenance: Mapping[str, Source]) -> tuple[Diagnostic, ...]:
    """Return the errors that can be found without knowing the machine."""
    return errors(check(config, Facts(), provenance=provenance))


#: Warnings that allow ``paceline plan`` but not a start.
AT_START = frozenset({codes.XLA_NOT_RUN.name, codes.MODEL_OFFLINE.name, codes.HUB_UNREACHABLE.name})


def at_start(findings: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Return the findings that stop a start: errors, and the warnings of ``AT_START`` turned into errors."""
    return tuple(
        replace(item, severity=Severity.ERROR)
        for item in findings
        if item.severity is Severity.ERROR or item.code in AT_START
    )
