"""The plan's vocabulary is the run's: both judged by the model that the factory builds for the tokenizer that
Transformers loads.
"""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from paceline.config.sections.model import ModelSection
from paceline.data.tokenizer.load import load_tokenizer, vocab_size
from paceline.demo.files import vocabulary, write_tokenizer
from paceline.models.factory import HFModelFactory
from paceline.plan.model.read_config import shape_of

SIZES: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tokenizer alone, and models whose embedding is smaller, equal and larger."""
    from transformers import LlamaConfig, LlamaForCausalLM

    root = tmp_path_factory.mktemp("folders")
    write_tokenizer(root / "tokenizer")
    for name, rows in (("small", 40), ("equal", len(vocabulary())), ("large", 999)):
        shutil.copytree(root / "tokenizer", root / name)
        LlamaForCausalLM(LlamaConfig(**{**SIZES, "vocab_size": rows})).save_pretrained(root / name)
    return {path.name: path for path in root.iterdir()}


def cases() -> list[dict[str, Any]]:
    pick, made = random.Random(10), []
    for _ in range(24):
        source = pick.choice(["small", "equal", "large", "drawn", "unsized"])
        made.append(
            {
                "source": source,
                "add_tokens": pick.choice([[], ["<a>", "<b>"], ["e"]]),
                "add_special_tokens": pick.choice([[], ["<c>"]]),
                "embedding_multiple": pick.choice([1, 8, 64]),
                "vocab_size": pick.choice([40, 999]),
            }
        )
    return made


@pytest.mark.parametrize("case", cases(), ids=lambda case: case["source"])
def test_the_planned_vocabulary_is_that_of_the_model_that_is_built(
    case: dict[str, Any], folders: dict[str, Path]
) -> None:
    values = dict(case)
    source, size = values.pop("source"), values.pop("vocab_size")
    if source in folders:
        values["name_or_path"] = str(folders[source])
    else:
        values |= {"config": {**SIZES, **({"vocab_size": size} if source == "drawn" else {})}}
        values["tokenizer"] = str(folders["tokenizer"])
    model = ModelSection.model_validate(values)
    need = vocab_size(load_tokenizer(model))
    built = HFModelFactory(model, vocab_size=need)().hf
    planned = shape_of(model, {})
    assert planned is not None
    assert planned.vocab == built.get_input_embeddings().weight.shape[0]
    assert planned.num_parameters == sum(p.numel() for p in built.parameters())
    assert source != "unsized" or planned.vocab < need + values["embedding_multiple"]


def test_what_cannot_be_read_leaves_the_config_s_size(tmp_path: Path, folders: dict[str, Path]) -> None:
    shutil.copytree(folders["tokenizer"], tmp_path / "t")
    for text in ("{}", "not json", json.dumps({"model": {"vocab": 3}})):
        (tmp_path / "t" / "tokenizer.json").write_text(text)
        model = ModelSection.model_validate(
            {"config": {**SIZES, "vocab_size": 40}, "tokenizer": str(tmp_path / "t")}
        )
        planned = shape_of(model, {})
        assert planned is not None and planned.vocab == 40
