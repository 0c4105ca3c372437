"""Parameter counts against numbers taken from Transformers 5.23 (the same configs built on the meta
device).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.config.sections.model import ModelSection
from paceline.core.errors import ConfigError
from paceline.plan.model.read_config import cached_model_dir, shape_from_config, shape_of
from paceline.plan.model.shape import ModelShape
from paceline.plan.plan_json import from_json, to_json

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
GPT2 = {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 128}
FULL_HEADS = {**SMALL, "num_key_value_heads": 4}
HEAD = 300 * 64
# family: (sizes, all parameters, parameters of linear layers and an untied head)
COUNTED: dict[str, tuple[dict[str, Any], int, int]] = {
    "llama": (SMALL, 167872, 148224),
    "mistral": (SMALL, 167872, 148224),
    "qwen2": (SMALL, 168256, 148224),
    "qwen3": ({**SMALL, "head_dim": 32}, 204928, 185088),
    "gemma": ({**SMALL, "head_dim": 32}, 185536, 165888 + HEAD),
    "gemma2": ({**SMALL, "head_dim": 32}, 185920, 165888 + HEAD),
    "gemma3_text": ({**SMALL, "head_dim": 32}, 186112, 165888 + HEAD),
    "phi": (FULL_HEADS, 151244, 129792),
    "phi3": (SMALL, 167872, 148224),
    "gpt2": (GPT2, 177472, 147456 + HEAD),
    "gpt_neox": (FULL_HEADS, 151328, 129792),
}


@pytest.mark.parametrize("family", COUNTED)
def test_counts_are_those_of_transformers(family: str) -> None:
    sizes, total, matmul = COUNTED[family]
    shape = shape_from_config({"model_type": family, "vocab_size": 300, **sizes})
    assert (shape.num_parameters, shape.matmul_parameters, shape.exact) == (total, matmul, True)


def test_a_mixture_counts_all_experts_but_multiplies_by_two() -> None:
    shape = shape_from_config({"model_type": "mixtral", "vocab_size": 300, **SMALL})
    assert shape.num_parameters == 814528  # from Transformers
    one_expert = 3 * 64 * 160
    assert shape.matmul_parameters == 794880 - 3 * 6 * one_expert


def test_tying_saves_the_head_and_keeps_its_product() -> None:
    config = {"model_type": "llama", "vocab_size": 300, **SMALL}
    free, tied = shape_from_config(config), shape_from_config({**config, "tie_word_embeddings": True})
    assert free.num_parameters - tied.num_parameters == HEAD
    assert free.matmul_parameters == tied.matmul_parameters


def test_the_benchmark_model_has_the_published_counts() -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 512,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "intermediate_size": 1408,
        "vocab_size": 32000,
    }
    shape = shape_from_config(config)
    assert round(shape.num_parameters / 1e6, 1) == 56.4 and round(shape.matmul_parameters / 1e6, 1) == 40.0


def test_left_out_sizes_are_the_family_s() -> None:
    shape = shape_from_config({"model_type": "llama"})
    assert (shape.hidden_size, shape.layers, shape.vocab, shape.max_position_embeddings) == (
        4096,
        32,
        32000,
        2048,
    )
    assert round(shape.num_parameters / 1e9, 2) == 6.74  # Llama-2-7B


def test_biases_that_a_config_switches_on_count() -> None:
    config = {"model_type": "llama", "vocab_size": 300, **SMALL}
    biased = shape_from_config({**config, "attention_bias": True, "mlp_bias": True})
    assert biased.num_parameters - shape_from_config(config).num_parameters == 3 * (
        64 + 2 * 32 + 64 + 2 * 160 + 64
    )


def test_an_unknown_family_is_an_estimate_and_needs_its_sizes() -> None:
    assert shape_from_config({"model_type": "newcomer", "vocab_size": 300, **SMALL}).exact is False
    with pytest.raises(ConfigError, match="hidden_size, layers, heads, vocab"):
        shape_from_config({"model_type": "newcomer"})


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"model_type": ""}, "plan.model_type"),
        ({"hidden_size": 65}, "plan.model_heads"),
        ({"num_key_value_heads": 3}, "plan.model_heads"),
        ({"num_hidden_layers": 0}, "plan.model_size"),
        ({"hidden_size": "64"}, "plan.model_size"),
        ({"intermediate_size": [64, 96]}, "plan.model_size"),
        ({"intermediate_size": []}, "plan.model_size"),
        ({"vocab_size": True}, "plan.model_size"),
    ],
)
def test_impossible_sizes_are_refused(change: dict[str, Any], code: str) -> None:
    with pytest.raises(ConfigError) as caught:
        shape_from_config({"model_type": "llama", "vocab_size": 300, **SMALL, **change})
    assert caught.value.diagnostics[0].code == code


def test_scaled_positions_stretch() -> None:
    config = {"model_type": "llama", "vocab_size": 300, **SMALL}
    assert (
        shape_from_config(
            {**config, "rope_scaling": {"type": "linear", "factor": 4.0}}
        ).max_position_embeddings
        == 512
    )
    assert (
        shape_from_config(
            {**config, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}
        ).max_position_embeddings
        == 128
    )
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    assert shape_from_config({**config, "rope_parameters": yarn}).max_position_embeddings == 256


def test_a_text_model_inside_a_larger_one_is_found() -> None:
    assert (
        shape_from_config(
            {"model_type": "outer", "text_config": {"model_type": "llama", "vocab_size": 300, **SMALL}}
        ).num_parameters
        == 167872
    )


def test_from_a_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 300, **SMALL}))
    shape = shape_of(ModelSection(name_or_path=str(tmp_path)))
    assert (
        shape == shape_of(ModelSection(name_or_path=str(tmp_path / "config.json")))
        and from_json(ModelShape, to_json(shape)) == shape
    )


@pytest.mark.parametrize("text", [None, "{", "[1]"])
def test_a_folder_without_a_usable_config_is_named(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError) as caught:
        shape_of(ModelSection(name_or_path=str(tmp_path)))
    assert caught.value.diagnostics[0].code == "plan.model_config" and str(tmp_path) in str(caught.value)


def test_a_hub_name_is_looked_up_in_the_cache(tmp_path: Path) -> None:
    model = ModelSection(name_or_path="org/small")
    environ = {"HF_HUB_CACHE": str(tmp_path)}
    assert shape_of(model, environ) is None
    snapshot = tmp_path / "models--org--small/snapshots/abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 300, **SMALL}))
    assert cached_model_dir("org/small", None, tmp_path) is None  # no ref says which snapshot is main
    (tmp_path / "models--org--small/refs").mkdir()
    (tmp_path / "models--org--small/refs/main").write_text("abc")
    found = shape_of(model, environ)
    assert found is not None and found.num_parameters == 167872
    assert cached_model_dir("org/small", "abc", tmp_path) == snapshot


def test_a_missing_folder_is_not_taken_for_a_hub_name() -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        shape_of(ModelSection(name_or_path="./nowhere"))
    assert shape_of(ModelSection()) is None


@pytest.mark.parametrize(
    ("sizes", "hint"),
    [
        ({"hidden_size": 100, "num_attention_heads": 7}, "num_attention_heads: 5 or 10"),
        (
            {"hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 4},
            "num_key_value_heads: 3 or 6",
        ),
    ],
)
def test_heads_that_do_not_divide_are_answered_with_the_nearest(sizes: dict[str, int], hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        shape_from_config({"model_type": "llama", "num_hidden_layers": 2, "vocab_size": 100, **sizes})
    assert hint in caught.value.diagnostics[0].hint


def test_a_family_with_sizes_missing_is_answered_with_their_keys_and_a_near_family() -> None:
    with pytest.raises(ConfigError) as caught:
        shape_from_config({"model_type": "lama", "hidden_size": 64})
    hint = caught.value.diagnostics[0].hint
    assert "num_hidden_layers: …" in hint and "model_type: llama" in hint
