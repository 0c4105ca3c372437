"""Load the tokenizer as the preparation does, and check what its files alone do not show: end of text,
offsets, the template's masks and cost, a reward model's tokens.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Set
from dataclasses import replace
from pathlib import Path

from paceline.config.schema import Config, field_of
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import PacelineError
from paceline.data.preflight.length_check import doubtful_sets, lost_rows
from paceline.data.prepare.choose_template import settle_template, stop_tokens
from paceline.data.prepare.prepare import setup_of
from paceline.data.rows.kinds.base import row_kind
from paceline.data.tokenizer.load import load_tokenizer, open_tokenizer
from paceline.plan.algorithms.spec import algorithm_spec
from paceline.training.input_checks.teacher_tokens import check_tokens
from paceline.training.preflight.tokenizer_questions import readers_of
from paceline.training.rollout.reward_model import check_reward_model


def try_tokenizer(config: Config, formats: Set[str]) -> Iterator[Diagnostic]:
    """Yield what the preparation would warn about or refuse before it reads rows; these have ``formats``.

    Also the rows that ``data.max_length`` would end the start for.
    """
    key = "model.tokenizer" if config.model.tokenizer else "model.name_or_path"
    for part in (_rendering, _judging):
        try:
            yield from (_at(key, finding) for finding in part(config, formats))
        except PacelineError as error:
            yield from (
                _at("model.chat_template" if config.model.chat_template else key, d)
                for d in error.diagnostics
            )
            return
    setup = setup_of(config.data, config.model, row_kind(algorithm_spec(config.training.algorithm).rows))
    setup, _ = settle_template(setup, open_tokenizer(setup.tokenizer), formats)
    yield from lost_rows(setup, config.data, list(doubtful_sets(config.data, config.model, setup.reading)))


def _rendering(config: Config, formats: Set[str]) -> list[Diagnostic]:
    setup = setup_of(config.data, config.model, row_kind(algorithm_spec(config.training.algorithm).rows))
    tokenizer = open_tokenizer(setup.tokenizer)
    setup, notes = settle_template(setup, tokenizer, formats)
    stop_tokens(setup, tokenizer)
    return [note for note in notes if note.severity is not Severity.NOTE]


def _judging(config: Config, formats: Set[str]) -> list[Diagnostic]:
    readers = readers_of(config)
    if readers:
        spec = algorithm_spec(config.training.algorithm)
        with tempfile.TemporaryDirectory(prefix="paceline-tokenizer-") as folder:
            load_tokenizer(config.model).save_pretrained(folder)
            for reader in readers:
                if reader.role in spec.same_tokens:
                    key, whole = spec.model_key(reader.role), reader.role in spec.lends_head
                    check_tokens(str(reader.folder), Path(folder), key, reader.role, whole=whole)
                else:
                    check_reward_model(str(reader.folder), Path(folder))
    return []


def _at(key: str, finding: Diagnostic) -> Diagnostic:
    """Return the diagnostic with a config key as its place; a folder named there moves to ``found``."""
    if field_of(finding.where) is not None:
        return finding
    return replace(
        finding, where=key, found=f"{finding.where}: {finding.found}" if finding.where else finding.found
    )
