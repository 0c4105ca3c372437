"""Published chat templates (those in the wheels of trl and axolotl) over shapes of conversations (slow).

The wheels are fetched with pip; PACELINE_TEMPLATE_WHEELS names a folder that holds them already. TRL marks in
its training templates what the model writes: an independent account of where the turns lie.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path

import pytest
import template_page

from paceline.data.chat_template.assistant_spans import AnswerFinder
from paceline.data.chat_template.conversation import ChatForm, form_of
from paceline.data.chat_template.dropped_content import DroppedContentFinder
from paceline.data.chat_template.render import ChatTemplate, Rendered, Span, TemplateInput
from paceline.data.rows.formats import Example
from paceline.data.rows.messages import Message, turns_of_any
from paceline.data.rows.tools_and_documents import tools_of
from paceline.data.rows.values import RowError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

WHEELS = {"trl": ("1.16.0", 72), "axolotl": ("0.19.0", 36)}
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
SPECIALS = re.compile(
    r"<\|[^|<>]*\|>|<(?:start|end)_of_turn>|</?s>|<turn\|>|<\|turn>|<tool_call\|>|<｜[^｜]*｜>|<end_of_utterance>"
)
TOOLS = tools_of(
    [{"name": "get_w", "description": "d", "parameters": {"type": "object", "properties": {}}}], "tools"
)


def call(n: int) -> dict[str, object]:
    arguments = {"city": f"Paris{n}", "days": 1}
    return {"id": f"abcdefgh{n}", "type": "function", "function": {"name": "get_w", "arguments": arguments}}


def u(n: int) -> dict[str, object]:
    return {"role": "user", "content": f"question {n} aaa"}


def a(n: int, **more: object) -> dict[str, object]:
    return {"role": "assistant", "content": f"answer {n} bbb", **more}


def c(*numbers: int, **more: object) -> dict[str, object]:
    return {"role": "assistant", "content": "", "tool_calls": [call(n) for n in numbers], **more}


def t(n: int) -> dict[str, object]:
    return {"role": "tool", "content": f"result {n} ccc", "name": "get_w", "tool_call_id": f"abcdefgh{n}"}


S, D = {"role": "system", "content": "system zzz"}, {"role": "developer", "content": "developer zzz"}
ONE, TWO = {"reasoning_content": "because of thinking one"}, {"reasoning_content": "because of thinking two"}
SHAPES: dict[str, list[dict[str, object]]] = {
    "one turn": [u(1), a(1)],
    "system": [S, u(1), a(1)],
    "developer": [D, u(1), a(1)],
    "two turns": [u(1), a(1), u(2), a(2)],
    "system, two turns": [S, u(1), a(1), u(2), a(2)],
    "six turns": [S, *(turn for n in range(1, 7) for turn in (u(n), a(n)))],
    "reasoning": [u(1), a(1, **ONE)],
    "reasoning twice": [u(1), a(1, **ONE), u(2), a(2, **TWO)],
    "reasoning first": [u(1), a(1, **ONE), u(2), a(2)],
    "reasoning last": [u(1), a(1), u(2), a(2, **TWO)],
    "inline reasoning": [u(1), {"role": "assistant", "content": "<think>\nso\n</think>\n\nanswer 1 bbb"}],
    "tool": [u(1), c(1), t(1), a(1)],
    "system, tool": [S, u(1), c(1), t(1), a(1)],
    "tools in a row": [u(1), c(1), t(1), c(2), t(2), a(1)],
    "tools at once": [u(1), c(1, 2), t(1), t(2), a(1)],
    "tool, turn": [u(1), c(1), t(1), a(1), u(2), a(2)],
    "tool with text": [u(1), c(1, content="I look it up ddd"), t(1), a(1)],
    "tool with reasoning": [u(1), c(1, **ONE), t(1), a(1, **TWO)],
    "a call at the end": [u(1), c(1)],
    "white space": [u(1), {"role": "assistant", "content": "  père 日本 \n\n"}, u(2), a(2)],
    "a turn without loss": [u(1), a(1, weight=0), u(2), a(2)],
}


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    given = os.environ.get("PACELINE_TEMPLATE_WHEELS")
    folder = Path(given) if given else tmp_path_factory.mktemp("wheels")
    found: dict[str, str] = {}
    for name, (version, count) in WHEELS.items():
        if not given:
            pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
            subprocess.run([*pip, f"{name}=={version}"], check=True)
        with zipfile.ZipFile(next(folder.glob(f"{name}-{version}-*.whl"))) as wheel:
            names = [n for n in wheel.namelist() if n.endswith(".jinja") and "chat_templates" in n]
            found |= {f"{name}/{Path(n).stem}": wheel.read(n).decode() for n in names}
        assert sum(key.startswith(name) for key in found) == count
    return found


class Opened:
    """A template with what finds the turns in it."""

    def __init__(self, text: str) -> None:
        self.template = ChatTemplate(text, TOKENS)
        self.form: ChatForm = form_of(self.template)
        self.finder = AnswerFinder(self.template, SPECIALS, "<s>")
        self.left_out = DroppedContentFinder(self.template, lambda example: self.render(example)[1].text)

    def render(self, example: Example) -> tuple[TemplateInput, Rendered]:
        chat = self.form.chat(example)
        return chat, self.template.render_whole(chat)

    def thought(self) -> str:
        """What the prompt opens for the model, which then does not write it: ``<think>``, also closed."""
        question = self.form.chat(Example(messages=examples()["one turn"].messages[:1]))
        try:
            prompt = self.template.render(question, prompt=True)
        except RowError:
            return ""
        return "".join(re.findall(r"<think>\s*\Z|<think>\s*</think>\s*\Z", prompt)).replace("\n", "")

    def spans(self, example: Example) -> tuple[Rendered, list[Span]]:
        chat, rendered = self.render(example)
        trained = [n for n, m in enumerate(example.messages) if loss(m)]
        return rendered, self.finder.spans(chat, rendered, trained)


def loss(message: Message) -> bool:
    return message["role"] == "assistant" and message.get("trained", True)


def examples() -> dict[str, Example]:
    made = {}
    for name, turns in SHAPES.items():
        messages = tuple(turns_of_any(turns))
        tools = TOOLS if any(m.get("tool_calls") for m in messages) else ()
        made[name] = Example(messages=messages, tools=tools)
    return made


def wrong(example: Example, text: str, spans: list[Span], given: str) -> list[str]:
    """What has loss and should not, or the reverse. Contents differ, so each has one place. ``given``: the
    beginning of an answer that the prompt holds.
    """
    labelled = {at for start, end in spans for at in range(start, end)}
    found = []
    for number, message in enumerate(example.messages):
        said = [(message["content"].strip().removeprefix(given).strip(), loss(message))]
        said += [(str(message.get("reasoning_content", "")), loss(message))]
        said += [(f"Paris{str(one['id'])[-1]}", loss(message)) for one in message.get("tool_calls", [])]
        for words, has_loss in said:
            at = text.find(words) if words else -1
            if at >= 0 and {place in labelled for place in range(at, at + len(words))} != {has_loss}:
                found.append(f"turn {number + 1}: {words!r}")
    return found


def test_labels_are_those_of_the_turns_with_loss(templates: dict[str, str]) -> None:
    counts: Counter[str] = Counter()
    failed: list[str] = []
    for name, text in templates.items():
        opened = Opened(text)
        given = opened.thought()
        for shape, example in examples().items():
            try:
                rendered, spans = opened.spans(example)
                opened.left_out.names(example, rendered.text)
            except RowError as error:
                counts[error.reason] += 1
                continue
            counts["followed"] += 1
            failed += [f"{name}, {shape}: {what}" for what in wrong(example, rendered.text, spans, given)]
    print(counts)
    assert failed == []
    assert counts["followed"] > 1400 and not counts["template_not_incremental"]


def test_trls_own_marks_agree(templates: dict[str, str]) -> None:
    """The header and the thought that the prompt opens, and an end of text after the last turn may differ."""
    allowed = r"<\|start\|>assistant|<\|turn>|<｜Assistant｜>|</s>|<\|tool_response>"
    compared = 0
    for name, text in templates.items():
        if not name.endswith("_training") or name.removesuffix("_training") not in templates:
            continue
        marked, plain = Opened(text), Opened(templates[name.removesuffix("_training")])
        given = plain.thought()
        for shape, example in examples().items():
            if shape == "a turn without loss":
                continue
            try:
                (theirs, _), (ours, spans) = marked.spans(example), plain.spans(example)
            except RowError:
                continue
            if theirs.text != ours.text:
                continue
            compared += 1
            mine = {at for start, end in spans for at in range(start, end) if not ours.text[at].isspace()}
            marks = {at for start, end in theirs.marks for at in range(start, end)}
            other = mine ^ {at for at in marks if not ours.text[at].isspace()}
            rest = "".join(ours.text[at] for at in sorted(other))
            assert re.fullmatch(f"({'|'.join(filter(None, (allowed, given)))})*", rest), (
                f"{name}, {shape}: {rest!r}"
            )
    assert compared > 400


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a Python that finds the makers' encoders, fetched with pip. gpt-oss's vocabulary
    comes from the network elsewhere; litellm's wheel holds it.
    """
    folder = tmp_path_factory.mktemp("encoders")
    pip = [sys.executable, "-m", "pip"]
    names = ["openai-harmony==0.0.8", "mistral-common==1.13.1", "sentencepiece"]
    subprocess.run([*pip, "install", "-q", "--target", str(folder / "lib"), *names], check=True)
    wheel = ["download", "-q", "--no-deps", "-d", str(folder), "litellm==1.109.1"]
    subprocess.run([*pip, *wheel], check=True)
    with zipfile.ZipFile(next(folder.glob("litellm-*.whl"))) as packed:
        name = next(n for n in packed.namelist() if n.endswith("/fb374d419588a4632f3f557e76b4b70aebbca790"))
        (folder / "o200k_base.tiktoken").write_bytes(packed.read(name))
    return {**os.environ, "PYTHONPATH": str(folder / "lib"), "TIKTOKEN_ENCODINGS_BASE": str(folder)}


