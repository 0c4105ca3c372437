"""Batched greedy answers and the conversation, on a model of random weights."""

from __future__ import annotations

import io
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.core.errors import ConfigError
from paceline.core.security import resource_limits
from paceline.demo.files import vocabulary, write_tokenizer
from paceline.evaluation import chat
from paceline.evaluation.prompts import prompts_of
from paceline.generation.answer import Sampling, answer, answer_streamed, load_folder

PROMPTS = [
    "Spell 'cat' backwards.",
    "Write 'lemon' in capital letters.",
    "a",
    "Which letters follow those of 'zebra'?",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder with a tiny random Llama."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("model")
    write_tokenizer(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary()),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def loaded(folder: Path) -> tuple[Any, Any]:
    return load_folder(folder)


def conversations(prompts: list[str]) -> list[list[dict[str, str]]]:
    return [[{"role": "user", "content": p}] for p in prompts]


def by_hand(model: Any, tokenizer: Any, prompt: str, count: int) -> str:
    """Greedy, one token at a time, no cache, no padding."""
    (ids,) = prompts_of(tokenizer, conversations([prompt]))
    made: list[int] = []
    with torch.no_grad():
        for _ in range(count):
            token = int(model(torch.tensor([ids + made])).logits[0, -1].argmax())
            if token == tokenizer.eos_token_id:
                break
            made.append(token)
    return str(tokenizer.decode(made, skip_special_tokens=True))


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_answers_are_greedy_and_do_not_depend_on_the_batch(loaded: tuple[Any, Any], batch_size: int) -> None:
    model, tokenizer = loaded
    expected = [by_hand(model, tokenizer, p, 8) for p in PROMPTS]
    assert len(set(expected)) > 1
    prompts = prompts_of(tokenizer, conversations(PROMPTS))
    assert answer(model, tokenizer, prompts, Sampling(8), batch_size=batch_size) == expected


def test_an_answer_is_given_part_by_part_while_it_is_generated(loaded: tuple[Any, Any]) -> None:
    model, tokenizer = loaded
    forwards, parts = [0], list[tuple[int, str]]()
    hook = model.register_forward_pre_hook(lambda *_: forwards.__setitem__(0, forwards[0] + 1))
    try:
        for prompt in PROMPTS:
            parts.clear()
            (ids,) = prompts_of(tokenizer, conversations([prompt]))
            whole = answer_streamed(
                model, tokenizer, ids, Sampling(24), lambda text: parts.append((forwards[0], text))
            )
            assert whole == "".join(text for _, text in parts) == by_hand(model, tokenizer, prompt, 24)
    finally:
        hook.remove()
    assert len({at for at, _ in parts}) > 1  # not all at the end


def test_a_tokenizer_without_a_template_is_refused_by_name(loaded: tuple[Any, Any]) -> None:
    _, tokenizer = loaded
    template, tokenizer.chat_template = tokenizer.chat_template, None
    try:
        with pytest.raises(ConfigError, match="generation.no_chat_template"):
            prompts_of(tokenizer, conversations(["hi"]))
    finally:
        tokenizer.chat_template = template


def test_a_prompt_beyond_the_positions_is_refused(loaded: tuple[Any, Any]) -> None:
    prompts = prompts_of(loaded[1], conversations(["a" * 100]))
    with pytest.raises(ConfigError, match="generation.too_long"):
        answer(*loaded, prompts, Sampling(2))


def test_no_prompts_no_answers(loaded: tuple[Any, Any]) -> None:
    assert answer(*loaded, [], Sampling(2)) == []


def test_a_pipe_gets_one_answer_a_line_and_errors_do_not_end_the_talk(
    loaded: tuple[Any, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    model, tokenizer = loaded
    lines = f"{PROMPTS[0]}\n\n{'a' * 100}\n{PROMPTS[1]}\n/quit\nnever\n"

    def answered(prompt: list[int], write: Any) -> str:
        return answer_streamed(model, tokenizer, prompt, Sampling(4), write)

    render = lambda messages: prompts_of(tokenizer, [messages])[0]  # noqa: E731
    chat.converse(render, [], answered, io.StringIO(lines), remember=True)
    said = capsys.readouterr()
    assert said.out.splitlines() == [by_hand(model, tokenizer, p, 4) for p in PROMPTS[:2]]
    assert "generation.too_long" in said.err


def test_chat_answers_one_prompt(
    folder: Path, loaded: tuple[Any, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert chat.main([str(folder), "--prompt", PROMPTS[0], "--max-new-tokens", "4"]) == 0
    assert capsys.readouterr().out.rstrip("\n") == by_hand(*loaded, PROMPTS[0], 4)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["/nowhere/at/all"], "generation.no_run"), ([".", "--max-new-tokens", "0"], "generation.options")],
)
def test_chat_refuses_by_name(arguments: list[str], code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert chat.main([*arguments, "--prompt", "x"]) == 2
    assert code in capsys.readouterr().err


LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "code"),
    [
        (LOOP, "generation.template_costly"),
        ("{{ 'a' * 4000000000 }}", "generation.template_costly"),
        ("{{ raise_exception('roles must alternate') }}", "generation.template_refused"),
    ],
)
def test_a_template_is_bounded_as_in_preparation(
    template: str, code: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource_limits, "CPU_SECONDS", 0.2)
    monkeypatch.setattr(resource_limits, "MEMORY_BYTES", 96 << 20)
    _, tokenizer = load_folder(folder)
    tokenizer.chat_template = template
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with pytest.raises(ConfigError, match=code.replace(".", r"\.")):
        prompts_of(tokenizer, conversations(["a"]))
    assert resource.getrlimit(resource.RLIMIT_AS) == limits


def test_a_message_that_is_no_text_is_not_the_templates_fault(loaded: tuple[Any, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        prompts_of(loaded[1], conversations(["half \ud83d"]))
    [found] = caught.value.diagnostics
    assert found.where == "messages" and "UTF-8" in found.hint


def test_an_adapter_s_folder_is_named_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    assert chat.main([str(tmp_path), "--prompt", "x"]) == 2
    said = capsys.readouterr().err
    assert "contains an adapter" in said and "--merge" in said and "resume" not in said


def test_a_folder_that_lacks_weights_is_refused(folder: Path, tmp_path: Path) -> None:
    """Transformers would draw them at random, with a warning."""
    shutil.copytree(folder, tmp_path / "model")
    weights = load_file(tmp_path / "model/model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, tmp_path / "model/model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigError, match=r"lack 1 weights of LlamaForCausalLM: model\.layers\.1\.mlp\.up"):
        load_folder(tmp_path / "model")


def test_a_prompt_has_the_tokens_that_the_tokenizer_itself_gives(loaded: tuple[Any, Any]) -> None:
    _, tokenizer = loaded
    for conversation in conversations(PROMPTS):
        direct = tokenizer.apply_chat_template(conversation, add_generation_prompt=True, return_dict=True)[
            "input_ids"
        ]
        assert prompts_of(tokenizer, [conversation]) == [list(direct)]
