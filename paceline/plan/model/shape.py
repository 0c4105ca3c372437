"""The shape of a decoder, from which the plan computes memory and FLOPs."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline.plan.model.class_listing import Listing
from paceline.plan.model.family import Family, family_of
from paceline.plan.model.moe_config import Latent, Mixture
from paceline.plan.plan_json import UNLESS_DEFAULT

PACKED, PADDED = "packed", "padded"  # how the documents of a row are kept apart


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder. ``num_parameters`` counts tied weights once.

    ``matmul_parameters``: those multiplied with each token: all linear weights and the output head (also
    if tied to the embedding), without embedding look-up, norms and biases; of a mixture of experts only
    the experts a token is routed to. Forward and backward take 6 × ``matmul_parameters`` FLOPs per token
    (Kaplan et al. 2020, arXiv:2001.08361, eq. 2.2) plus attention. ``exact`` is False for a family whose
    parameters are not known exactly: it is counted as a Llama, and ``why_about`` says why its class was
    not asked. ``listing``: the parameters as its class lists them, which then count instead of the
    formulas. ``scalar_head``: the head gives ``head_outputs`` numbers per document in place of logits.
    ``rows``: documents are packed into rows (``packed``) or get a padded row each (``padded``).
    ``softcap``: attention scores are capped; ``sinks``: layers have a learned sink a head; ``dropout``:
    weights of attention are dropped in training.
    ``rope_by_length``: rotary frequencies depend on the document's length. ``buffers``: its state
    includes buffers. ``carries``: layers pass a state from token to token outside of attention.
    ``selects``: parts that no gradient reaches select an attention's keys.
    ``router_aux_loss``: coefficient of the experts' balance loss that its config requests. ``stored``: the
    dtype of every tensor of its folder, in which it is read whole (empty: float32, by a cast);
    ``in_files``: it has a folder of floating-point tensors, tied ones once; ``stored_score``: that holds the
    scalar head.
    ``carried``: tensors of its folder that are not trained; ``composite``: type of the model with further
    parts of which this is the language model (empty: it is all). ``quantised``: how its folder's weights
    are quantized (empty: they are not), ``dequantised_bytes``: their size in bfloat16, and ``file_bytes``:
    that of the folder's tensors. ``resized``: ``vocab`` counts rows beyond its folder's.
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
    softcap: bool = field(default=False, metadata=UNLESS_DEFAULT)
    sinks: bool = field(default=False, metadata=UNLESS_DEFAULT)
    dropout: bool = field(default=False, metadata=UNLESS_DEFAULT)
    rope_by_length: bool = False
    buffers: bool = False
    carries: bool = field(default=False, metadata=UNLESS_DEFAULT)
    selects: bool = field(default=False, metadata=UNLESS_DEFAULT)
    router_aux_loss: float = field(default=0.0, metadata=UNLESS_DEFAULT)
    stored: str = field(default="", metadata=UNLESS_DEFAULT)
    in_files: bool = field(default=False, metadata=UNLESS_DEFAULT)
    stored_score: bool = field(default=False, metadata=UNLESS_DEFAULT)
    carried: int = field(default=0, metadata=UNLESS_DEFAULT)
    carried_bytes: int = field(default=0, metadata=UNLESS_DEFAULT)
    composite: str = field(default="", metadata=UNLESS_DEFAULT)
    quantised: str = field(default="", metadata=UNLESS_DEFAULT)
    dequantised_bytes: int = field(default=0, metadata=UNLESS_DEFAULT)
    file_bytes: int = field(default=0, metadata=UNLESS_DEFAULT)
    resized: bool = field(default=False, metadata=UNLESS_DEFAULT)
    listing: Listing | None = field(default=None, metadata=UNLESS_DEFAULT)
    why_about: str = field(default="", metadata=UNLESS_DEFAULT)

    @property
    def family(self) -> Family:
        """What is known of its family."""
        return family_of(self.model_type)

    @property
    def shards_tokens(self) -> bool:
        """Whether sequence parallelism can shard its tokens between blocks (``models.tensor_parallel``)."""
        return self.rows == PACKED and not self.experts and not self.carries

    @property
    def experts(self) -> int:
        """Experts per layer; 0 for a dense model."""
        return self.mixture.experts if self.mixture else 0
