"""Count a model's parameters, and its matmul parameters per token."""

from __future__ import annotations

from dataclasses import replace

from paceline.plan.model.parameters import parameters_of
from paceline.plan.model.shape import ModelShape


def with_counts(shape: ModelShape) -> ModelShape:
    """Return ``shape`` with both counts, from the list of its parameters.

    Of a layer's experts only those that a token is routed to count as matmul parameters.
    """
    listed = parameters_of(shape)
    matmul = shape.head_outputs * shape.hidden_size if shape.scalar_head else shape.vocab * shape.hidden_size
    for parameter in listed:
        if parameter.layer is None or len(parameter.shape) < 2 or parameter.name.endswith("_bias"):
            continue
        if len(parameter.shape) == 3 and shape.mixture is not None:
            matmul += parameter.numel // shape.mixture.experts * shape.mixture.visited
        else:
            matmul += parameter.numel
    return replace(shape, num_parameters=sum(p.numel for p in listed), matmul_parameters=matmul)
