"""axolotl's chat templates as Jinja for ``model.chat_template``, made of the formats in its table.

A role's format is the text before its content and the text after it. An answer and its ``end`` have loss;
``header``, ``opens`` and ``after`` around them have none. ``prompt`` follows the header where generation
begins. ``folds``: a condition for the user turn that contains the system text. ``thinks``: only answers after
the last question keep their thoughts, and the last answer gets an empty thought if it has none. ``forgets``:
an answer begins after its last ``</think>``.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

from paceline.config.import_export.argument_tables import table
from paceline.config.import_export.programs.axolotl_prompts import TEMPLATE, literal, put
from paceline.config.import_export.verdicts import KeyReader
from paceline.config.yaml_text.read_file import read_text
from paceline.core.json_types import JsonObject, as_list, as_object

_CONTENT = "message['content']"
_GIVEN_THOUGHT = "message['reasoning_content']"
#: The thought of an answer, which its row has apart or in its text, and what follows it
_SPLIT = f"""\
{{%- set content, thought = {_CONTENT}, {_GIVEN_THOUGHT} | default('', true) -%}}
{{%- if not thought and '</think>' in content -%}}
{{%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') -%}}
{{%- set content = content.split('</think>')[-1].lstrip('\\n') -%}}
{{%- endif -%}}"""
_LAST_QUESTION = """\
{%- set ns = namespace(last=-1) -%}
{%- for message in messages -%}
{%- if message['role'] == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}
{%- endfor -%}"""

_NO_THOUGHT = (
    r"{%- if enable_thinking is defined and enable_thinking is false -%}{{- '</think>\n\n' -}}{%- endif -%}"
)


def named_template(reader: KeyReader) -> None:
    """Return axolotl's template of this name: from its formats, or from the installed package."""
    name = str(reader.given.get("chat_template") or "")
    if reader.decided("chat_template") or not name:
        return
    file = f"axolotl/utils/chat_templates/templates/{name}.jinja"
    formats = formats_of(reader)
    package = find_spec("axolotl")
    places = [Path(folder) for folder in (package.submodule_search_locations or ())] if package else []
    own = next((p for place in places if (p := place.parent / file).is_file()), None)
    if not formats and (own is None or not re.fullmatch(r"\w+", name)):
        remedy = f"copy {file} of its package beside this file, and set model.chat_template: {name}.jinja"
        reader.lose("chat_template", f"axolotl's own {name}; the tokenizer's template is used, or {remedy}")
        return
    if not formats:
        reader.keep("chat_template", TEMPLATE, read_text(str(own)), f"axolotl's own {name}")
        return
    says = f"axolotl's own {name}, without tools and their calls"
    if (end := str(formats["end"])) not in [*_ends(reader), "eos_token"]:
        says += f"; {end} has loss at the end of answers, there if it is the tokenizer's end of text"
    reader.differs("chat_template", TEMPLATE, jinja(formats), says)


def formats_of(reader: KeyReader) -> JsonObject:
    """Return the formats of the file's template, without the system's if all data sets drop system turns;
    empty if unknown.
    """
    name = str(reader.given.get("chat_template") or "")
    formats = as_object(as_object(table("axolotl_templates")["templates"]).get(name))
    sets = [as_object(item) for item in as_list(reader.given.get("datasets"))]
    if sets and all(item.get("drop_system_message") for item in sets):
        return {key: value for key, value in formats.items() if key not in ("system", "folds")}
    return formats


def _ends(reader: KeyReader) -> list[str]:
    """Return the file's settings for the end of a turn."""
    special = as_object(reader.given.get("special_tokens")).get("eos_token")
    return [str(token) for token in [*as_list(reader.given.get("eot_tokens")), special] if token]


def jinja(formats: JsonObject) -> str:
    """Return the Jinja of a template."""
    user, question = _pair(formats, "user"), _trimmed(formats, "user")
    if formats.get("folds"):
        system = f"system + {literal(_pair(formats, 'system')[1])} if {formats['folds']} and system else ''"
        question = f"({system}) + {question}"
    lines = [
        *(put(_token(str(text))) for text in as_list(formats.get("begin"))),
        _system(formats),
        _LAST_QUESTION if formats.get("thinks") else "",
        "{%- for message in messages -%}",
        "{%- if message['role'] == 'user' -%}",
        put(f"{literal(user[0])} + {question} + {literal(user[1])}"),
        "{%- elif message['role'] == 'assistant' -%}",
        *_answer(formats),
        "{%- endif -%}",
        "{%- endfor -%}",
        "{%- if add_generation_prompt -%}",
        put(literal(_text(formats, "header") + _text(formats, "prompt"))),
        _NO_THOUGHT if formats.get("thinks") else "",
        "{%- endif -%}",
    ]
    return "\n".join(line for line in lines if line)


def _system(formats: JsonObject) -> str:
    """Return the Jinja of the system turn: the row's first turn, or the template's default."""
    before, after = _pair(formats, "system")
    text = _trimmed(formats, "system").replace("message", "messages[0]")
    first = "{%- set first = 1 if messages and messages[0]['role'] == 'system' else 0 -%}"
    default = formats.get("default_system")
    if formats.get("folds"):
        return f"{first}{{%- set system = messages[0]['content'] if first else '' -%}}"
    if "system" not in formats:
        return ""
    written = f"{first}{{%- if first -%}}{put(f'{literal(before)} + {text} + {literal(after)}')}"
    if isinstance(default, str):
        written += f"{{%- else -%}}{put(literal(before + default + after))}"
    return f"{written}{{%- endif -%}}"


def _answer(formats: JsonObject) -> list[str]:
    """Return the Jinja of an answer, with the tokens that have loss in its generation block."""
    header, opens, after = (_text(formats, key) for key in ("header", "opens", "after"))
    end = _token(_text(formats, "end"))
    lines = [put(literal(header + opens))] if header + opens else []
    content = _trimmed(formats, "assistant")
    if formats.get("forgets"):
        content = f"{_CONTENT}.split('</think>')[-1]"
    if formats.get("thinks"):
        content = "content"
        lines += [
            _SPLIT,
            "{%- if loop.index0 > ns.last and (loop.last or thought) -%}",
            put(r"'<think>\n'"),
            r"{%- if not thought -%}{{- '\n</think>\n\n' -}}{%- endif -%}",
            r"{%- set content = (thought.strip('\n') + '\n</think>\n\n' if thought else '')"
            r" + content.lstrip('\n') -%}",
            "{%- endif -%}",
        ]
    lines.append(f"{{%- generation -%}}{put(f'{content} + {end}')}{{%- endgeneration -%}}")
    return [*lines, put(literal(after)) if after else ""]


def _pair(formats: JsonObject, role: str) -> tuple[str, str]:
    before, after = [*map(str, as_list(formats.get(role))), "", ""][:2]
    return before, after


def _text(formats: JsonObject, key: str) -> str:
    return str(formats.get(key) or "")


def _trimmed(formats: JsonObject, role: str) -> str:
    return f"({_CONTENT} | trim)" if role in as_list(formats.get("trims")) else _CONTENT


def _token(text: str) -> str:
    return f"({text} | default(''))" if text in ("bos_token", "eos_token") else literal(text)
