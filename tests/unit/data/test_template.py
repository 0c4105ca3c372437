"""Which tokens are learnt: the assistant's, to the end of its turn, by marks or by prefixes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from data_fixtures import make_tokenizer

from paceline.data.chat_template.encode import Encoded, Encoder
from paceline.data.chat_template.template_texts import BUILTIN_TEMPLATES, builtin_template
from paceline.data.rows.formats import Example
from paceline.data.rows.values import RowError
from paceline.data.tokenizer.load import TokenizerSpec, open_tokenizer

TURNS = (
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Hi é"},
    {"role": "assistant", "content": "Hello\nthere"},
    {"role": "user", "content": "And?"},
    {"role": "assistant", "content": "Bye é"},
)
REASONING = (  # drops the reasoning of answers that lie in the past, as reasoning models' templates do
    "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' and loop.last %}<think></think>{% endif"
    " %}{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
REWRITES = (
    "{% if messages|length > 2 %}long{% else %}short{% endif %}:{% for m in messages %}{{ m.role }} {{"
    " m.content }}<|end|>{% endfor %}"
)
ONE_EOS = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt"
    " %}assistant: {% endif %}"
)


Turns = tuple[dict[str, str], ...]


def unmarked(template: str) -> str:
    return re.sub(r"\{%-?\s*(end)?generation\s*-?%\}", "", template)


def encoder(folder: Path, template: str | None, train_on: str = "assistant") -> Encoder:
    return Encoder(open_tokenizer(TokenizerSpec(str(folder), chat_template=template)), train_on)


def parts(coder: Encoder, turns: tuple = TURNS) -> tuple[str, list[str]]:
    """(whole text, labelled stretches) of a conversation."""
    encoded = coder.encode([Example(messages=turns)])[0]
    assert isinstance(encoded, Encoded), encoded
    stretches: list[list[int]] = []
    for i, (token, learnt) in enumerate(
        zip(encoded.input_ids.tolist(), encoded.labelled.tolist(), strict=True)
    ):
        if learnt:
            if i == 0 or not encoded.labelled[i - 1]:
                stretches.append([])
            stretches[-1].append(token)
    return coder.tokenizer.decode(encoded.input_ids), [coder.tokenizer.decode(s) for s in stretches]


def test_only_the_answers_are_learnt_with_their_end(tokenizer: Path) -> None:
    text, learnt = parts(encoder(tokenizer, builtin_template("chatml")))
    assert learnt == ["Hello\nthere<|im_end|>", "Bye é<|im_end|>"]
    assert text.startswith("<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi é<|im_end|>\n")


@pytest.mark.parametrize("name", BUILTIN_TEMPLATES)
def test_prefixes_find_the_same_tokens_as_marks(tokenizer: Path, name: str) -> None:
    marked, plain = builtin_template(name), unmarked(builtin_template(name))
    assert parts(encoder(tokenizer, marked)) == parts(encoder(tokenizer, plain))
    coder = encoder(tokenizer, marked)
    answers = parts(coder)[1]
    assert [a.startswith(t["content"]) for a, t in zip(answers, (TURNS[2], TURNS[4]), strict=True)] == [
        True,
        True,
    ]
    opened = coder.tokenizer.apply_chat_template(list(TURNS[:4]), tokenize=False, add_generation_prompt=True)
    assert parts(coder)[0].startswith(opened), "an answer must begin where generation does"


def test_all_tokens_by_config(tokenizer: Path) -> None:
    text, learnt = parts(encoder(tokenizer, builtin_template("chatml"), "all"))
    assert learnt == [text]


def test_a_template_without_an_end_gets_end_of_text(tokenizer: Path) -> None:
    text, learnt = parts(encoder(tokenizer, ONE_EOS), TURNS[1:3])
    assert text == "user: Hi é\nassistant: Hello\nthere\n<|end|>"
    assert learnt == ["Hello\nthere\n<|end|>"]


def test_a_mark_that_leaves_the_end_out_is_closed(tokenizer: Path) -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration"
        " %}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    )
    assert parts(encoder(tokenizer, template))[1] == ["Hello\nthere<|im_end|>", "Bye é<|im_end|>"]


def test_a_mark_is_taken_as_it_is_written(tokenizer: Path) -> None:
    """What the block holds after the end of the turn has loss as well, as in TRL and LLaMA-Factory."""
    template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>\n"
        "{% endgeneration %}{% else %}{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    )
    assert parts(encoder(tokenizer, template))[1] == ["Hello\nthere<|im_end|>\n", "Bye é<|im_end|>\n"]


@pytest.mark.parametrize(
    ("before", "turn", "after"),
    [
        ("", "{% set text %}TURN{% endset %}{{ text }}", ""),
        ("", "{% filter trim %}TURN{% endfilter %}", ""),
        ("{% macro of(m) %}TURN{% endmacro %}", "{{ of(m) }}", ""),
        ("{% macro as() %}{{ caller() }}{% endmacro %}", "{% call as() %}TURN{% endcall %}", ""),
        ("{% set all %}", "TURN", "{% endset %}{{ all }}"),
    ],
)
def test_a_mark_in_a_text_that_the_template_takes_up_is_where_it_is_written(
    tokenizer: Path, before: str, turn: str, after: str
) -> None:
    """Transformers takes the place in that text for the place in the whole; the judge is the same template
    without the text between."""
    said = "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
    written = (
        f"<|im_start|>{{{{ m.role }}}}\n{{% if m.role == 'assistant' %}}{said}{{% else %}}{{{{ m.content }}}}"
    )
    written += "<|im_end|>{% endif %}"
    loop = "{% for m in messages %}", "{% endfor %}"
    taken = "".join((before, loop[0], turn, loop[1], after)).replace("TURN", written)
    assert parts(encoder(tokenizer, taken)) == parts(encoder(tokenizer, written.join(loop)))


@pytest.mark.parametrize("answer", ["A", "é", "Bye 龘", "👩‍🚀"])
@pytest.mark.parametrize("turns", [(), TURNS[2:4], TURNS[1:4]])
def test_an_answer_is_whole_and_ended_whatever_its_last_character(
    tokenizer: Path, turns: Turns, answer: str
) -> None:
    """Neither a special token before it (its header, an earlier end) nor a part of a character ends it.

    The judge of the tokens is Transformers; its mask has no end of an answer that the next turn ends.
    """
    body = "{% generation %}{{ m.content }}{% endgeneration %}"
    for opened, template in (
        (
            "",
            f"{{% if m.role == 'assistant' %}}{body}{{% else %}}<|im_start|>{{{{ m.content }}}}{{% endif %}}",
        ),
        ("<|im_start|>", "<|im_start|>{{ m.content }}"),  # no prompt opens the answer: it learns its header
    ):
        coder = encoder(tokenizer, f"{{% for m in messages %}}{template}{{% endfor %}}")
        chat = (*turns, {"role": "user", "content": "And?"}, {"role": "assistant", "content": answer})
        encoded = coder.encode([Example(messages=chat)])[0]
        assert isinstance(encoded, Encoded), encoded
        judged = coder.tokenizer.apply_chat_template(list(chat), return_dict=True)["input_ids"]
        assert encoded.input_ids.tolist() == [*judged, coder.tokenizer.eos_token_id]
        assert parts(coder, chat)[1][-1] == f"{opened}{answer}<|end|>"
        cut = (*chat, {"role": "user", "content": "é"})
        assert parts(coder, cut)[1][-1].startswith(f"{opened}{answer}"), "every byte of it has loss"


@pytest.mark.parametrize("loop", ["m in messages", "i in range(messages|length)"])
@pytest.mark.parametrize("closer", ["", "in", "after"])
@pytest.mark.parametrize("header", ["<|im_start|>{}", "<|im_start|>{}\n", "{}: ", "<|im_start|>", ""])
@pytest.mark.parametrize("answers_only", [False, True], ids=["a header a turn", "no header of answers"])
def test_marks_are_the_labels_that_transformers_masks(
    tokenizer: Path, loop: str, closer: str, header: str, answers_only: bool
) -> None:
    """Its mask, and what the turn itself writes to end an answer; never what opens the next turn."""
    message = "m" if loop.startswith("m") else "messages[i]"
    opened = header.format(f"{{{{ {message}.role }}}}")
    end, own = "<|im_end|>", "" if answers_only else opened
    body = f"{{% generation %}}{{{{ {message}.content }}}}{end * (closer == 'in')}{{% endgeneration %}}"
    template = (
        f"{{% for {loop} %}}{{% if {message}.role == 'assistant' %}}{own}{body}{end * (closer == 'after')}"
        f"{{% else %}}{opened}{{{{ {message}.content }}}}{end * bool(closer)}{{% endif %}}{{% endfor %}}"
    )
    coder = encoder(tokenizer, template)
    # Of a last character of several tokens its mask has the first alone: ours, too, would then be more
    chat = (*TURNS[:4], {"role": "assistant", "content": "Bye"})
    for turns in (chat, chat[1:4], chat[2:], chat[2:4], (*chat, chat[4]), (*chat, *chat[1:])):
        judged = coder.tokenizer.apply_chat_template(
            list(turns), return_dict=True, return_assistant_tokens_mask=True
        )
        encoded = coder.encode([Example(messages=turns)])[0]
        assert isinstance(encoded, Encoded), encoded
        kept = len(encoded.input_ids) - encoded.end_added
        assert encoded.input_ids[:kept].tolist() == judged["input_ids"][:kept]
        mask = judged["assistant_masks"]
        further = [n for n in range(kept) if encoded.labelled[n] and not mask[n]]
        ends = coder.tokenizer.convert_tokens_to_ids(end)
        right = [n for n in range(1, kept) if mask[n - 1] and judged["input_ids"][n] == ends]
        assert further == (right if closer == "after" else []), parts(coder, turns)
        assert all(encoded.labelled[n] for n in range(kept) if mask[n])
        assert not any(mask[kept:])


def test_a_block_within_a_turn_ends_where_its_author_says(tokenizer: Path) -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}why{% endgeneration %}<|end|>"
        "{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}<|im_end|>\n"
        "{% endfor %}"
    )
    assert parts(encoder(tokenizer, template))[1] == [
        "why",
        "Hello\nthere<|im_end|>",
        "why",
        "Bye é<|im_end|>",
    ]


def test_a_template_that_writes_earlier_turns_differently_is_followed(tokenizer: Path) -> None:
    text, learnt = parts(encoder(tokenizer, REWRITES))
    assert text.startswith("long:")
    assert learnt == ["assistant Hello\nthere<|end|>", "assistant Bye é<|end|>"]


def test_reasoning_templates_are_followed(tokenizer: Path) -> None:
    assert parts(encoder(tokenizer, REASONING))[1] == [
        "Hello\nthere<|im_end|>",
        "<think></think>Bye é<|im_end|>",
    ]


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ messages[0].content }}", "turn_left_out"),
        (
            "{% for i in range(messages|length) %}{{ messages[i].content }}{{ messages|length }}{% endfor %}",
            "template_not_incremental",
        ),
        ("{{ raise_exception('roles must alternate') }}", "template_refused"),
        ("{{ ''.__class__.__mro__ }}", "template_refused"),
    ],
)
def test_templates_that_cannot_be_followed_say_why(tokenizer: Path, template: str, reason: str) -> None:
    result = encoder(tokenizer, template).encode([Example(messages=TURNS)])[0]
    assert isinstance(result, RowError)
    assert result.reason == reason


def test_results_keep_the_order_of_the_rows(tokenizer: Path) -> None:
    coder = encoder(tokenizer, builtin_template("plain"))
    rows = [Example(text="abc"), Example(messages=TURNS[1:3]), Example(text="de")]
    encoded = coder.encode(rows)
    assert [coder.tokenizer.decode(e.input_ids) for e in encoded if isinstance(e, Encoded)] == [
        "abc<|end|>",
        "Hi é\nHello\nthere<|end|>",
        "de<|end|>",
    ]


@pytest.mark.parametrize("name", ["plain", "alpaca"])
def test_an_answer_that_has_its_eos_gets_no_second_one(name: str, tokenizer: Path) -> None:
    """As TRL adds one to a completion; the end stays labelled."""
    coder = encoder(tokenizer, builtin_template(name))
    rows = [
        Example(messages=(TURNS[1], {"role": "assistant", "content": f"so{end}"})) for end in ("", "<|end|>")
    ]
    once, given = coder.encode(rows)
    assert isinstance(once, Encoded) and isinstance(given, Encoded)
    assert (
        given.input_ids.tolist() == once.input_ids.tolist()
        and once.input_ids[-1] == coder.tokenizer.eos_token_id
    )
    assert given.labelled.tolist() == once.labelled.tolist() and given.labelled[-1]


def test_stop_tokens_are_end_of_text_and_end_of_turn(tokenizer: Path) -> None:
    coder = encoder(tokenizer, builtin_template("chatml"))
    assert coder.tokenizer.convert_ids_to_tokens(list(coder.stop_token_ids())) == ["<|end|>", "<|im_end|>"]
    assert len(encoder(tokenizer, builtin_template("plain")).stop_token_ids()) == 1


def test_a_text_that_has_its_bos_and_eos_gets_no_second_ones(tokenizer: Path) -> None:
    """The judge is the tokenizer's own count: of a text without them it makes one BOS and one EOS."""
    from tokenizers import processors
    from transformers import AutoTokenizer

    bos, eos = "<|im_start|>", "<|end|>"
    made = AutoTokenizer.from_pretrained(str(tokenizer))
    made.bos_token = bos
    ids = made.bos_token_id, made.eos_token_id
    for ends in ("", f" {eos}"):
        special = list(zip((bos, eos), ids, strict=True))
        made.backend_tokenizer.post_processor = processors.TemplateProcessing(
            f"{bos} $A{ends}", None, special
        )
        right = [*made("hi").input_ids, *([] if ends else [made.eos_token_id])]
        for train_on in ("all", "assistant"):
            encoder = Encoder(made, train_on)
            texts = ("hi", f"{bos}hi", f"hi{eos}", f"{bos}hi{eos}")
            found = encoder.encode([Example(text=text) for text in texts])
            assert [one.input_ids.tolist() for one in found if isinstance(one, Encoded)] == [right] * 4
            [whole] = encoder.encode_whole([Example(text=f"{bos}hi")])
            assert isinstance(whole, Encoded) and whole.input_ids.tolist() == made("hi").input_ids
            [twice] = encoder.encode([Example(text=f"{bos}{bos}hi")])  # as it was written
            assert isinstance(twice, Encoded) and twice.input_ids.tolist() == [ids[0], *right]


def test_a_tokenizer_without_end_of_text(tmp_path: Path) -> None:
    folder = make_tokenizer(tmp_path / "no_eos", eos=None)
    assert parts(encoder(folder, ONE_EOS), TURNS[1:3])[1] == ["Hello\nthere\n"]
