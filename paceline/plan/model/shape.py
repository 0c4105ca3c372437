"""The shape of a decoder: what the plan counts memory and work from."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.plan.codec import UNLESS_DEFAULT
from paceline.plan.model.mixtures import Latent, Mixture

PACKED, PADDED = "packed", "padded"  # how the documents of a row are kept apart


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder. ``num_parameters`` counts tied weights once.

    ``matmul_parameters`` are those that take part in matrix products for a token: every linear weight and the output head (also when it is
    tied to the embedding), without the embedding look-up, norms and biases; of a mixture of experts only the experts a token visits.
    A forward and backward takes 6 × ``matmul_parameters`` FLOP a token (Kaplan et al. 2020, arXiv:2001.08361, eq. 2.2), attention aside.
    ``exact`` is False for a family whose parameters are not listed here: it is counted as a Llama. ``scalar_head``: ``head_outputs`` numbers a document in
    place of logits. ``rows``: whether the documents of a row are kept apart (``packed``) or get a row each (``padded``). ``rope_by_length``: its rotary
    frequencies follow the length of a whole document. ``buffers``: its state has more than parameters.
    """

    model_type: str
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool
    max_position_embeddings: int
    num_parameters: int
    matmul_parameters: int
    exact: bool = True
    attention_bias: bool = False
    mlp_bias: bool = False
    mixture: Mixture | None = None
    latent: Latent | None = None
    scalar_head: bool = False
    head_outputs: int = field(default=1, metadata=UNLESS_DEFAULT)
    rows: str = PACKED
    rope_by_length: bool = False
    buffers: bool = False

    @property
    def experts(self) -> int:
        """Experts of a layer; 0 of a dense model."""
        return self.mixture.experts if self.mixture else 0
