"""``Job``: the planned job, passed to every rule; ``Findings``: collects its decisions and problems."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from paceline.config.schema import Config
from paceline.config.sections.lora import LoraSection
from paceline.config.sections.training import TrainingSection
from paceline.config.sections.training_scale import Parallelism
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json, as_object
from paceline.plan.algorithms.spec import AlgorithmSpec, algorithm_spec
from paceline.plan.hardware.probe import Hardware
from paceline.plan.model.read_config import trained_shape
from paceline.plan.model.shape import ModelShape
from paceline.plan.plan import Decision


@dataclass(frozen=True)
class Job:
    """A config on machines like ``hardware``: ``world_size`` processes on ``num_nodes`` nodes.

    ``launcher`` starts them; ``run_dir`` is the output directory. ``shape`` may be None if ``model.config``
    is given (``model_shape``); ``others`` are the shapes of other models by name. ``needs_room`` is False if
    this plan will not be run itself.
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
        """The algorithm's spec. Raises ConfigError for an unknown algorithm."""
        return algorithm_spec(self.training.algorithm)

    @property
    def ranks_per_node(self) -> int:
        """Processes per node."""
        return self.world_size // self.num_nodes

    @property
    def parallelism(self) -> Parallelism:
        """``training.parallelism``, or its defaults."""
        return self.training.parallelism or Parallelism()

    def axis(self, name: str) -> int:
        """Return the configured size of a mesh axis; 1 if not set."""
        return self.parallelism.size(name)

    def model_shape(self) -> ModelShape | None:
        """Return ``shape``, or the shape of ``model.config``; None if neither is given.

        Raises ConfigError if ``model.config`` does not describe a supported model.
        """
        config = self.config.model.config
        return trained_shape(config, "model.config") if self.shape is None and config else self.shape

    def with_training(self, values: Mapping[str, Json]) -> Job:
        """Return the job with these keys of ``training`` in place of its own."""
        written = self.config.to_json()
        written["training"] = {**as_object(written["training"]), **values}
        return replace(self, config=Config.from_json(written))

    def sharded(self, sharding: str | None) -> Job:
        """Return the job with ``training.fsdp`` set to the plan's choice; unchanged for None."""
        if sharding is None:
            return self
        return replace(
            self,
            config=self.config.model_copy(
                update={"training": self.training.model_copy(update={"fsdp": sharding})}
            ),
        )


@dataclass
class Findings:
    """Decisions for the plan, and problems that prevent the launch, collected while options are read."""

    decisions: list[Decision] = field(default_factory=list)
    problems: list[Diagnostic] = field(default_factory=list)

    def explain(self, subject: str, choice: str, reason: str, granted: bool = True) -> None:
        """Add a decision."""
        self.decisions.append(Decision(subject, choice, reason, granted))

    def refuse(self, problem: Diagnostic | None) -> None:
        """Add a problem, if there is one."""
        if problem is not None:
            self.problems.append(problem)

    def raise_if_refused(self) -> None:
        """Raise ConfigError with all problems, if there are any."""
        if self.problems:
            raise ConfigError(*self.problems)
