"""Every tensor of a folder is accounted for: take any one away, or add one, and it is said or refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from model_families import Source
from safetensors.torch import load_file, save_file
from tiny_families import tiny_config
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from paceline.core.errors import ConfigError
from paceline.models.factory import HFModelFactory
from paceline.models.loading.loading_report import account
from paceline.protocols.roles import Role

#: dense, tied, Conv1D, experts stored one by one, experts stored together, renamed, with buffers
FEW = ("llama", "gemma2", "gpt2", "mixtral", "qwen3_moe", "gpt_oss", "granitemoe", "opt", "deepseek_v3")


def _released(kind: str) -> tuple[PreTrainedModel, list[str]]:
    """A model on meta, and the names that ``save_pretrained`` writes for it."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**tiny_config(kind)))
    written = revert_weight_conversion(model, dict(model.state_dict()))
    return model, sorted(set(written) - set(model.all_tied_weights_keys or {}))


@pytest.mark.parametrize("kind", FEW)
def test_any_one_tensor_taken_away_is_missed_by_name(kind: str) -> None:
    model, names = _released(kind)
    whole = account(model, names)
    assert not whole.missing and not whole.refused and not whole.carried
    assert sum(map(len, whole.used.values())) == len(names)
    silent = [name for name in names if not account(model, [n for n in names if n != name]).missing]
    assert not silent


@pytest.mark.parametrize("kind", ["llama", "gpt2", "qwen3_moe"])
def test_any_tensor_added_is_carried_or_refused(kind: str) -> None:
    model, names = _released(kind)
    layer = next(n for n in names if ".0." in n).split(".0.")[0]
    layer = layer if kind != "gpt2" else "transformer.h"
    beside = (f"{layer}.99.proj.weight", "mtp.fc.weight", "unheard_of")
    within = (f"{layer}.0.q_norm.weight", "lm_head.bias")
    found = account(model, [*names, *beside, *within])
    assert set(found.carried) == set(beside) and set(found.refused) == set(within)


def _saved(kind: str, place: Path) -> dict[str, torch.Tensor]:
    HFModelFactory(Source(config=tiny_config(kind)))().hf.save_pretrained(place)
    return load_file(place / "model.safetensors")


def _loaded(tensors: dict[str, torch.Tensor], place: Path, role: Role = Role.POLICY) -> str:
    return _notes(tensors, place, role)["tensors"]


def _notes(tensors: dict[str, torch.Tensor], place: Path, role: Role = Role.POLICY) -> Mapping[str, str]:
    save_file(tensors, place / "model.safetensors", metadata={"format": "pt"})
    return HFModelFactory(Source(name_or_path=str(place)), role)().notes()


def test_a_missing_expert_is_named_before_it_is_loaded(tmp_path: Path) -> None:
    tensors = _saved("qwen3_moe", tmp_path)
    assert "merged" in _loaded(tensors, tmp_path)
    del tensors["model.layers.1.mlp.experts.3.up_proj.weight"]
    with pytest.raises(ConfigError, match=r"models.missing_weights[\s\S]*layers.1.mlp.experts.3.up_proj"):
        _loaded(tensors, tmp_path)


def test_a_norm_of_another_class_is_refused(tmp_path: Path) -> None:
    tensors = _saved("llama", tmp_path)
    tensors["model.layers.0.self_attn.q_norm.weight"] = torch.ones(8)
    with pytest.raises(ConfigError, match=r"models.lost_weights[\s\S]*layers.0.self_attn.q_norm"):
        _loaded(tensors, tmp_path)


def test_a_second_name_of_a_tied_weight_must_be_the_same(tmp_path: Path) -> None:
    tensors = _saved("gemma2", tmp_path)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    assert "1 tied" in _loaded(tensors, tmp_path)
    tensors["lm_head.weight"] += 1
    with pytest.raises(ConfigError, match=r"models.untied[\s\S]*lm_head.weight"):
        _loaded(tensors, tmp_path)


def test_a_score_head_leaves_out_and_says_so(tmp_path: Path) -> None:
    assert "left out" in _loaded(_saved("llama", tmp_path), tmp_path, Role.REWARD)


def test_keys_of_a_config_are_counted_and_named(tmp_path: Path) -> None:
    tensors = _saved("llama", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    given = sorted(set(config) & {"rms_norm_eps", "attention_bias", "mlp_bias", "hidden_act"})
    assert len(given) == 4
    for key in given:
        (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != key}))
        assert key in _notes(tensors, tmp_path)["config"]
    (tmp_path / "config.json").write_text(json.dumps({**config, "never_heard_of": 1}))
    assert "1 that nothing in its code reads: never_heard_of" in _notes(tensors, tmp_path)["config"]
