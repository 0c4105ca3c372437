"""An algorithm of one's own: supervised fine-tuning with the focal loss, which spends itself on the tokens
that the model does not know yet.

    PYTHONPATH=examples paceline train config.yaml \\
        training.algorithm=custom_algorithm_spec:SPEC training.algorithm_options.gamma=1.0 --nproc 2

An algorithm subclasses ``paceline.extend.Algorithm`` (or a finished one, as here). It says what
the model must compute, the weight of each of its loss terms in a micro-batch, and the terms themselves as
SUMS: the mean over the global batch, gradients, strategies, evaluation, checkpoints and resume come with
it. Its options are its arguments; ``custom_algorithm_spec`` names them with their defaults.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from paceline.extend import SFT, Batch, Output, Role


class Focal(SFT):
    """loss = Σ_t -(1 - p_t)^γ log p_t / Σ_t 1 over the labelled tokens t of the global batch (Lin et al.
    2017, arXiv:1708.02002, eq. 4); γ = 0: SFT's.
    """

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma

    def required_outputs(self, role: Role, *, training: bool) -> frozenset[Output]:
        """Log-probabilities token by token."""
        return frozenset({Output.LOGPROBS})

    def losses(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        """One term, weighted by labelled tokens as SFT's is."""
        logprobs = outputs[Output.LOGPROBS.value]
        return {"nll": -((1 - logprobs.exp()) ** self.gamma * logprobs).sum()}

    def metrics(self, role: Role, outputs: Mapping[str, Tensor], batch: Batch) -> Mapping[str, Tensor]:
        """None beside the loss."""
        return {}
