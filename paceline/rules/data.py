"""Rules for data and data loading."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.core.diagnostics import Diagnostic
from paceline.rules import codes
from paceline.rules.rule import Context, Rule


def train_data(c: Context) -> Iterator[Diagnostic]:
    """data.missing"""
    if c.starting and not c.config.data.train:
        yield c.problem(
            codes.DATA_MISSING,
            "there is no training data",
            "data.train",
            found="no data.train",
            hint="data:\n             train: my_data.jsonl",
        )


def prefetch(c: Context) -> Iterator[Diagnostic]:
    """data.prefetch"""
    if c.training.dataloader_num_workers == 0 and c.training.dataloader_prefetch_factor is not None:
        yield c.at(
            codes.DATA_PREFETCH(), "training.dataloader_prefetch_factor", "training.dataloader_num_workers"
        )


def positions(c: Context) -> Iterator[Diagnostic]:
    """data.max_pos"""
    limit, length = c.facts.max_position_embeddings, c.config.data.max_length
    if limit is not None and length > limit:
        yield c.at(codes.DATA_MAX_POS(length=length, limit=limit), "data.max_length")


def trained_tokens(c: Context) -> Iterator[Diagnostic]:
    """data.train_on_idle"""
    requested, key = c.config.data.train_on, "data.train_on"
    if requested == "auto" or not c.given(key):
        return
    kind = c.algorithm.row_kind
    if kind.answered or kind.trained_tokens(requested) != requested:
        yield c.at(codes.DATA_TRAIN_ON_IDLE(words=kind.words), key, "training.algorithm")


def packing(c: Context) -> Iterator[Diagnostic]:
    """data.packing_eval"""
    if c.config.data.packing and c.given("data.packing") and c.algorithm.generation(c.training) is not None:
        yield c.at(
            codes.DATA_PACKING_EVAL(algorithm=c.training.algorithm), "data.packing", "training.algorithm"
        )


def split(c: Context) -> Iterator[Diagnostic]:
    """data.validation_split, data.two_evals"""
    value = c.config.data.validation_split
    if value is not None and value <= 0:
        yield c.at(codes.DATA_VALIDATION_SPLIT(), "data.validation_split")
    if value and c.config.data.eval:
        yield c.problem(
            codes.DATA_TWO_EVALS,
            "data.eval and data.validation_split are both given; only data.eval would be evaluated",
            "data.validation_split",
            "data.eval",
            found="data.eval and data.validation_split",
            hint="one of the two",
        )


def weights(c: Context) -> Iterator[Diagnostic]:
    """data.one_weight"""
    sets = c.config.data.train
    if len(sets) == 1 and sets[0].weight != 1:
        yield c.at(codes.DATA_ONE_WEIGHT(found=f"weight: {sets[0].weight:g}"), "data.train")


DATA_RULES: tuple[Rule, ...] = (train_data, prefetch, positions, trained_tokens, packing, split, weights)
