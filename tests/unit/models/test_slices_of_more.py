"""Merged experts, bases of adapters, packed layers and the language model beside a tower: read in parts, they
are what is read whole.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from model_families import FAMILIES, Source
from safetensors.torch import load_file, save_file
from test_slices import META, PARTS, saved, values
from tiny_families import tiny_config
from torch import Tensor
from whole_models import whole_config

from paceline.config.sections.model import ModelSection
from paceline.models.factory import HFModelFactory
from paceline.models.loading.materialize import choices_of
from paceline.models.loading.multimodal import class_of_whole
from paceline.models.loading.sharded_loading import FolderSlices
from paceline.models.loading.weights_source import PACKED, READ_IN_PARTS, WeightsSource
from paceline.plan.model.family import composites, families
from paceline.plan.model.read_config import shape_of
from paceline.plan.plan import AdapterSpec, Quantization
from paceline.protocols.model import BuildOptions


def equal_by_blocks(slices: FolderSlices, name: str, tensor: Tensor) -> None:
    """The whole, a block in the middle of each dimension, and some values."""
    assert torch.equal(slices.read(name, (0,) * tensor.ndim, tensor.shape).to(tensor.dtype), tensor), name
    first = [n // 3 for n in tensor.shape]
    size = [max(1, n // 2) for n in tensor.shape]
    inside = tensor[tuple(slice(o, o + n) for o, n in zip(first, size, strict=True))]
    assert torch.equal(slices.read(name, first, size).to(tensor.dtype), inside), name
    step = max(1, tensor.numel() // 7)
    some = slices.picked(name, tuple(tensor.shape), step, 7).to(tensor.dtype)
    assert torch.equal(some, tensor.detach().flatten()[::step][:7]), name


#: Dense and mixed, with experts stacked in the files or one by one, with and without a formula; and one that
#: is not read in parts.
FEW = (
    "llama",
    "mixtral",
    "qwen3_moe",
    "deepseek_v3",
    "gpt_oss",
    "glm4",
    "qwen3_next",
    "gemma3n_text",
    "hrm_text",
)
ALL = [
    pytest.param(kind, marks=() if kind in FEW else pytest.mark.slow)
    for kind, family in families().items()
    if family.trained
]
JOINED = ("mixtral", "qwen3_moe", "deepseek_v3", "qwen3_next")


@pytest.mark.parametrize("kind", ALL)
def test_a_family_is_read_in_parts_where_the_plan_counts_on_it(kind: str, tmp_path: Path) -> None:
    HFModelFactory(Source(config={"model_type": kind, **tiny_config(kind)}))().hf.save_pretrained(tmp_path)
    factory = HFModelFactory(Source(name_or_path=str(tmp_path)))
    whole, empty = factory(), factory(PARTS)
    assert shape_of(ModelSection(name_or_path=str(tmp_path))) is not None  # what it saves is read again
    assert isinstance(empty.slices, FolderSlices) == families()[kind].parts, empty.notes()["start"]
    if not isinstance(empty.slices, FolderSlices):
        return
    assert kind not in JOINED or any(len(blocks) > 1 for blocks in empty.slices.places.values())
    for name, tensor in whole.hf.named_parameters():
        equal_by_blocks(empty.slices, name, tensor)


def adapted(folder: Path, **spec: Any) -> HFModelFactory:
    made = AdapterSpec(r=4, alpha=8, target_modules=("all-linear",), **spec)
    return HFModelFactory(Source(name_or_path=str(folder)), adapter=made, seed=3)


@pytest.mark.parametrize("family", ["llama_tied", "gpt2", "mixtral"])
def test_below_adapters_the_base_is_read_in_parts(family: str, tmp_path: Path) -> None:
    """The adapters' first values, what is trained and the base's fingerprint are the whole load's."""
    config = FAMILIES[family] if family in FAMILIES else {"model_type": family, **tiny_config(family)}
    HFModelFactory(Source(config=config))().hf.to(torch.bfloat16).save_pretrained(tmp_path)
    saved_too = {"gpt2": ("wte",), "llama_tied": ("embed_tokens",)}.get(family, ())
    experts = ("mlp.experts.gate_up_proj",) if family == "mixtral" else ()
    factory = adapted(tmp_path, target_parameters=experts, modules_to_save=saved_too)
    whole, empty, other = factory(), factory(PARTS), factory(BuildOptions(device=META))
    assert isinstance(empty.slices, FolderSlices) and isinstance(other.slices, FolderSlices)
    assert empty.notes()["start"] == other.notes()["start"] == READ_IN_PARTS
    assert empty.adapter == whole.adapter and whole.adapter is not None
    assert list(values(empty)) == list(values(other)) == list(values(whole))
    mine = dict(empty.hf.named_parameters())
    for name, tensor in whole.hf.named_parameters():
        assert mine[name].requires_grad == tensor.requires_grad and mine[name].dtype == tensor.dtype, name
        if ".lora_" in name:
            assert torch.equal(mine[name], tensor), name
        else:
            equal_by_blocks(empty.slices, name, tensor)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_layers_are_packed_one_after_the_other(family: str, tmp_path: Path, monkeypatch: Any) -> None:
    """The packed bytes, embeddings and adapters are those of a model that was read whole first."""
    saved(family, tmp_path, torch.bfloat16)
    streamed = adapted(tmp_path, quantization=Quantization(4))()
    monkeypatch.setattr(WeightsSource, "packs", False)
    whole = adapted(tmp_path, quantization=Quantization(4))()
    assert streamed.notes()["start"] == PACKED and "start" not in whole.notes()
    assert streamed.adapter == whole.adapter and streamed.slices is None
    assert json.dumps(choices_of(streamed), sort_keys=True) == json.dumps(choices_of(whole), sort_keys=True)
    mine, real = values(streamed), values(whole)
    assert list(mine) == list(real)
    for name, tensor in real.items():
        assert torch.equal(mine[name], tensor) and mine[name].dtype == tensor.dtype, name
        assert mine[name].requires_grad == tensor.requires_grad and type(mine[name]) is type(tensor), name


def _swap_experts(file: Path) -> None:
    tensors = {
        name: t.transpose(1, 2).contiguous() if ".experts." in name else t
        for name, t in load_file(file).items()
    }
    save_file(tensors, file, metadata={"format": "pt"})


WHOLE = ("qwen2_5_vl", "gemma3", "qwen3_vl_moe")


@pytest.mark.parametrize(
    "family", [pytest.param(k, marks=() if k in WHOLE else pytest.mark.slow) for k in composites()]
)
def test_the_language_model_of_a_composite_is_read_in_parts(family: str, tmp_path: Path) -> None:
    """Of the folder of a class with a tower, which is not read. Qwen3-VL's experts lie in the hub's files
    with two dimensions transposed.
    """
    config = whole_config(family)
    class_of_whole(config)(config).save_pretrained(tmp_path)
    if family == "qwen3_vl_moe":
        _swap_experts(tmp_path / "model.safetensors")
    factory = HFModelFactory(Source(name_or_path=str(tmp_path)))
    whole, empty = factory(), factory(PARTS)
    assert isinstance(empty.slices, FolderSlices), empty.notes()["start"]
    assert json.dumps(choices_of(empty), sort_keys=True) == json.dumps(choices_of(whole), sort_keys=True)
    transposed = [block for blocks in empty.slices.places.values() for block in blocks if block.transposed]
    assert bool(transposed) == (family == "qwen3_vl_moe")
    for name, tensor in whole.hf.named_parameters():
        equal_by_blocks(empty.slices, name, tensor)
