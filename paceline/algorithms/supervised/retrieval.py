"""Models that find documents for a query: embeddings, and rerankers.

An embedded query is near its document and far from all others, or as near as a score says; a reranker reads
both together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.algorithms import codes
from paceline.algorithms.algorithm import Algorithm
from paceline.config.sections.algorithms.supervised import EmbeddingOptions, RerankerOptions
from paceline.core.errors import DataError
from paceline.core.json_types import Json
from paceline.models.heads.sequence_classification import pooled
from paceline.protocols.algorithm import WindowVectors
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Output, Role
from paceline.runtime.device.device import widened

TERM = "queries"
PART, SCORE = "part", "score"  # in ``Batch.extras`` [D]: 0 for a query, which its document follows; its grade
_AT_ONCE = 1024  # queries, whose similarities to all documents are in memory
_NEAR = 10
_ROUNDING = 64  # units of rounding by which products of equal vectors may differ


class _Compared(NamedTuple):
    """Similarities [q, N] of q queries to the N vectors of a window, -inf for pairs that are not compared.

    ``targets``: the place of each query's document, int64 [q].
    """

    similarities: Tensor
    targets: Tensor


class Embedding(Algorithm):
    """InfoNCE (van den Oord et al. 2018, arXiv:1807.03748, eq. 4) over the queries of ALL ranks of a step.

    loss = -Σ_q log( exp(s(q, d_q)/τ) / Σ_d exp(s(q, d)/τ) ) / Σ_q 1.

    d_q is the query's document, and d runs over all documents of the step. With ``in_batch_negatives: false``
    it runs over those of the query's row. s is the cosine (``normalize``) or the dot product. ``symmetric``
    averages this loss with the same loss of each d_q over all queries. ``cosine_similarity``: (s - score)² of
    each pair. Evaluation compares with the documents of the whole evaluation set: ``accuracy`` (the query's
    document is nearest), ``mrr`` (mean reciprocal rank), ``recall_at_10``.
    """

    trains = (Role.EMBEDDING,)
    counts_documents = True

    def __init__(self, **options: Json) -> None:
        o = EmbeddingOptions.model_validate(options)
        self.pooling, self.normalize, self.temperature = o.pooling, o.normalize, o.temperature
        self.in_batch_negatives, self.symmetric = o.in_batch_negatives, o.symmetric
        if o.loss_type == "infonce":
            self.joint, self.train_metrics = Output.HIDDEN, (f"accuracy/{TERM}",)

    def required_outputs(self, role: Role, *, training: bool) -> frozenset[Output]:
        return frozenset({Output.HIDDEN})

    def weights(self, batch: Batch) -> Mapping[str, Tensor]:
        return {TERM: ((batch.document_ids >= 0) & (batch.extras[PART] == 0)).sum()}

    def vectors(self, outputs: Mapping[str, Tensor], batch: Batch) -> Tensor:
        found = pooled(outputs[Output.HIDDEN.value], batch, self.pooling)
        found = found if found.dtype == torch.float64 else found.float()
        return F.normalize(found, dim=-1) if self.normalize else found

    def losses(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        window = WindowVectors.alone(self.vectors(outputs, batch), batch)
        return self.joint_losses(window) if self.joint else {TERM: self._of_pairs(window)}

    def joint_losses(self, window: WindowVectors) -> Mapping[str, Tensor]:
        total = window.vectors.sum() * 0.0  # a rank without queries keeps the graph
        for similarities, targets in self._compared(window):
            total = total + F.cross_entropy(similarities, targets, reduction="sum")
        if self.symmetric:
            for similarities, targets in self._compared(window, backwards=True):
                total = total + F.cross_entropy(similarities, targets, reduction="sum")
            total = total / 2
        return {TERM: total}

    def joint_metrics(self, window: WindowVectors) -> Mapping[str, Tensor]:
        ranks = [torch.ones(0, device=window.vectors.device)]
        for similarities, targets in self._compared(window):
            own = similarities.gather(1, targets[:, None])
            # A copy of the right document stands beside it, whatever a kernel's rounding says.
            beside = _ROUNDING * torch.finfo(own.dtype).eps * own.abs().clamp(min=1 / self.temperature)
            ranks.append(1.0 + (similarities > own + beside).sum(1))
        rank = widened(torch.cat(ranks))
        measured = {"accuracy": rank == 1, "mrr": 1.0 / rank, f"recall_at_{_NEAR}": rank <= _NEAR}
        return {f"{name}/{TERM}": widened(values).sum() for name, values in measured.items()}

    def _compared(self, window: WindowVectors, *, backwards: bool = False) -> Iterator[_Compared]:
        """Yield the similarities of this rank's queries with all documents, in chunks; ``backwards``: of
        their documents with all queries.
        """
        part, real = window.columns[PART], window.real
        candidates = real & ((part == 0) if backwards else (part > 0))
        row = (part == 0).cumsum(0)
        for queries in torch.split((real & window.own & (part == 0)).nonzero().squeeze(1), _AT_ONCE):
            from_, to = (queries + 1, queries) if backwards else (queries, queries + 1)
            similarities = window.vectors[from_] @ window.vectors.T / self.temperature
            seen = candidates.expand_as(similarities)
            if not self.in_batch_negatives:
                seen = seen & (row[queries][:, None] == row)
            yield _Compared(similarities.masked_fill(~seen, -torch.inf), to)

    def _of_pairs(self, window: WindowVectors) -> Tensor:
        queries = (window.real & (window.columns[PART] == 0)).nonzero().squeeze(1)
        cosines = F.cosine_similarity(window.vectors[queries], window.vectors[queries + 1])
        scores = window.columns[SCORE][queries].to(cosines)
        if torch.isnan(scores).any():
            raise DataError(codes.EMBEDDING_NO_SCORE("training.embedding.loss_type"))
        return ((cosines - scores) ** 2).sum() + window.vectors.sum() * 0.0


DOCUMENTS, QUERIES = "documents", "queries"
GRADE = "score"  # in ``Batch.extras`` [D]: how well a document answers; PART is 0 for a row's first


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
