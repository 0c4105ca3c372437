"""Options of the chat template from the config, and the sandbox that templates run in."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from conversation_templates import PARTS, PLAIN, STRINGS, THINKS
from data_fixtures import make_tokenizer, prepared_from, write_jsonl

from paceline.config.schema import Config
from paceline.core.errors import DataError
from paceline.data.chat_template.options import not_read, options_read, with_defaults
from paceline.data.chat_template.render import ChatTemplate, TemplateInput
from paceline.data.chat_template.template_texts import builtin_template
from paceline.data.preflight.check_sets import look_at_tokenizer
from paceline.data.token_table import decode_labels
from paceline.data.tokenizer.load import TokenizerSpec, open_tokenizer

TURNS: list[Any] = [{"role": "user", "content": "How warm?"}, {"role": "assistant", "content": "Four."}]
VALUES = [True, False, None, 3, -1.5, 'it\'s "so"\n\\', "四 😀", ["a", {"b": None}], {"k": [1, True]}]


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("begin", ["", "\n", "\n\n x"])
def test_a_default_is_the_option_that_was_not_given(value: Any, begin: str) -> None:
    text = begin + (
        "{% macro m() %}{{ zq }}{% endmacro %}{{ zq is defined }} {{ zq | tojson }} {{ m() }}"
        "{% for m in messages %}{{ zq }}{% endfor %}"
    )
    plain, preset = ChatTemplate(text, {}), ChatTemplate(with_defaults(text, {"zq": value}), {})
    assert preset.render(TemplateInput(TURNS)) == plain.render(TemplateInput(TURNS, options={"zq": value}))
    assert preset.render(TemplateInput(TURNS, options={"zq": "mine"})) == plain.render(
        TemplateInput(TURNS, options={"zq": "mine"})
    )


def test_which_options_a_template_reads() -> None:
    assert options_read(THINKS) == {"enable_thinking"} and options_read(PLAIN) == frozenset()
    assert options_read(
        "{{ bos_token }}{% for m in messages %}{{ loop.index ~ strftime_now(f) }}{% endfor %}"
    ) == {"f"}
    options = {"enable_thinking": False, "zq": 1}
    assert not_read(with_defaults(THINKS, options), options) == not_read(THINKS, options) == ["zq"]


def prompts(
    folder: Path, tmp_path: Path, rows: list[dict[str, Any]], **model: Any
) -> tuple[list[list[int]], Path]:
    path = write_jsonl(tmp_path / f"{len(list(tmp_path.iterdir()))}.jsonl", rows)
    found = prepared_from(path, folder, tmp_path / "cache", rows="prompts", model=model)
    return [found.train.row(i)[0].tolist() for i in range(len(found.train))], found.tokenizer_path


def test_options_act_in_prompts_and_in_the_saved_tokenizer_and_rows_win(tmp_path: Path) -> None:
    folder = make_tokenizer(tmp_path / "t", chat_template=THINKS)
    rows: list[dict[str, Any]] = [
        {"prompt": [TURNS[0]]},
        {"prompt": [TURNS[0]], "chat_template_kwargs": {"enable_thinking": True}},
    ]
    off, saved = prompts(folder, tmp_path, rows, chat_template_kwargs={"enable_thinking": False})
    on, _ = prompts(folder, tmp_path, rows)
    assert off[1] == on[0] == on[1] and len(off[0]) > len(on[0])
    tokenizer = open_tokenizer(TokenizerSpec(str(saved)))
    asked = tokenizer.apply_chat_template([TURNS[0]], add_generation_prompt=True, tokenize=False)
    assert asked.endswith("<think>\n\n</think>\n"), "chat, export and a server follow the saved template"
    other, _ = prompts(folder, tmp_path, rows, chat_template_kwargs={"enable_thinking": True})
    assert other == on


def test_what_the_generation_prompt_writes_carries_no_loss_and_the_option_is_not_called_idle(
    tmp_path: Path,
) -> None:
    """TRL's labels of a prompt with the same options: the answer alone, not the empty reasoning before it."""
    header = "<|im_start|>{{ message.role }}"
    template = THINKS.replace(header + "\n{%-", header + "{{ '\\n' }}{%")
    assert template != THINKS  # as Qwen3 writes it
    folder, off = make_tokenizer(tmp_path / "t", chat_template=template), {"enable_thinking": False}
    thought = {"role": "assistant", "content": "Five.", "reasoning_content": "Warm."}
    rows = [{"messages": TURNS}, {"messages": TURNS, "chat_template_kwargs": off}]
    rows += [{"messages": [TURNS[0], thought], "chat_template_kwargs": off}]
    empty, own = "<think>\n\n</think>\n", "<think>\nWarm.\n</think>\nFive.<|im_end|>"
    for model, answers in (
        ({}, [f"{empty}Four.<|im_end|>", "Four.<|im_end|>", own]),
        ({"chat_template_kwargs": off}, ["Four.<|im_end|>", "Four.<|im_end|>", own]),
    ):
        path = write_jsonl(tmp_path / "rows.jsonl", rows)
        found = prepared_from(path, folder, tmp_path / "cache", model=model)
        tokenizer = open_tokenizer(TokenizerSpec(str(folder)))
        documents = [decode_labels(found.train.coded(n)) for n in range(3)]
        assert [tokenizer.decode(ids[labels >= 0]) for ids, labels in documents] == answers
        idle = [note.what for note in found.notes if "enable_thinking" in note.what]
        assert len(idle) == 1 and ("rows.jsonl:2" in idle[0]) == bool(
            model
        )  # the second row says the default


