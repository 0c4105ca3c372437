"""Adapters in the plan: what is trained and said, what is refused before the start."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.config.schema import Config
from paceline.config.sections.lora import LoraSection
from paceline.core.errors import ConfigError
from paceline.plan.algorithms.spec import switched_off
from paceline.plan.features.compute_options import idle_decisions
from paceline.plan.features.lora import (
    adapter_decisions,
    adapter_of,
    adapter_parameters,
    check_adapter,
    check_patterns,
)
from paceline.plan.mesh import Mesh
from paceline.plan.model.read_config import shape_from_config
from paceline.plan.model.shape import ModelShape
from paceline.plan.plan import AdapterSpec, Quantization
from paceline.plan.plan_json import from_json, to_json
from paceline.plan.strategies.spec import strategy_spec
from paceline.plan.strategy_options import DeepSpeedOptions

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
}


def section(**values: Any) -> LoraSection:
    return LoraSection(**values)


def codes(
    adapter: Any,
    strategy: str = "fsdp",
    mesh: Mesh | None = None,
    compute: str = "float32",
    missing: str = "",
) -> list[str]:
    found = check_adapter(
        adapter,
        strategy_spec(strategy),
        mesh or Mesh(dp_shard=2),
        compute,
        installed=lambda name: None if name == missing else True,
    )
    return [d.code for d in found]


@pytest.mark.parametrize(
    ("targets", "whole", "expected"),
    [
        ("all-linear", [], 8192),
        ("q_proj,v_proj", [], 2 * 4 * (64 + 64 + 64 + 32)),
        (r".*layers\.1\.mlp\.(up|down)_proj", [], 4 * 2 * (64 + 128)),
        ("o_proj", ["embed_tokens", "lm_head"], 2 * 4 * 128 + 2 * 512 * 64),
    ],
)
def test_the_trained_parameters_are_counted_as_they_are_built(
    targets: str, whole: list[str], expected: int
) -> None:
    adapter = adapter_of(section(r=4, target_modules=targets, modules_to_save=whole))
    assert adapter is not None
    shape = shape_from_config(LLAMA)
    assert adapter_parameters(shape, adapter) == expected == built(adapter)
    if not whole:  # OFT's blocks: 16 divides all inputs, 24 does not
        for size in (16, 24):
            rotated = adapter_of(section(oft_block_size=size, target_modules=targets))
            assert rotated is not None and adapter_parameters(shape, rotated) == built(rotated)
    lora, *_ = adapter_decisions(adapter, shape)
    assert lora.subject == "lora" and "scale 2" in lora.choice and "parameters trained" in lora.reason


def built(adapter: AdapterSpec) -> int:
    """What the model's factory trains."""
    from types import SimpleNamespace

    pytest.importorskip("peft")
    from paceline.models.factory import HFModelFactory

    source = SimpleNamespace(
        config=LLAMA,
        name_or_path=None,
        revision=None,
        trust_remote_code=False,
        resize_embeddings="auto",
        embedding_multiple=1,
    )
    return sum(p.numel() for _, p in HFModelFactory(source, adapter=adapter)().plain_named_parameters())


def test_the_section_as_data_and_what_is_not_counted() -> None:
    assert adapter_of(None) is None
    adapter = adapter_of(
        section(r=16, alpha=4, quantization_bit=4, quantization_type="fp4", double_quant=False)
    )
    assert adapter is not None
    assert (adapter.r, adapter.alpha, adapter.target_modules) == (16, 4, ("all-linear",))
    assert adapter.quantization == Quantization(4, "fp4", False, "uint8")
    assert from_json(AdapterSpec, json.loads(json.dumps(to_json(adapter)))) == adapter
    gpt2 = shape_from_config({"model_type": "gpt2"})
    assert adapter_parameters(gpt2, adapter) is None
    assert "counted when the model is built" in adapter_decisions(adapter, gpt2)[0].reason
    assert [d.subject for d in adapter_decisions(adapter, None)] == ["lora", "lora.quantization_bit"]


