"""Adapters on a whole model with a vision tower: the text unless told otherwise, under peft's own names."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from whole_models import whole_config

from paceline.models.loading.multimodal import class_of_whole
from paceline.models.lora.lora import Adapter, add_adapter
from paceline.models.lora.names import WEIGHTS, peft_key
from paceline.plan.features.peft_settings import with_settings
from paceline.plan.model.family import in_part, parts_of
from paceline.plan.plan import AdapterSpec

pytest.importorskip("peft")
KINDS = ["llava", "gemma3", "qwen2_5_vl", "qwen3_vl_moe", "glm4v_moe"]


def _whole(kind: str) -> Any:
    config = whole_config(kind)
    torch.manual_seed(0)
    return class_of_whole(config)(config)


def _added(hf: Any, **spec: Any) -> tuple[Adapter, set[str]]:
    """The adapter, and the parts of the model in which it trains something (the text: "")."""
    adapter = add_adapter(hf, AdapterSpec(r=2, alpha=4, **spec), 3, {})
    parts = parts_of(hf.config.model_type)
    return adapter, {parts.get(in_part(name, parts), "") for name in adapter.trained.values()}


def _as_peft(base: Any, adapter: Adapter, folder: Path) -> dict[str, torch.Tensor]:
    """What peft trains with the settings that the adapter's folder has, by the names of its files."""
    from peft import PeftConfig, get_peft_model, get_peft_model_state_dict

    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(dict(adapter.peft)))
    model = get_peft_model(base, PeftConfig.from_pretrained(str(folder)))
    return get_peft_model_state_dict(model, save_embedding_layers=False)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("targets", "parts"),
    [
        (("all-linear",), {""}),
        (("q_proj", "v_proj"), {""}),
        ((r".*(visual|vision_tower).*\.(q_proj|qkv|fc1)",), {"vision"}),
        ((r".*\.(q_proj|qkv)",), {"", "vision"}),
    ],
)
def test_an_adapter_is_of_the_text_unless_told_otherwise(
    kind: str, targets: tuple[str, ...], parts: set[str], tmp_path: Path
) -> None:
    hf = _whole(kind)
    base = copy.deepcopy(hf)
    adapter, where = _added(hf, target_modules=targets)
    assert where == parts
    theirs = _as_peft(base, adapter, tmp_path)
    assert {peft_key(name, frozenset()) for name in adapter.trained.values()} == set(theirs)


def test_a_name_that_only_the_tower_has_is_meant_there(tmp_path: Path) -> None:
    hf = _whole("llava")
    base = copy.deepcopy(hf)
    adapter, where = _added(hf, target_modules=("q_proj", "fc1", "linear_2"))
    assert where == {"", "vision", "projector"}
    in_tower = {n for n in adapter.trained.values() if "vision_tower" in n}
    assert in_tower and all(".fc1." in name for name in in_tower)
    assert {peft_key(n, frozenset()) for n in adapter.trained.values()} == set(
        _as_peft(base, adapter, tmp_path)
    )


def test_what_is_trained_in_full_is_of_the_text_too(tmp_path: Path) -> None:
    hf = _whole("qwen2_5_vl")
    adapter, where = _added(hf, target_modules=("q_proj",), modules_to_save=("up_proj", "merger"))
    assert where == {"", "projector"}
    full = [n for n in adapter.trained if ".up_proj." in n]
    assert full and not any("visual" in n for n in full)
    saved = adapter.peft["modules_to_save"]
    assert isinstance(saved, list) and "merger" in saved
    assert all(re.fullmatch(r"merger|model\.language_model\..*up_proj", str(name)) for name in saved)


@pytest.mark.parametrize("prefix", ["model.language_model.", "model."])
def test_a_folder_of_peft_begins_an_adapter(prefix: str, tmp_path: Path) -> None:
    hf, again = _whole("llava"), _whole("llava")
    adapter, _ = _added(hf, target_modules=(r".*\.q_proj",))
    values = {n: torch.rand_like(p) for n, p in hf.named_parameters() if p.requires_grad}
    stored = {
        peft_key(adapter.trained[n].replace("model.language_model.", prefix), frozenset()): v
        for n, v in values.items()
    }
    save_file(stored, tmp_path / WEIGHTS)
    spec = with_settings(AdapterSpec(1, 1, start=str(tmp_path)), dict(adapter.peft), "there", str)
    add_adapter(again, spec, 4, {})
    begun = dict(again.named_parameters())
    assert all(torch.equal(begun[name], value) for name, value in values.items())
