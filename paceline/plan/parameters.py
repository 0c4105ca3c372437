"""Every parameter of a model by name and shape, from its shape alone: what memory is counted from. No torch, no Transformers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from paceline.plan.shape import ModelShape

#: Transformers' Trainer's own patterns of what takes no weight decay; ``strategies.optimizer`` makes its groups by the same rule.
NO_DECAY = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)", re.IGNORECASE)
SCORE = "score.weight"  # the head of one number
Named = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class Parameter:
    """One parameter under its Hugging Face name. ``layer`` is its decoder layer, None for embedding, last norm and head."""

    name: str
    shape: tuple[int, ...]
    layer: int | None = None

    @property
    def numel(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)

    @property
    def decays(self) -> bool:
        """Whether weight decay applies: matrices do; biases, norms and anything of one dim do not."""
        return len(self.shape) >= 2 and NO_DECAY.search(self.name) is None


def parameters_of(shape: ModelShape) -> tuple[Parameter, ...]:
    """All parameters in the order of ``named_parameters()``, tied ones once; those of a Llama for a family that is not known."""
    listed = {"gpt2": _gpt2, "gpt_neox": _gpt_neox, "phi": _phi}.get(shape.model_type, _llama_like)
    return tuple(listed(shape))


def _layers(shape: ModelShape, prefix: str, one: Callable[[], list[Named]]) -> list[Parameter]:
    made = one()
    return [Parameter(f"{prefix}.{i}.{name}", size, i) for i in range(shape.layers) for name, size in made]


def _linear(name: str, outside: int, inside: int, bias: bool) -> list[Named]:
    return [(f"{name}.weight", (outside, inside)), *([(f"{name}.bias", (outside,))] if bias else [])]


def _norm(name: str, size: int) -> list[Named]:
    """A LayerNorm: weight and bias."""
    return [(f"{name}.weight", (size,)), (f"{name}.bias", (size,))]


def _head(shape: ModelShape, bias: bool = False) -> list[Parameter]:
    if shape.scalar_head:
        return [Parameter(SCORE, (1, shape.hidden_size))]
    weight = [] if shape.tied else [Parameter("lm_head.weight", (shape.vocab, shape.hidden_size))]
    return [*weight, *([Parameter("lm_head.bias", (shape.vocab,))] if bias else [])]


def _llama_like(shape: ModelShape) -> list[Parameter]:
    hidden = shape.hidden_size
    return [
        Parameter("model.embed_tokens.weight", (shape.vocab, hidden)),
        *_layers(shape, "model.layers", lambda: _llama_layer(shape)),
        Parameter("model.norm.weight", (hidden,)),
        *_head(shape),
    ]


def _llama_layer(shape: ModelShape) -> list[Named]:
    hidden, inter, family = shape.hidden_size, shape.intermediate, shape.model_type
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    if family == "phi3":
        attention: list[Named] = [
            ("self_attn.o_proj.weight", (hidden, q)),
            ("self_attn.qkv_proj.weight", (q + 2 * kv, hidden)),
        ]
        mlp: list[Named] = [("mlp.gate_up_proj.weight", (2 * inter, hidden)), ("mlp.down_proj.weight", (hidden, inter))]
    else:
        bias = family == "qwen2" or shape.attention_bias
        attention = [
            *_linear("self_attn.q_proj", q, hidden, bias),
            *_linear("self_attn.k_proj", kv, hidden, bias),
            *_linear("self_attn.v_proj", kv, hidden, bias),
            *_linear("self_attn.o_proj", hidden, q, shape.attention_bias and family != "qwen2"),
        ]
        if family in ("qwen3", "qwen3_moe", "gemma3_text"):
            attention += [
                ("self_attn.q_norm.weight", (shape.head_dim,)),
                ("self_attn.k_norm.weight", (shape.head_dim,)),
            ]
        mlp = [
            *_linear("mlp.gate_proj", inter, hidden, shape.mlp_bias),
            *_linear("mlp.up_proj", inter, hidden, shape.mlp_bias),
            *_linear("mlp.down_proj", hidden, inter, shape.mlp_bias),
        ]
    if shape.experts:
        mlp = [
            ("mlp.gate.weight", (shape.experts, hidden)),
            ("mlp.experts.gate_up_proj", (shape.experts, 2 * inter, hidden)),
            ("mlp.experts.down_proj", (shape.experts, hidden, inter)),
        ]
        mlp = [*mlp[1:], mlp[0]] if family == "qwen3_moe" else mlp  # there the router stands behind the experts
    norms = ["input_layernorm", "post_attention_layernorm"]
    if family in ("gemma2", "gemma3_text"):
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    return [*attention, *mlp, *((f"{name}.weight", (hidden,)) for name in norms)]


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
    """GPT-2's ``Conv1D`` keeps its weight as [in, out]."""
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