def test_what_it_goes_with() -> None:
    lora, qlora = adapter_of(section()), adapter_of(section(quantization_bit=4))
    for strategy in ("single", "ddp", "fsdp", "zero1", "zero2", "zero3"):
        assert codes(lora, strategy) == []
    for strategy in ("single", "ddp", "fsdp", "zero2"):
        assert codes(qlora, strategy) == []
    assert codes(qlora, "zero3") == ["plan.quantised_strategy"]
    assert (
        check_adapter(qlora, strategy_spec("deepspeed"), Mesh(dp_shard=2), "float32", DeepSpeedOptions(2))
        == []
    )
    assert [
        d.found
        for d in check_adapter(qlora, strategy_spec("deepspeed"), Mesh(), "float32", DeepSpeedOptions(3))
    ] == ["zero3"]
    assert codes(qlora, "ddp", compute="float64") == ["plan.quantised_float64"]
    assert codes(lora, "pipeline", Mesh(pp=2)) == codes(lora, mesh=Mesh(cp=2)) == ["plan.adapter_strategy"]
    for strategy in ("fsdp", "zero1", "zero2"):
        assert codes(lora, strategy, Mesh(dp_shard=2, tp=2)) == []
    assert (
        codes(qlora, "fsdp", Mesh(tp=2)) == codes(qlora, "zero2", Mesh(tp=2)) == ["plan.quantised_strategy"]
    )
    experts = adapter_of(section(target_parameters=["mlp.experts.gate_up_proj"]))
    assert codes(experts, "fsdp", Mesh(tp=2)) == ["plan.adapter_experts"]
    oft = adapter_of(section(oft_block_size=8))
    for strategy in ("single", "ddp", "fsdp", "zero1", "zero2"):
        assert codes(oft, strategy) == []
    assert codes(oft, "zero3") == codes(oft, mesh=Mesh(tp=2)) == ["plan.adapter_strategy"]
    with pytest.raises(ConfigError, match=r"plan.adapter_kind[\s\S]*beside r, use_dora"):
        adapter_of(section(oft_block_size=8, r=4, use_dora=True))
    assert codes(lora, missing="peft") == codes(qlora, missing="bitsandbytes") == ["plan.not_installed"]
    assert codes(None, "pipeline", Mesh(pp=2)) == []


