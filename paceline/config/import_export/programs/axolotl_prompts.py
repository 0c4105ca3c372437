"""axolotl's prompt styles as Jinja for ``model.chat_template``: ``type: alpaca``, and the user's own formats.

Its strategies write a row's instruction and input into a text and append the answer, which has loss. Here the
row is a user turn (with its ``input`` next to the content) and an answer, and the template renders the same
text. Facts of 0.19.0: ``prompters.py``, ``user_defined.py`` and ``alpaca_w_system.py``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.config.import_export.verdicts import KeyReader
from paceline.core.json_types import Json, as_object

TEMPLATE = "model.chat_template"
DIFFERS = (
    "the same text, with the tokenizer's BOS in front also where the tokenizer does not add one; prompt and"
    " answer are tokenised together, there apart"
)
_PLACE = re.compile(r"\{\{|\}\}|\{(\w+)\}")


@dataclass(frozen=True)
class PromptStyle:
    """Format strings for ``str.format``: of a turn with input, of one without, and of the system text before
    it. Also the default system texts of rows with and without input.
    """

    turn: str
    turn_without_input: str
    system_format: str = "{system}"
    system: str = ""
    system_without_input: str = ""


_TASK, _REQUEST = "Below is an instruction that describes a task", "appropriately completes the request."
_WITH = f"{_TASK}, paired with an input that provides further context. Write a response that {_REQUEST}"
_WITHOUT = f"{_TASK}. Write a response that {_REQUEST}"
_ALPACA: Mapping[str, PromptStyle] = {
    "instruct": PromptStyle(
        "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n",
        "### Instruction:\n{instruction}\n\n### Response:\n",
        "{system}\n\n",
        _WITH,
        _WITHOUT,
    ),
    "chat": PromptStyle(
        "USER: {instruction}\n{input}\nASSISTANT:",
        "USER: {instruction}\nASSISTANT:",
        "SYSTEM: {system}\n",
        _WITH,
        _WITHOUT,
    ),
    "chatml": PromptStyle(
        "<|im_start|>user\n{instruction}\n{input}<|im_end|>\n<|im_start|>assistant\n",
        "<|im_start|>user\n{instruction}<|im_end|>\n<|im_start|>assistant\n",
        "<|im_start|>system\n{system}<|im_end|>\n",
        _WITH,
        _WITHOUT,
    ),
    "phi": PromptStyle(
        "<|user|>\n{instruction}<|end|>{input}<|assistant|>",
        "<|user|>\n{instruction}<|end|>\n<|assistant|>\n",
        "<|system|>\n{system}<|end|>\n",
        _WITH,
        _WITHOUT,
    ),
}


def alpaca(reader: KeyReader) -> None:
    """Decide ``type: alpaca`` or ``alpaca:STYLE`` of a data set."""
    style = _ALPACA.get(reader.text("type").partition(":")[2] or "instruct")
    if style is None:
        reader.lose("type", f"axolotl has no such style: one of {', '.join(_ALPACA)}")
        return
    reader.set("format", "alpaca", "type")
    _keep(reader, "type", jinja(style, _end(reader), from_rows=False))


#: The column of the question in the rows of axolotl's ``chatml.NAME`` and ``llama3.NAME``
_QUESTIONS = {"intel": "question", "icr": "input", "argilla": "instruction"}


def marked_answers(reader: KeyReader) -> None:
    """Decide a preference's ``type: chatml.NAME`` or ``llama3.NAME``: question and answers in that template's
    markup, from the columns of a published data set.
    """
    template, _, name = reader.text("type").partition(".")
    if question := _QUESTIONS.get(name):
        reader.set("columns.prompt", question, "type")
    begin = ", with the tokenizer's BOS in front" if template == "llama3" else ""
    end = "there the tokenizer's end of text follows the mark that ends an answer, where it is another token"
    _keep(reader, "type", template, f"the same text{begin}; {end}")


def user_defined(reader: KeyReader) -> None:
    """Decide a ``type`` that is a mapping: names of columns, and formats of the text."""
    given = {
        key: str(value) for key, value in as_object(reader.given.get("type")).items() if value is not None
    }
    style = PromptStyle(
        given.get("format", "{instruction} {input} "),
        given.get("no_input_format", "{instruction} "),
        given.get("system_format", "{system}"),
        given.get("system_prompt", ""),
        given.get("system_prompt", ""),
    )
    inner = [key for key in reader.given if key.startswith("type.")]
    wrong = {
        f"{{{name}}}"
        for text, allowed in (
            (style.turn, ("instruction", "input")),
            (style.turn_without_input, ("instruction",)),
            (style.system_format, ("system",)),
        )
        for name in _PLACE.findall(text)
        if name and name not in allowed
    }
    if wrong:
        for key in ("type", *inner):
            reader.lose(key, f"its formats name {', '.join(sorted(wrong))}, which axolotl does not fill in")
        return
    reader.set("format", "alpaca", "type")
    for ours in ("instruction", "input", "output", "system"):
        name = given.get(f"field_{ours}", ours)
        # a column that the rows need not have is named only if the file names it
        if name != ours and (ours in ("instruction", "output") or f"field_{ours}" in given):
            reader.set(f"columns.{ours}", name, "type")
    _keep(reader, "type", jinja(style, _end(reader), from_rows=True))
    reader.mapped([key for key in inner if not reader.decided(key)], (TEMPLATE, "data.train"))


def _keep(reader: KeyReader, key: str, text: str, says: str = DIFFERS) -> None:
    """Set the run's template, unless another data set already has another one."""
    if reader.facts.get("turns") or set(as_object(reader.facts.get("prompts")).values()) - {text}:
        reader.lose(key, "one template writes the rows of all data sets, and they have several prompts")
        return
    reader.differs(key, TEMPLATE, text, says)


