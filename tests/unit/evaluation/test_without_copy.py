"""A checkpoint is evaluated and generated from without an exported copy, where its layout allows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support import write_tokenizer

from paceline.checkpoint.checkpointer import Checkpointer
from paceline.checkpoint.export.hf_export import export_hf
from paceline.checkpoint.export.main import choose
from paceline.core.errors import CheckpointError, ConfigError
from paceline.core.rundir import RunDir
from paceline.evaluation.model_folders import NamedModel
from paceline.evaluation.open_run import load_model, model_folder
from paceline.protocols.shard import Shard
from paceline.runlog.redact import printable


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
    monkeypatch.setattr("paceline.evaluation.open_run.is_adapter", lambda reader: True)
    named = NamedModel("step-3", checkpoint, RunDir.at(checkpoint.parents[1]), 3)
    with named.folder() as folder:
        assert [one.name for one in folder.glob("*.safetensors")] == ["model.safetensors"]


PROMPT = "What is 2 + 2?"


@pytest.fixture
def no_export(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process exports, and no file of weights is written."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError(f"a copy is made: {args}")

    monkeypatch.setattr("paceline.evaluation.open_run.export_copy", refuse)
    monkeypatch.setattr("safetensors.torch.save_file", refuse)


def expected_answer(checkpoint: Path, to: Path) -> str:
    from paceline.evaluation.prompts import prompts_of
    from paceline.generation.answer import Sampling, answer

    export_hf(checkpoint, to)
    model, tokenizer = load_model(to)
    prompts = prompts_of(tokenizer, [[{"role": "user", "content": PROMPT}]])
    (text,) = answer(model, tokenizer, prompts, Sampling(8))
    assert text
    return text


@pytest.mark.parametrize("of", ["run", "checkpoint"])
def test_chat_reads_the_checkpoint(
    checkpoint: Path,
    tmp_path: Path,
    of: str,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    from paceline.evaluation import chat

    expected = expected_answer(checkpoint, tmp_path / "exported")
    request.getfixturevalue("no_export")
    given = checkpoint if of == "checkpoint" else checkpoint.parents[1]
    assert chat.main([str(given), "--prompt", PROMPT, "--max-new-tokens", "8"]) == 0
    assert capsys.readouterr().out == f"{printable(expected, keep_newlines=True)}\n"


def test_generate_of_the_library_reads_the_checkpoint(
    checkpoint: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    from paceline.api.evaluating import generate

    expected = expected_answer(checkpoint, tmp_path / "exported")
    request.getfixturevalue("no_export")
    assert generate(checkpoint.parents[1], [PROMPT], max_new_tokens=8) == [expected]


def test_the_server_reads_the_checkpoint(checkpoint: Path, no_export: None) -> None:
    from paceline.evaluation.serve import load

    served = load(checkpoint.parents[1], "mine", "float32")
    assert served.model.config.hidden_size == 32


def test_what_cannot_be_read_without_a_copy_is_exported_for_chat(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from paceline.evaluation import chat, open_run

    made, export = [], open_run.export_copy
    monkeypatch.setattr("paceline.evaluation.open_run.is_adapter", lambda reader: True)
    monkeypatch.setattr(open_run, "export_copy", lambda *given: made.append(given) or export(*given))
    assert chat.main([str(checkpoint), "--prompt", PROMPT, "--max-new-tokens", "8"]) == 0
    assert len(made) == 1 and capsys.readouterr().out.strip()


def test_a_checkpoint_that_is_read_is_not_pruned(checkpoint: Path) -> None:
    from paceline.checkpoint.save.retention import is_being_read
    from paceline.evaluation.open_run import model_folder

    with model_folder(checkpoint.parents[1]) as folder:
        assert is_being_read(checkpoint) and not [*folder.glob("*.safetensors")]
    assert not is_being_read(checkpoint)


def test_a_model_of_scores_is_named_as_one(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForSequenceClassification

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=32, num_labels=1, **sizes)
    LlamaForSequenceClassification(config).save_pretrained(tmp_path / "judge")
    refused = pytest.raises(ConfigError, match="judge: this model scores or classifies")
    with refused, model_folder(tmp_path / "judge"):
        pass


def test_a_run_of_scores_is_named_as_one(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``evaluate`` and ``generate`` come by a run's checkpoints, not by ``model_folder``."""
    from paceline.evaluation.model_folders import NamedModel

    def classifier(_: Path, to: Path) -> bool:
        to.mkdir()
        (to / "config.json").write_text('{"architectures": ["LlamaForSequenceClassification"]}')
        return True

    monkeypatch.setattr("paceline.evaluation.model_folders.prepared_without_copy", classifier)
    named = NamedModel("one", checkpoint, RunDir.at(checkpoint.parents[1]), 1)
    with pytest.raises(ConfigError, match=f"{checkpoint}: this model scores or classifies"), named.folder():
        pass


def test_a_folder_that_is_not_there_is_named_and_no_key_of_a_config(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nosuch: there is no such folder") as caught:
        choose(tmp_path / "nosuch", "result", [])
    assert "resume_from_checkpoint" not in str(caught.value)