def test_patterns_that_fit_no_layer_are_those_of_which_peft_warns(tmp_path: Path) -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, LlamaConfig

    keys = (
        "q_proj",
        "^q_proj",
        "layers.0.self_attn.v_proj",
        "model.layers.1.self_attn.q_proj",
        "layers.2.self_attn.q_proj",
        "base_model.model.model.layers.0.self_attn.q_proj",
        r".*\.1\..*v_proj",
        "o_proj",
        "proj",
    )
    shape = shape_from_config(LLAMA)
    for key in keys:
        for name in ("rank_pattern", "alpha_pattern"):
            settings = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"], name: {key: 16}}
            with torch.device("meta"), warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                model = AutoModelForCausalLM.from_config(LlamaConfig(**LLAMA))
                get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **settings))
            judged = [name] * any(f"{name} keys did not match" in str(warning.message) for warning in said)
            (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", **settings}))
            found = check_patterns(adapter_of(section(adapter_name_or_path=str(tmp_path))), shape)
            assert [d.found.partition(":")[0] for d in found] == judged, key
            assert all(d.code == "plan.adapter_pattern" for d in found)


def test_an_adapter_to_train_on_from_says_its_own_rank(tmp_path: Path) -> None:
    def adapter(**config: Any) -> AdapterSpec | None:
        (tmp_path / "adapter_config.json").write_text(json.dumps(config))
        return adapter_of(section(r=8, adapter_name_or_path=str(tmp_path)))

    plain = {
        "peft_type": "LORA",
        "r": 32,
        "lora_alpha": 7.5,
        "target_modules": ["v_proj", "q_proj"],
        "use_rslora": True,
    }
    found = adapter(**plain)
    assert found is not None
    assert (found.r, found.alpha, found.target_modules, found.use_rslora) == (
        32,
        7.5,
        ("q_proj", "v_proj"),
        True,
    )
    assert found.start == str(tmp_path) and found.bias == "none"
    assert adapter(**plain, exclude_modules=["wq_b"]) == replace(found, exclude_modules=("wq_b",))
    assert adapter(**plain, lora_dropout=0.1) == replace(found, dropout=0.1)
    for change in (
        {"peft_type": "IA3"},
        {"use_dora": True, "target_parameters": ["experts.down_proj"]},
        {"rank_pattern": {"q_proj": 2}, "target_parameters": ["experts.down_proj"]},
        {"rank_pattern": ["q_proj"]},
        {"an_option_of_tomorrow": 1},
        {"init_lora_weights": "pissa_niter_4"},
        {"target_modules": None},
    ):
        with pytest.raises(ConfigError, match="plan.adapter_kind"):
            adapter(**{**plain, **change})
    given = section(r=8, target_modules=["k_proj"], use_rslora=True, adapter_name_or_path=str(tmp_path))
    adapter(**plain)
    config = Config.from_json({"lora": given.model_dump(mode="json")})
    unused = {d.subject: (d.choice, d.granted) for d in idle_decisions(config, Mesh(), adapter_of(given))}
    assert unused == {"lora.target_modules": ("[k_proj]", False)}  # 8 is the default, rslora is the adapter's
    assert adapter(**plain, use_dora=True) == replace(found, use_dora=True)
    begun = adapter(**plain, init_lora_weights="OLoRA")
    assert begun is not None and begun == replace(found, init_lora_weights="olora")
    qlora = replace(begun, quantization=Quantization(4))
    assert codes(begun, "fsdp") == [] and codes(qlora, "fsdp") == ["plan.adapter_kind"]
    with pytest.raises(ConfigError, match="plan.adapter_folder"):
        adapter_of(section(adapter_name_or_path=str(tmp_path / "none")))


@pytest.mark.parametrize(
    ("section_of", "off"),
    [
        ({}, True),
        ({"target_modules": "q_proj", "dropout": 0.1}, True),
        ({"modules_to_save": ["lm_head"]}, False),
        ({"bias": "lora_only"}, False),
    ],
)
def test_the_reference_is_the_policy_without_its_adapter_where_no_more_is_trained(
    section_of: dict[str, Any], off: bool
) -> None:
    """Trained biases and modules stay when an adapter is switched off, and so does a changed base."""
    adapter = adapter_of(section(**section_of))
    assert adapter is not None
    assert switched_off(adapter, None) == off and not switched_off(adapter, "another")
    assert not switched_off(replace(adapter, init_lora_weights="pissa"), None)


def test_shapes_without_a_head_of_their_own_count_it_once() -> None:
    tied: ModelShape = shape_from_config({**LLAMA, "tie_word_embeddings": True})
    adapter = adapter_of(section(r=1, target_modules="q_proj", modules_to_save=["embed_tokens", "lm_head"]))
    assert adapter is not None and adapter_parameters(tied, adapter) == 2 * 128 + 512 * 64


def test_dora_is_refused_where_a_weight_is_not_whole() -> None:
    dora = AdapterSpec(r=4, alpha=8, target_modules=("all-linear",), use_dora=True)
    for name, mesh in (("single", Mesh()), ("ddp", Mesh(dp_replicate=2)), ("zero2", None), ("fsdp", None)):
        assert codes(dora, name, mesh) == []
    assert codes(dora, "zero3") == codes(dora, mesh=Mesh(tp=2)) == ["plan.adapter_strategy"]
    for beside in ({"quantization": Quantization(4)}, {"target_parameters": ("experts.down_proj",)}):
        assert codes(replace(dora, **beside)) == ["plan.adapter_kind"]  # type: ignore[arg-type]
    shape = shape_from_config(LLAMA)
    plain = adapter_parameters(shape, replace(dora, use_dora=False))
    rows = 2 * (2 * 64 + 2 * 32 + 2 * 128 + 64)  # q and o, k and v, gate and up, down, in two layers
    assert adapter_parameters(shape, dora) == plain + rows  # type: ignore[operator]
