"""``model.chat_template_kwargs``: options of the chat template, written into the template as its defaults.

So they act wherever the tokenizer is used: in training, rollouts, samples, ``paceline chat``, the exported
folder and a server of it. A row's own ``chat_template_kwargs`` win.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from jinja2 import meta, nodes

from paceline.core.json_types import Json
from paceline.data.chat_template.jinja_sandbox import environment

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: What every rendering gives a template; none of them is an option.
GIVEN = frozenset({"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"})
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


def with_defaults(template: str, options: Mapping[str, Json]) -> str:
    """Return the template with ``options`` as defaults."""
    begin = _beginning(options)
    # Jinja drops a line break after a tag
    return f"{begin}\n{template}" if begin and template.startswith("\n") else begin + template


def set_template(tokenizer: PreTrainedTokenizerBase, template: str | None, options: str) -> None:
    """Give a tokenizer its chat template (None: its own) with options, a JSON object."""
    values: dict[str, Json] = json.loads(options)
    template = tokenizer.chat_template if template is None else template
    if isinstance(template, dict):
        tokenizer.chat_template = {name: with_defaults(text, values) for name, text in template.items()}
    else:
        tokenizer.chat_template = with_defaults(template, values) if template else template


def options_read(template: str) -> frozenset[str]:
    """Return the options that a template reads. Raises Jinja's TemplateSyntaxError."""
    sandbox = environment()
    tree = sandbox.parse(template)
    names = meta.find_undeclared_variables(tree) - set(sandbox.globals) - GIVEN
    stored = {name.name for name in tree.find_all(nodes.Name) if name.ctx == "store"} - _tested(tree)
    macros = {macro.name for macro in tree.find_all(nodes.Macro)}
    # Special tokens are variables that every rendering gives
    return frozenset(name for name in names - stored - macros if not name.endswith("_token"))


def _tested(tree: nodes.Template) -> set[str]:
    """Return the names that the template tests with ``is defined``."""
    tests = (test for test in tree.find_all(nodes.Test) if test.name in ("defined", "undefined", "none"))
    filters = (call for call in tree.find_all(nodes.Filter) if call.name in ("default", "d"))
    return {call.node.name for call in (*tests, *filters) if isinstance(call.node, nodes.Name)}


def not_read(template: str, options: Mapping[str, Json]) -> list[str]:
    """Return the names of ``options`` that a template (with them as defaults, or without) does not read."""
    read = options_read(template.removeprefix(_beginning(options)))
    return [name for name in options if name not in read]


def _beginning(options: Mapping[str, Json]) -> str:
    return "".join(
        f"{{%- if {name} is not defined %}}{{% set {name} = {_literal(value)} %}}{{% endif %}}"
        for name, value in options.items()
        if _NAME.fullmatch(name)
    )


def _literal(value: Json) -> str:
    """Return a value as Jinja writes it."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_literal(key)}: {_literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return json.dumps(value, ensure_ascii=False)