@pytest.mark.parametrize("model", [{}, {"chat_template": PLAIN}])
def test_an_option_without_effect_is_refused_before_and_in_the_preparation(
    model: dict[str, Any], tmp_path: Path
) -> None:
    folder = make_tokenizer(tmp_path / "t", chat_template=THINKS)
    section = {**model, "chat_template_kwargs": {"enable_thinkin": False}, "tokenizer": str(folder)}
    config = Config.from_json({"model": section, "data": {"train": "x"}})
    (early,) = look_at_tokenizer(config.model, frozenset({"messages"}))
    with pytest.raises(DataError) as caught:
        prompts(
            folder,
            tmp_path,
            [{"prompt": [TURNS[0]]}],
            **{k: v for k, v in section.items() if k != "tokenizer"},
        )
    (late,) = caught.value.diagnostics
    assert early == late and early.code == "data.template_option" and "enable_thinkin" in early.what
    assert ("reads enable_thinking" in early.found) == (not model)


@pytest.mark.parametrize(
    "template", [THINKS, STRINGS, PLAIN, PARTS, *map(builtin_template, ("chatml", "llama3"))]
)
def test_the_sandbox_writes_what_transformers_writes(template: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    call = {"type": "function", "function": {"name": "w", "arguments": '{"é": "<b>"}'}, "id": "c1"}
    parts = [{**turn, "content": [{"type": "text", "text": turn["content"]}]} for turn in TURNS]
    chats: list[Any] = [
        TURNS,
        parts,
        [TURNS[0], {"role": "assistant", "content": None, "tool_calls": [call]}],
    ]
    for chat, prompt in ((c, p) for c in chats for p in (False, True)):
        given = {"tools": [{"type": "function", "function": {"name": "w", "x": "<é>"}}], "bos_token": "<s>"}
        ours = theirs = None
        try:
            (theirs,), _ = render_jinja_template(
                [chat], chat_template=template, add_generation_prompt=prompt, **given
            )
        except Exception as error:
            theirs = type(error).__name__
        try:
            ours = ChatTemplate(template, {"bos_token": "<s>"}).render(
                TemplateInput(chat, given["tools"]), prompt=prompt
            )
        except Exception as error:
            ours = error.args[1].partition(":")[0]
        assert ours == theirs


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ namespace(__class__=1) }}",
        "{% set n = namespace() %}{% set n._x = 1 %}",
        "{{ dict.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception('no') }}",
    ],
)
def test_the_sandbox_is_shut(template: str) -> None:
    from paceline.data.rows.values import RowError

    try:
        assert ChatTemplate(template, {}).render(TemplateInput(TURNS)) in ("", json.dumps(None))
    except RowError as error:
        assert error.reason == "template_refused"


