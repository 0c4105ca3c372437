"""A chat template is a stranger's program: it ends in bounded time and memory, with a name, or it is not
used.
"""

from __future__ import annotations

import resource
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from data_fixtures import QA, make_tokenizer, prepared_from, write_jsonl

from paceline.config.sections.data import DataSection
from paceline.config.sections.model import ModelSection
from paceline.core.diagnostics import Severity
from paceline.core.errors import DataError
from paceline.core.security import resource_limits
from paceline.data.chat_template import render
from paceline.data.chat_template.encode import CostlyTemplateError, Encoder
from paceline.data.chat_template.template_texts import builtin_template
from paceline.data.preflight.check_sets import look_at_sets
from paceline.data.rows.examples import Reading
from paceline.data.rows.formats import Example
from paceline.data.rows.kinds.base import DOCUMENTS
from paceline.data.rows.values import RowError
from paceline.data.tokenizer.load import TokenizerSpec, open_tokenizer

TURNS = ({"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"})
LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
COSTLY = {
    "nested loops": LOOP,
    "a loop of the conversation's own": "{% if messages %}" + LOOP + "{% endif %}",
    "a long text": "{{ 'a' * 4000000000 }}",
    "a doubled text": (
        "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{%"
        " endfor %}"
    ),
    "a long list": "{{ ([0] * 4000000000) | length }}",
    "a wide field": "{{ '%4000000000d' % 1 }}",
    "a filter": "{{ 'x' | center(4000000000) }}",
    "a method": "{{ 'x'.ljust(4000000000) }}",
    "a large power": "{{ 9 ** (9 ** (messages | length + 7)) }}",
    "macros": (
        "{% macro m(n) %}{% for i in range(50) %}{% if n %}{{ m(n - 1) }}{% endif %}{% endfor %}{% endmacro"
        " %}{{ m(30) }}"
    ),
    "a sum": "{% for i in range(99999) %}{{ range(99999) | sum }}{% endfor %}",
}
STRANGE = [
    "{{ 1 / 0 }}",
    "{{ 'a' * 10 ** 30 }}",
    "{{ messages.nothing.at_all }}",
    "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
    "{{ '\\ud800'.encode() }}",
]


#: Each takes 0.03 to 0.2 s for a row and is below every limit for one; none costs anything without a row.
SLOW = {
    "loops": "{% for i in range(400) %}{% for j in range(4000) %}{% endfor %}{% endfor %}",
    "ranges": "{% set x = range(99999) | map('string') | sort | join %}",
    "products": "{% set x = range(60) | map('string') | list * 9000 %}{% set x = x | join %}",
    "macros": (
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{% set x = m(13) %}"
    ),
    "longer texts": (
        "{% set ns = namespace(s='') %}{% for i in range(9000) %}{% set ns.s = ns.s ~ i %}{% endfor %}"
    ),
}


@pytest.fixture(autouse=True)
def _tight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_limits, "CPU_SECONDS", 0.2)
    monkeypatch.setattr(resource_limits, "MEMORY_BYTES", 96 << 20)


@pytest.mark.parametrize("kind", COSTLY)
def test_a_costly_template_is_refused_by_name(kind: str, tokenizer: Path) -> None:
    limits, handler = resource.getrlimit(resource.RLIMIT_AS), signal.getsignal(signal.SIGVTALRM)
    coder = Encoder(open_tokenizer(TokenizerSpec(str(tokenizer), chat_template=COSTLY[kind])), "assistant")
    for encode in (coder.encode, coder.encode_prompts):
        with pytest.raises(CostlyTemplateError) as caught:
            encode([Example(text="first"), Example(messages=TURNS)][encode == coder.encode_prompts :])
        assert caught.value.reason == "template_costly" and caught.value.detail
        assert caught.value.number == (0 if encode == coder.encode_prompts else 1)
    assert resource.getrlimit(resource.RLIMIT_AS) == limits
    assert signal.getsignal(signal.SIGVTALRM) == handler
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0, 0)


