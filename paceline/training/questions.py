"""What the look leaves open about the tokenizer, and so is tried. No torch, no Transformers."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

from paceline.config.schema import Config
from paceline.data.kinds.base import row_kind
from paceline.data.tokenizer import tokenizer_here
from paceline.data.tokenizer_facts import most_tokens, same_files, unsettled
from paceline.plan.algorithms.base import algorithm_spec
from paceline.plan.plan import Plan
from paceline.plan.tries import MODEL, TOKENIZER


def open_questions(config: Config, plan: Plan | None, formats: Set[str]) -> dict[str, str]:
    """Try → why it is made. ``formats``: of the rows that were looked at. A tokenizer that would be downloaded is left to that."""
    folder, spec = tokenizer_here(config.model), algorithm_spec(config.training.algorithm)
    if folder is None:
        return {}
    kind = row_kind(spec.rows)
    learns = kind.learnt(config.data.train_on) == "assistant" and not kind.answered
    reasons, found = unsettled(folder, config.model, formats, learns_answers=learns), dict[str, str]()
    adds = config.model.add_tokens or config.model.add_special_tokens
    for reader in readers_of(config):
        if adds or not same_files(folder, reader.folder):
            reasons.append(f"the tokens of the {reader.role} model")
    if reasons:
        found[TOKENIZER] = ", ".join(reasons)
    if plan is not None and plan.shape is not None and (plan.adapter or config.model.resize_embeddings == "never"):
        needed = most_tokens(folder, config.model)
        if needed is None or needed > plan.shape.vocab:
            found[MODEL] = "rows of the embedding for all tokens"
    return found


@dataclass(frozen=True)
class Reader:
    """A model beside the trained one that reads its tokens, in a folder here with a tokenizer."""

    role: str
    folder: Path


def readers_of(config: Config) -> list[Reader]:
    """The reward model, where one is among the rewards, and what the algorithm's spec says."""
    spec, training = algorithm_spec(config.training.algorithm), config.training
    roles = (*(("reward",) if spec.on_policy else ()), *spec.same_tokens)
    named = [(role, spec.model_named(training, role)) for role in roles]
    return [
        Reader(role, Path(n).expanduser()) for role, n in named if n and any(Path(n).expanduser().glob("tokenizer*"))
    ]
