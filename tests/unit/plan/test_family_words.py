"""What a family's code reads of a config, told from the installed Transformers' source."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields

import pytest

from paceline.plan.model.source_keys import family_words

FAMILIES = [
    "llama",
    "qwen3",
    "qwen3_moe",
    "gemma3_text",
    "mistral",
    "gpt2",
    "bloom",
    "falcon",
    "gpt_oss",
    "deepseek_v3",
    "mamba2",
]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_field_of_a_config_class_is_known_and_nothing_else_is_near(name: str) -> None:
    from transformers import CONFIG_MAPPING

    words = family_words(name)
    made = CONFIG_MAPPING[name]
    assert words is not None
    taken = {field.name for field in fields(made)} | set(made.attribute_map)
    assert {key for key in taken if not key.startswith("_")} <= words.words
    assert set(made.attribute_map) | set(made.__annotations__) <= {*words.fields, *words.words}
    assert (
        "hidden_size" in words.fields and "hiden_size" not in words.words and "pair_length" not in words.words
    )


def test_a_family_without_a_folder_of_its_own_is_found_by_transformers_own_table() -> None:
    words = family_words("qwen3_5_text")
    assert words is not None and "linear_num_key_heads" in words.fields


@pytest.mark.parametrize("name", ["", "nope", "../llama", "a/b", "auto", "gpt-sw3"])
def test_what_has_no_config_class_is_not_known(name: str) -> None:
    assert family_words(name) is None


def test_nothing_is_imported_for_it() -> None:
    code = (
        "import sys; from paceline.plan.model.source_keys import family_words;"
        " assert family_words('llama'); print({'torch', 'transformers'} & set(sys.modules))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "set()"
    )
