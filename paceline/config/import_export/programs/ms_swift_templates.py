"""ms-swift's chat templates as Jinja for ``model.chat_template``, made of the formats in its table.

An answer and its end token have loss; the answer's opening belongs to the question before it.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path

from paceline.config.import_export.argument_tables import table
from paceline.config.import_export.local_files import adds_bos, config_of
from paceline.config.import_export.programs.llamafactory_templates import literal
from paceline.config.import_export.verdicts import KeyReader
from paceline.config.yaml_text.read_file import read_text
from paceline.core.json_types import Json, JsonObject, as_list, as_object

_EMPTY_THOUGHT = (
    "'</think>' in content and content.split('</think>')[0].replace('<think>', '', 1).strip() == ''"
)
_TOKENS = {"bos_token_id": "bos_token", "eos_token_id": "eos_token"}


_OF_TEMPLATE = (
    "enable_thinking",
    "preserve_thinking",
    "add_non_thinking_prefix",
    "disable_ignore_empty_think",
)
_PATH = "model.chat_template"
_NOT_TEXT = re.compile(r"diffusion|tts")


@dataclass(frozen=True)
class Writing:
    """A command's settings for its template.

    - ``system``: the system text of rows without one (None: the template's own)
    - ``last_round``: only the last answer keeps its thought, as in `swift rlhf`
    - ``thinks``: the model is asked to think; None: as the template says
    - ``keeps_thoughts``: earlier answers keep theirs; None: as the template says
    - ``adds_thoughts``: an answer without a thought gets an empty one
    - ``learns_empty_thoughts``: these have loss
    - ``bos``: a text begins with the tokenizer's BOS, where the template leaves it to the tokenizer
    """

    system: str | None = None
    last_round: bool = False
    thinks: bool | None = None
    keeps_thoughts: bool | None = None
    adds_thoughts: bool = True
    learns_empty_thoughts: bool = False
    bos: bool = False


def template(reader: KeyReader) -> None:
    """Decide ``template`` (by default the model's) and related keys."""
    model, kind = str(reader.given.get("model") or ""), str(reader.given.get("model_type") or "")
    config, written = config_of(reader), reader.given.get("template")
    names = [str(written)] if written else template_names(model, kind, config)
    formats = formats_of(names[0]) if len(names) == 1 else {}
    source = ""
    if not formats:
        _unknown(reader, names, written)
    elif _NOT_TEXT.search(names[0]):
        reader.lose(
            "template", f"{names[0]} is of a model of another kind: diffusion and speech are not trained"
        )
    elif "own" in formats:
        says = f"ms-swift writes {names[0]} by code of its own; here the tokenizer's template is used"
        reader.departs("template", says, unset=True)
    else:
        source = jinja(formats, _writing(reader, adds_bos(reader)))
        note, differs = f"ms-swift's template {names[0]}", differences(formats)
        if differs:
            reader.differs("template", _PATH, source, f"{note}: {'; '.join(differs)}")
        else:
            reader.keep("template", _PATH, source, note)
    for key in _OF_TEMPLATE:
        if key not in reader.given or reader.decided(key):
            continue
        if source:
            reader.mapped(key, (_PATH,))
        elif key == "enable_thinking":
            says = "the tokenizer's own template gets it as a variable, which it may not read"
            reader.differs(key, "model.chat_template_kwargs", {key: reader.on(key)}, says)
        else:
            reader.lose(key, "it acts on a template of ms-swift, and the tokenizer's own is used here")


def default_system(reader: KeyReader) -> None:
    """``--system`` is a text, with ``\\n`` for a new line, or the path of a .txt file with one."""
    text = str(reader.given["system"])
    here = [file for file in (Path(text), Path(reader.result.file).parent / text) if file.is_file()]
    if text.endswith(".txt") and here:
        text = read_text(str(here[0]), "the file with the system turn")
    reader.keep("system", "data.default_system", text.replace("\\n", "\n"))


def _unknown(reader: KeyReader, names: list[str], written: Json) -> None:
    if written:
        close = difflib.get_close_matches(names[0], as_object(table("swift_templates")["templates"]), 1)
        reader.lose(
            "template",
            f"ms-swift 4.6.0 has no template {names[0]}{f': did you mean {close[0]}?' if close else ''}",
        )
        return
    which = (
        f"of its templates {', '.join(names)} ms-swift needs one by name"
        if names
        else ("ms-swift takes a template by the model's config.json, which is not here")
    )
    reader.departs("template", f"{which} (template: …); the tokenizer's is used", unset=True)


def _writing(reader: KeyReader, bos: bool) -> Writing:
    """Return the file's settings for its template."""

    def switch(key: str) -> bool | None:
        return None if reader.given.get(key) is None else reader.on(key)

    return Writing(
        system="" if reader.given.get("system") == "" else None,
        last_round=str(reader.facts.get("loss_scale")) == "last_round",
        thinks=switch("enable_thinking"),
        keeps_thoughts=switch("preserve_thinking"),
        adds_thoughts=switch("add_non_thinking_prefix") is not False,
        learns_empty_thoughts=reader.on("disable_ignore_empty_think"),
        bos=bos,
    )


def template_names(model: str, model_type: str, config: JsonObject) -> list[str]:
    """Return ms-swift's possible templates of a model, by its name, type and config.

    With several ms-swift asks for ``--template``. An unknown model has ``dummy``; the result is empty if
    there is no config here.
    """
    tables = table("swift_templates")
    last = model.rstrip("/").rpartition("/")[2].lower()
    for name, models in as_object(tables["models"]).items():
        if last and last in str(models).split():
            return [name]
    types = as_object(tables["types"])
    if not config and not model_type:
        return []
    written = as_list(config.get("architectures"))
    of_architecture = str(as_object(tables["architectures"]).get(str(written[0]) if written else "null", ""))
    kinds = [model_type] if model_type else of_architecture.split()
    if not kinds:
        return ["dummy"]
    return [str(name) for kind in kinds for name in as_list(types.get(kind))]


def formats_of(name: str) -> JsonObject:
    """Return the formats of a template; empty for one that ms-swift 4.6.0 does not have."""
    return as_object(as_object(table("swift_templates")["templates"]).get(name))


def jinja(formats: JsonObject, writing: Writing) -> str:
    """Return the Jinja of a template."""
    does = as_list(formats.get("does"))
    default = formats.get("default_system") if writing.system is None else writing.system
    at_end = bool(formats.get("system_prompt"))  # the system text stands in the last question
    prefix = _written(formats.get("prefix"))
    before = prefix if at_end else _written(formats.get("system_prefix"))
    in_question = "system in question" in does
    trimmed = " | trim" if "trims" in does else ""
    lines = [
        "{%- set ns = namespace(query='', round=0, last=-1, closed=false) -%}",
        "{%- for message in messages -%}{%- if message['role'] in ['user', 'tool'] -%}",
        "{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}",
        "{%- if messages and messages[0]['role'] == 'system' -%}",
        f"{{%- set system = messages[0]['content']{trimmed} -%}}{{%- set first = 1 -%}}",
        f"{{%- else -%}}{{%- set system = {literal(str(default or ''))} -%}}",
        "{%- set first = 0 -%}{%- endif -%}",
        "{%- if first -%}{%- set ns.query = system + '\\n\\n' -%}{%- set system = '' -%}{%- endif -%}"
        if in_question
        else "",
        "{{- bos_token | default('') -}}" if writing.bos and formats.get("auto_add_bos") else "",
        f"{{%- if system -%}}{_put(before)}{{%- else -%}}{_put(prefix)}{{%- endif -%}}",
        "{%- for message in messages -%}",
        *_question(formats, writing, trimmed),
        *_answer(formats, writing),
        "{%- endif -%}",
        "{%- endfor -%}",
        _opening(formats, writing),
    ]
    return "\n".join(line for line in lines if line)


def differences(formats: JsonObject) -> list[str]:
    """Return how the Jinja of a template differs from ms-swift, for rows of questions and answers."""
    prompt = _text_of(formats.get("prompt"))
    header = prompt.rpartition("{{QUERY}}")[2] or prompt
    after = _text_of(formats.get("chat_sep")) + prompt
    found = []
    if "chat_sep" not in formats:
        found.append("of a conversation ms-swift reads the last question and answer alone; here all turns")
    elif (
        not after.startswith(_text_of(formats.get("suffix", [["eos_token_id"]])))
        and after.lstrip()[:1] in "<[\0"
    ):
        found.append("the token that ends an earlier answer has loss here, and none in ms-swift")
    if header and header[-1] not in "\n>\0":
        found.append("ms-swift splits tokens where an answer begins; here the text is split as one")
    if not formats.get("suffix", [["eos_token_id"]]):
        found.append("the last answer ends in the tokenizer's end of text, in ms-swift in nothing")
    return found


def _question(formats: JsonObject, writing: Writing, trimmed: str) -> list[str]:
    """Return the Jinja of a question: consecutive user turns, and the answer's header."""
    prompt = _put(_question_text(formats, formats.get("prompt")))
    if system_prompt := formats.get("system_prompt"):
        # without a system text ms-swift leaves its marker there
        last = f"{{%- set system = system or '{{{{SYSTEM}}}}' -%}}{_put(_written(system_prompt))}"
        prompt = f"{{%- if ns.last <= loop.index0 -%}}{last}{{%- else -%}}{prompt}{{%- endif -%}}"
    if "bare header" in as_list(formats.get("does")) and not _opening(formats, writing):
        bare = _put(_question_text(formats, _without_line(formats.get("prompt"))))
        opens = "{%- if add_generation_prompt and ns.last == loop.index0 -%}"
        prompt = f"{opens}{bare}{{%- else -%}}{prompt}{{%- endif -%}}"
    return [
        "{%- if message['role'] == 'user' -%}",
        f"{{%- set ns.query = ns.query + (message['content']{trimmed}) -%}}",
        "{%- if loop.last or loop.nextitem['role'] != 'user' -%}",
        prompt,
        "{%- set ns.query = '' -%}{%- set ns.round = ns.round + 1 -%}{%- set ns.closed = false -%}",
        "{%- endif -%}",
        "{%- elif message['role'] == 'assistant' -%}",
        f"{{%- if loop.index0 == first -%}}{prompt}{{%- endif -%}}",
    ]


def _shared_end(formats: JsonObject) -> str:
    """Return the token that both ends an answer and opens the next question; "" for other templates."""
    end = _text_of(formats.get("suffix", [["eos_token_id"]]))
    return (
        end if end and _text_of(formats.get("prompt")).startswith(end) and not formats.get("chat_sep") else ""
    )


def _question_text(formats: JsonObject, prompt: Json) -> str:
    """Return a question's expression; the answer before it may have written its first token."""
    shared, text = _shared_end(formats), _text_of(prompt)
    if not shared:
        return _expression(text)
    return f"('' if ns.closed else {_expression(shared)}) + {_expression(text[len(shared) :])}"


def _without_line(slots: Json) -> Json:
    listed = as_list(slots)
    return [*listed[:-1], str(listed[-1]).removesuffix("\n")] if listed else listed


def _answer(formats: JsonObject, writing: Writing) -> list[str]:
    end, between = _text_of(formats.get("suffix", [["eos_token_id"]])), _text_of(formats.get("chat_sep"))
    # Of what stands between an answer and the next question, what ends the last answer has loss, too
    trained, untrained = (end, between[len(end) :]) if between.startswith(end) else ("", between)
    untrained = _put(_expression(untrained)) if untrained else ""
    follows = "{%- elif loop.nextitem['role'] == 'user' -%}"
    if shared := _shared_end(formats):
        trained, follows = shared, f"{follows}{{%- set ns.closed = true -%}}"
    return [
        *_content(formats, writing),
        "{%- generation -%}{{- content -}}",
        f"{{%- if loop.last -%}}{_put(_expression(end))}{follows}{_put(_expression(trained))}{{%- endif -%}}",
        "{%- endgeneration -%}",
        f"{{%- if loop.nextitem and loop.nextitem['role'] == 'user' -%}}{untrained}{{%- endif -%}}"
        if untrained
        else "",
    ]


def _content(formats: JsonObject, writing: Writing) -> list[str]:
    """Return the Jinja of an answer's text, with its thought as in ms-swift; the part without loss comes
    first."""
    does, empty = as_list(formats.get("does")), str(formats.get("non_thinking_prefix") or "")
    lines = ["{%- set content = message['content'] -%}"]
    if "strips lines" in does:
        lines.append("{%- set content = content.strip('\\n') -%}")
    if "trims" in does:
        lines += [
            "{%- set content = content | trim -%}",
            "{%- if '<think>' in content and '</think>' in content -%}",
            "{%- set parts = content.split('</think>', 1) -%}",
            "{%- set thought = parts[0].rstrip('\\n').split('<think>')[-1].strip() -%}",
            "{%- set content = '<think>\\n' + thought + '\\n</think>\\n\\n' + parts[1].lstrip('\\n') -%}",
            "{%- endif -%}",
        ]
    if empty and writing.adds_thoughts:
        # In training by the last round, and in generation, earlier answers get none
        everywhere = bool(formats.get("preserve_thinking"))
        whole = "" if everywhere else f" and ({_earlier(writing)} or loop.index0 > ns.last)"
        # of answers in a row the first alone
        first = "loop.index0 == first or loop.previtem['role'] != 'assistant'"
        if "after questions" in does:
            first = "loop.index0 > first and loop.previtem['role'] == 'user'"
        lines += [
            f"{{%- if not content.startswith(('<think>', {literal(empty)})) and ({first}){whole} -%}}",
            f"{{%- set content = {literal(empty)} + content -%}}{{%- endif -%}}",
        ]
    if drops := _drops(formats, writing):
        history = literal(str(formats.get("history_thinking_prefix") or ""))
        lines += [
            f"{{%- if {drops} and loop.index0 < ns.last -%}}",
            f"{{%- set content = {history} + (content.split('</think>')[-1] | trim) -%}}{{%- endif -%}}",
        ]
    if empty and formats.get("is_thinking") and not writing.learns_empty_thoughts:
        lines += [
            f"{{%- if content.startswith(('<think>', '</think>')) and {_EMPTY_THOUGHT} -%}}",
            "{%- set rest = content.split('</think>', 1)[1].lstrip() -%}",
            "{{- content[:(content | length) - (rest | length)] -}}{%- set content = rest -%}{%- endif -%}",
        ]
    return lines


def _earlier(writing: Writing) -> str:
    """Return the condition under which earlier answers are rendered like the last one."""
    return "false" if writing.last_round else "not add_generation_prompt"


def _drops(formats: JsonObject, writing: Writing) -> str:
    """Return the condition under which earlier answers lose their thoughts; empty for never."""
    keeps = formats.get("preserve_thinking") if writing.keeps_thoughts is None else writing.keeps_thoughts
    if keeps is not None:
        return "" if keeps else "true"
    if not formats.get("is_thinking") and not writing.thinks:
        return ""
    return "true" if writing.last_round else "add_generation_prompt"


def _opening(formats: JsonObject, writing: Writing) -> str:
    """Return the opening of a generated answer: a thought, or an empty one."""
    empty = str(formats.get("non_thinking_prefix") or "")
    thinks = writing.thinks
    if thinks is None:
        hybrid = bool(empty) and "thinks" not in as_list(formats.get("does"))
        thinks = bool(formats.get("is_thinking")) and not hybrid
    text = str(formats.get("thinking_prefix") or "") if thinks else empty
    if "bare header" in as_list(formats.get("does")):
        text = text.removesuffix("\n")
    return f"{{%- if add_generation_prompt -%}}{_put(literal(text))}{{%- endif -%}}" if text else ""


def _put(expression: str) -> str:
    return f"{{{{- {expression} -}}}}"


def _text_of(slots: Json) -> str:
    """Return slots as one text, names of tokens between null characters."""
    parts = (slot if isinstance(slot, list) else [slot] for slot in as_list(slots))
    return "".join(
        f"\0{_TOKENS.get(str(part), part)}\0" if isinstance(slot, list) else str(part)
        for slot, listed in zip(as_list(slots), parts, strict=True)
        for part in listed
    )


def _expression(text: str) -> str:
    """Return a text of ``_text_of`` as one Jinja expression."""
    pieces = text.split("\0")
    named = (f"({piece} | default(''))" for piece in pieces[1::2])
    parts = [part for piece in pieces[::2] for part in (*_filled(piece), next(named, ""))]
    return " + ".join(part for part in parts if part) or "''"


def _written(slots: Json) -> str:
    return _expression(_text_of(slots))


_NAMES = {
    "{{QUERY}}": "ns.query",
    "{{SYSTEM}}": "system",
    "{{ROUND0}}": "(ns.round | string)",
    "{{ROUND1}}": "((ns.round + 1) | string)",
}


def _filled(slot: str) -> list[str]:
    """Return a text's expressions: its own, and those of what it names."""
    for marker, expression in _NAMES.items():
        before, found, after = slot.partition(marker)
        if found:
            return [*_filled(before), expression, *_filled(after)]
    return [literal(slot)] if slot else []
