"""What algorithms share that hold whole answers of the policy against a reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from paceline.algorithms.base import Algorithm
from paceline.algorithms.pairs import document_sums
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Ask, Role

REFERENCE = "reference_logps"  # in ``Batch.extras``: [D], log π_ref(y|x) of each answer


class Referenced(Algorithm):
    """``reference`` says where log π_ref comes from: ``live`` (a frozen model beside), ``adapter`` (the policy with its adapter switched off), ``cached``
    (in every batch already); empty: there is none, and it is 0."""

    def __init__(self, reference: str) -> None:
        self.has_reference = bool(reference)
        self.consulted = (Role.REFERENCE,) if reference in ("live", "adapter") else ()
        self.frozen = (Role.REFERENCE,) if reference == "live" else ()

    def ask(self, role: Role, *, training: bool) -> frozenset[Ask]:
        return frozenset({Ask.LOGPROBS})

    def informed(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Batch:
        return replace(batch, extras={**batch.extras, REFERENCE: document_sums(outputs[Ask.LOGPROBS.value], batch)})

    def reference_logps(self, logps: Tensor, batch: Batch) -> Tensor:
        """log π_ref [D]; a batch of fillers alone needs none."""
        known = batch.extras.get(REFERENCE) if self.has_reference else torch.zeros_like(logps)
        if known is None:
            assert not bool((batch.document_ids >= 0).any()), "nobody asked the reference"
            return torch.zeros_like(logps)
        return known.to(logps)
