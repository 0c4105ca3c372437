"""The plan's parameters of families that no formula lists, against the class that Transformers builds.

All families: ``scripts/test --slow tests/unit/models/test_listing.py``.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from tiny_families import tiny_config
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from paceline.models.factory import HFModelFactory
from paceline.models.loading.list_parameters import ClassRequest, listing_of
from paceline.plan.cost.memory.peak import WITHIN
from paceline.plan.features.lora import adapter_parameters
from paceline.plan.model.family import supported
from paceline.plan.model.parameter_list import parameters_of, tally_of, with_counts
from paceline.plan.model.read_config import scoring, shape_from_config
from paceline.plan.model.shape import COUNT, VISITED, Listing, ModelShape
from paceline.plan.plan import AdapterSpec
from paceline.plan.plan_json import from_json, to_json
from paceline.plan.workload.local_tensors import pieces_of
from paceline.protocols.model import BuildOptions

# a state space, layers of several kinds, tables beside the embedding, experts beside dense layers,
# two stacks, a tied head with a bias
FEW = ("ctrl", "gemma3n_text", "granitemoe", "hrm_text", "jamba", "longcat_flash", "mamba", "qwen3_next")


@cache
def meta_model(kind: str) -> Any:
    config = tiny_config(kind)
    auto: Any = AutoModelForCausalLM
    with torch.device("meta"):
        return auto.from_config(AutoConfig.for_model(**config))


@cache
def planned(kind: str) -> ModelShape:
    """The shape with the class's list, as ``ask_class.counted`` makes it of the child's answer."""
    config = tiny_config(kind)
    listing = listing_of(ClassRequest(config=config))
    return with_counts(replace(shape_from_config(config), listing=listing, tied=listing.tied, exact=True))


def active_of(model: Any) -> tuple[int, int]:
    """(parameters that a token meets but for embeddings, embeddings), from the modules of the class."""
    config = model.config.get_text_config()
    count = next((n for name in COUNT if (n := getattr(config, name, None))), 1)
    visited = next((n for name in VISITED if (n := getattr(config, name, None))), 1)
    tables = {id(m.weight): m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    active = 0
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if id(parameter) in tables:
                continue
            stacked = count > 1 and parameter.dim() == 3 and "conv" not in type(module).__name__.lower()
            active += parameter.numel() // parameter.shape[0] * visited if stacked else parameter.numel()
    return active, sum(tables.values())


def held(kind: str) -> None:
    model, shape = meta_model(kind), planned(kind)
    named = [(name, tuple(p.shape)) for name, p in model.named_parameters()]
    assert [(p.name, p.shape) for p in parameters_of(shape)] == named
    assert shape.num_parameters == sum(p.numel() for p in model.parameters())
    found = tally_of(shape)
    assert (found.active, found.embeddings) == active_of(model)
    tokens = model.get_input_embeddings().weight
    assert found.embeddings >= tokens.numel() and shape.tied == (
        tokens is model.get_output_embeddings().weight
    )


@pytest.mark.parametrize("kind", FEW)
def test_parameters_and_active_parameters_are_those_of_the_class(kind: str) -> None:
    held(kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", supported())
def test_of_every_supported_family(kind: str) -> None:
    held(kind)


@pytest.mark.parametrize("kind", ["mamba", "lfm2_moe"])
def test_a_list_passes_through_the_plan_s_json(kind: str) -> None:
    shape = planned(kind)
    assert from_json(ModelShape, to_json(shape)) == shape
    assert shape.listing is not None and shape.listing.sound
    assert not replace(shape.listing, tensors=()).sound
    assert not Listing("", False, shape.listing.tensors, (replace(shape.listing.runs[0], tensors=99),)).sound


@pytest.mark.parametrize("kind", ["granitemoe", "rwkv", "glm4_moe", "deepseek_v3", "qwen3_next"])
def test_adapters_are_counted_on_the_linear_layers_of_the_class(kind: str) -> None:
    spec = AdapterSpec(r=4, alpha=8, dropout=0.0, target_modules=("all-linear",))
    factory = HFModelFactory(ClassRequest(config=tiny_config(kind)), adapter=spec)
    built = factory(BuildOptions(device=torch.device("meta")))
    trained = sum(p.numel() for p in built.parameters() if p.requires_grad)
    assert adapter_parameters(planned(kind), spec) == trained
    pieces = pieces_of(planned(kind), spec, 4)
    assert pieces is not None and sum(p.numel for p in pieces if p.trained) == trained


def test_a_scalar_head_takes_the_place_of_the_language_model_s() -> None:
    shape = scoring(planned("granitemoe"), 3)
    names = [p.name for p in parameters_of(shape)]
    assert names[-1] == "score.weight" and not any("lm_head" in name for name in names)
    assert parameters_of(shape)[-1].shape == (3, shape.hidden_size)


@pytest.mark.parametrize("kind", ["mamba", "qwen3_5_text", "recurrent_gemma", "rwkv"])
def test_layers_with_state_save_what_the_plan_says(kind: str) -> None:
    """What autograd saves in the layers of a real model in bfloat16, beside its parameters."""
    tokens, (count, said) = 256, state_layers(kind)
    auto: Any = AutoModelForCausalLM
    config = AutoConfig.for_model(**{**tiny_config(kind), "max_position_embeddings": tokens})
    model = auto.from_config(config, dtype=torch.bfloat16).train()
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    saved: dict[int, Tensor] = {}
    inside: list[Any] = []
    stack = next(m for name, m in model.named_modules() if name.rpartition(".")[2] in ("layers", "blocks"))
    layers = [layer for layer, each in zip(stack, per_layer(kind), strict=True) if each]
    for layer in layers:
        layer.register_forward_pre_hook(lambda *_: inside.append(1))
        layer.register_forward_hook(lambda *_: inside.clear())

    def keep(tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage().data_ptr()
        if inside and place not in weights:
            saved[place] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(input_ids=torch.randint(3, 97, (1, tokens)), use_cache=False).logits.sum()
    measured = sum(tensor.untyped_storage().nbytes() for tensor in saved.values()) / tokens
    assert count == len(layers) and measured / WITHIN <= said <= measured * WITHIN


def state_layers(kind: str) -> tuple[int, float]:
    listing = planned(kind).listing
    assert listing is not None
    return listing.state_layers


def per_layer(kind: str) -> list[float]:
    listing = planned(kind).listing
    assert listing is not None
    return [listing.saved[run.tensors] for run in listing.runs if run.first >= 0 for _ in range(run.count)]
