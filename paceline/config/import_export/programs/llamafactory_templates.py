"""LLaMA-Factory's templates as Jinja for ``model.chat_template``, made of the formats in its table.

A user turn ends with the answer's header; the answer and its end token have loss.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator

from paceline.config.import_export.argument_tables import table
from paceline.config.import_export.verdicts import KeyReader
from paceline.core.json_types import Json, JsonObject, as_object

_CONTENT = "message['content']"
#: In version 1 an answer's header has loss, too
_HEADER, _TRAINED = r"<|im_start|>assistant\n", "{%- generation -%}"


def template(reader: KeyReader) -> None:
    """Decide ``template`` and the keys around it."""
    name, stage = reader.value("template"), reader.text("stage")
    kwargs = ("enable_thinking", "preserve_thinking", "default_system")
    if stage == "pt":
        ends = as_object(as_object(table("llamafactory_templates")["templates"]).get(str(name))).get(
            "stop_words"
        )
        if isinstance(ends, list) and ends:
            reader.differs(
                "template",
                "data.train_on",
                "all",
                f"a text may end in the template's {ends[0]} there; here in the tokenizer's end of text",
            )
        reader.nothing([k for k in ("template", *kwargs) if not reader.decided(k)], "plain text is read")
        return
    if not isinstance(name, str) or not name:
        reader.nothing("template", "the tokenizer's own template, as here")
    else:
        known = as_object(table("llamafactory_templates")["templates"])
        formats = as_object(known.get(name))
        if not formats and name not in ("empty",):
            close = difflib.get_close_matches(name, known, 1)
            suggestion = f": did you mean '{close[0]}'?" if close else ""
            reader.lose("template", f"LLaMA-Factory 0.9.5 has no template {name}{suggestion}")
        else:
            system = reader.given.get("default_system")
            think = reader.value("enable_thinking") is not False
            source = jinja(formats, "" if system == "" else None, think)
            if system:
                reader.keep("default_system", "data.default_system", system)
            says = "; ".join(_departures(formats))
            if reader.value("version") == 1:
                source = source.replace(f"{_HEADER}'", "'").replace(
                    _TRAINED, f"{_TRAINED}{{{{- '{_HEADER}' -}}}}"
                )
                source += f"\n{{%- if add_generation_prompt -%}}{{{{- '{_HEADER}' -}}}}{{%- endif -%}}"
                if name != "qwen3_nothink":
                    says = "version 1 has formats of its own; these are version 0's"
            if says and stage == "sft":
                reader.differs("template", "model.chat_template", source, says)
            else:
                reader.keep("template", "model.chat_template", source, f"LLaMA-Factory's template {name}")
            _thoughts(reader, formats, stage, source)
            reader.mapped([key for key in kwargs if not reader.decided(key)], ("model.chat_template",))
    reader.nothing("tool_format", "calls of tools are written by the chat template") if not reader.is_given(
        "tool_format"
    ) else None


def _departures(formats: JsonObject) -> Iterator[str]:
    """Yield how tokens or labels of a template differ from LLaMA-Factory's."""
    ends = _slots(formats.get("assistant"), ["", {"name": "eos_token"}])
    header = _slots(formats.get("user"), [""])[-1]
    if formats.get("efficient_eos"):
        yield (
            "there the token behind each answer but the last learns end of text, which also ends the row;"
            " here an answer ends as the template writes it"
        )
    elif ends == ["{{content}}"]:
        yield "answers have no end there; here they end in the tokenizer's end of text"
    elif str(ends[-1]).endswith("\n\n"):
        yield "the blank line behind the last answer may become the tokenizer's end of text here"
    if str(header).endswith(" "):
        yield "there header and answer are tokenized apart; here their tokens may merge"


def _thoughts(reader: KeyReader, formats: JsonObject, stage: str, source: str) -> None:
    """Report rows whose thoughts LLaMA-Factory removes for reasoning models; Paceline keeps them."""
    if "Reasoning" not in str(formats.get("class")):
        reader.nothing(("enable_thinking", "preserve_thinking"), "it acts on templates of reasoning models")
        return
    path, says = (
        "model.chat_template",
        "which LLaMA-Factory takes out of rows, stay: remove them, if there are any",
    )
    if reader.value("enable_thinking") is False:
        reader.differs("enable_thinking", path, source, f"thoughts, {says}")
    if stage == "sft" and not reader.on("mask_history"):
        reader.nothing("preserve_thinking", "it acts on pairs, labels and prompts, and with mask_history")
    elif not reader.on("preserve_thinking"):
        reader.differs("preserve_thinking", path, source, f"thoughts of earlier answers, {says}")