@pytest.mark.parametrize("kind", [*SLOW, "an honest one"])
def test_rows_and_passes_share_one_budget(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row is below the limit; 64 of them, looked at and prepared, take little more than it."""
    monkeypatch.setattr(resource_limits, "CPU_SECONDS", 0.3)
    monkeypatch.setattr(resource_limits, "BLOCK_SECONDS", 0.02)
    monkeypatch.setattr(render, "RENDERING_SECONDS", 0.001)
    honest = builtin_template("chatml") + "{# " + kind + " #}"
    text = honest + "{% if messages and messages[0].content == 'Q' %}" + SLOW.get(kind, "") + "{% endif %}"
    folder = make_tokenizer(tmp_path / "t", chat_template=text)
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"messages": list(TURNS)}] * 64)
    data, model = DataSection(train=str(rows)), ModelSection(tokenizer=str(folder))
    coder = Encoder(open_tokenizer(TokenizerSpec(str(folder))), "assistant")
    spent = time.process_time()
    _, found = look_at_sets(data, Reading("assistant", DOCUMENTS), model=model)
    refused = 0
    for _ in range(4):
        try:
            coder.encode([Example(messages=TURNS)] * 64)
        except CostlyTemplateError:
            refused += 1
    spent = time.process_time() - spent
    costly = kind in SLOW
    assert [d.code for d in found if d.severity is Severity.ERROR] == ["data.template_costly"] * costly
    assert refused == 4 * costly
    assert not costly or spent < 2 * resource_limits.CPU_SECONDS, f"{spent:.2f} s"


@pytest.mark.parametrize(("share", "rows"), [(0.9, 100_000), (1.5, 20_000)])
def test_what_counts_is_the_time_beyond_what_rows_are_worth(
    share: float, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock of our own: each of 100,000 rows takes ``share`` of what it is worth, in many passes."""
    monkeypatch.setattr(resource_limits, "CPU_SECONDS", 10.0)
    clock = [0.0]
    monkeypatch.setattr(time, "thread_time", lambda: clock[0])
    done, worth = 0, 0.001
    for _ in range(10):
        with suppress(resource_limits.SpentError), resource_limits.bounded_time([f"a template at {share}"]):
            for _ in range(10_000):
                resource_limits.grant(worth)
                clock[0] += share * worth
                done += 1
    assert 0.95 * rows < done < 1.3 * rows


@pytest.mark.parametrize("template", STRANGE)
def test_whatever_else_a_template_raises_is_its_refusal(template: str, tokenizer: Path) -> None:
    coder = Encoder(open_tokenizer(TokenizerSpec(str(tokenizer), chat_template=template)), "assistant")
    (result,) = coder.encode([Example(messages=TURNS)])
    assert isinstance(result, RowError)
    assert result.reason in ("template_refused", "template_not_incremental")


@pytest.mark.parametrize("policy", ["refuse", "skip"])
@pytest.mark.parametrize("guarded", [False, True])
def test_preparation_stops_at_the_first_costly_row(tmp_path: Path, policy: str, guarded: bool) -> None:
    """``guarded``: it is harmless until a row says a word, so that no first look can find it."""
    hidden = (
        builtin_template("plain")
        + "{% for m in messages %}{% if m.content == 'boo' %}"
        + LOOP
        + "{% endif %}{% endfor %}"
    )
    folder = make_tokenizer(tmp_path / "t", chat_template=hidden if guarded else LOOP)
    rows = write_jsonl(tmp_path / "rows.jsonl", [*QA, {"instruction": "boo", "output": "A"}, *QA])
    with pytest.raises(DataError) as caught:
        prepared_from(rows, folder, tmp_path / "cache", on_bad_row=policy)
    (finding,) = caught.value.diagnostics
    assert finding.code == "data.template_costly" and "model.chat_template" in finding.hint
    assert finding.where == f"{rows}:21" if guarded else "template" in finding.where
    assert list((tmp_path / "cache" / "prepared").iterdir()) == []


def test_a_template_that_plain_text_does_not_need_is_bounded_too(tmp_path: Path) -> None:
    folder = make_tokenizer(tmp_path / "t", chat_template=LOOP)
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"text": "abc"}])
    with pytest.raises(DataError, match=r"data\.template_costly"):
        prepared_from(rows, folder, tmp_path / "cache")


def test_an_honest_template_is_not_bounded_by_what_others_hold(
    tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = bytearray(256 << 20)
    coder = Encoder(
        open_tokenizer(TokenizerSpec(str(tokenizer), chat_template=builtin_template("chatml"))), "assistant"
    )
    content = "é" * 1_000_000
    (result,) = coder.encode([Example(messages=(TURNS[0], {"role": "assistant", "content": content}))])
    assert not isinstance(result, RowError) and len(result.input_ids) > 2_000_000 and len(held)


def test_in_another_thread_memory_is_bounded_still(tokenizer: Path) -> None:
    coder = Encoder(
        open_tokenizer(TokenizerSpec(str(tokenizer), chat_template=COSTLY["a long text"])), "assistant"
    )
    caught: list[str] = []

    def work() -> None:
        try:
            coder.encode([Example(messages=TURNS)])
        except CostlyTemplateError as error:
            caught.append(error.detail)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(caught) == 1 and "MiB" in caught[0]


def test_a_ring_that_a_destructor_swallows_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python drops what a destructor raises, and would report it; the clock rings again."""
    reported: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    monkeypatch.setattr(resource_limits, "CPU_SECONDS", 0.05)
    ended: list[str] = []

    class Slow:
        def __del__(self) -> None:
            try:
                while True:
                    pass
            finally:
                ended.append("by the clock")

    with pytest.raises(resource_limits.SpentError), resource_limits.bounded_time(["a destructor"]):
        Slow()
        while True:
            pass
    assert ended == ["by the clock"] and reported == []
    assert sys.unraisablehook == reported.append
