"""The base class of algorithms, which return loss sums and weights; and an algorithm's class by its name.

Any of them may take the balance loss of a mixture's experts as a further term.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Mapping

import torch
from torch import Tensor

from paceline.algorithms import codes
from paceline.core.errors import ConfigError
from paceline.core.json_types import JsonObject
from paceline.core.plugins.tables import ALGORITHMS, load_attr
from paceline.plan.algorithms.spec import algorithm_spec
from paceline.plan.features.experts import DOCUMENT, RouterLoss
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
    # A method under its old name would otherwise never be called, without a word.
    renamed = {old: new for old, new in _RENAMED.items() if any(old in vars(base) for base in cls.__mro__)}
    if renamed:
        what = f"the implementation of '{name}' defines names that training no longer uses"
        hint = "; ".join(f"rename {old} to {new}" for old, new in renamed.items())
        raise ConfigError(
            codes.ALGORITHM_NOT_AN_ALGORITHM(what, "training.algorithm", ", ".join(renamed), hint)
        )
    return cls


TERM = "router_aux_loss"


class WithBalanceLoss:
    """``inner`` with coefficient · Σ_d w_d balance(d) / Σ_d w_d added in training, for its first trained
    role.

    Scope ``document``: w_d is the number of document d's labelled tokens where the algorithm's loss is a mean
    over tokens, else 1 (``Algorithm.counts_documents``). So for SFT the loss is the token-weighted mean of
    the documents' own losses in Transformers. Scope ``micro_batch``: d goes over micro-batches, each of
    weight 1. Fillers (document id -1) have no part in either.
    """

    def __init__(self, inner: Algorithm, how: RouterLoss) -> None:
        self._inner, self._how = inner, how

    def __getattr__(self, name: str) -> object:
        """Return an attribute of the wrapped algorithm."""
        attribute: object = getattr(self._inner, name)
        return attribute

    def required_outputs(self, role: Role, *, training: bool) -> frozenset[Output]:
        outputs = self._inner.required_outputs(role, training=training)
        # Evaluation reports the loss of the task alone.
        return outputs | {Output.ROUTER} if training and role == self._inner.trains[0] else outputs

    def weights(self, batch: Batch) -> Mapping[str, Tensor]:
        return {**self._inner.weights(batch), TERM: self._weights(batch).sum()}

    def losses(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        losses = self._inner.losses(role, outputs, batch)
        sums = outputs.get(Output.ROUTER.value)
        if sums is None:
            return losses
        weights = self._weights(batch).to(sums.dtype)
        if self._how.scope != DOCUMENT:
            # One "document" of all real ones of the micro-batch: [2, 1, E].
            sums = (sums * (batch.document_ids >= 0).to(sums.dtype)[:, None]).sum(1, keepdim=True)
        return {**losses, TERM: self._how.coefficient * (balance(sums) * weights).sum()}

    def _weights(self, batch: Batch) -> Tensor:
        """Return the weights of the documents, int64 [D], or of the micro-batch, [1]."""
        real = batch.document_ids >= 0
        if self._how.scope != DOCUMENT:
            return real.any()[None].long()
        if self._inner.counts_documents:
            return real.long()
        labels = torch.zeros(batch.labels.numel() + 1, dtype=torch.int64, device=batch.labels.device)
        # Shifted by one, so that the running sum at a boundary counts the labels before it.
        labels[1:].index_fill_(0, batch.label_places(), 1)
        total, bounds = labels.cumsum(0), batch.boundaries()
        return (total[bounds[1:]] - total[bounds[:-1]]) * real


def balance(sums: Tensor) -> Tensor:
    """Sums [2, D, E] of choices and probabilities over tokens and layers -> [D]: E · Σ_e f_e p_e, as
    Transformers' ``load_balancing_loss_func``; 0 where there is no token.
    """
    choices, probabilities = sums
    # The probabilities of a token add up to 1 in each layer, so their sum counts them.
    tokens = probabilities.detach().sum(-1, keepdim=True).round().clamp(min=1)  # of all layers
    return sums.shape[-1] * ((choices / tokens) * (probabilities / tokens)).sum(-1)
