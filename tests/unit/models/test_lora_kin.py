"""DoRA and LoRA+: three steps in float32 give the losses of peft's own model and optimizer."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from paceline.models.lora.lora import add_adapter
from paceline.plan.plan import AdapterSpec, OptimizerSpec
from paceline.strategies.optimizers.build import build_optimizer, set_learning_rate

pytest.importorskip("peft")
RATE, IDS = 1e-2, torch.randint(0, 64, (3, 2, 16), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("dora", "ratio"), [(True, 16.0), (False, 16.0), (True, 1.0)])
def test_the_losses_are_peft_s(dora: bool, ratio: float) -> None:
    from peft import LoraConfig, get_peft_model
    from peft.optimizers import create_loraplus_optimizer
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    base: Any = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=88,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
    )
    ours = copy.deepcopy(base)
    made = add_adapter(ours, AdapterSpec(4, 8, target_modules=("all-linear",), use_dora=dora), 3, {})
    config = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", use_dora=dora, task_type="CAUSAL_LM")
    theirs = get_peft_model(base, config)
    begun = dict(ours.named_parameters())
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            mine = begun[name.removeprefix("base_model.model.")]
            if "magnitude" in name:
                torch.testing.assert_close(parameter, mine)
            parameter.copy_(mine)
    named = [(made.trained[name], p) for name, p in ours.named_parameters() if p.requires_grad]
    optimizer = build_optimizer(OptimizerSpec(learning_rate=RATE, b_rate_ratio=ratio), named)
    peft_s = create_loraplus_optimizer(theirs, torch.optim.AdamW, lr=RATE, loraplus_lr_ratio=ratio)
    losses: list[list[float]] = [[], []]
    for ids in IDS:
        set_learning_rate(optimizer, RATE)
        for model, stepper, found in ((ours, optimizer, losses[0]), (theirs, peft_s, losses[1])):
            stepper.zero_grad()
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            stepper.step()
            found.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], abs=1e-5) and losses[0][0] != losses[0][2]
