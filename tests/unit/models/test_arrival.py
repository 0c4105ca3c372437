"""A checkpoint of 16 bits gives the model that it gives when it is read in fp32, to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from model_families import FAMILIES, Source
from support import swept
from torch import Tensor, nn

from paceline.models import compute_dtype
from paceline.models.factory import HFModelFactory
from paceline.models.loading import weights_source
from paceline.models.loading.materialize import kernels_of
from paceline.models.loading.weights_source import stored_dtype
from paceline.models.module_tensors import move_tensor_by_tensor, standing_in
from paceline.models.quantized_linear import scales_of
from paceline.models.role_module import RoleModule
from paceline.plan.plan import AdapterSpec, Quantization

LORA = AdapterSpec(4, 8.0, target_modules=("all-linear",))
SOME = AdapterSpec(4, 8.0, target_modules=("q_proj",), modules_to_save=("lm_head",))
QLORA = AdapterSpec(4, 8.0, target_modules=("q_proj",), quantization=Quantization(4))
LOW: dict[str, Any] = {"compute_dtype": torch.bfloat16}
EVERY = sorted(FAMILIES)


def saved(family: str, folder: Path, dtype: torch.dtype = torch.bfloat16) -> str:
    made = HFModelFactory(Source(config=FAMILIES[family]), seed=4)().hf
    for index, parameter in enumerate(made.parameters()):
        draw = torch.Generator().manual_seed(index)
        parameter.data = (parameter.data + 0.1 * torch.randn(parameter.shape, generator=draw)).to(dtype)
    made.config.dtype = dtype
    made.save_pretrained(folder)
    return str(folder)


def both(monkeypatch: pytest.MonkeyPatch, name: str, **options: Any) -> tuple[RoleModule, RoleModule]:
    """The model read in the dtype of its file, and in fp32."""
    monkeypatch.setattr(compute_dtype, "product_dtype", lambda dtype, device: dtype)
    source = Source(name_or_path=name)
    own = HFModelFactory(source, **options)
    narrow = own()
    with monkeypatch.context() as patch:
        patch.setattr(weights_source, "stored_dtype", lambda *_: torch.float32)
        other = HFModelFactory(source, **options)
        wide = other()
    assert own.fingerprint == other.fingerprint
    return narrow, wide


def tensors(root: nn.Module) -> dict[str, Tensor]:
    found = {**dict(root.named_parameters(remove_duplicate=False)), **dict(root.named_buffers())}
    found |= {f"scale {i}": scale for i, scale in enumerate(scales_of(root))}
    for name, module in root.named_modules():
        found |= {f"{name}.{k}": v for k, v in vars(module).items() if isinstance(v, Tensor)}
        copies = {k: getattr(p, "_paceline_copy", None) for k, p in module._parameters.items()}
        found |= {f"{name}.{k} copy": c for k, c in copies.items() if c is not None}
    return found


def same(one: RoleModule, two: RoleModule) -> None:
    a, b = tensors(one), tensors(two)
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype, name
        assert a[name].requires_grad == b[name].requires_grad, name
        assert torch.equal(a[name], b[name]), name
    assert kernels_of(one.hf) == kernels_of(two.hf)
    assert one.notes() == two.notes()
    assert one.hf.config.to_dict() == two.hf.config.to_dict()


@pytest.mark.parametrize("family", swept(EVERY, 3))
def test_every_family_is_the_same_read_in_its_own_dtype(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = saved(family, tmp_path)
    assert stored_dtype(name, None) == torch.bfloat16
    for options in ({}, LOW, {**LOW, "frozen": True}):
        same(*both(monkeypatch, name, **options))


@pytest.mark.parametrize("spec", [LORA, SOME, QLORA], ids=["all-linear", "one and the head", "4 bits"])
@pytest.mark.parametrize("compute", swept([torch.bfloat16, torch.float32], 2))
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_adapters_are_drawn_in_fp32_over_a_base_of_16_bits(
    family: str, compute: torch.dtype, spec: AdapterSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow, wide = both(monkeypatch, saved(family, tmp_path), adapter=spec, compute_dtype=compute)
    same(narrow, wide)
    assert all(p.dtype == torch.float32 for p in narrow.parameters() if p.requires_grad)


def test_new_rows_are_means_in_fp32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = saved("llama", tmp_path)
    same(*both(monkeypatch, name, vocab_size=FAMILIES["llama"]["vocab_size"] + 3))


def test_mixed_dtypes_and_missing_tensors_are_read_in_fp32(tmp_path: Path) -> None:
    name = saved("llama", tmp_path)
    assert stored_dtype(name, None, frozenset({"score.weight"})) == torch.float32
    from safetensors.torch import load_file, save_file

    file = tmp_path / "model.safetensors"
    stored = load_file(file)
    key = next(iter(stored))
    save_file({**stored, key: stored[key].float()}, file, {"format": "pt"})
    assert stored_dtype(name, None) == torch.float32


def test_ties_hold_and_packed_layers_are_left() -> None:
    root = nn.ModuleDict({"a": nn.Linear(2, 2, bias=False), "b": nn.Linear(2, 2, bias=False)})
    root["b"].weight = root["a"].weight
    packed = nn.Linear(2, 2)
    packed.quant_state = object()
    root["packed"] = packed
    weight = root["a"].weight
    move_tensor_by_tensor(
        root, torch.device("cpu"), torch.float64, frozenset({id(packed.weight)}), torch.bfloat16
    )
    assert root["a"].weight is root["b"].weight is weight and weight.dtype == torch.float64
    assert packed.weight.dtype == torch.float32
    with standing_in(root, torch.bfloat16):
        assert weight.dtype == torch.bfloat16
    assert weight.dtype == torch.float64


def test_trained_weights_leave_the_memory_of_their_file(tmp_path: Path) -> None:
    """Products differ with alignment: a run that read its folder would differ from one resumed from its
    checkpoint. What is frozen may stay in the file, which every rank shares.
    """
    source = Source(name_or_path=saved("llama", tmp_path, torch.float32))
    trained, frozen = HFModelFactory(source)().hf, HFModelFactory(source, frozen=True)().hf
    assert any(p.data_ptr() % 64 for p in frozen.parameters()), "the file happens to be aligned"
    assert not [name for name, p in trained.named_parameters() if p.data_ptr() % 64]
    for one, other in zip(trained.parameters(), frozen.parameters(), strict=True):
        assert torch.equal(one, other)
