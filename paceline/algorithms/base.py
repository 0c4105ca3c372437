"""The contract of an algorithm: sums and weights, never means; never logits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Mapping
from typing import Any

from torch import Tensor

from paceline.protocols.algorithm import WindowMeans
from paceline.protocols.batch import Batch
from paceline.protocols.divergence import Divergence
from paceline.protocols.roles import Ask, Role
from paceline.protocols.window import Window


class Algorithm(ABC):
    """What is learnt, and from what.

    ``trains`` are the roles with an optimizer, ``frozen`` those without. A loss term's weight is known before the forward
    (tokens, pairs); its loss is an fp32 SUM, so that any split of the global batch gives the same mean (contract 2).
    """

    trains: tuple[Role, ...] = (Role.POLICY,)
    frozen: tuple[Role, ...] = ()
    consulted: tuple[
        Role, ...
    ] = ()  # asked before each micro-batch, without gradients (``informed``); see ``protocols.algorithm``
    window_means: WindowMeans | None = None  # asked before each window, without gradients (``window_sums``)
    compares: Divergence | None = None  # how ``Ask.DIVERGENCE`` of the policy compares with ``Role.TEACHER``
    watched: tuple[str, ...] = ()  # metrics (``name/term``) that are counted in training too
    loss_falls: bool = True  # training brings the loss down: one that rises far is worth a warning

    def windows(self, source: Iterable[Window], handles: Mapping[Role, Any]) -> Generator[Window]:
        """The windows to train on: offline algorithms pass the data's own through; on-policy ones make theirs from rollouts."""
        yield from source

    @abstractmethod
    def ask(self, role: Role, *, training: bool) -> frozenset[Ask]:
        """What the root module of ``role`` must compute."""

    def informed(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Batch:
        """``batch`` with what was learnt of a consulted role's ``outputs``."""
        raise NotImplementedError

    def window_sums(
        self, outputs: Mapping[Role, Mapping[str, Tensor]], batch: Batch
    ) -> Mapping[str, tuple[Tensor, Tensor]]:
        """(sum, int64 weight) by name, of one micro-batch that ``window_means`` had the models read; see ``protocols.algorithm``."""
        raise NotImplementedError

    @abstractmethod
    def weights(self, batch: Batch) -> Mapping[str, Tensor]:
        """int64 scalar a loss term: its weight in this micro-batch."""

    @abstractmethod
    def losses(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        """fp32 scalar SUM a loss term."""

    def metrics(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        """Sums named ``metric/term``; each is divided by that term's weight."""
        return {}

    def summary(self, means: Mapping[str, float]) -> dict[str, float]:
        """What is told of the means of ``metrics`` (by name, without the term): all as they are."""
        return dict(means)

    def state(self) -> dict[str, Any]:
        """What must be saved beyond epoch and position (JSON types): nothing for offline algorithms."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """The inverse of ``state``."""
