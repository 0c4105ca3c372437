"""A model that is read in parts is the one that is read whole: its parts, buffers, kernels and settings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from model_families import FAMILIES, Source, build_family
from torch import Tensor

from paceline.models.factory import READ_IN_PARTS, HFModelFactory
from paceline.models.materialise import _decisions, _tensors
from paceline.models.roles import RoleModule
from paceline.models.slices import FolderSlices
from paceline.protocols.model import BuildOptions
from paceline.protocols.roles import Role

CPU, META = torch.device("cpu"), torch.device("meta")
PARTS = BuildOptions(device=CPU, by_slices=True)


def saved(family: str, folder: Path) -> HFModelFactory:
    model = build_family(family).hf
    model.generation_config.max_new_tokens = 7
    model.save_pretrained(folder)
    return HFModelFactory(Source(name_or_path=str(folder)))


def values(module: RoleModule) -> dict[str, Tensor]:
    return dict(_tensors(module))


@pytest.mark.parametrize("family", FAMILIES)
def test_parts_are_the_wholes(family: str, tmp_path: Path) -> None:
    factory = saved(family, tmp_path)
    whole, empty, other = factory(), factory(PARTS), factory(BuildOptions(device=META))
    slices = empty.slices
    assert isinstance(slices, FolderSlices) and isinstance(other.slices, FolderSlices)
    assert other.slices.places == slices.places
    assert json.dumps(_decisions(empty), sort_keys=True) == json.dumps(_decisions(whole), sort_keys=True)
    assert empty.notes()["start"] == other.notes()["start"] == READ_IN_PARTS
    mine, real = values(empty), values(whole)
    assert list(mine) == list(real)
    for name, tensor in real.items():
        plain = name.removeprefix("hf.")
        if not slices.has(plain):
            assert torch.equal(mine[name], tensor) and mine[name].dtype == tensor.dtype, name
            continue
        assert mine[name].is_meta or not isinstance(mine[name], torch.nn.Parameter), name
        first = tensor.shape[0] // 3
        block = slices.read(plain, (first, *(0,) * (tensor.ndim - 1)), (2, *tensor.shape[1:]))
        assert torch.equal(block, tensor[first : first + 2]), name


def test_what_is_not_a_tensor_of_the_files_is_read_whole_and_said(tmp_path: Path) -> None:
    folder = str(tmp_path)
    saved("llama", tmp_path)
    for factory, why in (
        (HFModelFactory(Source(name_or_path=folder), vocab_size=120), "the vocabulary is resized"),
        (HFModelFactory(Source(name_or_path=folder), role=Role.REWARD), "the files have no score.weight"),
    ):
        module = factory(PARTS)
        assert module.slices is None and module.notes()["start"] == f"rank 0 reads the whole model: {why}"
        assert not any(p.is_meta for p in module.parameters())


def test_merged_experts_are_read_whole(tmp_path: Path) -> None:
    mixture = {**FAMILIES["llama"], "model_type": "mixtral", "num_local_experts": 2}
    HFModelFactory(Source(config=mixture))().hf.save_pretrained(tmp_path)
    module = HFModelFactory(Source(name_or_path=str(tmp_path)))(PARTS)
    assert module.slices is None and "made from other tensors" in module.notes()["start"]
