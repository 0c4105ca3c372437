"""Sequence classification: which class a text has, or which classes."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.algorithms.base import Algorithm
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Ask, Role

TERM = "documents"
LABEL = "label"  # in ``Batch.extras``: the number of a document's class [D], or one 0 or 1 a class [D, K]


class Classification(Algorithm):
    """loss = Σ_d L(logits_d, label_d) / Σ_d 1 over the documents of ALL ranks and micro-batches of a step.

    One class a document: L = -log softmax(logits)[label]. Any number of them: the mean over classes of the binary cross-entropy of each, as
    Transformers' sequence classification has both (``problem_type``). Metrics count over the whole set: ``accuracy`` (all classes of a document right) and
    ``macro_f1``, the mean over classes of 2 TP / (2 TP + FP + FN), of those that occur or are predicted.
    """

    trains = (Role.CLASSIFIER,)
    watched = (f"accuracy/{TERM}",)

    def __init__(self, **options: object) -> None:
        """The options say what classes there are, which the labels already show."""

    def ask(self, role: Role, *, training: bool) -> frozenset[Ask]:
        return frozenset({Ask.CLASSES})

    def weights(self, batch: Batch) -> Mapping[str, Tensor]:
        return {TERM: (batch.document_ids >= 0).sum()}

    def losses(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        logits, labels = outputs[Ask.CLASSES.value], batch.extras[LABEL]
        real = (batch.document_ids >= 0).to(logits.device)
        if labels.dim() == 2:
            each = F.binary_cross_entropy_with_logits(logits, labels.to(logits), reduction="none").mean(-1)
        else:
            each = F.cross_entropy(logits, labels.to(logits.device).long(), reduction="none")
        return {TERM: torch.where(real, each, torch.zeros_like(each)).sum()}  # fillers stay in the graph

    def metrics(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        real = (batch.document_ids >= 0).to(outputs[Ask.CLASSES.value].device)
        logits, labels = outputs[Ask.CLASSES.value].detach()[real], batch.extras[LABEL].to(real.device)[real]
        if labels.dim() == 2:
            said, true = logits > 0, labels > 0
        else:
            said = F.one_hot(logits.argmax(-1), logits.shape[1]).bool()
            true = F.one_hot(labels.long(), logits.shape[1]).bool()
        found = {f"accuracy/{TERM}": (said == true).all(-1).double().sum()}
        if torch.is_grad_enabled():  # in training the accuracy is told alone
            return found
        counts = {"tp": said & true, "fp": said & ~true, "fn": ~said & true}
        sums = {name: one.double().sum(0) for name, one in counts.items()}
        return found | {f"f1/{k}/{n}/{TERM}": sums[n][k] for n in sums for k in range(logits.shape[1])}

    def summary(self, means: Mapping[str, float]) -> dict[str, float]:
        """Accuracy, and the F1 of the classes from their counts (shares of the documents, which cancel)."""
        told = {name: value for name, value in means.items() if not name.startswith("f1/")}
        classes = sorted({name.split("/")[1] for name in means if name.startswith("f1/")})
        if classes:
            told["macro_f1"] = _macro_f1([[means[f"f1/{k}/{n}"] for n in ("tp", "fp", "fn")] for k in classes])
        return told


def _macro_f1(counts: list[list[float]]) -> float:
    """The mean of 2 TP / (2 TP + FP + FN) over the classes that occur or are predicted."""
    each = [2 * tp / (2 * tp + fp + fn) for tp, fp, fn in counts if tp + fp + fn > 0]
    return sum(each) / len(each) if each else 0.0
