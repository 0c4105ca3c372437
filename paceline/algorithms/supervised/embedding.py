"""Embedding models: a query near its document and far from all others, or as near as a score says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.algorithms import codes
from paceline.algorithms.algorithm import Algorithm
from paceline.config.sections.algorithms.retrieval import EmbeddingOptions
from paceline.core.errors import DataError
from paceline.core.json_types import Json
from paceline.models.heads.document_pooling import pooled
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
