"""Optimizers by Transformers' names."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from paceline.config.registries.optimizers import BUILT
from paceline.core.errors import ConfigError
from paceline.plan.plan import OptimizerSpec
from paceline.strategies.optimizers.build import build_optimizer


def named() -> list[tuple[str, nn.Parameter]]:
    torch.manual_seed(0)
    shapes = {
        "model.embed_tokens.weight": (5, 4),
        "model.layers.0.self_attn.q_proj.weight": (4, 4),
        "model.layers.0.self_attn.q_proj.bias": (4,),
        "model.layers.0.input_layernorm.weight": (4,),
        "model.norm.weight": (4,),
        "lm_head.weight": (5, 4),
    }
    return [(name, nn.Parameter(torch.randn(shape))) for name, shape in shapes.items()]


@pytest.mark.parametrize("name", sorted(n for n, o in BUILT.items() if not o.devices))
def test_every_supported_name_steps(name: str) -> None:
    if BUILT[name].package:
        pytest.importorskip(BUILT[name].package)
    parameters = named()
    optimizer = build_optimizer(OptimizerSpec(name=name, learning_rate=0.01, weight_decay=0.1), parameters)
    before = [p.detach().clone() for _, p in parameters]
    for _ in range(8):  # RAdam's first steps are silent
        for _, p in parameters:
            p.grad = torch.ones_like(p)
        optimizer.step()
    assert all(not torch.equal(b, p) for b, (_, p) in zip(before, parameters, strict=True))


def test_only_matrices_decay() -> None:
    parameters = named()
    optimizer = build_optimizer(OptimizerSpec(weight_decay=0.1), parameters)
    decay = {id(p): g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
    found = {name: decay[id(p)] for name, p in parameters}
    assert {n for n, d in found.items() if d == 0.1} == {
        "model.embed_tokens.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "lm_head.weight",
    }
    assert {n for n, d in found.items() if d == 0.0} == {
        "model.layers.0.self_attn.q_proj.bias",
        "model.layers.0.input_layernorm.weight",
        "model.norm.weight",
    }


def test_the_groups_are_those_of_transformers() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer

    model = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            vocab_size=32,
            attention_bias=True,
        )
    )
    theirs = set(Trainer.get_decay_parameter_names(None, model))  # type: ignore[arg-type]
    optimizer = build_optimizer(OptimizerSpec(weight_decay=0.1), model.named_parameters())
    decayed = {id(p) for g in optimizer.param_groups if g["weight_decay"] for p in g["params"]}
    assert {n for n, p in model.named_parameters() if id(p) in decayed} == theirs


def test_betas_eps_and_text_arguments_arrive() -> None:
    spec = OptimizerSpec(name="adamw_torch", betas=(0.8, 0.95), eps=1e-6, args={"amsgrad": "true"})
    group = build_optimizer(spec, named()).param_groups[0]
    assert (group["betas"], group["eps"], group["amsgrad"]) == ((0.8, 0.95), 1e-6, True)
    assert build_optimizer(OptimizerSpec(), named()).param_groups[0]["fused"] is True
    assert (
        build_optimizer(OptimizerSpec(name="sgd", args={"momentum": 0.9}), named()).param_groups[0][
            "momentum"
        ]
        == 0.9
    )


@pytest.mark.parametrize(
    ("spec", "code", "word"),
    [
        (OptimizerSpec(name="paged_ademamix_8bit"), "strategy.optimizer_unsupported", "AdEMAMix"),
        (OptimizerSpec(name="apollo_adamw_layerwise"), "strategy.optimizer_unsupported", "max_grad_norm"),
        (OptimizerSpec(name="adamw_tourch"), "strategy.optimizer_unsupported", "adamw_torch"),
        (OptimizerSpec(args={"amsgard": True}), "strategy.optimizer_args", "amsgrad"),
    ],
)
def test_refusals_say_why_and_what_instead(spec: OptimizerSpec, code: str, word: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_optimizer(spec, named())
    assert caught.value.diagnostics[0].code == code
    assert word in caught.value.diagnostics[0].render()


def test_nothing_to_train_is_refused() -> None:
    with pytest.raises(ConfigError, match="strategy.nothing_to_train"):
        build_optimizer(
            OptimizerSpec(), [(n, nn.Parameter(p.detach(), requires_grad=False)) for n, p in named()]
        )
