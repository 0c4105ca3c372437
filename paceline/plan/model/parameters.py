"""All parameters of a model by name and shape, from its sizes alone. No torch, no Transformers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.plan.model.listing import EXPERTS, HEAD, LAYER, LINEAR, MATRIX, TRANSPOSED, Listing
from paceline.plan.model.shape import ModelShape

#: Transformers' patterns for parameters without weight decay; ``strategies.optimizer`` uses the same.
NO_DECAY = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)", re.IGNORECASE)
ALL_LINEAR = "all-linear"
SCORE = "score.weight"  # the scalar head
Named = tuple[str, tuple[int, ...]]


_OF_A_LAYER = re.compile(r"\.\d+\.")


def orthogonalised(name: str, dims: int) -> bool:
    """Whether Muon steps a parameter of ``dims`` dims: a matrix of a hidden layer, or its stack of experts.

    Embeddings, heads, biases, norms and convolutions are not.
    """
    if NO_DECAY.search(name) or _OF_A_LAYER.search(name) is None or "embed" in name:
        return False
    return dims == 2 or (dims == 3 and ".experts." in name)


def targets_of(words: Sequence[str]) -> tuple[str, ...]:
    """Return ``optim_target_modules`` as ``projected`` reads it: empty for every linear layer."""
    return () if any(word.replace("_", "-") == ALL_LINEAR for word in words) else tuple(words)


def projected(name: str, dims: int, targets: Sequence[str]) -> bool:
    """Whether GaLore projects the gradient of a parameter of ``dims`` dims: of a matrix whose module's name
    holds one of ``targets``, or matches it whole as a pattern; without any, of a hidden layer.
    """
    if dims != 2 or NO_DECAY.search(name) or "embed" in name:
        return False
    if not targets:
        return _OF_A_LAYER.search(name) is not None
    module = name.rpartition(".")[0]
    return any(target in module or re.fullmatch(target, module) for target in targets)


@dataclass(frozen=True)
class Parameter:
    """One parameter by its Hugging Face name; ``layer`` is None for embedding, final norm and head.

    ``kind``: of ``listing``'s, as the class says it; empty where a formula lists it.
    """

    name: str
    shape: tuple[int, ...]
    layer: int | None = None
    kind: str = ""

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def decays(self) -> bool:
        """Whether weight decay applies: to matrices, not to biases, norms and other 1-d tensors."""
        return len(self.shape) >= 2 and NO_DECAY.search(self.name) is None


def parameters_of(shape: ModelShape) -> tuple[Parameter, ...]:
    """Return all parameters in the order of ``named_parameters()``, tied ones once.

    As its class lists them where it was asked; else by the formulas below, an unknown family like a Llama.
    """
    if shape.listing is not None:
        return _as_listed(shape, shape.listing)
    own = {
        "gpt2": _gpt2,
        "gpt_neox": _gpt_neox,
        "phi": _phi,
        "bloom": _bloom,
        "opt": _opt,
        "starcoder2": _starcoder2,
    }
    listed = own.get(shape.model_type, _llama_like)
    return tuple(listed(shape))


def _as_listed(shape: ModelShape, listing: Listing) -> tuple[Parameter, ...]:
    """Return the class's parameters; a scalar head takes the place of the language model's."""
    listed = [
        Parameter(
            one.name.replace(f".{LAYER}.", f".{run.first + at}.", 1),
            one.shape,
            run.first + at if run.first >= 0 else None,
            one.kind,
        )
        for run in listing.runs
        for at in range(run.count)
        for one in listing.tensors[run.tensors]
        if not (shape.scalar_head and one.kind == HEAD)
    ]
    return (*listed, *(_head(shape) if shape.scalar_head else ()))


def is_linear(shape: ModelShape, parameter: Parameter) -> bool:
    """Whether a parameter is the weight of a linear layer other than the head, which an adapter can wrap."""
    if parameter.kind:
        return parameter.kind in (LINEAR, TRANSPOSED)
    module, _, leaf = parameter.name.rpartition(".")
    router = bool(shape.experts) and module.endswith(("mlp.gate", "mlp.router"))
    return leaf == "weight" and len(parameter.shape) == 2 and parameter.layer is not None and not router


def is_transposed(shape: ModelShape, parameter: Parameter) -> bool:
    """Whether a linear layer's weight is stored [in, out]."""
    return parameter.kind == TRANSPOSED if parameter.kind else shape.model_type == "gpt2"


