"""Supported model families, their refused features, and whether documents can be packed. No torch.

The sweep is ``tests/unit/models/family_sweep.py``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

from paceline.core.diagnostics import Diagnostic
from paceline.core.json_types import Json
from paceline.plan import codes
from paceline.plan.mesh import Mesh
from paceline.plan.model.family import (
    OF_IMAGES,
    composite_of,
    families,
    family_of,
    supported,
    text_part,
    usual,
)
from paceline.plan.model.shape import PADDED, ModelShape
from paceline.plan.plan import AdapterSpec, Plan

LIST = "docs/reference/families.md"
_TOWERS = ("vision", "audio", "image", "speech", "visual", "vq", "vit", "perceiver", "qformer")
_STATELESS = "full_attention", "sliding_attention"  # layer types without state other than keys and values
_CHUNKED = "chunked_attention"  # may be set for any family


def unsupported(
    config: Mapping[str, Json], where: str, own_code: bool = False, attention: str = "auto"
) -> list[Diagnostic]:
    """Return why a model with this ``config.json`` is not supported.

    A multimodal tower, a balance loss, an unsupported family, or Falcon's doubled ALiBi bias. ``own_code``:
    the model brings Python code; ``attention``: ``model.attn_implementation``.
    """
    composite = composite_of(config)
    problems = [*([] if composite else _tower(config, where)), *_balance(config, where)]
    if (
        attention == "eager"
        and family_of(config.get("model_type")).alibi_twice_in_eager
        and config.get("alibi")
    ):
        problems.append(codes.PLAN_ALIBI_TWICE("model.attn_implementation", "eager"))
    kind = text_part(config).get("model_type") if composite else config.get("model_type")
    family = family_of(kind)
    problems += [
        _family(str(kind), why, where) for key, why in family.refused_where.items() if config.get(key)
    ]
    if problems or not isinstance(kind, str) or own_code:
        return problems
    if not family.trained:
        problems.append(_family(kind, family.refused, where))
    return problems


def obstacle(config: Mapping[str, Json]) -> str | None:
    """Return why attention masks alone do not separate a row's documents; None if they do.

    Families that are not listed are taken to support packing.
    """
    kind = config.get("model_type")
    layers = config.get("layer_types") or ()
    other = sorted({str(x) for x in layers} - set(_STATELESS)) if isinstance(layers, (list, tuple)) else []
    if other and (_CHUNKED in other or not separated(str(kind))):
        return f"model_type {kind} has layers that carry state across tokens ({', '.join(other)})"
    if config.get("attention_chunk_size"):
        return f"model_type {kind} uses chunked attention"
    ways = config.get("use_bidirectional_attention")
    both_sides = config.get("is_causal") is False or (ways and ways != OF_IMAGES)
    if both_sides and not family_of(kind).encoder:
        return f"model_type {kind} is set to bidirectional attention"
    if family_of(kind).rows == "padded":
        return f"documents in a row of model_type {kind} would influence each other's losses"
    return None


def separated(kind: str) -> bool:
    """Whether layers of this type pass a state from token to token, but not from one document of a row to the
    next.

    The sweep showed it for Transformers' own class with its own layer types.
    """
    family = family_of(kind)
    return family.carries and family.rows == "packed"


def _family(kind: str, why: str, where: str) -> Diagnostic:
    names = list(dict.fromkeys([*difflib.get_close_matches(kind, supported(), n=3, cutoff=0.6), *usual()]))[
        :7
    ]
    return codes.PLAN_FAMILY(
        f"models of type '{kind}' are not supported" + (f": {why}" if why else ""),
        f"{where}.model_type",
        kind,
        f"supported: {', '.join(names)} and {len(supported()) - len(names)} more ({LIST})",
    )


def _tower(config: Mapping[str, Json], where: str) -> Iterator[Diagnostic]:
    inner = [
        key
        for key in config
        if key.endswith("_config") and key.removesuffix("_config").startswith(_TOWERS) and config[key]
    ]
    architectures = config.get("architectures")
    classes = (
        [n for n in architectures if isinstance(n, str) and n.endswith("ForConditionalGeneration")]
        if isinstance(architectures, list)
        else []
    )
    if inner or classes:
        yield codes.PLAN_TOWER(
            where,
            ", ".join([*inner, *classes]),
            hint=(
                "use the text model of its family as a folder of its own (e.g. gemma3_text, qwen3);"
                f" {LIST} lists the supported types"
            ),
        )


def _balance(config: Mapping[str, Json], where: str) -> Iterator[Diagnostic]:
    """Reject a balance loss of experts if Transformers computes none for the family.

    Most published configs set the coefficient; that alone is accepted.
    """
    inner = config.get("text_config")
    for path, part in (
        (where, config),
        *([(f"{where}.text_config", inner)] if isinstance(inner, Mapping) else []),
    ):
        kind = str(part.get("model_type"))
        requested = part.get("output_router_logits") is True and part.get("router_aux_loss_coef") != 0
        if requested and kind in families() and family_of(kind).balance_loss is None:
            yield codes.PLAN_BALANCE_LOSS(
                "a load-balancing loss of the experts is requested, but Transformers computes none for models"
                f" of type '{kind}'",
                f"{path}.output_router_logits",
                "true",
                "set output_router_logits: false",
            )


def check_encoder(
    shape: ModelShape | None, algorithm: str, encodes: bool, adapter: AdapterSpec | None
) -> Iterator[Diagnostic]:
    """Yield errors of an encoder: an algorithm that does not train one (``encodes`` is False), or training in
    4 bits."""
    if shape is None or not shape.family.encoder:
        return
    if not encodes:
        yield codes.PLAN_ENCODER(
            f"models of type '{shape.model_type}' are encoders: they classify texts, and write none",
            "training.algorithm",
            algorithm,
            "algorithm: classification, with rows of a text and its label; or name a decoder, such as"
            " Qwen/Qwen3-0.6B, under model:",
        )
    if adapter is not None and adapter.quantization is not None:
        yield codes.PLAN_ENCODER(
            f"the weights of an encoder ('{shape.model_type}') are not packed in {adapter.quantization.bits}"
            " bits",
            "lora.quantization_bit",
            str(adapter.quantization.bits),
            "leave quantization_bit out",
        )


def encoders_beside(plan: Plan) -> Iterator[Diagnostic]:
    """Yield an error for each further model of a plan (reference, teacher, judge) that is an encoder."""
    for role, other in plan.models.items():
        if other.shape is not None and other.shape.family.encoder:
            yield codes.PLAN_ENCODER(
                f"the {role} is an encoder, and reads no answers here",
                "training.algorithm",
                f"{plan.algorithm}: {other.model} (model_type {other.shape.model_type})",
                f"name a decoder for the {role}",
            )


def check_family(shape: ModelShape | None, mesh: Mesh) -> Iterator[Diagnostic]:
    """Yield problems of a model family with the mesh.

    Context parallelism with padded documents, a state passed from token to token, or length-dependent rotary
    embeddings; a pipeline with buffers.
    """
    if shape is None:
        return
    cp, kind = "training.parallelism.cp_size", shape.model_type
    if mesh.cp > 1 and shape.family.encoder:
        yield codes.PLAN_FAMILY_STRATEGY(
            f"models of type '{kind}' are encoders: each token sees its whole document, but context"
            " parallelism gives a rank only a part of it",
            cp,
            str(mesh.cp),
            "cp_size: 1",
        )
    elif mesh.cp > 1 and shape.rows == PADDED:
        yield codes.PLAN_FAMILY_STRATEGY(
            f"context parallelism shards packed rows, but models of type '{kind}' get one padded"
            " row per document",
            cp,
            str(mesh.cp),
            "cp_size: 1",
        )
    elif mesh.cp > 1 and shape.carries:
        yield codes.PLAN_FAMILY_STRATEGY(
            f"models of type '{kind}' have layers that pass a state from token to token, but context"
            " parallelism gives a rank only a part of each document",
            cp,
            str(mesh.cp),
            "cp_size: 1",
        )
    elif mesh.cp > 1 and shape.rope_by_length:
        yield codes.PLAN_FAMILY_STRATEGY(
            "this model's rotary embedding depends on the length of the complete document (dynamic"
            " or longrope), but context parallelism gives a rank only a part of it",
            cp,
            str(mesh.cp),
            "cp_size: 1",
        )
    if mesh.pp > 1 and shape.buffers:
        yield codes.PLAN_FAMILY_STRATEGY(
            f"models of type '{kind}' have state other than their parameters (buffers), which"
            " pipeline stages do not save",
            "training.distributed_strategy",
            f"pipeline of {mesh.pp}",
            "distributed_strategy: fsdp",
        )
