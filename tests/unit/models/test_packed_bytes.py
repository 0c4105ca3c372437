"""A 4-bit base against the plan's count of it: packed weights and their scales, byte for byte."""

from __future__ import annotations

from typing import Any

import pytest
from model_families import Source

from paceline.models.factory import HFModelFactory
from paceline.models.quantised import _statistics
from paceline.plan.adapter import adapter_of
from paceline.plan.pieces import pieces_of, scale_bytes
from paceline.plan.shape import shape_from_config

CONFIG = {"model_type": "llama", "hidden_size": 128, "intermediate_size": 192, "num_attention_heads": 4, "num_key_value_heads": 2,
          "num_hidden_layers": 2, "vocab_size": 97, "max_position_embeddings": 64, "pad_token_id": 0}  # fmt: skip


@pytest.mark.parametrize("double", [True, False])
def test_scales_beside_packed_weights_are_counted_to_the_byte(double: bool) -> None:
    modules = pytest.importorskip("bitsandbytes.nn.modules")
    section = {"r": 4, "alpha": 8, "dropout": 0.0, "target_modules": ["q_proj", "v_proj"], "modules_to_save": [], "bias": "none",
               "quantization_bit": 4, "quantization_type": "nf4", "double_quant": double}  # fmt: skip
    adapter: dict[str, Any] | None = adapter_of(_section(section))
    shape = shape_from_config(CONFIG)
    hf = HFModelFactory(Source(config=CONFIG), adapter=adapter)().hf
    packed = [m for m in hf.modules() if isinstance(m, modules.Linear4bit)]
    scales = sum(t.nbytes for layer in packed for t in _statistics(layer.weight.quant_state))
    weights = sum(layer.weight.nbytes for layer in packed)
    pieces = pieces_of(shape, adapter, 4) or ()
    assert packed and scale_bytes(shape, adapter) == scales
    assert sum(p.numel * p.size for p in pieces if p.size == 1) == weights
    assert scale_bytes(shape, None) == 0


def _section(given: dict[str, Any]) -> dict[str, Any]:
    from paceline.config.schema import Config

    known = Config.model_validate({"model": {"config": CONFIG, "tokenizer": "none"}, "data": {"train": "none.jsonl"}, "lora": {k: v for k, v in given.items() if k in _keys()}})  # fmt: skip
    found: dict[str, Any] = known.to_json()["lora"]
    return found


def _keys() -> set[str]:
    from paceline.config.sections.small import LoraSection

    return set(LoraSection.model_fields)
