"""A 4-bit base against the plan's count of it: packed weights and their scales, byte for byte."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from model_families import Source
from tiny_families import tiny_config

from paceline.config.schema import Config
from paceline.config.sections.lora import LoraSection
from paceline.models.factory import HFModelFactory
from paceline.models.loading.list_parameters import parameter_kinds
from paceline.models.loading.materialize import build_on_meta, fill
from paceline.models.quantized_linear import packing, scales_of
from paceline.plan.features.lora import adapter_of
from paceline.plan.hardware.probe import Hardware
from paceline.plan.model.read_config import shape_from_config
from paceline.plan.model.shape import LINEAR
from paceline.plan.strategies.spec import Job
from paceline.plan.workload.local_tensors import pieces_of, scale_bytes
from paceline.protocols.model import BuildOptions
from paceline.rules.planning import make_plan

GIB = 2**30
CPU = Hardware("cpu", "A CPU", 1, GIB, GIB, 1, False, False, 2, None, ("gloo",))
CONFIG = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "vocab_size": 97,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}


@pytest.mark.parametrize("double", [True, False])
def test_scales_beside_packed_weights_are_counted_to_the_byte(double: bool) -> None:
    modules = pytest.importorskip("bitsandbytes.nn.modules")
    section = {
        "r": 4,
        "alpha": 8,
        "dropout": 0.0,
        "target_modules": ["q_proj", "v_proj"],
        "modules_to_save": [],
        "bias": "none",
        "quantization_bit": 4,
        "quantization_type": "nf4",
        "double_quant": double,
    }
    adapter = adapter_of(_config(section).lora)
    shape = shape_from_config(CONFIG)
    hf = HFModelFactory(Source(config=CONFIG), adapter=adapter)().hf
    packed = [m for m in hf.modules() if isinstance(m, modules.Linear4bit)]
    scales = sum(_scales(layer.weight.quant_state) for layer in packed)
    weights = sum(layer.weight.nbytes for layer in packed)
    pieces = pieces_of(shape, adapter, 4) or ()
    assert packed and scale_bytes(shape, adapter) == scales == sum(t.nbytes for t in scales_of(hf))
    assert sum(p.numel * p.size for p in pieces if p.size == 1) == weights
    assert scale_bytes(shape, None) == 0
    plan = make_plan(Job(_config(section), CPU, world_size=1, launcher="single", run_dir=""))
    assert plan.memory is not None
    assert plan.memory.largest.parameters == sum(p.nbytes for p in hf.parameters()) + scales


def _scales(state: Any) -> int:
    """Bytes that stand beside a packed weight: its maxima; with double quantisation those are packed too,
    and have maxima of their own.
    """
    return int(state.absmax.nbytes + (state.state2.absmax.nbytes if state.nested else 0))


def _config(given: dict[str, Any]) -> Config:
    lora = {k: v for k, v in given.items() if k in LoraSection.model_fields}
    return Config.model_validate(
        {
            "model": {"config": CONFIG, "tokenizer": "none"},
            "data": {"train": "none.jsonl", "max_length": 64},
            "lora": lora,
            "training": {"distributed_strategy": "single"},
        }
    )


@pytest.mark.parametrize(
    ("kind", "target", "read"),
    [
        ("jamba", "in_proj", {"dt_proj"}),
        ("longcat_flash", "o_proj", {"classifier"}),
        ("mamba", "in_proj", {"dt_proj", "out_proj", "x_proj"}),
    ],
)
def test_what_its_parent_reads_is_not_packed(kind: str, target: str, read: set[str]) -> None:
    """A packed weight has another shape: the forward ended, with kernels that take weights or without."""
    modules = pytest.importorskip("bitsandbytes.nn.modules")
    config = tiny_config(kind)
    adapter = adapter_of(_config({"r": 2, "target_modules": [target], "quantization_bit": 4}).lora)
    hf = HFModelFactory(Source(config=config), adapter=adapter)().hf
    packed = {name for name, m in hf.named_modules() if isinstance(m, modules.Linear4bit)}
    assert packed and not any(name.rpartition(".")[2] in read for name in packed)
    logits = hf(input_ids=torch.randint(3, config["vocab_size"], (1, 8))).logits
    assert torch.isfinite(logits).all()
    plain = HFModelFactory(Source(config=config))(BuildOptions(device=torch.device("meta"))).hf
    listed = {name for name, _, listed in parameter_kinds(plain, frozenset()) if listed == LINEAR}
    assert {f"{name}.weight".replace(".base_layer", "") for name in packed} == listed


def test_a_base_is_packed_a_weight_at_a_time_to_the_wholes_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of Qwen 2, whose projections have biases: empty until ``fill`` reads them, then as the whole packs."""
    modules = pytest.importorskip("bitsandbytes.nn.modules")
    HFModelFactory(Source(config=tiny_config("qwen2")))().hf.save_pretrained(tmp_path)
    adapter = adapter_of(_config({"r": 2, "target_modules": ["q_proj"], "quantization_bit": 4}).lora)
    low = torch.bfloat16  # of products, and of the biases
    factory = HFModelFactory(Source(name_or_path=str(tmp_path)), adapter=adapter, compute_dtype=low)
    alone: Any = SimpleNamespace(is_main=True, device=torch.device("cpu"), broadcast_json=lambda value: value)
    options = BuildOptions(device=torch.device("cpu"), engine_casts=True, packs=True)
    root, source = build_on_meta(factory, options, alone)
    assert source is not None
    for module in (source, root):
        layers = [m for m in module.modules() if isinstance(m, modules.Linear4bit)]
        assert layers and all(layer.weight.is_meta and layer.quant_state is None for layer in layers)
    monkeypatch.setattr(torch.distributed, "broadcast", lambda *_: None)
    fill(root, source, alone, torch.device("cpu"), packing(root, torch.float32))
    whole = factory(BuildOptions(engine_casts=True))
    expected = dict(whole.named_parameters())
    assert {n for n, _ in root.named_parameters()} == set(expected)
    for name, parameter in root.named_parameters():
        assert parameter.dtype == expected[name].dtype and torch.equal(parameter, expected[name]), name
    made = [torch.cat([s.flatten().float() for s in scales_of(module)]) for module in (root, whole)]
    assert torch.equal(*made)
    scratch = HFModelFactory(Source(config=tiny_config("qwen2")), adapter=adapter)  # no files to read from
    whole, source = build_on_meta(scratch, options, alone)
    assert source is None and not any(p.is_meta for p in whole.parameters())
