"""What the demo lays down: a tokenizer that transformers loads, data in the messages format, a YAML that
the config room takes.
"""

from __future__ import annotations

import json
from pathlib import Path

from paceline.config.load import load_config
from paceline.demo.files import EOS, MAX_LENGTH, make_material, vocabulary, write_tokenizer
from paceline.demo.questions import training


def test_every_question_survives_the_tokenizer(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    write_tokenizer(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(str(tmp_path))
    assert len(tokenizer) == len(vocabulary()) == len(set(vocabulary()))
    for q in training(0, 300, set()):
        for text in (q.prompt, q.answer):
            ids = tokenizer(text)["input_ids"]
            assert tokenizer.unk_token_id not in ids
            assert tokenizer.decode(ids) == text
        assert len(tokenizer(q.answer)["input_ids"]) == len(q.answer), "an answer is spelt letter by letter"


def test_only_the_answer_is_marked_to_be_learnt(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    write_tokenizer(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(str(tmp_path))
    messages = [
        {"role": "user", "content": "Spell 'cat' backwards."},
        {"role": "assistant", "content": "tac"},
    ]
    made = tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
    learnt = [i for i, m in zip(made["input_ids"], made["assistant_masks"], strict=True) if m]
    assert tokenizer.convert_ids_to_tokens(learnt) == ["t", "a", "c", EOS]
    asked = tokenizer.apply_chat_template(messages[:1], add_generation_prompt=True, return_dict=True)[
        "input_ids"
    ]
    assert made["input_ids"][: len(asked)] == asked


def test_the_yaml_is_a_config_that_reaches_its_files(tmp_path: Path) -> None:
    run = tmp_path / "a run: with 'odd' characters"
    material = make_material(run, seed=11, steps=30, num_train=50, num_held_out=12)
    config = load_config(str(material.yaml)).config
    assert config.training.seed == 11
    assert config.training.max_steps == 30
    assert config.training.output_dir == str(run)
    assert config.data.max_length == MAX_LENGTH
    assert config.model.config["vocab_size"] == len(vocabulary())
    assert [
        json.loads(line)["messages"][0]["content"] for line in material.held_out.read_text().splitlines()
    ] == [q.prompt for q in material.questions]
    assert Path(config.data.train[0].path) == material.train