def is_multiplied(parameter: Parameter) -> bool:
    """Whether tokens are multiplied with a parameter that is not the head's."""
    if parameter.kind:
        return parameter.kind in (LINEAR, TRANSPOSED, MATRIX, EXPERTS)
    return parameter.layer is not None and len(parameter.shape) >= 2 and not parameter.name.endswith("_bias")


def is_of_experts(shape: ModelShape, parameter: Parameter) -> bool:
    """Whether a parameter holds experts, of which a token visits a part."""
    return (
        parameter.kind == EXPERTS
        if parameter.kind
        else len(parameter.shape) == 3 and shape.mixture is not None
    )


def _layers(
    shape: ModelShape,
    prefix: str,
    one: Callable[[], list[Named]],
    dense: Callable[[], list[Named]] | None = None,
) -> list[Parameter]:
    """Return all layers' parameters; ``dense`` lists those of layers without experts."""
    made = one()
    without = made if dense is None or shape.mixture is None else dense()
    others = shape.mixture.dense_layers if shape.mixture else ()
    return [
        Parameter(f"{prefix}.{i}.{name}", size, i)
        for i in range(shape.layers)
        for name, size in (without if i in others else made)
    ]


def _linear(name: str, outside: int, inside: int, bias: bool) -> list[Named]:
    return [(f"{name}.weight", (outside, inside)), *([(f"{name}.bias", (outside,))] if bias else [])]


def _norm(name: str, size: int) -> list[Named]:
    """A LayerNorm: weight and bias."""
    return [(f"{name}.weight", (size,)), (f"{name}.bias", (size,))]


def _head(shape: ModelShape, bias: bool = False) -> list[Parameter]:
    if shape.scalar_head:
        return [Parameter(SCORE, (shape.head_outputs, shape.hidden_size))]
    weight = [] if shape.tied else [Parameter("lm_head.weight", (shape.vocab, shape.hidden_size))]
    return [*weight, *([Parameter("lm_head.bias", (shape.vocab,))] if bias else [])]


def _llama_like(shape: ModelShape) -> list[Parameter]:
    hidden = shape.hidden_size
    return [
        Parameter("model.embed_tokens.weight", (shape.vocab, hidden)),
        *_layers(
            shape, "model.layers", lambda: _llama_layer(shape, True), lambda: _llama_layer(shape, False)
        ),
        Parameter("model.norm.weight", (hidden,)),
        *_head(shape),
    ]


def _llama_layer(shape: ModelShape, experts: bool) -> list[Named]:
    hidden, family = shape.hidden_size, shape.model_type
    attention = _latent(shape) if shape.latent else _phi3(shape) if family == "phi3" else _attention(shape)
    mlp = _experts(shape) if experts and shape.mixture else _mlp(shape)
    norms = _NORMS.get(family, ("input_layernorm", "post_attention_layernorm"))
    return [*attention, *mlp, *((f"{name}.weight", (hidden,)) for name in norms)]


_FOUR = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)
_AFTER = ("post_attention_layernorm", "post_feedforward_layernorm")
_NORMS: dict[str, tuple[str, ...]] = {
    "gemma2": _FOUR,
    "gemma3_text": _FOUR,
    "vaultgemma": ("input_layernorm", "pre_feedforward_layernorm"),
    "olmo2": _AFTER,
    "olmo3": _AFTER,
    "flex_olmo": _AFTER,
    "exaone4": _AFTER,
    "cohere": ("input_layernorm",),
    "olmo": (),
}
_NORMED_HEADS = frozenset({"qwen3", "qwen3_moe", "gemma3_text", "exaone4"})  # q, k normalized per head
_NORMED_WHOLE = frozenset({"olmo2", "olmo3", "olmoe", "flex_olmo"})
_BIASED_QKV = frozenset({"qwen2", "qwen2_moe"})


