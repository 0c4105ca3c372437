"""What a block really keeps for its backward, by saved-tensor hooks, against the closed form that plans
are made with.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from model_families import Source, make_batch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from paceline.models.factory import HFModelFactory
from paceline.models.fused_layers import rms_norm
from paceline.plan.cost.coefficients import memory_coefficients
from paceline.plan.cost.memory.peak import peak_of
from paceline.plan.hardware.device_catalogue import cluster_of
from paceline.plan.model.read_config import shape_from_config
from paceline.plan.workload.step_spec import StepSpec
from paceline.protocols.roles import Output

TOKENS = 96
SIZES = {
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_attention_heads": 8,
    "vocab_size": 97,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def kept(model: nn.Module, run: Any) -> int:
    """Bytes of the storages that autograd keeps in ``run``, the model's own weights left out, and masks
    and positions too (no width).
    """
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    seen: dict[int, int] = {}
    alive: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        mask = tensor.dim() == 4 and tensor.shape[-1] == tensor.shape[-2] == TOKENS
        if storage.data_ptr() not in own and tensor.is_floating_point() and not mask:
            seen[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    return sum(seen.values())


def closed_form(config: dict[str, Any], kernels: str, *, cpu: bool = False) -> float:
    """Bytes a layer by ``predict.peak``, in 16 bit on a GPU, in 32 on a CPU."""
    machine = cluster_of("H100").machine

    def layers(count: int) -> float:
        shape = shape_from_config({**config, "num_hidden_layers": count})
        work = StepSpec(shape, machine, TOKENS, 1, kernels=kernels)
        if cpu:
            work = replace(work, machine=replace(machine, context=False), element=4)
        peak = peak_of(work, memory_coefficients(), 0)
        return peak.attention + peak.mlp

    return layers(3) - layers(2)  # gradients of the layer in its backward are there once


@pytest.mark.parametrize(("family", "kv_heads"), [("llama", 8), ("llama", 2), ("mistral", 2), ("qwen2", 4)])
def test_transformers_block_keeps_what_the_closed_form_says(family: str, kv_heads: int) -> None:
    config = {"model_type": family, **SIZES, "num_key_value_heads": kv_heads}
    auto: Any = AutoModelForCausalLM

    def bytes_of(layers: int) -> int:
        sized = {k: v for k, v in config.items() if k != "model_type"} | {"num_hidden_layers": layers}
        made = AutoConfig.for_model(family, **sized)
        made._attn_implementation = "sdpa"
        model = auto.from_config(made, dtype=torch.bfloat16).train()
        ids = torch.zeros(1, TOKENS, dtype=torch.long)
        return kept(model, lambda: model.model(ids, use_cache=False))

    assert bytes_of(3) - bytes_of(2) == pytest.approx(closed_form(config, "eager"), rel=0.05)


@pytest.mark.parametrize(("family", "kv_heads"), [("llama", 8), ("llama", 2), ("qwen2", 4)])
def test_our_own_block_keeps_about_half_and_the_closed_form_says_so(
    family: str, kv_heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"model_type": family, **SIZES, "num_key_value_heads": kv_heads}
    batch = make_batch((TOKENS,))

    def bytes_of(layers: int) -> int:
        module = HFModelFactory(Source(config={**config, "num_hidden_layers": layers}))().train()
        return kept(module, lambda: module(batch, frozenset({Output.NLL})))

    assert bytes_of(3) - bytes_of(2) == pytest.approx(closed_form(config, "fused", cpu=True), rel=0.05)
    monkeypatch.setattr(rms_norm, "LEAST_GAIN", math.inf)  # as on a GPU: the norms keep their input as well
    assert (bytes_of(3) - bytes_of(2)) / 2 == pytest.approx(closed_form(config, "fused"), rel=0.05)
    assert closed_form(config, "fused") < 0.6 * closed_form(config, "eager")
