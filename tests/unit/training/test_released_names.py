"""What a server that writes answers is sent, and where adapters go, in a mixture of experts."""

from __future__ import annotations

import pytest
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from paceline.checkpoint.export.hf_tensor_names import hub_entries
from paceline.models.lora.lora import add_adapter
from paceline.plan.plan import AdapterSpec
from paceline.training.rollout.weight_entries import model_entries

SIZES = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "moe_intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_experts": 3,
    "num_experts_per_tok": 2,
    "vocab_size": 40,
}
LORA = AdapterSpec(r=2, alpha=4, target_modules=("all-linear",))


def test_experts_are_sent_one_by_one_and_loaded_once_each() -> None:
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES))
    sent = {entry.name: entry for entry in hub_entries(model, list(model_entries(model, torch.float32)))}
    fused = model.model.layers[0].mlp.experts.gate_up_proj.detach()
    for expert in range(3):
        for half, name in ((slice(0, 8), "gate_proj"), (slice(8, 16), "up_proj")):
            tensor = sent[f"model.layers.0.mlp.experts.{expert}.{name}.weight"].load()
            assert torch.equal(tensor, fused[expert, half])
    assert not any("gate_up_proj" in name for name in sent)


def test_all_linear_takes_the_layers_beside_the_experts() -> None:
    pytest.importorskip("peft")
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES))
    adapter = add_adapter(model, LORA, 7, {"name_or_path": None, "revision": None}, None)
    adapted = {name.split(".lora_")[0].rpartition(".")[2] for name in adapter.trained.values()}
    assert adapted == {"q_proj", "k_proj", "v_proj", "o_proj"}