def _attention(shape: ModelShape) -> list[Named]:
    hidden, family, q, kv = (
        shape.hidden_size,
        shape.model_type,
        shape.heads * shape.head_dim,
        shape.kv_heads * shape.head_dim,
    )
    bias = family in _BIASED_QKV or shape.attention_bias
    made: list[Named] = [("self_attn.sinks", (shape.heads,))] if family == "gpt_oss" else []
    made += [
        *_linear("self_attn.q_proj", q, hidden, bias),
        *_linear("self_attn.k_proj", kv, hidden, bias),
        *_linear("self_attn.v_proj", kv, hidden, bias),
        *_linear(
            "self_attn.o_proj", hidden, q, shape.attention_bias and family not in (*_BIASED_QKV, "glm4_moe")
        ),
    ]
    if family in _NORMED_HEADS or family in _NORMED_WHOLE:
        sizes = (shape.head_dim, shape.head_dim) if family in _NORMED_HEADS else (q, kv)
        made += [("self_attn.q_norm.weight", sizes[:1]), ("self_attn.k_norm.weight", sizes[1:])]
    return made


def _latent(shape: ModelShape) -> list[Named]:
    assert shape.latent is not None
    hidden, heads, low = shape.hidden_size, shape.heads, shape.latent
    wide = heads * (low.nope + low.rope)
    queries: list[Named] = [("self_attn.q_proj.weight", (wide, hidden))]
    if low.query_rank:
        queries = [
            *_linear("self_attn.q_a_proj", low.query_rank, hidden, shape.attention_bias),
            ("self_attn.q_a_layernorm.weight", (low.query_rank,)),
            ("self_attn.q_b_proj.weight", (wide, low.query_rank)),
        ]
    return [
        *queries,
        *_linear("self_attn.kv_a_proj_with_mqa", low.rank + low.rope, hidden, shape.attention_bias),
        ("self_attn.kv_a_layernorm.weight", (low.rank,)),
        ("self_attn.kv_b_proj.weight", (heads * (low.nope + low.value), low.rank)),
        *_linear("self_attn.o_proj", hidden, heads * low.value, shape.attention_bias),
    ]


def _phi3(shape: ModelShape) -> list[Named]:
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return [
        ("self_attn.o_proj.weight", (shape.hidden_size, q)),
        ("self_attn.qkv_proj.weight", (q + 2 * kv, shape.hidden_size)),
    ]


# Families with an ungated MLP; all but arcee use other parameter names.
_TWO_MATRICES = frozenset(
    {
        "arcee",
        "apertus",
        "biogpt",
        "codegen",
        "ctrl",
        "falcon",
        "gptj",
        "gpt_bigcode",
        "gpt_neo",
        "gpt_neox_japanese",
        "jais2",
        "mpt",
        "nanochat",
        "nemotron",
        "persimmon",
        "xglm",
        "openai-gpt",
    }
)


def _mlp(shape: ModelShape) -> list[Named]:
    hidden, inter = shape.hidden_size, shape.intermediate
    if shape.model_type in _TWO_MATRICES:
        return [
            *_linear("mlp.up_proj", inter, hidden, shape.mlp_bias),
            *_linear("mlp.down_proj", hidden, inter, shape.mlp_bias),
        ]
    if shape.model_type == "phi3":
        return [("mlp.gate_up_proj.weight", (2 * inter, hidden)), ("mlp.down_proj.weight", (hidden, inter))]
    return [
        *_linear("mlp.gate_proj", inter, hidden, shape.mlp_bias),
        *_linear("mlp.up_proj", inter, hidden, shape.mlp_bias),
        *_linear("mlp.down_proj", hidden, inter, shape.mlp_bias),
    ]


