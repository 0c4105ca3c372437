"""The shape of a decoder, from which the plan computes memory and FLOPs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.core.errors import ConfigError
from paceline.core.json_types import Json
from paceline.plan import codes
from paceline.plan.model.family import Family, family_of
from paceline.plan.model.tower import Tower
from paceline.plan.plan_json import UNLESS_DEFAULT

PACKED, PADDED = "packed", "padded"  # how the documents of a row are kept apart


#: Kinds: ``nn.Linear``; Transformers' ``Conv1D`` (stored [in, out]); other matrices that tokens are
#: multiplied with (routers); a mixture's experts; ``nn.Embedding``; convolutions over time; the output head;
#: the rest.
LINEAR, TRANSPOSED, MATRIX, EXPERTS = "linear", "transposed", "matrix", "experts"
EMBEDDING, CONVOLUTION, HEAD, OTHER = "embedding", "convolution", "head", "other"
MULTIPLIED = frozenset({LINEAR, TRANSPOSED, MATRIX, EXPERTS, HEAD})
EVERY_KIND = frozenset({*MULTIPLIED, EMBEDDING, CONVOLUTION, OTHER})
LAYER = "*"


@dataclass(frozen=True)
class Listed:
    """One tensor; in ``name`` a ``*`` stands for the layer's index."""

    name: str
    shape: tuple[int, ...]
    kind: str

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class LayerRun:
    """``count`` consecutive layers from ``first`` on with the tensors ``tensors`` of the listing.

    ``first`` is -1 for tensors outside of layers.
    """

    tensors: int
    first: int = -1
    count: int = 1


@dataclass(frozen=True)
class Listing:
    """All parameters in the order of ``named_parameters()``, tied ones once.

    - ``transformers``: the version that was asked
    - ``tied``: the head is the embedding
    - ``saved``: by index into ``tensors``, bytes a token that a layer whose mixer carries state saves for the
      backward, computed in bfloat16 without kernels; 0 for other layers
    """

    transformers: str
    tied: bool
    tensors: tuple[tuple[Listed, ...], ...]
    runs: tuple[LayerRun, ...]
    saved: tuple[float, ...] = ()

    @property
    def state_layers(self) -> tuple[int, float]:
        """Return (number of layers with state, bytes a token that all of them save)."""
        kept = [(run.count, self.saved[run.tensors]) for run in self.runs if run.first >= 0 and self.saved]
        return sum(n for n, each in kept if each), sum(n * each for n, each in kept)

    @property
    def sound(self) -> bool:
        """Whether all references are valid (a cached file may be damaged)."""
        every = [tensor for tensors in self.tensors for tensor in tensors]
        return (
            bool(every)
            and all(
                tensor.kind in EVERY_KIND and all(type(n) is int and n >= 0 for n in tensor.shape)
                for tensor in every
            )
            and all(0 <= run.tensors < len(self.tensors) and run.count > 0 for run in self.runs)
            and len(self.saved) in (0, len(self.tensors))
        )


# Names of the same number across families; a folder may use any of them.
COUNT = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
VISITED = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "moe_top_k", "top_k_experts")
WIDTH = ("moe_intermediate_size", "expert_ffn_hidden_size")
SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
_MOST = 100_000


@dataclass(frozen=True)
class Mixture:
    """``experts`` of width ``width`` in every layer except ``dense_layers``; ``visited`` per token.

    ``shared``: width of the shared expert (0: none); ``shared_gate``: it has a gate.
    """

    experts: int
    visited: int
    width: int
    shared: int = 0
    shared_gate: bool = False
    dense_layers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, §2.1); ``query_rank`` 0: full rank."""

    query_rank: int
    rank: int
    nope: int
    rope: int
    value: int


FURTHER = ("shared_expert_intermediate_size", "first_k_dense_replace", "decoder_sparse_step")
LOW_RANKS = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
READ = (*COUNT, *VISITED, *WIDTH, *SHARED, *FURTHER, *LOW_RANKS)


def mixture_of(config: Mapping[str, Json], layers: int, intermediate: int, where: str) -> Mixture | None:
    """Return the config's mixture of experts; None for a dense model. Raises ConfigError."""
    experts = _number(config, COUNT, where)
    if experts <= 1:
        return None
    width = _number(config, WIDTH, where) or intermediate
    shared = _number(config, FURTHER[:1], where) or width * _number(config, SHARED, where)
    return Mixture(
        experts,
        min(experts, _number(config, VISITED, where) or 1),
        width,
        shared,
        family_of(config.get("model_type")).shared_gate,
        _dense(config, layers, where),
    )


def latent_of(config: Mapping[str, Json], where: str) -> Latent | None:
    """Return the ranks of latent attention; None for ordinary attention."""
    if not _number(config, ("kv_lora_rank",), where):
        return None
    numbers = [_number(config, (name,), where) for name in LOW_RANKS]
    return Latent(
        0 if ("q_lora_rank" in config and config["q_lora_rank"] is None) else numbers[0], *numbers[1:]
    )


