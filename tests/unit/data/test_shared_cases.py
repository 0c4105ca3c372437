"""The inputs of ``../shared/cases/turn3`` have the values of its README, where they are here (its adapters:
``checkpoint/test_peft_adapters.py``; its stop tokens: ``integration/test_stop_tokens.py``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support import ROOT
from typer.testing import CliRunner

from paceline.cli.configs import config as config_commands
from paceline.config.load import load_config
from paceline.config.sections.data import DataSection
from paceline.core.errors import DataError
from paceline.data.chat_template.encode import Encoded, Encoder
from paceline.data.chat_template.template_texts import builtin_template
from paceline.data.preflight.check_sets import first_examples
from paceline.data.rows.examples import Reading
from paceline.data.rows.formats import Example
from paceline.data.rows.kinds.base import row_kind
from paceline.data.tokenizer.load import TokenizerSpec, open_tokenizer
from paceline.plan.algorithms.spec import algorithm_spec

CASES = Path(__file__).resolve().parents[4] / "shared" / "cases" / "turn3"
pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason="../shared is not here")


def examples_of(place: str, algorithm: str = "sft", **section: Any) -> list[Example]:
    """All rows of a case, read for ``algorithm``."""
    kind = row_kind(algorithm_spec(algorithm).rows)
    data = DataSection(train=({"path": str(CASES / place), **section},))
    found = first_examples(data, Reading("assistant", kind), "data.train")
    assert found.whole and found.everywhere
    return found.examples


def turns(example: Example) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in example.messages]


@pytest.mark.parametrize(
    ("place", "section", "count"),
    [
        ("folders/holdout", {}, 3),
        ("folders/holdout", {"split": "test"}, 1),
        ("folders/gsm8k", {"name": "main"}, 4),
        ("formats/a.jsonl.gz", {}, 3),
    ],
)
def test_folders_and_files(place: str, section: dict[str, Any], count: int) -> None:
    assert len(examples_of(place, **section)) == count


def test_a_folder_of_two_configurations_asks_which() -> None:
    with pytest.raises(DataError, match=r"data\.config_name"):
        examples_of("folders/gsm8k")


@pytest.mark.parametrize("algorithm", ["dpo", "reward"])
def test_texts_without_a_prompt_begin_alike(algorithm: str) -> None:
    answers = [example.text[example.begin :] for example in examples_of("formats/hh.jsonl", algorithm)]
    assert answers == [" Four.", " Fortytwo.", " Hello there", " Go away"]


def test_role_names_of_sharegpt() -> None:
    assert turns(examples_of("formats/hum.jsonl")[0]) == [("user", "q"), ("assistant", "a")]


def test_a_column_of_turns_that_holds_the_answer_is_no_prompt() -> None:
    for number, example in enumerate(examples_of("pairs/uf.jsonl", "dpo")):
        word = "bad" if number % 2 else "good"
        assert turns(example) == [
            ("user", f"Question {number // 2}?"),
            ("assistant", f"{word} {number // 2}"),
        ]
    folder = ROOT / "examples/tokenizer"
    chatml = open_tokenizer(TokenizerSpec(str(folder), chat_template=builtin_template("chatml")))
    (first, *_) = Encoder(chatml, "assistant").encode(examples_of("pairs/uf.jsonl", "dpo"))
    assert isinstance(first, Encoded) and len(first.input_ids) == 31
    assert [turns(e) for e in examples_of("pairs/kto.jsonl", "kto")] == [
        [("user", "q"), ("assistant", "g")],
        [("user", "q2"), ("assistant", "b")],
    ]


def test_the_first_question_as_prompt_changes_nothing() -> None:
    with_prompt, without = (examples_of(f"multi_turn/{name}.jsonl", "dpo") for name in "ab")
    assert with_prompt == without and {e.learn_from for e in without} == {3}


def test_a_text_that_begins_with_its_bos_has_one() -> None:
    """A tokenizer as SentencePiece's become: a blank before each text, a BOS before each row."""
    from tokenizers import Tokenizer, models, normalizers, processors
    from transformers import PreTrainedTokenizerFast

    letters = ["<unk>", "<s>", "</s>", "\u2581", *map(chr, range(33, 127))]
    backend = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, [], unk_token="<unk>"))
    blank = [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    backend.normalizer = normalizers.Sequence(blank)
    backend.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 1)])
    marks = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **marks)
    assert tokenizer("<s>plain").input_ids[:2] == [1, 1], "the tokenizer itself writes two"
    found = Encoder(tokenizer, "all").encode(examples_of("text_bos/bos.jsonl"))
    texts = ("[INST] hi [/INST] hello", "plain")
    assert [one.input_ids.tolist() for one in found if isinstance(one, Encoded)] == [
        [*tokenizer(text).input_ids, 2] for text in texts
    ]


@pytest.mark.parametrize("place", ["swift.sh", "swift_sft.yaml", "lf_sysmsg.yaml"])
def test_what_other_programs_train_is_imported(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(CASES / "imports")
    to = tmp_path / "ours.yaml"
    done = CliRunner().invoke(config_commands, ["import", place, "--to", str(to)])
    assert done.exit_code == 0, done.output
    config = load_config(str(to)).config
    of_swift = place.startswith("swift")
    assert config.training.algorithm == "sft"
    assert config.training.mixed_precision == ("bf16" if of_swift else "no")
    assert config.data.train_on == ("assistant" if of_swift else "auto")
    (data,) = config.data.train
    (example,) = examples_of(f"imports/{data.path}", columns=data.columns)
    if of_swift:
        assert turns(example) == [("user", "q"), ("assistant", "a")]
    else:
        assert turns(example) == [("system", "Be short."), ("user", "a"), ("assistant", "b")]
