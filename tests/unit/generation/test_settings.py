"""``paceline chat`` writes answers as the run's ``generation:`` section says, and its own options win."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.config.schema import Config
from paceline.config.sections.rollout import GenerationSection
from paceline.core.errors import ConfigError
from paceline.demo.files import vocabulary, write_tokenizer
from paceline.evaluation import chat
from paceline.generation.answer import Sampling
from paceline.generation.settings import sampling_of

NOTES_BY_KEY = {"max_new_tokens": 3, "temperature": 0.7, "top_p": 0.9, "top_k": 5}
NOTHING = dict.fromkeys(NOTES_BY_KEY)


def run_folder(folder: Path, generation: dict[str, Any]) -> Path:
    """What ``paceline chat`` finds of a run: its config and plan, and a checkpoint's folder."""
    (folder / "checkpoints" / "step-00000004").mkdir(parents=True)
    (folder / "plan.json").write_text("{}")
    data = Config().to_json() | {"generation": generation}
    (folder / "config.json").write_text(json.dumps(data))
    return folder


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("model")
    write_tokenizer(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(vocabulary()), **sizes)).save_pretrained(folder)
    return folder


def generate_calls(
    run: Path, model_folder: Path, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> list[dict[str, Any]]:
    """The keyword arguments of ``model.generate`` when one prompt is answered."""
    from transformers import LlamaForCausalLM

    calls: list[dict[str, Any]] = []
    generate = LlamaForCausalLM.generate

    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(kwargs)
        return generate(self, *args, **kwargs)

    @contextmanager
    def opened(path: Path) -> Iterator[Path]:
        assert path == run
        yield model_folder

    monkeypatch.setattr(LlamaForCausalLM, "generate", recorded)
    monkeypatch.setattr(chat, "model_folder", opened)
    assert chat.main([str(run), "--prompt", "Spell 'cat' backwards.", *options]) == 0
    return calls


def test_the_model_generates_as_the_run_says(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [call] = generate_calls(run_folder(tmp_path / "run", NOTES_BY_KEY), model_folder, [], monkeypatch)
    assert call["do_sample"] and {name: call[name] for name in NOTES_BY_KEY} == NOTES_BY_KEY


def test_an_option_wins_over_the_run(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--temperature", "0", "--max-new-tokens", "2"]
    [call] = generate_calls(run_folder(tmp_path / "run", NOTES_BY_KEY), model_folder, options, monkeypatch)
    assert not call["do_sample"] and call["max_new_tokens"] == 2


@pytest.mark.parametrize("name", list(GenerationSection.model_fields))
def test_every_key_of_the_section_and_every_option_act(tmp_path: Path, name: str) -> None:
    plain = run_folder(tmp_path / "plain", {})
    changed = run_folder(tmp_path / "changed", {name: NOTES_BY_KEY[name]})
    assert sampling_of(plain, NOTHING) == Sampling()
    assert getattr(sampling_of(changed, NOTHING), name) == NOTES_BY_KEY[name] != getattr(Sampling(), name)
    assert getattr(sampling_of(plain, {**NOTHING, name: NOTES_BY_KEY[name]}), name) == NOTES_BY_KEY[name]
    assert name in chat.SAMPLING


@pytest.mark.parametrize("inside", ["", "checkpoints/step-00000004", "checkpoints"])
def test_a_checkpoint_is_of_its_run(tmp_path: Path, inside: str) -> None:
    run = run_folder(tmp_path / "run", NOTES_BY_KEY)
    assert sampling_of(run / inside, NOTHING) == Sampling(3, 0.7, 0.9, 5)


def test_a_hugging_face_folder_has_the_defaults(model_folder: Path) -> None:
    assert sampling_of(model_folder, NOTHING) == Sampling()


@pytest.mark.parametrize(
    ("given", "generation", "where"),
    [
        ({"top_k": -1}, {}, "--top-k"),
        ({"temperature": -0.5}, {}, "--temperature"),
        ({}, {"top_p": 2.0}, "config.json"),
    ],
)
def test_what_does_not_fit_is_named_with_its_place(
    tmp_path: Path, given: dict[str, float], generation: dict[str, Any], where: str
) -> None:
    with pytest.raises(ConfigError, match="generation.options") as refused:
        sampling_of(run_folder(tmp_path / "run", generation), {**NOTHING, **given})
    assert where in refused.value.diagnostics[0].where


def test_a_damaged_config_is_named(tmp_path: Path) -> None:
    run = run_folder(tmp_path / "run", {})
    (run / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="generation.run_config"):
        sampling_of(run, NOTHING)