NOTES_BY_KEY = "{% for m in messages %} {{ m.content }} {% endfor %}"
TAKEN_UP = {
    "a set block": "{% set t %}" + NOTES_BY_KEY + "{% endset %}{{ t | trim }}",
    "a macro": "{% macro w() %}" + NOTES_BY_KEY + "{% endmacro %}{{ w() | trim }}",
    "a filter": "{% filter trim %}" + NOTES_BY_KEY + "{% endfilter %}",
}


@pytest.mark.parametrize("kind", TAKEN_UP)
def test_marks_do_not_change_what_a_template_takes_up(kind: str) -> None:
    template = ChatTemplate(TAKEN_UP[kind], {})
    rendered = template.render_whole(TemplateInput(TURNS))
    assert rendered.text == template.render(TemplateInput(TURNS)) == "How warm?  Four."
    assert rendered.turns is None or all(rendered.text[a:b] for own in rendered.turns for a, b in own)


def test_turns_of_the_templates_own_belong_to_no_turn() -> None:
    text = (
        "{% for m in [{'role': 'system', 'content': 'S'}] + messages + [{'content': 'E'}] %}"
        "[{{ m.content }}]{% endfor %}!"
    )
    rendered = ChatTemplate(text, {}).render_whole(TemplateInput(TURNS))
    assert rendered.text == "[S][How warm?][Four.][E]!"
    assert rendered.turns is not None
    assert ["".join(rendered.text[a:b] for a, b in own) for own in rendered.turns] == [
        "[How warm?]",
        "[Four.]",
    ]


def test_a_row_that_holds_marks_itself_is_followed_as_it_is() -> None:
    turns: list[Any] = [TURNS[0], {"role": "assistant", "content": "a\U000f5a010,1\U000f5a03b"}]
    template = ChatTemplate(PLAIN, {})
    assert template.render_whole(TemplateInput(turns)).text == template.render(TemplateInput(turns))


def test_generation_blocks_are_found_where_the_text_has_them() -> None:
    text = (
        "{% for m in messages %}{{ m.role }}:{% generation %}{{ m.content }}{% endgeneration %};{% endfor %}"
    )
    rendered = ChatTemplate(text, {}).render_whole(TemplateInput(TURNS))
    assert [rendered.text[a:b] for a, b in rendered.marks] == ["How warm?", "Four."]


def test_strict_refuses_fields_that_nothing_reads(tmp_path: Path) -> None:
    folder = make_tokenizer(tmp_path / "t", chat_template=PLAIN)
    row = {"messages": [{**TURNS[0], "mood": "x"}, TURNS[1]], "zq": 1, "id": 7}
    path = write_jsonl(tmp_path / "rows.jsonl", [{"messages": TURNS, "id": 1}, row])
    plain = prepared_from(path, folder, tmp_path / "cache")
    assert plain.counts.rows_used == 2 and plain.counts.set_aside == {"id": 2}
    with pytest.raises(DataError) as caught:
        prepared_from(path, folder, tmp_path / "cache", strict=True)
    (finding,) = caught.value.diagnostics
    assert finding.code == "data.unknown_field" and "'zq', 'messages[].mood'" in finding.found
    assert finding.evidence["count"] == 1 and finding.where.endswith(":2")
    skipped = prepared_from(path, folder, tmp_path / "cache", strict=True, on_bad_row="skip").counts
    assert (skipped.rows_used, skipped.rows_skipped) == (1, 1)


@pytest.mark.parametrize("guide", ["conversations.md", "conversations.zh-CN.md"])
def test_the_guides_have_an_example_of_each_reason_for_a_refusal(guide: str) -> None:
    from paceline.data.rows import examples

    refused = {**examples.REFUSED_OF_ROWS, **examples.REFUSED_OF_TURNS, **examples.REFUSED_PARTS}
    text = (Path(__file__).resolve().parents[3] / "docs/how-to" / guide).read_text("utf-8")
    names = re.findall(r"`(\w+)`", text.rpartition("\n## ")[2])
    assert [name for name in names if name not in {*refused, *examples.HARMLESS, "final"}] == []
    assert {refused[name] for name in names if name in refused} == set(refused.values())
    assert examples.HARMLESS & set(names)
