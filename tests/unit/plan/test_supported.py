"""What the plan accepts by a model's config.json and files alone: families, towers, balance losses, sizes;
and what it says of their rows.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from paceline.config.sections.model import ModelSection
from paceline.core.errors import ConfigError
from paceline.plan.model.family import supported
from paceline.plan.model.files import safetensors_headers
from paceline.plan.model.files.safetensors_headers import weights_findings, with_carried
from paceline.plan.model.quantized_weights import quantised_base
from paceline.plan.model.read_config import shape_from_config, shape_of, trained_shape
from paceline.plan.model.shape import ModelShape
from paceline.plan.model.supported import unsupported
from paceline.plan.plan_json import from_json, to_json

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
}


def code_of(config: dict[str, Any], **more: Any) -> list[str]:
    return [d.code for d in unsupported(config, "config.json", **more)]


@pytest.mark.parametrize("kind", ["reformer", "t5", "electra", "no_such_family"])
def test_a_family_that_is_not_trained_is_named_with_those_that_are(kind: str) -> None:
    (found,) = unsupported({"model_type": kind, "d_model": 8}, "model.config")
    assert found.code == "plan.family" and kind in found.what
    assert "llama" in found.hint and str(len(supported()) - 6) in found.hint or "more" in found.hint


@pytest.mark.parametrize(
    "more",
    [
        {"vision_config": {"hidden_size": 8}},
        {"audio_config": {"d_model": 8}},
        {"architectures": ["Qwen3_5ForConditionalGeneration"]},
    ],
)
def test_a_tower_is_refused_whatever_the_family(more: dict[str, Any]) -> None:
    assert code_of({**LLAMA, **more}) == ["plan.tower"]


def test_a_balance_loss_is_refused_for_families_that_transformers_computes_none_for() -> None:
    asks = {"output_router_logits": True, "router_aux_loss_coef": 0.02}
    assert code_of({**LLAMA, **asks}) == ["plan.balance_loss"]
    assert code_of({**LLAMA, **asks, "router_aux_loss_coef": 0}) == []
    assert code_of({**LLAMA, "model_type": "deepseek_v3", **asks}) == ["plan.balance_loss"]
    assert code_of({**LLAMA, "model_type": "mixtral", "num_local_experts": 4, **asks}) == []


def test_falcon_s_doubled_bias_is_refused() -> None:
    falcon = {"model_type": "falcon", "alibi": True}
    assert code_of(falcon, attention="eager") == ["plan.alibi_twice"] and code_of(falcon) == []


def test_doge_s_mixture_is_refused_and_doge_is_not() -> None:
    assert code_of({"model_type": "doge", "is_moe": True}) == ["plan.family"]
    assert code_of({"model_type": "doge"}) == []


def test_a_folder_s_own_number_of_experts_counts_whatever_its_name() -> None:
    sizes = {
        **LLAMA,
        "model_type": "qwen3_moe",
        "moe_intermediate_size": 16,
        "head_dim": 16,
        "num_key_value_heads": 4,
    }
    named = [shape_from_config({**sizes, name: 4}) for name in ("num_experts", "num_local_experts")]
    assert named[0].num_parameters == named[1].num_parameters and named[1].experts == 4
    assert shape_from_config(sizes).experts == 128


def test_deepseek_v3_has_its_671_billion() -> None:
    shape = shape_from_config({"model_type": "deepseek_v3"})
    assert shape.exact and round(shape.num_parameters / 1e9) == 671
    assert from_json(ModelShape, json.loads(json.dumps(to_json(shape)))) == shape


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": 10**12},
        {"num_hidden_layers": 10**9},
        {"vocab_size": -1},
        {"num_attention_heads": 10**12},
        {"hidden_size": float("nan")},
        {"num_local_experts": 10**9},
        {"num_experts": "four"},
        {"kv_lora_rank": -3},
        {"head_dim": 10**30},
    ],
)
def test_sizes_of_no_model_are_refused_at_once(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        shape_from_config({**LLAMA, **change})
    assert caught.value.diagnostics[0].code in ("plan.model_size", "plan.model_heads")


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "yarn", "factor": "x"},
        {"rope_type": ["yarn"], "factor": 2},
        [1],
        "linear",
        {"type": "linear", "factor": -1},
    ],
)
def test_strange_rope_breaks_nothing(rope: Any) -> None:
    assert shape_from_config({**LLAMA, "rope_scaling": rope}).max_position_embeddings == 2048


def safetensors(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(kind: str = "F32", shape: tuple[int, ...] = (2,), at: tuple[int, int] = (0, 8)) -> dict[str, Any]:
    return {"dtype": kind, "shape": list(shape), "data_offsets": list(at)}


HOSTILE = {
    "empty": b"",
    "cut": safetensors({"a": tensor()}, b"\0" * 8)[:20],
    "huge header": safetensors({"a": tensor()}, b"\0" * 8, 2**60),
    "overlap": safetensors({"a": tensor(), "b": tensor(at=(4, 12))}, b"\0" * 12),
    "hole": safetensors({"a": tensor(at=(4, 12))}, b"\0" * 12),
    "dtype": safetensors({"a": tensor("F31")}, b"\0" * 8),
    "shape": safetensors({"a": tensor(shape=(3,))}, b"\0" * 8),
    "negative": safetensors({"a": tensor(shape=(-2, -1))}, b"\0" * 8),
    "short": safetensors({"a": tensor()}, b"\0" * 7),
    "nested": safetensors(b"[" * 100_000),
    "no object": safetensors([1]),
    "huge number": safetensors(b'{"a": ' + b"9" * 10_000 + b"}"),
    "twice": safetensors(b'{"a": {}, "a": {}}'),
    "no text": safetensors(b"\xff\xfe{}"),
    "more": safetensors({"a": tensor()}, b"\0" * 9),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_damaged_file_of_weights_is_named(kind: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(HOSTILE[kind])
    (found,) = weights_findings(tmp_path)
    assert found.code == "model.damaged_weights" and "model.safetensors" in found.found


def test_a_file_that_the_user_may_not_read_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    (tmp_path / "model.safetensors").write_bytes(b"x")
    monkeypatch.setattr(safetensors_headers, "header_of", refuse)
    (found,) = weights_findings(tmp_path)
    assert found.code == "plan.model_file" and "Permission denied" in found.found and "chmod" in found.hint


def test_a_whole_file_is_not(tmp_path: Path) -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "a": tensor(),
        "b": tensor("BF16", (2, 1), (8, 12)),
        "c": tensor("I64", (0,), (12, 12)),
    }
    (tmp_path / "model.safetensors").write_bytes(safetensors(header, b"\0" * 12))
    assert weights_findings(tmp_path) == []


@pytest.mark.parametrize("placed", [{}, {"a": "../../etc/passwd"}, {"a": 1}, {"a": "not-there.safetensors"}])
def test_an_index_that_leads_elsewhere_is_named(placed: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    assert [d.code for d in weights_findings(tmp_path)] == ["plan.model_file"]


def test_a_tower_and_further_heads_are_counted_as_carried(tmp_path: Path) -> None:
    names = [
        "model.embed_tokens.weight",
        "model.layers.1.mlp.w",
        "model.visual.blocks.0.w",
        "model.layers.2.eh_proj.weight",
        "mtp.fc.weight",
        "multi_modal_projector.w",
    ]
    header = {name: tensor("F32", (1,), (4 * i, 4 * i + 4)) for i, name in enumerate(names)}
    (tmp_path / "model.safetensors").write_bytes(safetensors(header, b"\0" * 24))
    assert weights_findings(tmp_path) == []
    shape = trained_shape({**LLAMA, "num_hidden_layers": 2}, "c")
    found = with_carried(shape, tmp_path)
    assert (found.carried, found.carried_bytes) == (4, 16)


def test_a_composite_is_read_as_its_language_model() -> None:
    text = {k: v for k, v in LLAMA.items() if k != "model_type"} | {"num_key_value_heads": 4}
    whole = {"model_type": "qwen2_5_vl", "vision_config": {"depth": 1}, "tie_word_embeddings": True}
    for config in ({**whole, "text_config": {**text, "model_type": "qwen2_5_vl_text"}}, {**text, **whole}):
        shape = trained_shape({**config, "architectures": ["Qwen2_5_VLForConditionalGeneration"]}, "c")
        assert shape.model_type == "qwen2" and shape.tied
    inner = {**text, "model_type": "gemma3n_text"}
    assert code_of({"model_type": "gemma3n", "text_config": inner, "vision_config": {"a": 1}}) == [
        "plan.tower"
    ]


def test_documents_that_a_family_cannot_keep_apart_get_a_row_each() -> None:
    assert trained_shape({"model_type": "bloom"}, "c").rows == "padded"
    assert trained_shape({"model_type": "qwen3"}, "c").rows == "packed"
    assert trained_shape(
        {**LLAMA, "rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "c"
    ).rope_by_length


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("bitsandbytes", {}),
        ("gptq", {"bits": 3}),
        ("gptq", {"bits": 4, "checkpoint_format": "marlin"}),
        ("awq", {"bits": 4, "version": "gemv"}),
        ("compressed-tensors", {"format": "nvfp4-pack-quantized"}),
    ],
)
def test_a_quantised_folder_that_no_formula_reads_is_refused_by_name(
    method: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    config = {**LLAMA, "quantization_config": {"quant_method": method, **settings}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=rf"plan.quantised_base[\s\S]*{method}"):
        shape_of(ModelSection(name_or_path=str(tmp_path)))
    (found,) = quantised_base({"model_type": "gemma3", "text_config": config}, "model")
    assert method in found.what
