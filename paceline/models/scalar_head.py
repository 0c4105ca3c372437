"""A head of one number: the model that scores an answer (a reward model) or expects its score (a value model), as Hugging Face's sequence
classification with one label."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.models import codes
from paceline.models.heads import Vocabulary
from paceline.protocols.batch import IGNORE_INDEX, Batch
from paceline.protocols.roles import Ask, Role

HEAD = "score"  # the attribute in every class that is a GenericForSequenceClassification, and in GPT-2's and its kin
SCALAR_ROLES = frozenset({Role.REWARD, Role.VALUE})


def auto_class(role: Role) -> Any:
    """The Hugging Face class that builds the model of ``role``."""
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    return AutoModelForSequenceClassification if role in SCALAR_ROLES else AutoModelForCausalLM


class ScalarHead:
    """``Linear(hidden, 1)`` without bias on the trunk's last hidden states, read at the last token of each document or at the labelled positions.

    The layer is called, not its weight read: engines that gather parameters for a call do so. It computes in the dtype of its weight.
    """

    fused = True

    def __init__(self, hf: Any) -> None:
        self._hf = hf
        self.reason = "one number a document or a token"
        self.vocabulary: Vocabulary | None = None
        layer = getattr(hf, HEAD, None)
        if not isinstance(layer, torch.nn.Linear) or layer.out_features != 1:
            raise ConfigError(
                codes.MODELS_NO_SCALAR_HEAD(
                    "this model's class for sequence classification has no linear layer 'score' of one number",
                    "model",
                    type(hf).__name__,
                    "a decoder of another family: llama, qwen2, qwen3, mistral, gemma2, gpt2, …",
                )
            )

    def __call__(self, hidden: Tensor, batch: Batch, ask: frozenset[Ask]) -> dict[str, Tensor]:
        """hidden [1, T, H] -> ``scores`` [D] or ``values`` [L]: fp32 (fp64 for fp64 weights). One call of the layer, whatever is asked."""
        assert ask <= {Ask.SCORES, Ask.VALUES}, "a scalar head has no vocabulary"
        layer = getattr(self._hf, HEAD)
        places = []
        if Ask.SCORES in ask:
            places.append((batch.cu_seqlens[1:] - 1).to(hidden.device).long())
        if Ask.VALUES in ask:
            places.append((batch.labels[0] != IGNORE_INDEX).nonzero().squeeze(1))
        sizes = [len(place) for place in places]
        with torch.autocast(hidden.device.type, enabled=False):
            found = layer(hidden[0].index_select(0, torch.cat(places)).to(layer.weight.dtype)).squeeze(-1)
        found = found if found.dtype == torch.float64 else found.float()
        names = [kind.value for kind in (Ask.SCORES, Ask.VALUES) if kind in ask]
        return dict(zip(names, found.split(sizes), strict=True))
