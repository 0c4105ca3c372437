"""Tensors that are not trained are copied from the folder into an export bit for bit, or it is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.checkpoint.checkpointer import Checkpointer
from paceline.checkpoint.export.hf_export import export_hf
from paceline.checkpoint.export.untrained_tensors import carried_state
from paceline.core.errors import CheckpointError
from paceline.core.rundir import RunDir
from paceline.models.factory import HFModelFactory
from paceline.protocols.shard import Shard
from tests.unit.models.model_families import Source
from tests.unit.models.tiny_families import tiny_config


class _OneRank:
    rank, world_size = 0, 1

    def all_gather_json(self, obj: Any) -> list[Any]:
        return [json.loads(json.dumps(obj))]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """DeepSeek-V3 with a further prediction layer, which its class ignores, and a tensor nobody knows."""
    config = {**tiny_config("deepseek_v3"), "num_nextn_predict_layers": 1}
    hf = HFModelFactory(Source(config=config))().hf
    place = tmp_path / "base"
    hf.save_pretrained(place)
    tensors = load_file(place / "model.safetensors")
    tensors["model.layers.2.eh_proj.weight"] = torch.randn(8, 16).to(torch.float8_e4m3fn)
    tensors["model.layers.2.embed_tokens.weight"] = torch.randn(97, 8, dtype=torch.bfloat16)
    tensors["unheard_of.weight"] = torch.full((3,), float("nan"))
    save_file(tensors, place / "model.safetensors", metadata={"format": "pt"})
    written = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps({**written, "num_nextn_predict_layers": 1}))
    return place


Trained = Callable[[Path], Path]


@pytest.fixture
def trained(tmp_path: Path) -> Trained:
    def train(folder: Path) -> Path:
        """A checkpoint of the folder's model, each weight moved."""
        build = HFModelFactory(Source(name_or_path=str(folder)))
        module = build()
        tensors = [("param", n, p.detach() + 1) for n, p in module.plain_named_parameters()]
        tensors += [("buffer", n, b) for n, b in module.plain_named_buffers()]
        shards = [Shard("policy", n, kind, tuple(t.shape), (0,) * t.ndim, t) for kind, n, t in tensors]
        found = build.account()
        assert found is not None and "3 not trained, copied unchanged" in module.notes()["tensors"]
        state = {"carried": carried_state(folder, str(folder), None, found.carried)}
        files = {"config.json": json.dumps(build.saved_config).encode()}
        return Checkpointer(RunDir.at(tmp_path / "run"), _OneRank(), None).save(1, shards, state, files)

    return train


def test_an_export_copies_what_was_not_trained(folder: Path, trained: Trained, tmp_path: Path) -> None:
    report = export_hf(trained(folder), tmp_path / "out", "bfloat16")
    before, after = (load_file(place / "model.safetensors") for place in (folder, tmp_path / "out"))
    assert report.num_carried == 3 and report.load_checked and set(after) == set(before)
    same = [
        n
        for n, t in before.items()
        if t.dtype == after[n].dtype and torch.equal(t.view(torch.uint8), after[n].view(torch.uint8))
    ]
    assert {"unheard_of.weight", "model.layers.2.eh_proj.weight"} <= set(same)
    assert not any(n.startswith("model.layers.0") for n in same)
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["architectures"] == ["DeepseekV3ForCausalLM"] and config["num_nextn_predict_layers"] == 1


def test_another_base_is_refused(folder: Path, trained: Trained, tmp_path: Path) -> None:
    saved = trained(folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["unheard_of.weight"][0] = 1.0
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"export.carried[\s\S]*sha256"):
        export_hf(saved, tmp_path / "out")
    del tensors["unheard_of.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"export.carried[\s\S]*unheard_of"):
        export_hf(saved, tmp_path / "out")
    folder.rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=r"export.carried"):
        export_hf(saved, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_heads_of_the_former_vocabulary_are_named(folder: Path) -> None:
    module = HFModelFactory(Source(name_or_path=str(folder)), vocab_size=120)()
    told = module.notes()["tensors"]
    assert "1 of them keep 97 rows beside a vocabulary of 120 (model.layers.2.embed_tokens.weight)" in told
