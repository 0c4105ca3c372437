"""How long ranks wait for another, by phase of the run."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.config.sections.training import TrainingSection

#: The phases with a limit of their own, as heartbeats name them.
START, STEP = "start", "train"
DEFAULT_SECONDS = 1800.0
MEET_SECONDS = 600.0  # for all ranks to connect, unless training.start_timeout is set
START_KEY, STEP_KEY, _KEY = "training.start_timeout", "training.step_timeout", "training.ddp_timeout"


@dataclass(frozen=True)
class Limit:
    """How many ``seconds`` ranks wait for another, and the config key that sets it."""

    seconds: float
    key: str


@dataclass(frozen=True)
class WaitLimits:
    """The limits before the first step, in a step, and between steps: in evaluations, saves, rollouts."""

    start: Limit
    step: Limit
    between: Limit

    @staticmethod
    def same(seconds: float) -> WaitLimits:
        """Return one limit for everything: ``ddp_timeout``'s."""
        return WaitLimits(*(Limit(seconds, _KEY),) * 3)

    @staticmethod
    def of(training: TrainingSection) -> WaitLimits:
        """Return the configured limits; ``ddp_timeout`` replaces those not set.

        Work between steps has the longer of ``ddp_timeout`` and the step's limit, as a process group has one
        timeout for both.
        """
        every = Limit(training.ddp_timeout, _KEY)
        start = every if training.start_timeout is None else Limit(training.start_timeout, START_KEY)
        step = every if training.step_timeout is None else Limit(training.step_timeout, STEP_KEY)
        return WaitLimits(start, step, step if step.seconds > every.seconds else every)

    def in_phase(self, phase: str) -> Limit:
        """Return the limit of a heartbeat's ``phase``."""
        return self.start if phase == START else self.step if phase == STEP else self.between

    @property
    def shortest(self) -> float:
        """The shortest of all, in seconds."""
        return min(self.start.seconds, self.step.seconds, self.between.seconds)

    @property
    def longest(self) -> float:
        """The longest of all, in seconds."""
        return max(self.start.seconds, self.step.seconds, self.between.seconds)

    @property
    def meet_seconds(self) -> float:
        """How long ranks that have connected wait for those that have not."""
        return self.start.seconds if self.start.key == START_KEY else min(self.start.seconds, MEET_SECONDS)

    def text(self) -> str:
        """Return the limits as the plan shows them."""
        words = f"the timeout of a collective is {self.between.seconds:g} s ({self.between.key})"
        apart = [
            f"{limit.seconds:g} s {where} ({limit.key})"
            for limit, where in ((self.start, "before the first step"), (self.step, "in a step"))
            if limit.key != _KEY and limit != self.between
        ]
        return ", ".join((words, *apart))
