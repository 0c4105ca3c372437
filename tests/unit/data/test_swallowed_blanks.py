"""Where special tokens swallow the white space of an answer, the labels begin where TRL's do.

Asked is TRL's own preparation of prompt/completion rows, over tokenizers whose added tokens have ``lstrip``
or ``rstrip`` (as Phi-3's) and answers that begin and end with blanks. Its first tokens with loss stand in
``trl_swallowed.json``. With ``pip install --target trl --no-deps trl==1.16.0; PYTHONPATH=trl pytest -m slow``
TRL itself is asked; ``PYTHONPATH=trl python THIS_FILE`` writes its answers anew.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from paceline.data.chat_template.encode import Encoded, Encoder
from paceline.data.rows.formats import Example

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

RECORDED = Path(__file__).with_name("trl_swallowed.json")
ROLES, END = ("<|user|>", "<|assistant|>"), "<|end|>"
BLANKS = ("", " ", "\n", "\n \t\n  ")
FLAGS = [{"lstrip": left, "rstrip": right} for left, right in product((False, True), repeat=2)]
_TURN = "{{ '<|' + m['role'] + '|>' + gap + m['content'] + '<|end|>' + gap }}"
_BLOCK = (
    "{{ '<|assistant|>' + gap }}{% generation %}{{ m['content'] }}{% endgeneration %}{{ '<|end|>' + gap }}"
)
_OPENED = "{% if add_generation_prompt %}{{ '<|assistant|>' + gap }}{% endif %}"
_BRANCH = "{% if m['role'] == 'assistant' %}" + _BLOCK + "{% else %}" + _TURN + "{% endif %}"
TEMPLATES = [
    "{% set gap = '" + gap + "' %}{% for m in messages %}" + turn + "{% endfor %}" + _OPENED
    for gap, turn in product(("", r"\n", " "), (_TURN, _BRANCH))
]
ROWS: list[dict[str, Any]] = [
    {"prompt": [{"role": "user", "content": f"{a}q{b}"}], "completion": [{"role": "assistant", "content": c}]}
    for a, b in (("", ""), (" ", "\n"))
    for c in (f"{before}one two{after}" for before, after in product(BLANKS, repeat=2))
]


def tokenizers() -> Iterator[PreTrainedTokenizerFast]:
    """Tokenizers of bytes, one for each way in which roles and ends swallow, and template."""
    from data_fixtures import make_tokenizer
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast

    with tempfile.TemporaryDirectory() as folder:
        path = make_tokenizer(Path(folder))
        for header, end, special, template in product(FLAGS, FLAGS, (True, False), TEMPLATES):
            made = PreTrainedTokenizerFast.from_pretrained(str(path))
            added = [AddedToken(t, special=special, normalized=False, **header) for t in ROLES]
            made.add_tokens([*added, AddedToken(END, special=True, normalized=False, **end)])
            made.chat_template = template
            yield made


def begun_by_trl(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """How many tokens TRL leaves without loss before the answer of each row."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    class Preparation(SFTTrainer):  # type: ignore[misc]
        def __init__(self) -> None:  # without a model
            self._tokenizer, self.chat_template, self.completion_only_loss = tokenizer, None, True

        def labels(self, rows: Dataset, args: SFTConfig) -> list[list[int]]:
            return list(self._prepare_dataset(rows, tokenizer, args, False, None, "rows")["labels"])

    with tempfile.TemporaryDirectory() as folder:
        args = SFTConfig(output_dir=folder, use_cpu=True, report_to=[], bf16=False, max_length=None)
    made = Preparation().labels(Dataset.from_list(ROWS), args)
    return [next(n for n, label in enumerate(labels) if label != -100) for labels in made]


def differences(tokenizer: PreTrainedTokenizerFast, begun: list[int]) -> Iterator[str]:
    end = tokenizer.convert_tokens_to_ids(END)
    examples = [Example(messages=(*r["prompt"], *r["completion"]), learn_from=1) for r in ROWS]
    for example, encoded, start in zip(
        examples, Encoder(tokenizer, "assistant").encode(examples), begun, strict=True
    ):
        assert isinstance(encoded, Encoded)
        ids, labelled = encoded.input_ids.tolist(), encoded.labelled.tolist()
        stop = ids.index(end, start) + 1  # the end of the turn is learnt, what stands behind it is not
        if labelled != [start <= at < stop for at in range(len(ids))]:
            yield f"{tokenizer.chat_template}\n{example.messages}: {labelled} but {start} to {stop}"


def test_answers_begin_where_trl_began_them_and_learn_their_end() -> None:
    recorded = json.loads(RECORDED.read_text())
    wrong = [w for t, begun in zip(tokenizers(), recorded, strict=True) for w in differences(t, begun)]
    assert not wrong, f"{len(wrong)} rows: " + "\n".join(wrong[:4])


def test_the_next_turns_role_has_no_loss_where_it_swallows_the_end_of_an_answer() -> None:
    turns = [("user", "q"), ("assistant", "one \n"), ("user", "r"), ("assistant", "two")]
    example = Example(messages=tuple({"role": role, "content": text} for role, text in turns))
    for tokenizer in itertools.islice(tokenizers(), None, None, 7):
        role = tokenizer.added_tokens_decoder[tokenizer.convert_tokens_to_ids(ROLES[0])]
        if role.lstrip and not role.special:  # a special token behind an answer is what ends it
            tokenizer.chat_template = tokenizer.chat_template.replace(END, "")
            (encoded,) = Encoder(tokenizer, "assistant").encode([example])
            assert isinstance(encoded, Encoded)
            learnt = tokenizer.decode(encoded.input_ids[encoded.labelled].tolist())
            assert not any(role in learnt for role in ROLES) and learnt.count("o") == 2, learnt


@pytest.mark.slow
def test_answers_begin_where_trl_begins_them() -> None:
    pytest.importorskip("trl", reason="not on PYTHONPATH: see the docstring")
    assert json.loads(RECORDED.read_text()) == [begun_by_trl(tokenizer) for tokenizer in tokenizers()]


if __name__ == "__main__":
    RECORDED.write_text(json.dumps([begun_by_trl(tokenizer) for tokenizer in tokenizers()]) + "\n")
