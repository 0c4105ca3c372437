"""The balance loss of a mixture's experts as a further loss term of any algorithm."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping

import torch
from torch import Tensor

from paceline.algorithms.algorithm import Algorithm
from paceline.core.json_types import JsonObject
from paceline.plan.features.experts import DOCUMENT, RouterLoss
from paceline.protocols.algorithm import RoleModel
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Output, Role
from paceline.protocols.window import Window

TERM = "router_aux_loss"


class Balanced(Algorithm):
    """``inner`` with coefficient · Σ_d w_d balance(d) / Σ_d w_d added in training, for its first trained
    role.

    Scope ``document``: w_d is the number of document d's labelled tokens where the algorithm's loss is a
    mean over tokens, else 1 (``Algorithm.counts_documents``); so for SFT the loss is the token-weighted mean
    of the documents' own losses in Transformers. Scope ``micro_batch``: d goes over micro-batches, each of
    weight 1. Fillers (document id -1) have no part in either.
    """

    def __init__(self, inner: Algorithm, how: RouterLoss) -> None:
        self._inner, self._how = inner, how
        self._role = inner.trains[0]
        self.trains, self.frozen, self.reference_roles = inner.trains, inner.frozen, inner.reference_roles
        self.window_means, self.compares = inner.window_means, inner.compares
        self.train_metrics, self.loss_falls = inner.train_metrics, inner.loss_falls
        self.counts_documents = inner.counts_documents

    def __getattr__(self, name: str) -> object:
        found: object = getattr(
            self._inner, name
        )  # what only some algorithms have, such as those with rollouts
        return found

    # --- the term

    def required_outputs(self, role: Role, *, training: bool) -> frozenset[Output]:
        own = self._inner.required_outputs(role, training=training)
        return own | {Output.ROUTER} if training and role == self._role else own

    def weights(self, batch: Batch) -> Mapping[str, Tensor]:
        return {**self._inner.weights(batch), TERM: self._weights(batch).sum()}

    def losses(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        own = self._inner.losses(role, outputs, batch)
        sums = outputs.get(Output.ROUTER.value)
        if sums is None:
            return own
        weights = self._weights(batch).to(sums.dtype)
        if self._how.scope != DOCUMENT:
            real = (batch.document_ids >= 0).to(sums.dtype)
            sums = (sums * real[:, None]).sum(1, keepdim=True)
        return {**own, TERM: self._how.coefficient * (balance(sums) * weights).sum()}

    def _weights(self, batch: Batch) -> Tensor:
        """Return the weights of the documents, int64 [D], or of the micro-batch, [1]."""
        real = batch.document_ids >= 0
        if self._how.scope != DOCUMENT:
            return real.any()[None].long()
        if self.counts_documents:
            return real.long()
        labels = torch.zeros(batch.labels.numel() + 1, dtype=torch.int64, device=batch.labels.device)
        places = batch.label_places()
        labels[1:].index_fill_(0, places, 1)
        total, bounds = labels.cumsum(0), batch.boundaries()
        return (total[bounds[1:]] - total[bounds[:-1]]) * real

    # --- everything else is the algorithm's own

    def windows(self, source: Iterable[Window], handles: Mapping[Role, RoleModel]) -> Generator[Window]:
        return self._inner.windows(source, handles)

    def attach_outputs(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Batch:
        return self._inner.attach_outputs(role, outputs, batch)

    def window_sums(
        self, outputs: Mapping[Role, Mapping[str, Tensor]], batch: Batch
    ) -> Mapping[str, tuple[Tensor, Tensor]]:
        return self._inner.window_sums(outputs, batch)

    def metrics(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        return self._inner.metrics(role, outputs, batch)

    def summary(self, means: Mapping[str, float]) -> dict[str, float]:
        return self._inner.summary(means)

    def state(self) -> JsonObject:
        return self._inner.state()

    def load_state(self, state: JsonObject) -> None:
        self._inner.load_state(state)


def balance(sums: Tensor) -> Tensor:
    """Sums [2, D, E] of choices and probabilities over tokens and layers -> [D]: E · Σ_e f_e p_e, as
    Transformers' ``load_balancing_loss_func``; 0 where there is no token.
    """
    choices, probabilities = sums
    tokens = probabilities.detach().sum(-1, keepdim=True).round().clamp(min=1)  # of all layers
    return sums.shape[-1] * ((choices / tokens) * (probabilities / tokens)).sum(-1)
