"""The reference names the options of each built-in reward, and these are the ones its function takes."""

from __future__ import annotations

import inspect
import re

from paceline.algorithms.rewards.scoring import REWARDS
from paceline.config.sections.rollout import OPTIONS_OF_REWARDS


def test_the_reference_names_each_option_of_a_built_in_reward() -> None:
    written = {
        name: set(re.findall(r"`(\w+)`", options))
        for name, options in re.findall(r"(\w+): ((?:`\w+`(?:, )?)+)", OPTIONS_OF_REWARDS)
    }
    taken = {}
    for name in REWARDS.names():
        parameters = inspect.signature(REWARDS.load(name)).parameters.values()
        options = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
        if options:
            taken[name] = options
    assert written == {**taken, "model": {"model"}}
