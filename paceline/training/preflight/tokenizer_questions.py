"""Tokenizer questions that only loading it can answer, and so need a trial. Imports no torch, no
Transformers.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

from paceline.config.schema import Config
from paceline.data.preflight.length_check import doubtful_sets
from paceline.data.rows.examples import Reading
from paceline.data.rows.kinds.base import row_kind
from paceline.data.tokenizer.file_facts import most_tokens, same_files, unsettled
from paceline.data.tokenizer.load import tokenizer_here
from paceline.plan.algorithms.spec import algorithm_spec
from paceline.plan.plan import Plan
from paceline.plan.requirements.needs_trial import MODEL, TOKENIZER


def open_questions(config: Config, plan: Plan | None, formats: Set[str]) -> dict[str, str]:
    """Return trial → why it is needed. ``formats``: the row formats that were found.

    Empty if the tokenizer is still to be downloaded.
    """
    folder, spec = tokenizer_here(config.model), algorithm_spec(config.training.algorithm)
    if folder is None:
        return {}
    # The tokenizer: what its files leave open, and whether other models have the same tokens
    kind = row_kind(spec.rows)
    reading = Reading.of(config.data, kind)
    learns = kind.trained_tokens(reading.train_on) == "assistant" and not kind.answered
    reasons, found = unsettled(folder, config.model, formats, learns_answers=learns), dict[str, str]()
    if any(doubtful_sets(config.data, config.model, reading)):
        reasons.append("rows that data.max_length may leave out")
    adds = config.model.add_tokens or config.model.add_special_tokens
    for reader in readers_of(config):
        if adds or not same_files(folder, reader.folder):
            reasons.append(f"the tokens of the {reader.role} model")
    if reasons:
        found[TOKENIZER] = ", ".join(reasons)
    # The model: whether tokens may need more rows than a fixed embedding has
    if (
        plan is not None
        and plan.shape is not None
        and (plan.adapter or config.model.resize_embeddings == "never")
    ):
        needed = most_tokens(folder, config.model)
        if needed is None or plan.shape.resized or needed > plan.shape.vocab:
            found[MODEL] = "embedding rows for all tokens"
    return found


@dataclass(frozen=True)
class Reader:
    """A further model that reads the trained model's tokens, in a local folder with a tokenizer."""

    role: str
    folder: Path


def readers_of(config: Config) -> list[Reader]:
    """Return the reward model, if configured, and the models that the algorithm's spec names."""
    spec, training = algorithm_spec(config.training.algorithm), config.training
    roles = (*(("reward",) if spec.on_policy else ()), *spec.same_tokens)
    named = [(role, spec.model_named(training, role)) for role in roles]
    return [
        Reader(role, Path(n).expanduser())
        for role, n in named
        if n and any(Path(n).expanduser().glob("tokenizer*"))
    ]