def jinja(formats: JsonObject, system: str | None = None, think: bool = True) -> str:
    """Return the Jinja of a template: prefix and system turn first, then the turns in their formats.

    ``think``: an answer without a thought gets an empty one, with loss (False: without loss), in templates of
    reasoning models.
    """
    default = system if system is not None else str(formats.get("default_system") or "")
    ends: list[Json] = (
        ["{{content}}"] if formats.get("efficient_eos") else ["{{content}}", {"name": "eos_token"}]
    )
    user = _slots(formats.get("user"), ["{{content}}"])
    system_text = _written(_slots(formats.get("system"), ["{{content}}"]), "system")
    prefix = _written(_slots(formats.get("prefix"), []), "''")
    folded = formats.get("class") == "Llama2Template"  # the system text stands inside the first user's turn
    user_text = (
        f"((({system_text}) if loop.index0 == first and system else '') + {_CONTENT})" if folded else _CONTENT
    )
    thought = _empty_thought(formats)
    answer = _put(_written(_slots(formats.get("assistant"), ends), _CONTENT))
    observation = _slots(formats.get("observation"), user)
    if formats.get("efficient_eos") and (user_opener := _opener(user)):
        # No text closes an answer: the token that opens the next turn ends it, and has loss as its end
        tool_opener = _opener(observation)
        user, observation = _later_opened(user, user_opener), _later_opened(observation, tool_opener)
        answer += (
            _if("loop.nextitem is defined and loop.nextitem['role'] == 'user'", _put(literal(user_opener)))
            + _elif(
                "loop.nextitem is defined and loop.nextitem['role'] == 'tool'", _put(literal(tool_opener))
            )
            + "{%- endif -%}"
        )
    lines = [
        _if("messages and messages[0]['role'] == 'system'", _set("messages[0]['content']", 1)),
        f"{{%- else -%}}{_set(literal(default), 0)}{{%- endif -%}}",
        _put(prefix) if prefix != "''" else "",
        "" if folded else f"{_if('system', _put(system_text))}{{%- endif -%}}",
        "{%- for message in messages -%}",
        _if("message['role'] == 'user'", _put(_written(user, user_text))),
        _elif("message['role'] == 'tool'", _put(_written(observation, _CONTENT))),
        _elif("message['role'] == 'assistant'", "" if think else thought),
        f"{{%- generation -%}}{thought if think else ''}{answer}{{%- endgeneration -%}}",
        "{%- endif -%}",
        "{%- endfor -%}",
    ]
    return "\n".join(line for line in lines if line)


def _empty_thought(formats: JsonObject) -> str:
    """Return the Jinja of an empty thought before an answer without one; "" for other models."""
    kind = str(formats.get("class"))
    if "Reasoning" not in kind:
        return ""
    words = [str(word) for word in _slots(formats.get("thought_words"), ["<think>\n", "\n</think>\n\n"])]
    empty = "</think>" if "Glm47" in kind else "".join(words)
    without = " and ".join(f"{literal(word.strip())} not in {_CONTENT}" for word in words)
    return f"{_if(without, _put(literal(empty)))}{{%- endif -%}}"


def _opener(slots: list[Json]) -> str:
    """Return the special token that a turn's format begins with; "" where it begins otherwise."""
    first = slots[0]
    if isinstance(first, dict):
        return str(first.get("token", ""))
    opener = re.match(r"<\|[^<>|]+\|>", str(first))
    return opener.group() if opener else ""


def _later_opened(slots: list[Json], opener: str) -> list[Json]:
    """Return a turn's format whose opener stands there only where no answer before it has written it."""
    first, *rest = slots
    own = [str(first)[len(opener) :]] if isinstance(first, str) else []
    return [{"unanswered": opener}, *(text for text in own if text), *rest]


def _if(condition: str, body: str) -> str:
    return f"{{%- if {condition} -%}}{body}"


def _elif(condition: str, body: str) -> str:
    return f"{{%- elif {condition} -%}}{body}"


def _put(expression: str) -> str:
    return f"{{{{- {expression} -}}}}"


def _set(system: str, first: int) -> str:
    return f"{{%- set system = {system} -%}}{{%- set first = {first} -%}}"


def _slots(value: Json, otherwise: list[Json]) -> list[Json]:
    return list(value) if isinstance(value, list) and value else otherwise


def _written(slots: list[Json], content: str) -> str:
    """Return slots as one Jinja expression; ``content`` is the expression of the turn's text."""
    parts: list[str] = []
    for slot in slots:
        if isinstance(slot, dict):
            # LLaMA-Factory writes these two names alone; a set with another token writes nothing
            if (name := slot.get("name")) in ("bos_token", "eos_token"):
                parts.append(f"({name} | default(''))")
            elif "token" in slot:
                parts.append(literal(str(slot["token"])))
            elif "unanswered" in slot:
                answered = "loop.previtem is defined and loop.previtem['role'] == 'assistant'"
                parts.append(f"('' if {answered} else {literal(str(slot['unanswered']))})")
            continue
        before, marker, after = str(slot).partition("{{content}}")
        parts += [
            literal(text) if text != "\0" else content
            for text in (before, "\0" if marker else "", after)
            if text
        ]
    return " + ".join(parts) or "''"


def literal(text: str) -> str:
    """Return a text as a literal of Jinja."""
    quoted = json.dumps(text, ensure_ascii=False)
    return quoted if "'" in text else "'" + quoted[1:-1].replace('\\"', '"') + "'"
