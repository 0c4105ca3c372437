"""Checks of the tokenizer before a start: questions that its files leave open, and a trial load. No torch.

The trial loads it as the preparation does: end of text, offsets, the template's masks and cost, a reward
model's tokens.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.config.schema import Config, field_of
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import PacelineError
from paceline.data.images.decide import sees_pictures
from paceline.data.preflight.length_check import doubtful_sets, lost_rows
from paceline.data.rows.examples import Reading
from paceline.data.rows.kinds.base import row_kind
from paceline.data.tokenizer.file_facts import most_tokens, same_files, unsettled
from paceline.data.tokenizer.load import load_tokenizer, open_tokenizer, tokenizer_here
from paceline.plan.algorithms.spec import algorithm_spec
from paceline.plan.needs_trial import MODEL, TOKENIZER
from paceline.plan.plan import Plan
from paceline.training.preflight.named_models import check_reward_model, check_tokens
from paceline.training.preflight.row_counts import enough_packed_rows, may_pack_too_few

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from paceline.data.prepare.tokenize import Setup


def open_questions(config: Config, plan: Plan | None, formats: Set[str]) -> dict[str, str]:
    """Return trial → why it is needed. ``formats``: the row formats that were found.

    Empty if the tokenizer is still to be downloaded.
    """
    folder, spec = tokenizer_here(config.model), algorithm_spec(config.training.algorithm)
    if folder is None:
        return {}
    # The tokenizer: what its files leave open, and whether other models have the same tokens
    kind = row_kind(spec.rows)
    images = sees_pictures(config.data, config.model, kind, imports=False)
    reading = Reading.of(config.data, kind, images=images)
    learns = kind.trained_tokens(reading.train_on) == "assistant" and not kind.answered
    reasons, questions = unsettled(folder, config.model, formats, learns_answers=learns), dict[str, str]()
    if any(doubtful_sets(config.data, config.model, reading)):
        reasons.append("rows that data.max_length may leave out")
    if plan is not None and may_pack_too_few(config, plan):
        reasons.append("whether packed rows are enough for every rank")
    model = config.model
    adds = model.add_tokens or model.add_special_tokens or model.special_tokens
    for reader in readers_of(config):
        if adds or not same_files(folder, reader.folder):
            reasons.append(f"the tokens of the {reader.role} model")
    if reasons:
        questions[TOKENIZER] = ", ".join(reasons)
    # The model: whether tokens may need more rows than a fixed embedding has
    if (
        plan is not None
        and plan.shape is not None
        and (plan.adapter or config.model.resize_embeddings == "never")
    ):
        needed = most_tokens(folder, config.model)
        if needed is None or plan.shape.resized or needed > plan.shape.vocab:
            questions[MODEL] = "embedding rows for all tokens"
    return questions


@dataclass(frozen=True)
class Reader:
    """A further model that reads the trained model's tokens, in a local folder with a tokenizer."""

    role: str
    folder: Path


def readers_of(config: Config) -> list[Reader]:
    """Return the reward model, if configured, and the models that the algorithm's spec names."""
    spec, training = algorithm_spec(config.training.algorithm), config.training
    roles = (*(("reward",) if spec.on_policy else ()), *spec.same_tokens)
    models = [(role, spec.model_named(training, role)) for role in roles]
    return [
        Reader(role, Path(n).expanduser())
        for role, n in models
        if n and any(Path(n).expanduser().glob("tokenizer*"))
    ]


def try_tokenizer(config: Config, plan: Plan | None, formats: Set[str]) -> Iterator[Diagnostic]:
    """Yield the warnings and refusals of the preparation before it reads rows; rows have ``formats``.

    Also yield the rows that ``data.max_length`` would refuse, and packed rows that are too few for the ranks.
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
    setup, *_ = _settled(config, formats)
    yield from lost_rows(setup, config.data, list(doubtful_sets(config.data, config.model, setup.reading)))
    if plan is not None and may_pack_too_few(config, plan):
        yield from enough_packed_rows(config, plan)


def _settled(config: Config, formats: Set[str]) -> tuple[Setup, PreTrainedTokenizerBase, list[Diagnostic]]:
    # What prepares rows imports numpy: a start that only asks the questions above does without
    from paceline.data.prepare.choose_template import settle_template
    from paceline.data.prepare.prepare import setup_of

    setup = setup_of(config.data, config.model, row_kind(algorithm_spec(config.training.algorithm).rows))
    tokenizer = open_tokenizer(setup.tokenizer)
    setup, notes = settle_template(setup, tokenizer, formats)
    return setup, tokenizer, list(notes)


def _rendering(config: Config, formats: Set[str]) -> list[Diagnostic]:
    from paceline.data.prepare.choose_template import stop_tokens

    setup, tokenizer, notes = _settled(config, formats)
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