def _end(reader: KeyReader) -> str:
    """Return the token that ends an answer: the file's end of text, or the tokenizer's."""
    token = reader.facts.get("eos_token")
    return json.dumps(token) if isinstance(token, str) and token else "eos_token | default('')"


def jinja(style: PromptStyle, end: str, *, from_rows: bool) -> str:
    """Return ``style`` as Jinja; ``end``: an expression; ``from_rows``: a row's system turn replaces the
    style's.
    """
    content = "message['content']"
    of_input = {"instruction": f"{content}[:-(message['input'] | length) - 1]", "input": "message['input']"}
    own = "messages[0]['role'] == 'system'"
    lines = ["{{- bos_token | default('') -}}"]
    if from_rows:
        lines.append(f"{{%- set system = messages[0]['content'] if {own} else {literal(style.system)} -%}}")
    lines += [
        "{%- for message in messages -%}",
        "{%- if message['role'] == 'user' -%}",
        "{%- if message['input'] is defined and message['input'] -%}",
        f"{_system(style, style.system, from_rows)}{put(_written(style.turn, of_input))}",
        "{%- else -%}",
        f"{_system(style, style.system_without_input, from_rows)}"
        f"{put(_written(style.turn_without_input, {'instruction': content}))}",
        "{%- endif -%}",
        "{%- elif message['role'] == 'assistant' -%}",
        f"{{%- generation -%}}{{{{- {content} + {end} -}}}}{{%- endgeneration -%}}",
        "{%- endif -%}",
        "{%- endfor -%}",
    ]
    return "\n".join(lines)


def _system(style: PromptStyle, text: str, from_rows: bool) -> str:
    if from_rows:
        return f"{{%- if system -%}}{put(_written(style.system_format, {'system': 'system'}))}{{%- endif -%}}"
    return put(literal(style.system_format.format(system=text))) if text else ""


def put(expression: str) -> str:
    """Return Jinja that writes an expression."""
    return f"{{{{- {expression} -}}}}"


def literal(text: str) -> str:
    """Return a text as a literal of Jinja."""
    return json.dumps(text, ensure_ascii=False)


def _written(template: str, values: Mapping[str, str]) -> str:
    """Return a Jinja expression for a format string, with ``values`` for its ``{names}``."""
    parts, begin = list[str](), 0
    for match in _PLACE.finditer(template):
        parts.append(literal(template[begin : match.start()]))
        name, begin = match.group(1), match.end()
        parts.append(values[name] if name else literal(match.group()[0]))
    parts.append(literal(template[begin:]))
    return " + ".join(part for part in parts if part != '""') or '""'


def end_of_text(reader: KeyReader) -> Json:
    """Return the end of text that the file gives the tokenizer; None if it gives none."""
    return as_object(reader.given.get("special_tokens")).get("eos_token")
