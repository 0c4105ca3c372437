"""The job that is planned, made once and asked by every choice; and where what there is to say of it goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from paceline.config.schema import Config
from paceline.config.sections.lora import LoraSection
from paceline.config.sections.training import TrainingSection
from paceline.config.sections.training_scale import Parallelism
from paceline.core.diagnostics import Code, Diagnostic
from paceline.core.errors import ConfigError
from paceline.plan.algorithms.base import AlgorithmSpec, algorithm_spec
from paceline.plan.hardware.probe import Hardware
from paceline.plan.model.read_shape import ModelShape, trained_shape
from paceline.plan.plan import Decision


@dataclass(frozen=True)
class Job:
    """A config on machines like ``hardware``: ``world_size`` processes on ``num_nodes`` nodes, started by ``launcher``, writing to ``run_dir``.

    ``shape`` may be left out when ``model.config`` is given (``model_shape``); ``others`` are those of other models, by name. ``needs_room`` is False
    where it is not this very plan that is run.
    """

    config: Config
    hardware: Hardware
    world_size: int = 1
    num_nodes: int = 1
    launcher: str = ""
    run_dir: str = ""
    shape: ModelShape | None = None
    others: Mapping[str, ModelShape | None] = field(default_factory=dict)
    needs_room: bool = True

    @property
    def training(self) -> TrainingSection:
        """The config's ``training``."""
        return self.config.training

    @property
    def lora(self) -> LoraSection | None:
        """The config's ``lora``; None where all weights are trained."""
        return self.config.lora

    @property
    def algorithm(self) -> AlgorithmSpec:
        """What is learnt. Raises ConfigError for one that there is not."""
        return algorithm_spec(self.training.algorithm)

    @property
    def ranks_per_node(self) -> int:
        """Processes on each node."""
        return self.world_size // self.num_nodes

    @property
    def parallelism(self) -> Parallelism:
        """``training.parallelism``, or its defaults."""
        return self.training.parallelism or Parallelism()

    def axis(self, name: str) -> int:
        """Size of a mesh axis as given, else 1."""
        return self.parallelism.size(name)

    def model_shape(self) -> ModelShape | None:
        """``shape``, or that of ``model.config``; None where neither is there. Raises ConfigError for a ``model.config`` of which none can be told."""
        given = self.config.model.config
        return trained_shape(given, "model.config") if self.shape is None and given else self.shape

    def sharded(self, sharding: str | None) -> Job:
        """With ``training.fsdp`` as the plan chose it; as it is for None."""
        if sharding is None:
            return self
        training = self.training.model_copy(update={"fsdp": sharding})
        return replace(self, config=self.config.model_copy(update={"training": training}))


@dataclass
class Findings:
    """What reading an engine's options yields beside the options: decisions for the plan, problems that stop a start."""

    decisions: list[Decision] = field(default_factory=list)
    problems: list[Diagnostic] = field(default_factory=list)

    def explain(self, subject: str, choice: str, reason: str, granted: bool = True) -> None:
        """One decision."""
        self.decisions.append(Decision(subject, choice, reason, granted))

    def refuse(self, code: Code, what: str, where: str, found: str, hint: str) -> None:
        """One problem."""
        self.problems.append(code(what, where, found, hint))

    def raise_if_refused(self) -> None:
        """Raises ConfigError with every problem at once."""
        if self.problems:
            raise ConfigError(*self.problems)
