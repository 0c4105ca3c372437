"""Keys that split a model or a row over ranks: pipeline, context and tensor parallelism, Ulysses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from paceline.core.diagnostics import Diagnostic
from paceline.rules import codes
from paceline.rules.base import Context
from paceline.rules.strategy import deepspeed_section


def sharding_keys(c: Context, axes: Iterable[str]) -> list[str]:
    """Return the keys of this config that split a model or its rows over ranks.

    These are the sizes above 1 in ``training.parallelism`` for ``axes`` (pp, cp, tp), DeepSpeed's AutoTP and
    Ulysses, and strategies that always split.
    """
    sizes, file = c.config.training.parallelism, deepspeed_section(c)
    found = [
        f"training.parallelism.{axis}_size" for axis in axes if sizes and getattr(sizes, f"{axis}_size") > 1
    ]
    tensor = file.get("tensor_parallel")
    if isinstance(tensor, dict) and tensor.get("autotp_size") not in (None, 0, 1):
        found.append("training.deepspeed: tensor_parallel.autotp_size")
    if file.get("sequence_parallel_size") not in (None, 0, 1):
        found.append("training.deepspeed: sequence_parallel_size")
    if c.strategy is not None and not c.strategy.whole_rows:
        found.append(f"training.distributed_strategy: {c.strategy.name}")
    return found


def sharding_axes(c: Context, *, scores: bool) -> tuple[str, ...]:
    """Return the axes that an algorithm on whole answers cannot use.

    ``scores``: a scalar head scores the answers; no strategy supports splitting that model.
    """
    across = frozenset() if scores or c.strategy is None else c.strategy.score_axes
    return tuple(axis for axis in ("pp", "cp", "tp") if axis not in across)


def in_words(keys: Iterable[str]) -> str:
    """Return ``pp_size and autotp_size``: the keys' last parts as a phrase."""
    return " and ".join(key.rpartition(".")[2] for key in keys)


def places(keys: Iterable[str]) -> tuple[str, ...]:
    """Return the keys' dotted paths in the YAML."""
    return tuple(key.partition(":")[0] for key in keys)


def whole_heads(c: Context) -> Iterator[Diagnostic]:
    """strategy.divergence"""
    if not c.algorithm.lends_head:
        return
    wrong = [key for key in sharding_keys(c, ("pp", "tp")) if "sequence_parallel" not in key]
    if c.strategy is not None and not c.strategy.stages:
        wrong = [key for key in wrong if not key.startswith("training.distributed_strategy")]
    if wrong:
        yield c.at(
            codes.STRATEGY_DIVERGENCE(name=c.algorithm.name, in_words=in_words(wrong)),
            "training.algorithm",
            *places(wrong),
        )
