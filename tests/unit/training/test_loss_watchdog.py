"""A run ends where its loss stays above a threshold for so many steps in a row, not for as many in all."""

from __future__ import annotations

import math

import pytest

from paceline.runlog.events import Step
from paceline.training.reporting.callbacks import LossWatchdog, UserCallback, check_callback

NAME = "paceline.extend:LossWatchdog"


@pytest.mark.parametrize(
    ("losses", "patience", "stops_at"),
    [
        ((6, 6, 6, 6), 3, 3),
        ((6, 6, 5, 6, 6), 3, None),
        ((6, 6, 1, 6, 6, 6), 3, 6),
        ((4, 6), 1, 2),
        ((math.inf, 1), 1, 1),
    ],
)
def test_steps_in_a_row_count(losses: tuple[float, ...], patience: int, stops_at: int | None) -> None:
    watchdog, found = LossWatchdog(5.0, patience), None
    for step, loss in enumerate(losses, 1):
        watchdog.on_step_end(Step(step, epoch=0.0, loss=loss))
        if watchdog.should_stop:
            found = step
            break
    assert found == stops_at


def test_it_is_a_callback_of_a_config_and_its_options_are_checked() -> None:
    assert check_callback(UserCallback(NAME, {"threshold": 5.0, "patience": 2})) is LossWatchdog
    with pytest.raises(Exception, match="threshold"):
        check_callback(UserCallback(NAME, {}))
    with pytest.raises(ValueError, match="1 or more"):
        LossWatchdog(1.0, 0)
