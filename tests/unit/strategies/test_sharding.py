"""Which modules become units of FSDP2, and what the plan's options mean; no processes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from paceline.core.errors import ConfigError
from paceline.models.fused_layers.swiglu import FusedSwiGLU
from paceline.models.replace_forward import replace_forward
from paceline.plan.plan import OptimizerSpec
from paceline.plan.strategy_options import FsdpOptions, Wrap
from paceline.runtime.process_group.world import World
from paceline.strategies.fsdp.strategy import check_optimizer
from paceline.strategies.fsdp.wrapping import layer_classes, units_of
from paceline.strategies.model_handle import storage_bytes
from paceline.strategies.registry import make_strategy


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = (nn.Linear(10, 10, bias=False) for _ in range(3))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(10)
        self.mlp = Mlp()


class Trunk(nn.Module):
    _no_split_modules = ("Layer", "LayerOfAnotherModel")

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 10)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.head = nn.Linear(10, 40, bias=False)

    def get_input_embeddings(self) -> nn.Module:
        return self.embed

    def get_output_embeddings(self) -> nn.Module:
        return self.head


def names(trunk: nn.Module, how: FsdpOptions) -> list[str]:
    by_id = {id(m): name for name, m in trunk.named_modules()}
    return [by_id[id(m)] for m in units_of(trunk, how)]


def wrapped(
    policy: str = "transformer", classes: tuple[str, ...] = (), min_num_params: int = 0
) -> FsdpOptions:
    return FsdpOptions(wrap=Wrap(policy, classes, min_num_params))


def test_decoder_layers_are_units_by_default() -> None:
    trunk = Trunk()
    assert layer_classes(trunk) == ("Layer",)
    assert names(trunk, FsdpOptions()) == ["layers.0", "layers.1"]
    assert names(trunk, wrapped(policy="none")) == []


def test_a_class_named_in_the_config_is_the_unit() -> None:
    trunk = Trunk()
    assert names(trunk, wrapped(classes=("Mlp",))) == ["layers.0.mlp", "layers.1.mlp"]
    # the outer one holds the inner
    assert names(trunk, wrapped(classes=("Mlp", "Layer"))) == ["layers.0", "layers.1"]
    trunk.layers[0].mlp.__class__ = replace_forward(FusedSwiGLU, Mlp)  # a kernel's class keeps the old name
    assert names(trunk, wrapped(classes=("Mlp",))) == ["layers.0.mlp", "layers.1.mlp"]
    with pytest.raises(ConfigError, match="GPT2Block") as caught:
        units_of(trunk, wrapped(classes=("GPT2Block", "Layer")))
    assert caught.value.diagnostics[0].code == "strategy.fsdp_wrap_class"


def test_by_size_the_smallest_modules_that_are_large_enough() -> None:
    """Norm 20, each projection 100, Mlp 300, layer 320; embedding and head stay with the root, whatever
    their size.
    """
    trunk = Trunk()
    assert names(trunk, wrapped(policy="size", min_num_params=100)) == [
        f"layers.{i}.mlp.{name}" for i in (0, 1) for name in ("gate_proj", "up_proj", "down_proj")
    ]
    assert names(trunk, wrapped(policy="size", min_num_params=300)) == ["layers.0.mlp", "layers.1.mlp"]
    assert names(trunk, wrapped(policy="size", min_num_params=320)) == ["layers.0", "layers.1"]
    assert names(trunk, wrapped(policy="size", min_num_params=10**6)) == []


def test_a_fused_module_is_not_cut() -> None:
    trunk = Trunk()
    for layer in trunk.layers:
        layer.mlp.__class__ = replace_forward(FusedSwiGLU, Mlp)
    assert names(trunk, wrapped(policy="size", min_num_params=100)) == ["layers.0.mlp", "layers.1.mlp"]


def test_inner_units_come_before_outer_ones() -> None:
    trunk = Trunk()
    trunk.layers[0].norm = nn.LayerNorm(300)
    assert names(trunk, wrapped(policy="size", min_num_params=300)) == [
        "layers.0.norm",
        "layers.0.mlp",
        "layers.1.mlp",
    ]
    found = names(trunk, wrapped(policy="size", min_num_params=20))
    assert "layers.1.norm" in found and len(found) == len(set(found)) == 8


def test_one_process_and_factored_optimizers_are_refused() -> None:
    with pytest.raises(ConfigError, match="there is only one"):
        make_strategy("fsdp", World.single(), None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="complete matrices"):
        check_optimizer(OptimizerSpec(name="adafactor"))


def test_bytes_are_counted_once_with_their_padding() -> None:
    padded = torch.zeros(4, 2)
    assert storage_bytes([padded[:3], padded[:1]]) == 32
    assert storage_bytes([padded, torch.zeros(2, dtype=torch.bfloat16)]) == 36
