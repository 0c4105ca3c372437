"""Rerankers: one score for a query read together with a document."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.algorithms.algorithm import Algorithm
from paceline.config.sections.algorithms.retrieval import RerankerOptions
from paceline.core.json_types import Json
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Output, Role
from paceline.runtime.device.device import widened

DOCUMENTS, QUERIES = "documents", "queries"
PART, GRADE = "part", "score"  # in ``Batch.extras`` [D]: 0 for a row's first document; how well it answers


class Reranker(Algorithm):
    """Means over ALL ranks and micro-batches of a step; s_d is the score of document d, y_d its grade.

    ``pointwise``: -Σ_d (y_d log σ(s_d) + (1 - y_d) log(1 - σ(s_d))) / Σ_d 1. ``listwise``: -Σ_q Σ_d p_d log
    softmax_q(s/τ)_d / Σ_q 1, d over the documents of q's row; p = y / Σ y. ``list_net``: p = softmax(y) (Cao
    et al. 2007, eq. 5). A row with one document has weight 0 in the list losses; in ``listwise`` so has a row
    without a relevant document. ``accuracy``: the share of documents on the right side of 0; for lists, of
    queries whose top-scored document has the highest grade.
    """

    trains = (Role.REWARD,)
    counts_documents = True

    def __init__(self, **options: Json) -> None:
        o = RerankerOptions.model_validate(options)
        self.loss_type, self.temperature = o.loss_type, o.temperature
        self.pointwise = o.loss_type == "pointwise"
        self.term = DOCUMENTS if self.pointwise else QUERIES
        self.train_metrics = (f"accuracy/{self.term}",)

    def required_outputs(self, role: Role, *, training: bool) -> frozenset[Output]:
        return frozenset({Output.SCORES})

    def weights(self, batch: Batch) -> Mapping[str, Tensor]:
        real = batch.document_ids >= 0
        return {self.term: real.sum() if self.pointwise else self._counted(batch)[0].sum()}

    def losses(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        scores = outputs[Output.SCORES.value]
        grades, real = batch.extras[GRADE].to(scores), (batch.document_ids >= 0).to(scores.device)
        if self.pointwise:
            each = F.binary_cross_entropy_with_logits(scores, grades, reduction="none")
            return {self.term: torch.where(real, each, torch.zeros_like(each)).sum()}
        counted, row = self._counted(batch)
        counted, row = counted.to(scores.device), row.to(scores.device)
        target = grades if self.loss_type == "listwise" else _log_softmax(grades, row, counted).exp()
        target = target / _sums(target, row, counted).clamp_min(1e-12)[row]
        each = -target * _log_softmax(scores / self.temperature, row, counted)
        return {self.term: torch.where(counted[row], each, torch.zeros_like(each)).sum()}

    def metrics(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        scores = outputs[Output.SCORES.value].detach()
        grades, real = batch.extras[GRADE].to(scores), (batch.document_ids >= 0).to(scores.device)
        if self.pointwise:
            return {f"accuracy/{self.term}": widened(((scores > 0) == (grades > 0.5))[real]).sum()}
        counted, row = (found.to(scores.device) for found in self._counted(batch))
        best = scores == _largest(scores, row, counted)[row]
        right = best & (grades == _largest(grades, row, counted)[row])
        return {f"accuracy/{self.term}": widened((_sums(right.to(scores), row, counted) > 0)[counted]).sum()}

    def _counted(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return (whether each row counts, bool [R]; the row of each document, int64 [D])."""
        row = (batch.extras[PART] == 0).cumsum(0) - 1
        real = batch.document_ids.to(row.device) >= 0
        rows = torch.zeros(int(row[-1]) + 1, dtype=torch.float64)
        several = rows.index_add(0, row.cpu(), real.cpu().double()) > 1
        if self.loss_type == "listwise":
            several &= rows.index_add(0, row.cpu(), batch.extras[GRADE].cpu().double()) > 0
        return several, row


def _sums(values: Tensor, row: Tensor, rows: Tensor) -> Tensor:
    """Return the sums [R] of the values [D] of each row."""
    return values.new_zeros(len(rows)).index_add(0, row, values)


def _largest(values: Tensor, row: Tensor, rows: Tensor) -> Tensor:
    """Return the largest value [R] of each row."""
    return values.new_zeros(len(rows)).scatter_reduce(0, row, values, "amax", include_self=False)


def _log_softmax(values: Tensor, row: Tensor, rows: Tensor) -> Tensor:
    """Return the log-softmax [D] of the values over the documents of their row."""
    shifted = values - _largest(values.detach(), row, rows)[row]
    return shifted - _sums(shifted.exp(), row, rows).log()[row]
