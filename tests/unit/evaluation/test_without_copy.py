"""A checkpoint is evaluated and generated from without an exported copy, where its layout allows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support import write_tokenizer

from paceline.checkpoint.export import export_hf
from paceline.checkpoint.store import Checkpointer
from paceline.core.rundir import RunDir
from paceline.evaluation.models import NamedModel
from paceline.evaluation.straight import load_model
from paceline.protocols.shard import Shard


class Alone:
    """A world of one."""

    rank, world_size = 0, 1

    def all_gather_json(self, obj: Any) -> list[Any]:
        return [obj]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    files = write_tokenizer(tmp_path / "tokenizer")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    hf = LlamaForCausalLM(
        LlamaConfig(vocab_size=320, initializer_range=0.3, tie_word_embeddings=True, **sizes)
    )
    hf.config.save_pretrained(files)
    shards = [
        Shard("policy", name, "param", tuple(p.shape), (0,) * p.dim(), p.detach())
        for name, p in hf.named_parameters()
    ]
    side = {one.name: one.read_bytes() for one in files.iterdir()}
    return Checkpointer(RunDir.at(tmp_path / "run"), Alone(), None).save(3, shards, {}, side)


def test_the_model_is_that_of_an_export_to_the_bit(checkpoint: Path, tmp_path: Path) -> None:
    named = NamedModel("step-3", checkpoint, RunDir.at(checkpoint.parents[1]), 3)
    with named.folder() as folder:
        assert not [*folder.glob("*.safetensors")]
        found, tokenizer = load_model(folder)
    export_hf(checkpoint, tmp_path / "exported")
    expected, other = load_model(tmp_path / "exported")
    ids = torch.arange(1, 40)[None]
    with torch.no_grad():
        assert torch.equal(found(input_ids=ids).logits, expected(input_ids=ids).logits)
    assert found(input_ids=ids).logits.std() > 0.1 and not found.training
    assert tokenizer.get_vocab() == other.get_vocab()
    assert found.generation_config.to_dict() == expected.generation_config.to_dict()


def test_what_needs_an_export_is_left_to_it(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.evaluation.straight.is_adapter", lambda reader: True)
    named = NamedModel("step-3", checkpoint, RunDir.at(checkpoint.parents[1]), 3)
    with named.folder() as folder:
        assert [one.name for one in folder.glob("*.safetensors")] == ["model.safetensors"]
