"""The balance loss of a mixture's experts as a further loss term of any algorithm."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from paceline.algorithms.algorithm import Algorithm
from paceline.plan.features.experts import DOCUMENT, RouterLoss
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Output, Role

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
        labels[1:].index_fill_(0, batch.label_places(), 1)
        total, bounds = labels.cumsum(0), batch.boundaries()
        return (total[bounds[1:]] - total[bounds[:-1]]) * real


def balance(sums: Tensor) -> Tensor:
    """Sums [2, D, E] of choices and probabilities over tokens and layers -> [D]: E · Σ_e f_e p_e, as
    Transformers' ``load_balancing_loss_func``; 0 where there is no token.
    """
    choices, probabilities = sums
    tokens = probabilities.detach().sum(-1, keepdim=True).round().clamp(min=1)  # of all layers
    return sums.shape[-1] * ((choices / tokens) * (probabilities / tokens)).sum(-1)
