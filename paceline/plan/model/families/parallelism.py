"""Refuse context parallelism and pipelines for model families that do not support them."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.core.diagnostics import Diagnostic
from paceline.plan import codes
from paceline.plan.mesh import Mesh
from paceline.plan.model.shape import PADDED, ModelShape


def check_family(shape: ModelShape | None, mesh: Mesh) -> Iterator[Diagnostic]:
    """Yield problems of a model family with the mesh.

    Context parallelism with padded documents, a state passed from token to token, or length-dependent rotary
    embeddings; a pipeline with buffers.
    """
    if shape is None:
        return
    cp, kind = "training.parallelism.cp_size", shape.model_type
    if mesh.cp > 1 and shape.rows == PADDED:
        what = (
            f"context parallelism shards packed rows, but models of type '{kind}' get one padded"
            " row per document"
        )
        yield codes.PLAN_FAMILY_STRATEGY(what, cp, str(mesh.cp), "cp_size: 1")
    elif mesh.cp > 1 and shape.carries:
        what = (
            f"models of type '{kind}' have layers that pass a state from token to token, but context"
            " parallelism gives a rank only a part of each document"
        )
        yield codes.PLAN_FAMILY_STRATEGY(what, cp, str(mesh.cp), "cp_size: 1")
    elif mesh.cp > 1 and shape.rope_by_length:
        what = (
            "this model's rotary embedding depends on the length of the complete document (dynamic"
            " or longrope), but context parallelism gives a rank only a part of it"
        )
        yield codes.PLAN_FAMILY_STRATEGY(what, cp, str(mesh.cp), "cp_size: 1")
    if mesh.pp > 1 and shape.buffers:
        what = (
            f"models of type '{kind}' have state other than their parameters (buffers), which"
            " pipeline stages do not save"
        )
        yield codes.PLAN_FAMILY_STRATEGY(
            what, "training.distributed_strategy", f"pipeline of {mesh.pp}", "distributed_strategy: fsdp"
        )
