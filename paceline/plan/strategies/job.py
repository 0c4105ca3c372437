"""What a strategy's spec is asked about: the job, and where what there is to say of it goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.core.diagnostics import Code, Diagnostic
from paceline.core.errors import ConfigError
from paceline.plan.hardware.probe import Hardware
from paceline.plan.model.read_shape import ModelShape
from paceline.plan.plan import Decision


@dataclass(frozen=True)
class Job:
    """What the engines may know: the config's values, the machine, the processes."""

    training: Mapping[str, Any]
    lora: Mapping[str, Any] | None
    hardware: Hardware
    world_size: int
    num_nodes: int
    shape: ModelShape | None

    @property
    def ranks_per_node(self) -> int:
        """Processes on each node."""
        return self.world_size // self.num_nodes

    @property
    def parallelism(self) -> dict[str, Any]:
        """``training.parallelism`` as a mapping; empty when it was not given."""
        return dict(self.training.get("parallelism") or {})

    def axis(self, name: str) -> int:
        """Size of a mesh axis as given, else 1."""
        return int(self.parallelism.get(f"{name}_size") or 1)


@dataclass
class Findings:
    """What reading an engine's options yields beside the options: decisions for the plan, problems that stop a start."""

    decisions: list[Decision] = field(default_factory=list)
    problems: list[Diagnostic] = field(default_factory=list)

    def say(self, subject: str, choice: str, reason: str, granted: bool = True) -> None:
        """One decision."""
        self.decisions.append(Decision(subject, choice, reason, granted))

    def refuse(self, code: Code, what: str, where: str, found: str, hint: str) -> None:
        """One problem."""
        self.problems.append(code(what, where, found, hint))

    def raise_if_refused(self) -> None:
        """Raises ConfigError with every problem at once."""
        if self.problems:
            raise ConfigError(*self.problems)
