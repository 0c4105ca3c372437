"""Count a model's parameters, and its matmul parameters per token."""

from __future__ import annotations

from dataclasses import dataclass, replace

from paceline.plan.model.class_listing import EMBEDDING
from paceline.plan.model.parameter_list import Parameter, is_multiplied, is_of_experts, parameters_of
from paceline.plan.model.shape import ModelShape


@dataclass(frozen=True)
class ParameterTally:
    """Parameters of a model. ``total``: all, tied ones once.

    ``active``: those that one token passes through, of a layer's experts the visited ones, and no embeddings;
    ``embeddings``: tables of which a token reads one row (a tied head's is one of them).
    """

    total: int
    active: int
    embeddings: int


def with_counts(shape: ModelShape) -> ModelShape:
    """Return ``shape`` with both counts, from the list of its parameters.

    Of a layer's experts only those that a token is routed to count as matmul parameters.
    """
    listed = parameters_of(shape)
    matmul = shape.head_outputs * shape.hidden_size if shape.scalar_head else shape.vocab * shape.hidden_size
    matmul += sum(visited(shape, parameter) for parameter in listed if is_multiplied(parameter))
    return replace(shape, num_parameters=sum(p.numel for p in listed), matmul_parameters=matmul)


def tally_of(shape: ModelShape) -> ParameterTally:
    """Return how many parameters there are, and how many a token meets."""
    listed = parameters_of(shape)
    tables = [p for p in listed if _is_table(p)]
    embeddings = sum(p.numel for p in tables)
    active = sum(visited(shape, p) for p in listed) - sum(visited(shape, p) for p in tables)
    return ParameterTally(sum(p.numel for p in listed), active, embeddings)


def visited(shape: ModelShape, parameter: Parameter) -> int:
    """Return the elements of a parameter that one token meets: of experts those it is routed to."""
    if shape.mixture is None or not is_of_experts(shape, parameter):
        return parameter.numel
    if len(parameter.shape) == 3:  # one matrix per expert; some stacks hold more than are routed to
        return parameter.numel // parameter.shape[0] * shape.mixture.visited
    return parameter.numel * shape.mixture.visited // shape.mixture.experts


def _is_table(parameter: Parameter) -> bool:
    if parameter.kind:
        return parameter.kind == EMBEDDING
    module = parameter.name.removesuffix(".weight").rpartition(".")[2]
    return module in _TABLES


#: Embeddings of the families that a formula lists: of tokens, and learned ones of positions.
_TABLES = frozenset({"embed_tokens", "wte", "wpe", "embed_in", "word_embeddings", "embed_positions"})
