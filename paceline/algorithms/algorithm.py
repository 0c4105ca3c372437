"""The base class of algorithms, which return loss sums and weights; and an algorithm's class by its name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Mapping

from torch import Tensor

from paceline.algorithms import codes
from paceline.core.errors import ConfigError
from paceline.core.json_types import JsonObject
from paceline.core.plugins.tables import ALGORITHMS, load_attr
from paceline.plan.algorithms.spec import algorithm_spec
from paceline.protocols.algorithm import RoleModel, WindowMeans, WindowVectors
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Divergence, Output, Role
from paceline.protocols.window import Window


class Algorithm(ABC):
    """Base class of training algorithms.

    ``trains`` are the roles with an optimizer, ``frozen`` those without. The weight of a loss term is known
    before the forward (tokens, pairs). Its loss is an fp32 SUM, so that any split of the global batch gives
    the same mean (contract 2).
    """

    trains: tuple[Role, ...] = (Role.POLICY,)
    frozen: tuple[Role, ...] = ()
    reference_roles: tuple[
        Role, ...
    ] = ()  # run without gradients before each micro-batch (``attach_outputs``); see ``protocols.algorithm``
    window_means: WindowMeans | None = None  # forwards without gradients before each window (``window_sums``)
    joint: Output | None = None  # losses compare all documents of a window (``joint_losses``), by this output
    compares: Divergence | None = None  # the divergence from ``Role.TEACHER`` for ``Output.DIVERGENCE``
    train_metrics: tuple[str, ...] = ()  # metrics (``name/term``) that are also computed in training
    counts_documents: bool = False  # the loss is a mean over documents, not over labelled tokens
    loss_falls: bool = True  # training lowers the loss, so a large rise is worth a warning

    def windows(self, source: Iterable[Window], handles: Mapping[Role, RoleModel]) -> Generator[Window]:
        """Yield the windows to train on: those of the data, or for on-policy algorithms those of rollouts."""
        yield from source

    @abstractmethod
    def required_outputs(self, role: Role, *, training: bool) -> frozenset[Output]:
        """Return the outputs that the root module of ``role`` must compute."""

    def attach_outputs(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Batch:
        """Return ``batch`` with the values of a reference role's ``outputs`` that the losses need."""
        raise NotImplementedError

    def window_sums(
        self, outputs: Mapping[Role, Mapping[str, Tensor]], batch: Batch
    ) -> Mapping[str, tuple[Tensor, Tensor]]:
        """Return name → (sum, int64 weight) of one micro-batch, from the forwards that ``window_means``
        declares; see ``protocols.algorithm``.
        """
        raise NotImplementedError

    @abstractmethod
    def weights(self, batch: Batch) -> Mapping[str, Tensor]:
        """Return the weight of each loss term in this micro-batch, an int64 scalar."""

    @abstractmethod
    def losses(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        """Return the loss of each term, an fp32 scalar SUM."""

    def vectors(self, outputs: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """Return the vector of each document [D, E], fp32 with gradient."""
        raise NotImplementedError

    def joint_losses(self, window: WindowVectors) -> Mapping[str, Tensor]:
        """Return the loss of each term, an fp32 scalar SUM over this rank's documents of the window."""
        raise NotImplementedError

    def joint_metrics(self, window: WindowVectors) -> Mapping[str, Tensor]:
        """Return ``metrics`` of this rank's documents of the window."""
        return {}

    def metrics(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        """Return sums named ``metric/term``; each is divided by the weight of that term."""
        return {}

    def summary(self, means: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics to report, from the means of ``metrics``; by default unchanged.

        Keys are metric names without a term.
        """
        return dict(means)

    def state(self) -> JsonObject:
        """Return what a checkpoint must hold beyond epoch and position (JSON types); by default nothing."""
        return {}

    def load_state(self, state: JsonObject) -> None:
        """Restore what ``state`` returned."""


_RENAMED = {
    "ask": "required_outputs",
    "consulted": "reference_roles",
    "informed": "attach_outputs",
    "watched": "train_metrics",
}


def algorithm_class(name: str) -> type[Algorithm]:
    """Return the class of the algorithm ``name``.

    Raises ConfigError for an unknown name, and for a spec whose implementation is not a subclass of
    Algorithm.
    """
    spec = algorithm_spec(name)
    cls: object = load_attr(spec.implementation) if spec.own else ALGORITHMS.load(name)
    if not (isinstance(cls, type) and issubclass(cls, Algorithm)):
        hint = "name a class that inherits from paceline.extend:Algorithm (or SFT)"
        what = f"the implementation of '{name}' is not an algorithm"
        raise ConfigError(codes.ALGORITHM_NOT_AN_ALGORITHM(what, "training.algorithm", repr(cls), hint))
    renamed = {old: new for old, new in _RENAMED.items() if any(old in vars(base) for base in cls.__mro__)}
    if renamed:
        what = f"the implementation of '{name}' defines names that training no longer uses"
        hint = "; ".join(f"rename {old} to {new}" for old, new in renamed.items())
        raise ConfigError(
            codes.ALGORITHM_NOT_AN_ALGORITHM(what, "training.algorithm", ", ".join(renamed), hint)
        )
    return cls
