"""Sequence classification, with one class or any number of classes per text."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from paceline.algorithms.algorithm import Algorithm
from paceline.core.json_types import Json
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Output, Role
from paceline.runtime.device.device import widened

TERM = "documents"
LABEL = "label"  # in ``Batch.extras``: the class index of each document [D], or 0/1 for each class [D, K]


class Classification(Algorithm):
    """loss = Σ_d L(logits_d, label_d) / Σ_d 1 over the documents of ALL ranks and micro-batches of a step.

    Single-label: L = -log softmax(logits)[label]. Multi-label: L is the mean of the classes' binary
    cross-entropies. Both are those of Transformers' sequence classification (``problem_type``). Metrics are
    over the whole data set. ``accuracy`` is the share of documents with all classes right. ``macro_f1`` is
    the mean over classes of 2 TP / (2 TP + FP + FN), without classes that neither occur nor are predicted.
    """

    trains = (Role.CLASSIFIER,)
    counts_documents = True
    train_metrics = (f"accuracy/{TERM}",)

    def __init__(self, **options: Json) -> None:
        """Take the options; the loss needs none of them, since the labels' shape shows the kind of
        problem."""

    def required_outputs(self, role: Role, *, training: bool) -> frozenset[Output]:
        return frozenset({Output.CLASSES})

    def weights(self, batch: Batch) -> Mapping[str, Tensor]:
        return {TERM: (batch.document_ids >= 0).sum()}

    def losses(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        logits, labels = outputs[Output.CLASSES.value], batch.extras[LABEL]
        real = (batch.document_ids >= 0).to(logits.device)
        if labels.dim() == 2:
            each = F.binary_cross_entropy_with_logits(logits, labels.to(logits), reduction="none").mean(-1)
        else:
            each = F.cross_entropy(logits, labels.to(logits.device).long(), reduction="none")
        return {TERM: torch.where(real, each, torch.zeros_like(each)).sum()}  # fillers keep the graph

    def metrics(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        real = (batch.document_ids >= 0).to(outputs[Output.CLASSES.value].device)
        logits, labels = (
            outputs[Output.CLASSES.value].detach()[real],
            batch.extras[LABEL].to(real.device)[real],
        )
        if labels.dim() == 2:
            predicted, true = logits > 0, labels > 0
        else:
            predicted = F.one_hot(logits.argmax(-1), logits.shape[1]).bool()
            true = F.one_hot(labels.long(), logits.shape[1]).bool()
        accuracy = {f"accuracy/{TERM}": widened((predicted == true).all(-1)).sum()}
        if torch.is_grad_enabled():  # training reports only the accuracy
            return accuracy
        counts = {"tp": predicted & true, "fp": predicted & ~true, "fn": ~predicted & true}
        sums = {name: widened(hits).sum(0) for name, hits in counts.items()}
        return accuracy | {f"f1/{k}/{n}/{TERM}": sums[n][k] for n in sums for k in range(logits.shape[1])}

    def summary(self, means: Mapping[str, float]) -> dict[str, float]:
        """Return the accuracy, and the macro F1 from the counts of each class.

        The counts are divided by the number of documents, which cancels.
        """
        averages = {name: value for name, value in means.items() if not name.startswith("f1/")}
        classes = sorted({name.split("/")[1] for name in means if name.startswith("f1/")})
        if classes:
            counts = [[means[f"f1/{k}/{n}"] for n in ("tp", "fp", "fn")] for k in classes]
            scores = [2 * tp / (2 * tp + fp + fn) for tp, fp, fn in counts if tp + fp + fn > 0]
            averages["macro_f1"] = sum(scores) / len(scores) if scores else 0.0
        return averages
