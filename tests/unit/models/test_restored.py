"""A model that a checkpoint brings is the one that was read: its kernels, buffers and settings, with NaN
until the checkpoint is imported. Of its own weight files the headers alone are read.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from model_families import FAMILIES, Source, build_family, make_batch
from whole_models import whole_config

from paceline.core.errors import ConfigError
from paceline.models.factory import HFModelFactory
from paceline.models.loading.materialize import choices_of
from paceline.models.loading.multimodal import class_of_whole
from paceline.models.loading.weights_source import FROM_CHECKPOINT
from paceline.models.module_tensors import tensors_of
from paceline.models.parallel.pipeline_stages import split
from paceline.models.role_module import RoleModule
from paceline.protocols.model import WHOLE, BuildOptions
from paceline.protocols.roles import Output, Role

PARTS = BuildOptions(device=torch.device("cpu"), by_slices=True)
MIXTRAL = {**FAMILIES["llama"], "model_type": "mixtral", "num_local_experts": 2}


def names_of(module: RoleModule) -> frozenset[str]:
    return frozenset(name for name, _ in module.plain_named_parameters())


@pytest.fixture
def brought(monkeypatch: pytest.MonkeyPatch) -> Callable[..., RoleModule]:
    """Build a model that a checkpoint brings; nothing may open a file by the library that reads tensors."""

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("the model's files were opened")

    def build(source: Source, options: BuildOptions = WHOLE, **more: Any) -> RoleModule:
        with monkeypatch.context() as shut:
            shut.setattr("safetensors.safe_open", refused)
            shut.setattr("transformers.modeling_utils.safe_open", refused)
            return HFModelFactory(source, **more)(options)

    return build


def check_same(whole: RoleModule, made: RoleModule) -> None:
    """Compare what is known before the import and then, with the weights copied in, two forwards."""
    assert made.notes()["start"] == FROM_CHECKPOINT
    assert json.dumps(choices_of(made), sort_keys=True) == json.dumps(choices_of(whole), sort_keys=True)
    ours, theirs = (m.hf.config.to_dict() | {"_name_or_path": ""} for m in (made, whole))
    assert ours == theirs
    assert not made.hf.training
    mine, real = dict(tensors_of(made)), dict(tensors_of(whole))
    parameters = dict(made.named_parameters())
    assert list(mine) == list(real)
    for name, tensor in real.items():
        assert (mine[name].dtype, mine[name].shape) == (tensor.dtype, tensor.shape), name
        if name in parameters:
            assert bool(mine[name].isnan().all()), name
            assert parameters[name].requires_grad
            parameters[name].data.copy_(tensor)
        else:
            assert torch.equal(mine[name], tensor), name
    made.refresh_compute_weights()
    wanted = frozenset({Output.SCORES if whole.role is Role.REWARD else Output.LOGPROBS})
    with torch.no_grad():
        (a,), (b,) = (m.eval()(make_batch(), wanted).values() for m in (whole, made))
    assert torch.equal(a, b) and bool(a.isfinite().all())


@pytest.mark.parametrize("family", ("llama_tied", "gemma2", "gpt2", "gpt_oss", "cohere"))
def test_families(family: str, tmp_path: Path, brought: Callable[..., RoleModule]) -> None:
    hf = build_family(family).hf
    hf.generation_config.max_new_tokens = 7
    hf.save_pretrained(tmp_path)
    source = Source(name_or_path=str(tmp_path))
    whole = HFModelFactory(source)()
    check_same(whole, brought(source, restored=names_of(whole)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_other_dtypes(dtype: torch.dtype, tmp_path: Path, brought: Callable[..., RoleModule]) -> None:
    """Copies in bf16 of fp32 masters; fp64 masters."""
    build_family("qwen3").hf.save_pretrained(tmp_path)
    source, how = Source(name_or_path=str(tmp_path)), {"compute_dtype": dtype}
    if dtype == torch.float64:
        how["master_dtype"] = dtype
    whole = HFModelFactory(source, **how)()  # type: ignore[arg-type]
    check_same(whole, brought(source, restored=names_of(whole), **how))


def test_what_is_made_on_the_way_is_not_made(tmp_path: Path, brought: Callable[..., RoleModule]) -> None:
    """Merged experts, a resized vocabulary, a head of scores, a tower beside, no folder at all."""
    HFModelFactory(Source(config=MIXTRAL))().hf.save_pretrained(tmp_path / "mixture")
    build_family("llama").hf.save_pretrained(tmp_path / "llama")
    config = whole_config("gemma3")
    class_of_whole(config)(config).save_pretrained(tmp_path / "tower")
    for source, more in (
        (Source(name_or_path=str(tmp_path / "mixture")), {}),
        (Source(name_or_path=str(tmp_path / "llama")), {"vocab_size": 120}),
        (Source(name_or_path=str(tmp_path / "llama")), {"role": Role.REWARD}),
        (Source(name_or_path=str(tmp_path / "tower")), {}),
        (Source(config=FAMILIES["gemma2"]), {}),
    ):
        whole = HFModelFactory(source, **more)()  # type: ignore[arg-type]
        made = brought(source, restored=names_of(whole), **more)
        whole.hf.eval(), made.hf.eval()
        check_same(whole, made)


def test_stages_are_not_compared_by_values_that_are_not_there(brought: Callable[..., RoleModule]) -> None:
    source = Source(config=FAMILIES["llama"])
    names = names_of(HFModelFactory(source)())
    made = brought(source, BuildOptions(device=torch.device("cpu")), restored=names)
    assert len(split(made, 2, range(2))) == 2
    made.unread = False  # NaN is compared, and is like nothing
    with pytest.raises(ConfigError):
        split(made, 2, range(2))


def test_each_ranks_part_is_left_to_the_checkpoint(
    tmp_path: Path, brought: Callable[..., RoleModule]
) -> None:
    build_family("llama").hf.save_pretrained(tmp_path)
    source = Source(name_or_path=str(tmp_path))
    whole = HFModelFactory(source)()
    for options in (PARTS, BuildOptions(device=torch.device("meta"))):
        made = brought(source, options, restored=names_of(whole))
        assert made.slices is not None and all(p.is_meta for p in made.parameters())
        assert made.notes()["start"] == FROM_CHECKPOINT
        block = made.slices.read("lm_head.weight", (3, 0), (2, 4))
        assert block.shape == (2, 4) and bool(block.isnan().all())
    assert choices_of(brought(source, PARTS, restored=names_of(whole))) == choices_of(whole)


def test_a_checkpoint_that_lacks_a_parameter_brings_none(tmp_path: Path) -> None:
    """Nor do adapters alone: what is under them is read."""
    build_family("llama").hf.save_pretrained(tmp_path)
    source = Source(name_or_path=str(tmp_path))
    whole = HFModelFactory(source)()
    module = HFModelFactory(source, restored=names_of(whole) - {"lm_head.weight"})()
    assert "start" not in module.notes()
    assert torch.equal(module.hf.lm_head.weight, whole.hf.lm_head.weight)
