"""A model that is read in parts is the one that is read whole: its parts, buffers, kernels and settings."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest
import torch
from model_families import FAMILIES, Source, build_family
from support import swept
from tiny_families import tiny_config
from torch import Tensor

import paceline.models.loading.sharded_loading as slices_module
from paceline.core.errors import ConfigError
from paceline.models.factory import HFModelFactory
from paceline.models.heads.sequence_classification import Classes
from paceline.models.loading.materialize import choices_of
from paceline.models.loading.sharded_loading import FolderSlices, new_rows
from paceline.models.loading.weights_source import READ_IN_PARTS
from paceline.models.module_tensors import tensors_of
from paceline.models.role_module import RoleModule
from paceline.protocols.model import BuildOptions
from paceline.protocols.roles import Role

CPU, META = torch.device("cpu"), torch.device("meta")
PARTS = BuildOptions(device=CPU, by_slices=True)


DTYPES = [torch.float32, torch.bfloat16]


def saved(family: str, folder: Path, dtype: torch.dtype = torch.float32) -> HFModelFactory:
    model = build_family(family).hf.to(dtype)
    model.generation_config.max_new_tokens = 7
    model.save_pretrained(folder)
    return HFModelFactory(Source(name_or_path=str(folder)))


def values(module: RoleModule) -> dict[str, Tensor]:
    return dict(tensors_of(module))


@pytest.mark.parametrize(("family", "dtype"), swept(product(FAMILIES, DTYPES), 3), ids=str)
def test_parts_are_the_wholes(family: str, dtype: torch.dtype, tmp_path: Path) -> None:
    factory = saved(family, tmp_path, dtype)
    whole, empty, other = factory(), factory(PARTS), factory(BuildOptions(device=META))
    slices = empty.slices
    assert isinstance(slices, FolderSlices) and isinstance(other.slices, FolderSlices)
    assert other.slices.places == slices.places
    assert json.dumps(choices_of(empty), sort_keys=True) == json.dumps(choices_of(whole), sort_keys=True)
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
        assert block.dtype == dtype and torch.equal(block.to(tensor.dtype), tensor[first : first + 2]), name


@pytest.mark.parametrize(
    ("family", "dtype"), swept(product(["llama", "llama_tied", "gemma2", "phi", "gpt2"], DTYPES), 3), ids=str
)
def test_a_larger_vocabulary_has_the_wholes_rows(family: str, dtype: torch.dtype, tmp_path: Path) -> None:
    """Blocks below, across and beyond the rows of the files; Phi's head has a bias."""
    saved(family, tmp_path, dtype)
    factory = HFModelFactory(Source(name_or_path=str(tmp_path)), vocab_size=120, seed=3)
    whole, empty, other = factory(), factory(PARTS), factory(BuildOptions(device=META))
    slices, real = empty.slices, values(whole)
    assert isinstance(slices, FolderSlices) and isinstance(other.slices, FolderSlices)
    assert list(values(empty)) == list(values(other)) == list(real)
    assert empty.notes()["start"] == READ_IN_PARTS and not other.slices.more
    assert json.dumps(choices_of(empty), sort_keys=True) == json.dumps(choices_of(whole), sort_keys=True)
    assert (
        len(slices.more) == {"llama": 2, "phi": 3}.get(family, 1)
        and slices.more.keys() == slices.grown.keys()
    )
    for name in slices.more:
        tensor = real[f"hf.{name}"]
        assert tensor.shape[0] == 120 and len(tensor[97:].unique(dim=0)) == (23 if tensor.ndim > 1 else 1)
        for first, rows in ((0, 120), (3, 20), (90, 20), (97, 23), (119, 1)):
            block = slices.read(name, (first, *(0,) * (tensor.ndim - 1)), (rows, *tensor.shape[1:]))
            assert torch.equal(block.float(), tensor[first : first + rows]), (name, first)
        if tensor.ndim > 1:
            assert torch.equal(slices.read(name, (90, 5), (20, 7)), tensor[90:110, 5:12])


def test_rows_of_many_columns_are_the_same_in_blocks() -> None:
    """Mean and spread of the old rows, of more columns than are read at once."""
    old = torch.randn(40, 600, generator=torch.Generator().manual_seed(0)) + 2.0
    found = new_rows(lambda a, n: old[:, a : a + n], 5000, 600, torch.Generator().manual_seed(1))
    torch.testing.assert_close(found.mean(0), old.mean(0), rtol=0, atol=1e-4)
    torch.testing.assert_close(found.std(0), 1e-3 * old.std(0), rtol=0.1, atol=0)


@pytest.mark.parametrize(
    ("role", "family"), swept(product([Role.REWARD, Role.CLASSIFIER], ["llama", "gemma2", "gpt2"]), 4)
)
def test_a_new_head_is_drawn_and_the_rest_is_read_in_parts(role: Role, family: str, tmp_path: Path) -> None:
    """The drawn values are the whole load's; a head that the folder has is read like the rest."""
    saved(family, tmp_path)
    classes = Classes(("a", "b", "c")) if role is Role.CLASSIFIER else None
    factory = HFModelFactory(Source(name_or_path=str(tmp_path)), role=role, classes=classes, seed=3)
    whole, empty, other = factory(), factory(PARTS), factory(BuildOptions(device=META))
    for module in (empty, other):
        assert isinstance(module.slices, FolderSlices) and module.notes()["start"] == READ_IN_PARTS
        assert not module.slices.has("score.weight")
    assert torch.equal(empty.hf.get_parameter("score.weight"), whole.hf.get_parameter("score.weight"))
    left = {name for name, p in empty.hf.named_parameters() if not p.is_meta}
    assert left == {"score.weight"}
    assert json.dumps(choices_of(empty), sort_keys=True) == json.dumps(choices_of(whole), sort_keys=True)
    whole.hf.save_pretrained(tmp_path / "scored")
    again = HFModelFactory(Source(name_or_path=str(tmp_path / "scored")), role=role, classes=classes)(PARTS)
    assert isinstance(again.slices, FolderSlices) and again.slices.has("score.weight")


def test_a_head_of_the_classs_own_is_known_without_its_weights(tmp_path: Path) -> None:
    """On meta a linear head is taken for a plain one."""
    config = {"model_type": "minicpm3", **tiny_config("minicpm3")}
    HFModelFactory(Source(config=config))().hf.save_pretrained(tmp_path)
    factory = HFModelFactory(Source(name_or_path=str(tmp_path)))
    empty = factory(PARTS)
    assert isinstance(empty.slices, FolderSlices) and not empty.head.fused
    assert choices_of(empty) == choices_of(factory())


def test_what_a_converter_changes_is_no_tensor_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where its shape is the parameter's: a transposed square matrix."""
    factory = saved("llama", tmp_path)
    name = "model.layers.0.self_attn.q_proj.weight"
    monkeypatch.setattr(slices_module, "conversions", lambda model, names: {name: None})
    module = factory(PARTS)
    assert module.slices is None and name in module.notes()["start"]


def test_a_file_that_goes_away_is_named(tmp_path: Path) -> None:
    slices = saved("llama", tmp_path)(PARTS).slices
    assert isinstance(slices, FolderSlices)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ConfigError) as refused:
        slices.read("lm_head.weight", (0, 0), (2, 2))
    (found,) = refused.value.diagnostics
    assert found.code == "models.cannot_load" and "model.safetensors" in found.found