ENCODERS = {
    "harmony": "trl/gptoss",
    "v1": "axolotl/mistral_v1",
    "v3": "axolotl/mistral_v2v3",
    "v3-tekken": "axolotl/mistral_v3_tekken",
    "v7": "axolotl/mistral_v7_tekken",
}
COMPARED = ("one turn", "system", "two turns", "six turns", "reasoning", "tool", "tools in a row")
# Where a published template writes something else than its maker's encoder, whoever renders it.
TEMPLATES_OWN = {
    **{(v, n): "the system's text is lost" for v in ("v3", "v3-tekken") for n in ("system", "six turns")},
    **{(v, n): "results without quotes" for v in ("v3", "v3-tekken") for n in ("tool", "tools in a row")},
    **{("v7", name): "a system turn of its own" for name in ("one turn", "two turns", "reasoning")},
}


def alike(text: str) -> str:
    """Without the date, what gpt-oss's template writes after instructions and of functions without arguments,
    and spaces that sentencepiece puts.
    """
    text = re.sub(r"Current date: [0-9-]+|\n\n(?=<\|end\|>)", "", text).replace("(_: {\n})", "()")
    return re.sub(r"(\]) ", r"\1", text)


@pytest.mark.parametrize("encoder", ENCODERS)
def test_the_makers_own_encoders_write_the_same(
    encoder: str, templates: dict[str, str], encoders: dict[str, str]
) -> None:
    opened, compared = Opened(templates[ENCODERS[encoder]]), 0
    for name in COMPARED:
        turns = json.loads(json.dumps(SHAPES[name]))
        tools = [dict(tool) for tool in TOOLS] if name.startswith("tool") else []
        if encoder != "harmony":
            for turn in turns:
                turn.pop("reasoning_content", None)
        example = Example(messages=tuple(turns_of_any(turns)), tools=TOOLS if tools else ())
        for turn in turns if encoder != "harmony" else ():
            for one in turn.get("tool_calls", ()):
                one["function"]["arguments"] = json.dumps(one["function"]["arguments"])
        job = json.dumps({"encoder": encoder, "chats": [turns], "tools": tools})
        script = [sys.executable, str(Path(__file__).parent / "encoder_oracle.py")]
        done = subprocess.run(script, input=job, capture_output=True, text=True, env=encoders, check=True)
        (theirs,) = json.loads(done.stdout)
        try:
            ours, _ = opened.spans(example)
        except RowError:
            continue
        same = theirs is not None and alike(ours.text) == alike(theirs)
        compared += same
        assert same != ((encoder, name) in TEMPLATES_OWN), f"{name}\n{ours.text!r}\n{theirs!r}"
    assert compared >= (1 if encoder == "v7" else 3)


def test_the_page_says_what_the_templates_write(templates: dict[str, str]) -> None:
    page = template_page.page(templates)
    docs = Path(__file__).resolve().parents[3] / "docs/reference/templates.md"
    assert docs.read_text("utf-8") == page, (
        "python tests/unit/data/template_page.py FOLDER > docs/reference/templates.md"
    )
