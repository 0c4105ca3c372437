"""Diagnostic codes of algorithms and rewards."""

from __future__ import annotations

from paceline.core.diagnostics import Code

ALGORITHM_NOT_AN_ALGORITHM = Code(
    "algorithm.not_an_algorithm",
    "What a spec's implementation names is no subclass of paceline.algorithms.base:Algorithm.",
)

REWARD_UNKNOWN = Code(
    "reward.unknown",
    "No built-in reward has this name, and it is not written as module:function. Correct the name in"
    " training.rollout.rewards.",
)

REWARDS_NOT_A_FUNCTION = Code(
    "rewards.not_a_function",
    "training.rollout.rewards names something of a module that is no function. Name a function of prompts and"
    " completions.",
)
REWARDS_SIGNATURE = Code(
    "rewards.signature",
    "A reward function is called with prompts, completions and the rows' columns, by name, and with its"
    " options. This one needs something else, or takes no such option.",
)
REWARDS_FAILED = Code(
    "rewards.failed",
    "A reward function raised, hung beyond `training.rollout.reward_timeout`, or gave no finite number."
    " `training.rollout.on_reward_error` says what then: error, zero or skip.",
)
REWARDS_OPTIONS = Code(
    "rewards.options", "A built-in reward was given an option it does not have, or lacks one it needs."
)
