"""What the plan says of a chat template before the preparation."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conversation_templates import PARTS, PLAIN, STRINGS, THINKS
from data_fixtures import make_tokenizer, write_jsonl

from paceline.config.schema import Config
from paceline.data.chat_template.capabilities import EVERYWHERE, LAST, NOWHERE, facts_of, unopened_header
from paceline.data.chat_template.conversation import Renderer
from paceline.data.chat_template.render import ChatTemplate, TemplateInput
from paceline.data.chat_template.template_texts import BUILTIN_TEMPLATES, builtin_template
from paceline.data.preflight.chat_template import describe, look_through, unopened_answers
from paceline.data.preflight.check_sets import look_at_sets
from paceline.data.prepare.prepare import sets_of
from paceline.data.rows.examples import Reading
from paceline.data.rows.kinds.base import row_kind
from paceline.data.rows.values import RowError

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"properties": {"city": {}}}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}
ASKED, ANSWERED = {"role": "user", "content": "How warm?"}, {"role": "assistant", "content": "Four."}
THOUGHT = {**ANSWERED, "reasoning_content": "It is May."}
CALLED = [
    ASKED,
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "4"},
    ANSWERED,
]


def test_the_facts_of_templates() -> None:
    thinks, plain, strings = (facts_of(text, {"bos_token": "<s>"}) for text in (THINKS, PLAIN, STRINGS))
    assert (thinks.tools, thinks.calls, thinks.results, thinks.system) == (True,) * 4
    assert thinks.reasoning == LAST and thinks.rewrites and thinks.options == ("enable_thinking",)
    assert (plain.tools, plain.calls, plain.results, plain.system, plain.rewrites) == (False,) * 5
    assert plain.reasoning == NOWHERE and not plain.options
    assert strings.calls and strings.results and strings.reasoning == NOWHERE
    own = "{% for m in messages %}{% if m.x %}{% set t = m.x %}{% endif %}{{ t }}{% endfor %}"
    asks = "{% if not a is defined %}{% set a = 1 %}{% endif %}{% set b = b | default(2) %}{{ c }}{{ a ~ b }}"
    assert facts_of(own + asks, {}).options == ("a", "b", "c")
    every = facts_of(PLAIN.replace("{{ m.content }}", "{{ m.reasoning_content }}{{ m.content }}"), {})
    assert every.reasoning == EVERYWHERE and not every.rewrites
    assert "has no system turns, tools, calls of tools or their results" in plain.sentence()
    assert "reasoning is not written" in plain.sentence()
    assert "does not see that of earlier turns" in thinks.sentence()


def test_a_template_that_asks_for_the_date_gets_one_day() -> None:
    dated = "{{ strftime_now('%d %b %Y') }}" + THINKS
    assert ChatTemplate(dated, {}).render(TemplateInput([ASKED])).startswith("01 Jan 2026")
    assert "2026-01-01 on every day" in facts_of(dated, {}).sentence()
    assert "every day" not in facts_of(THINKS, {}).sentence()


def test_a_pair_of_answers_is_counted_as_one_row(tmp_path: Path) -> None:
    folder = make_tokenizer(tmp_path / "t", chat_template=THINKS)
    named = {**ASKED, "name": "Ada"}
    path = write_jsonl(tmp_path / "r.jsonl", [{"prompt": [named], "chosen": "x", "rejected": "y"}])
    config = Config.from_json({"model": {"tokenizer": str(folder)}, "data": {"train": path}})
    data_set = sets_of(config.data)[0][0]
    (note,) = look_through(config.model, data_set, Reading(kind=row_kind("pairs")), refuses=True)
    assert dict(note.evidence) == {"messages[].name": 1}


def test_a_template_that_cannot_be_compiled_has_no_facts() -> None:
    with pytest.raises(RowError):
        facts_of("{% for %}", {})


def looked(
    tmp_path: Path, template: str, rows: list[dict[str, Any]], kind: str = "documents", **data: Any
) -> Any:
    folder = make_tokenizer(tmp_path / "t", chat_template=template)
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    config = Config.from_json({"data": {"train": path, **data}, "model": {"tokenizer": str(folder)}})
    reading = Reading("assistant", row_kind(kind))
    formats, found = look_at_sets(config.data, reading, model=config.model)
    return found, describe(config.model, formats)


KINDS: dict[str, Any] = {
    "documents": lambda turns: {"messages": turns},
    "pairs": lambda turns: {
        "chosen": turns,
        "rejected": [turns[0], {"role": "assistant", "content": "Five."}],
    },
    "prompts": lambda turns: {"prompt": turns[:-1], "answer": "Four."},
    "labelled": lambda turns: {"prompt": turns[:1], "completion": turns[1:], "label": True},
    "classified": lambda turns: {"messages": turns, "label": "cold"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_first_rows_lose_is_said_before(kind: str, tmp_path: Path) -> None:
    rows = [KINDS[kind]([ASKED, ANSWERED]), {**KINDS[kind](CALLED), "tools": [TOOL]}]
    found, described = looked(tmp_path, PLAIN, rows, kind)
    codes = {d.code for d in found}
    assert "data.tools" in codes and {"data.tool_calls", "data.turn_left_out"} & codes
    assert all(d.where == "data.train" and "rows.jsonl:2" in d.found for d in found)
    assert described.choice == "the tokenizer's own" and "no system turns, tools" in described.reason
    assert not [d for d in looked(tmp_path, THINKS, rows, kind)[0] if d.severity.name == "ERROR"]
    assert looked(tmp_path, PLAIN, rows, kind, on_bad_row="skip")[0] == []


def test_reasoning_that_the_model_will_not_see_is_said_before(tmp_path: Path) -> None:
    rows = [{"messages": [ASKED, THOUGHT, ASKED, THOUGHT]}, {"messages": [ASKED, THOUGHT]}]
    (note,), described = looked(tmp_path, THINKS, rows)
    assert note.code == "data.not_written" and "(of earlier turns) (1 row, first " in note.what
    assert "leaves out fields of 2 rows" in note.what and "rows.jsonl:1)" in note.what
    assert "answers after the last question" in described.reason


#: Templates that open no answer, and the header that the model writes itself.
UNOPENED = {
    "chatml": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
    "parts": PARTS.partition("{% if add")[0],
    "prefixes": "{{ messages | map(attribute='role') | join }}: {{ messages[-1].content }}",
    "marks": "{% for m in messages %}[{{ m.role }}]{% generation %}{{ m.content }}{% endgeneration %}"
    "{% endfor %}",
}


def unopened(tmp_path: Path, template: str) -> list[Any]:
    folder = make_tokenizer(tmp_path / "t", chat_template=template)
    config = Config.from_json({"model": {"tokenizer": str(folder)}})
    return list(unopened_answers(config.model, frozenset({"messages"})))


@pytest.mark.parametrize("name", UNOPENED)
def test_a_header_that_the_model_writes_itself_is_said_with_what_opens_it(name: str, tmp_path: Path) -> None:
    template = UNOPENED[name]
    (said,) = unopened(tmp_path, template)
    assert said.where == "model.tokenizer" and "assistant" in said.what
    assert ("without loss" in said.what) == (name == "marks")
    opening = re.search(r"\{% if add.*endif %\}", said.hint)
    assert opening is not None and unopened(tmp_path, template + opening[0]) == []


@pytest.mark.parametrize(
    "template", [THINKS, STRINGS, PLAIN, PARTS, *map(builtin_template, BUILTIN_TEMPLATES)]
)
def test_nothing_is_said_of_a_header_that_prompts_have(template: str) -> None:
    assert unopened_header(Renderer(template, {"bos_token": "<s>"})) == ""
    bare = (
        "{% for m in messages %}{{ ('[I] %s [/I]' if m.role == 'user' else ' %s') % m.content }}{% endfor %}"
    )
    assert unopened_header(Renderer(bare, {})) == ""


def test_nothing_is_said_where_no_template_is_needed_or_known(tmp_path: Path) -> None:
    assert looked(tmp_path, PLAIN, [{"text": "Once"}]) == ([], None)
    hub = Config.from_json({"model": {"name_or_path": "org/name"}})
    assert describe(hub.model, frozenset({"messages"})) is None


def test_a_costly_template_is_refused_where_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from paceline.core.security import resource_limits

    monkeypatch.setattr(resource_limits, "CPU_SECONDS", 0.2)
    loop = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    (finding,), described = looked(tmp_path, loop, [{"messages": [ASKED, ANSWERED]}])
    assert (finding.code, finding.where) == ("data.template_costly", "model.tokenizer")
    assert "rows.jsonl:1: it took more than 0.2 s of CPU time" in finding.found and described is None


def test_the_look_imports_no_torch() -> None:
    code = (
        "import sys, paceline.data.preflight.chat_template\n"
        "print(*(name in sys.modules for name in ('torch', 'transformers')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
