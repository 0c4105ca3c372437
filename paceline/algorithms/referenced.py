"""Base of algorithms that compare whole answers of the policy with a reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from paceline.algorithms.base import Algorithm
from paceline.algorithms.pairs import document_sums
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Output, Role

REFERENCE = "reference_logps"  # in ``Batch.extras``: [D], log π_ref(y|x) of each answer


class Referenced(Algorithm):
    """``reference`` says where log π_ref comes from: ``live`` (a separate frozen model), ``adapter`` (the
    policy with its adapter disabled), ``cached`` (precomputed, in every batch); empty: no reference, log
    π_ref = 0.
    """

    def __init__(self, reference: str) -> None:
        self.has_reference = bool(reference)
        self.reference_roles = (Role.REFERENCE,) if reference in ("live", "adapter") else ()
        self.frozen = (Role.REFERENCE,) if reference == "live" else ()

    def required_outputs(self, role: Role, *, training: bool) -> frozenset[Output]:
        return frozenset({Output.LOGPROBS})

    def attach_outputs(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Batch:
        return replace(
            batch, extras={**batch.extras, REFERENCE: document_sums(outputs[Output.LOGPROBS.value], batch)}
        )

    def reference_logps(self, logps: Tensor, batch: Batch) -> Tensor:
        """Return log π_ref [D]; 0 for a batch of fillers only."""
        known = batch.extras.get(REFERENCE) if self.has_reference else torch.zeros_like(logps)
        if known is None:
            assert not bool((batch.document_ids >= 0).any()), "the reference's outputs are missing"
            return torch.zeros_like(logps)
        return known.to(logps)