def config_coefficient(config: Mapping[str, Json]) -> float:
    """Return the coefficient of the experts' balance loss in a ``config.json``.

    0 unless ``output_router_logits`` is true and Transformers computes that loss for the family.
    """
    default = family_of(config.get("model_type")).balance_loss
    if config.get("output_router_logits") is not True or default is None:
        return 0.0
    coefficients = (
        config.get(key) for key in ("router_aux_loss_coef", "aux_loss_coef")
    )  # the latter is JetMoE's
    numbers = [value for value in coefficients if isinstance(value, (int, float))]
    return float(numbers[0]) if numbers else default


def _dense(config: Mapping[str, Json], layers: int, where: str) -> tuple[int, ...]:
    """Return the indices of layers without experts."""
    kinds = config.get("mlp_layer_types")
    if isinstance(kinds, list):
        return tuple(i for i, kind in enumerate(kinds[:layers]) if kind == "dense")
    first = _number(config, ("first_k_dense_replace",), where)
    only = config.get("mlp_only_layers")
    indices = {i for i in only if isinstance(i, int)} if isinstance(only, list) else set()
    step = _number(config, ("decoder_sparse_step",), where) or 1
    return tuple(i for i in range(layers) if i < first or i in indices or (i + 1) % step)


def _number(config: Mapping[str, Json], names: tuple[str, ...], where: str) -> int:
    """Return the first of ``names`` that is set, else the family's default; 0 if there is none.

    Raises ConfigError if it is not an integer from 0 to the limit.
    """
    for values in (config, family_of(config.get("model_type")).defaults):
        for name in names:
            value = values.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST:
                raise ConfigError(
                    codes.PLAN_MODEL_SIZE(
                        f"{name} must be a whole number up to {_MOST:,}",
                        f"{where}.{name}",
                        repr(value)[:100],
                        f"{name}: 8",
                    )
                )
            return value
    return 0


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder. ``num_parameters`` counts tied weights once.

    - ``matmul_parameters``: those multiplied with each token: all linear weights and the output head (also if
      tied to the embedding), without embedding look-up, norms and biases; of a mixture of experts only the
      experts a token is routed to. Forward and backward take 6 × ``matmul_parameters`` FLOPs per token
      (Kaplan et al. 2020, arXiv:2001.08361, eq. 2.2) plus attention.
    - ``exact``: False for a family whose parameters are not known exactly: it is counted as a Llama, and
      ``why_about`` says why its class was not asked
    - ``listing``: the parameters as its class lists them, which then count instead of the formulas
    - ``scalar_head``: the head gives ``head_outputs`` numbers per document in place of logits
    - ``rows``: documents are packed into rows (``packed``) or get a padded row each (``padded``)
    - ``softcap``: attention scores are capped
    - ``sinks``: layers have a learned sink a head
    - ``dropout``: weights of attention are dropped in training
    - ``rope_by_length``: rotary frequencies depend on the document's length
    - ``buffers``: its state includes buffers
    - ``carries``: layers pass a state from token to token outside of attention
    - ``selects``: parts that no gradient reaches select an attention's keys
    - ``router_aux_loss``: coefficient of the experts' balance loss that its config requests
    - ``stored``: the dtype of every tensor of its folder, in which it is read whole (empty: cast to float32)
    - ``in_files``: its folder holds floating-point tensors, tied ones once
    - ``stored_score``: its folder holds the scalar head
    - ``carried``: tensors of its folder that are not trained
    - ``composite``: type of the model with further parts of which this is the language model (empty: it is
      all)
    - ``tower``: that model's vision tower and projector, if their layout is known
    - ``whole``: they are counted
    - ``quantised``: how its folder's weights are quantized (empty: they are not), ``dequantised_bytes``:
      their size in bfloat16, and ``file_bytes``: that of the folder's tensors
    - ``resized``: ``vocab`` counts rows beyond its folder's
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
    tower: Tower | None = field(default=None, metadata=UNLESS_DEFAULT)
    whole: bool = field(default=False, metadata=UNLESS_DEFAULT)
    quantised: str = field(default="", metadata=UNLESS_DEFAULT)
    dequantised_bytes: int = field(default=0, metadata=UNLESS_DEFAULT)
    file_bytes: int = field(default=0, metadata=UNLESS_DEFAULT)
    resized: bool = field(default=False, metadata=UNLESS_DEFAULT)
    listing: Listing | None = field(default=None, metadata=UNLESS_DEFAULT)
    why_about: str = field(default="", metadata=UNLESS_DEFAULT)

    @property
    def family(self) -> Family:
        """Its family's properties."""
        return family_of(self.model_type)

    @property
    def shards_tokens(self) -> bool:
        """Whether sequence parallelism can shard its tokens between blocks
        (``models.parallel.tensor_parallel_cut``).
        """
        return self.rows == PACKED and not self.experts and not self.carries

    @property
    def experts(self) -> int:
        """Experts per layer; 0 for a dense model."""
        return self.mixture.experts if self.mixture else 0