# here the router comes after the experts
_ROUTER_LAST = frozenset({"qwen3_moe", "deepseek_v2", "deepseek_v3", "glm4_moe"})


def _experts(shape: ModelShape) -> list[Named]:
    assert shape.mixture is not None
    hidden, count, width, shared = (
        shape.hidden_size,
        shape.mixture.experts,
        shape.mixture.width,
        shape.mixture.shared,
    )
    if shape.model_type == "gpt_oss":  # its weights are [in, out], with biases
        return [
            *_linear("mlp.router", count, hidden, True),
            ("mlp.experts.gate_up_proj", (count, hidden, 2 * width)),
            ("mlp.experts.gate_up_proj_bias", (count, 2 * width)),
            ("mlp.experts.down_proj", (count, width, hidden)),
            ("mlp.experts.down_proj_bias", (count, hidden)),
        ]
    router: list[Named] = [("mlp.gate.weight", (count, hidden))]
    made: list[Named] = [
        ("mlp.experts.gate_up_proj", (count, 2 * width, hidden)),
        ("mlp.experts.down_proj", (count, hidden, width)),
    ]
    made = [*made, *router] if shape.model_type in _ROUTER_LAST else [*router, *made]
    if shared:
        name = "mlp.shared_expert" if shape.mixture.shared_gate else "mlp.shared_experts"
        made += [
            (f"{name}.gate_proj.weight", (shared, hidden)),
            (f"{name}.up_proj.weight", (shared, hidden)),
            (f"{name}.down_proj.weight", (hidden, shared)),
        ]
    return [*made, ("mlp.shared_expert_gate.weight", (1, hidden))] if shape.mixture.shared_gate else made


def _phi(shape: ModelShape) -> list[Parameter]:
    hidden, q, kv = shape.hidden_size, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim

    def layer() -> list[Named]:
        return [
            *_linear("self_attn.q_proj", q, hidden, True),
            *_linear("self_attn.k_proj", kv, hidden, True),
            *_linear("self_attn.v_proj", kv, hidden, True),
            *_linear("self_attn.dense", hidden, q, True),
            *_linear("mlp.fc1", shape.intermediate, hidden, True),
            *_linear("mlp.fc2", hidden, shape.intermediate, True),
            *_norm("input_layernorm", hidden),
        ]

    return [
        Parameter("model.embed_tokens.weight", (shape.vocab, hidden)),
        *_layers(shape, "model.layers", layer),
        *(Parameter(*named) for named in _norm("model.final_layernorm", hidden)),
        *_head(shape, bias=True),
    ]


def _gpt2(shape: ModelShape) -> list[Parameter]:
    """GPT-2's ``Conv1D`` stores its weight as [in, out]."""
    hidden, inter = shape.hidden_size, shape.intermediate

    def layer() -> list[Named]:
        return [
            *_norm("ln_1", hidden),
            ("attn.c_attn.weight", (hidden, 3 * hidden)),
            ("attn.c_attn.bias", (3 * hidden,)),
            ("attn.c_proj.weight", (hidden, hidden)),
            ("attn.c_proj.bias", (hidden,)),
            *_norm("ln_2", hidden),
            ("mlp.c_fc.weight", (hidden, inter)),
            ("mlp.c_fc.bias", (inter,)),
            ("mlp.c_proj.weight", (inter, hidden)),
            ("mlp.c_proj.bias", (hidden,)),
        ]

    return [
        Parameter("transformer.wte.weight", (shape.vocab, hidden)),
        Parameter("transformer.wpe.weight", (shape.max_position_embeddings, hidden)),
        *_layers(shape, "transformer.h", layer),
        *(Parameter(*named) for named in _norm("transformer.ln_f", hidden)),
        *_head(shape),
    ]


