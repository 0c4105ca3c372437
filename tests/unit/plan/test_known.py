"""The built-in list of models against the numbers of parameters that their publishers give."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from paceline.core.errors import ConfigError
from paceline.plan.model.model_catalogue import known_models, known_shape, model_shape


def exact(name: str) -> bool:
    return model_shape(name).exact


@pytest.mark.parametrize("name", sorted(filter(exact, known_models())))
def test_the_sizes_give_the_published_number_of_parameters(name: str) -> None:
    assert model_shape(name).num_parameters == known_models()[name].parameters


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(name for name in known_models() if not exact(name)))
def test_where_no_formula_counts_the_class_does(name: str) -> None:
    assert model_shape(name, os.environ).num_parameters == known_models()[name].parameters


def test_most_of_the_list_is_counted_without_a_process() -> None:
    assert sum(map(exact, known_models())) > 0.8 * len(known_models())


def test_the_list_has_the_families_and_both_kinds_of_experts() -> None:
    families = {model.config["model_type"] for model in known_models().values()}
    assert families >= {
        "llama",
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "mistral",
        "mixtral",
        "gemma",
        "gemma2",
        "phi",
        "phi3",
        "gpt2",
        "gpt_neox",
    }
    sparse = model_shape("qwen3-30b-a3b")
    assert sparse.experts == 128 and 2.5e9 < sparse.matmul_parameters < 3.5e9


def test_hub_names_are_found_in_the_list() -> None:
    for name, parameters in (
        ("openai/gpt-oss-20b", 20914757184),
        ("google/gemma-3-4b-it", 3880263168),
        ("mistralai/Ministral-8B-Instruct-2410", 8019808256),
        ("CohereForAI/c4ai-command-r-v01", 34980831232),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", None),
    ):
        listed = known_shape(name)
        assert listed is not None and parameters in (None, listed.num_parameters), name
    for name in ("meta-llama/Meta-Llama-3-8B-Instruct", "Llama-3-8B", "llama_3_8b"):
        found = known_shape(name)
        assert found is not None and found.num_parameters == 8030261248, name
    assert [model_shape(f"facebook/opt-{size}").layers for size in ("1.3b", "13b")] == [24, 40]
    assert known_shape("opt_13b") is None, "1.3 or 13 billion?"
    assert known_shape("somebody/a-model-of-tomorrow") is None


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError) as caught:
        model_shape("lama-3-8b")
    assert "llama-3-8b" in caught.value.diagnostics[0].hint


def test_a_folder_is_a_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4})
    )
    assert model_shape(str(tmp_path)).hidden_size == 64
    with pytest.raises(ConfigError):
        model_shape(str(tmp_path / "nothing"))
