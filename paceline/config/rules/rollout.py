"""What algorithms that learn from the model's own answers cannot be combined with, and settings of theirs that would learn nothing."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.config.rules.base import Context, Rule
from paceline.config.rules.cuts import cutting_keys, in_words, places
from paceline.config.rules.strategy import engine_of
from paceline.config.sections.rollout import RolloutOptions
from paceline.core.diagnostics import Diagnostic, Severity

_ON_POLICY = ("grpo",)
_ROLLOUT = "training.rollout"


def _rollout(c: Context) -> RolloutOptions | None:
    t = c.config.training
    return (t.rollout or RolloutOptions()) if t.algorithm in _ON_POLICY else None


def strategies(c: Context) -> Iterator[Diagnostic]:
    """strategy.rollouts"""
    t = c.config.training
    if _rollout(c) is None:
        return
    wrong = cutting_keys(c, ("pp", "cp") if engine_of(c) == "fsdp" else ("pp", "cp", "tp"))
    if wrong:
        yield c.problem(
            "strategy.rollouts",
            f"{t.algorithm} writes answers token by token with a whole model on every rank; {in_words(wrong)} cuts it",
            "training.algorithm",
            *places(wrong),
            hint="distributed_strategy: ddp, zero1 to zero3, or fsdp, with tp_size",
        )


def rewards(c: Context) -> Iterator[Diagnostic]:
    """rollout.no_rewards, rewards.code_off"""
    options = _rollout(c)
    if options is None:
        return
    if not options.rewards and c.starting:
        yield c.problem(
            "rollout.no_rewards",
            "nothing says which answers are good",
            f"{_ROLLOUT}" if c.config.training.rollout is None else f"{_ROLLOUT}.rewards",
            found="no training.rollout.rewards",
            hint="rollout:\n               rewards: [exact_match]",
        )
    if any(r.name == "code" for r in options.rewards) and not options.allow_code_execution:
        yield c.problem(
            "rewards.code_off",
            "the reward 'code' runs programs that the model wrote",
            f"{_ROLLOUT}.allow_code_execution",
            hint="allow_code_execution: true, on a machine where that may happen",
        )


def lengths(c: Context) -> Iterator[Diagnostic]:
    """rollout.length"""
    options = _rollout(c)
    if options is not None and options.max_completion_length >= c.config.data.max_length:
        yield c.problem(
            "rollout.length",
            "the longest answer leaves no room for a prompt: data.max_length is prompt and answer together",
            "data.max_length",
            found=f"max_completion_length: {options.max_completion_length}, data.max_length: {c.config.data.max_length}",
            hint=f"data.max_length: {2 * options.max_completion_length}",
        )


def groups(c: Context) -> Iterator[Diagnostic]:
    """rollout.one_answer, rollout.greedy"""
    options = _rollout(c)
    if options is None or c.config.training.algorithm != "grpo":
        return
    if options.num_generations == 1:
        yield c.problem(
            "rollout.one_answer",
            "the advantage of an answer is how much better it is than the others to its prompt, and there are no others: nothing would be learnt",
            f"{_ROLLOUT}.num_generations",
            hint="num_generations: 8",
            severity=Severity.WARNING,
        )
    elif options.temperature == 0:
        yield c.problem(
            "rollout.greedy",
            "at temperature 0 all answers to a prompt are the same: nothing would be learnt",
            f"{_ROLLOUT}.temperature",
            hint="temperature: 1.0",
            severity=Severity.WARNING,
        )


def sections(c: Context) -> Iterator[Diagnostic]:
    """train.algorithm_section"""
    t = c.config.training
    wrong = (["grpo"] if t.grpo is not None and t.algorithm != "grpo" else []) + (
        ["rollout"] if t.rollout is not None and t.algorithm not in _ON_POLICY else []
    )
    for name in wrong:
        yield c.problem(
            "train.algorithm_section",
            f"training.{name} says how answers of the model's own are learnt from, and this run's algorithm is {t.algorithm}",
            f"training.{name}",
            "training.algorithm",
            found=f"algorithm: {t.algorithm}",
            hint="algorithm: grpo, or remove the section",
            severity=Severity.WARNING,
        )


ROLLOUT_RULES: tuple[Rule, ...] = (strategies, rewards, lengths, groups, sections)