def _gpt_neox(shape: ModelShape) -> list[Parameter]:
    hidden, inter, bias = shape.hidden_size, shape.intermediate, shape.attention_bias

    def layer() -> list[Named]:
        return [
            *_norm("input_layernorm", hidden),
            *_norm("post_attention_layernorm", hidden),
            *_linear("attention.query_key_value", 3 * hidden, hidden, bias),
            *_linear("attention.dense", hidden, hidden, bias),
            *_linear("mlp.dense_h_to_4h", inter, hidden, True),
            *_linear("mlp.dense_4h_to_h", hidden, inter, True),
        ]

    return [
        Parameter("gpt_neox.embed_in.weight", (shape.vocab, hidden)),
        *_layers(shape, "gpt_neox.layers", layer),
        *(Parameter(*named) for named in _norm("gpt_neox.final_layer_norm", hidden)),
        *_head(shape),
    ]


def _bloom(shape: ModelShape) -> list[Parameter]:
    hidden = shape.hidden_size

    def layer() -> list[Named]:
        return [
            *_norm("input_layernorm", hidden),
            *_linear("self_attention.query_key_value", 3 * hidden, hidden, True),
            *_linear("self_attention.dense", hidden, hidden, True),
            *_norm("post_attention_layernorm", hidden),
            *_linear("mlp.dense_h_to_4h", 4 * hidden, hidden, True),
            *_linear("mlp.dense_4h_to_h", hidden, 4 * hidden, True),
        ]

    return [
        Parameter("transformer.word_embeddings.weight", (shape.vocab, hidden)),
        *(Parameter(*named) for named in _norm("transformer.word_embeddings_layernorm", hidden)),
        *_layers(shape, "transformer.h", layer),
        *(Parameter(*named) for named in _norm("transformer.ln_f", hidden)),
        *_head(shape),
    ]


def _opt(shape: ModelShape) -> list[Parameter]:
    """OPT's learned positions start at 2.

    OPT-350M, whose embedding is narrower than its layers, is not covered.
    """
    hidden, inter = shape.hidden_size, shape.intermediate

    def layer() -> list[Named]:
        return [
            *_linear("self_attn.k_proj", hidden, hidden, True),
            *_linear("self_attn.v_proj", hidden, hidden, True),
            *_linear("self_attn.q_proj", hidden, hidden, True),
            *_linear("self_attn.out_proj", hidden, hidden, True),
            *_norm("self_attn_layer_norm", hidden),
            *_linear("fc1", inter, hidden, True),
            *_linear("fc2", hidden, inter, True),
            *_norm("final_layer_norm", hidden),
        ]

    return [
        Parameter("model.decoder.embed_tokens.weight", (shape.vocab, hidden)),
        Parameter("model.decoder.embed_positions.weight", (shape.max_position_embeddings + 2, hidden)),
        *(Parameter(*named) for named in _norm("model.decoder.final_layer_norm", hidden)),
        *_layers(shape, "model.decoder.layers", layer),
        *_head(shape),
    ]


def _starcoder2(shape: ModelShape) -> list[Parameter]:
    hidden, q, kv = shape.hidden_size, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim

    def layer() -> list[Named]:
        return [
            *_linear("self_attn.q_proj", q, hidden, True),
            *_linear("self_attn.k_proj", kv, hidden, True),
            *_linear("self_attn.v_proj", kv, hidden, True),
            *_linear("self_attn.o_proj", hidden, q, True),
            *_linear("mlp.c_fc", shape.intermediate, hidden, True),
            *_linear("mlp.c_proj", hidden, shape.intermediate, True),
            *_norm("input_layernorm", hidden),
            *_norm("post_attention_layernorm", hidden),
        ]

    return [
        Parameter("model.embed_tokens.weight", (shape.vocab, hidden)),
        *_layers(shape, "model.layers", layer),
        *(Parameter(*named) for named in _norm("model.norm", hidden)),
        *_head(shape),
    ]
