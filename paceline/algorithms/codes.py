"""Diagnostic codes of algorithms and rewards."""

from __future__ import annotations

from paceline.core.diagnostics import Code

ALGORITHM_NOT_AN_ALGORITHM = Code(
    "algorithm.not_an_algorithm",
    "The class named in a spec's implementation is not a subclass of paceline.extend:Algorithm.",
)

REWARD_UNKNOWN = Code(
    "reward.unknown",
    "There is no built-in reward of this name, and it is not written as module:function. Correct"
    " the name in training.rollout.rewards.",
)

REWARDS_NOT_A_FUNCTION = Code(
    "rewards.not_a_function",
    "training.rollout.rewards names an object of a module that is not a function. Name a function"
    " of prompts and completions.",
)
REWARDS_SIGNATURE = Code(
    "rewards.signature",
    "A reward function is called with prompts, completions and the rows' columns, by name, and with"
    " its options. This one needs another argument, or does not have such an option.",
)
REWARDS_NO_ANSWER = Code(
    "rewards.no_answer",
    "A reward compares the completion with the row's expected answer, and rows have none. Name its column"
    " next to path:, or add it with data.converter.",
)
REWARDS_FAILED = Code(
    "rewards.failed",
    "A reward function raised an error, exceeded `training.rollout.reward_timeout`, or did not"
    " return a finite number. `training.rollout.on_reward_error` sets what happens then: error,"
    " zero or skip.",
)
REWARDS_TESTS = Code(
    "rewards.tests",
    "The tests of a row turned out to be unusable while they judged a program: they use nothing of it,"
    " or pass it an object that has no plain form. The answers get 0; the run goes on.",
)
REWARDS_OPTIONS = Code(
    "rewards.options", "A built-in reward was given an option that it does not have, or lacks a required one."
)
