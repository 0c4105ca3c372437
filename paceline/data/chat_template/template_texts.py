"""Chat templates as texts: find them and check their syntax, without running one."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping, Set
from pathlib import Path

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import DataError
from paceline.core.files import read_text
from paceline.core.json_types import Json
from paceline.data import codes
from paceline.data.chat_template.options import not_read, options_read
from paceline.data.rows.formats import PLAIN_TEXTS
from paceline.data.rows.row_errors import ALWAYS_REFUSED, REASONS

BUILTIN_TEMPLATES = ("chatml", "llama3", "alpaca", "plain")
END_MARKS = ("<|im_end|>", "<|eot_id|>")  # end-of-turn tokens in the templates of most model families
# Transformers' names
DEFAULT, TOOL_USE = "default", "tool_use"
ADDITIONAL = "additional_chat_templates"  # the folder of the others


def builtin_template(name: str) -> str:
    """Return the Jinja text of a built-in template."""
    return (Path(__file__).parent / "templates" / f"{name}.jinja").read_text("utf-8").rstrip("\n")


def template_text(value: str | None) -> str | None:
    """Return the Jinja text of ``model.chat_template``: a built-in name, a path, or the text itself.

    Raises DataError.
    """
    if value is None:
        return None
    if value in BUILTIN_TEMPLATES:
        return builtin_template(value)
    if "{{" in value or "{%" in value:
        return value
    path = Path(value).expanduser()
    if os.path.isfile(path):  # isfile: a text may be longer than any file name
        return path.read_text("utf-8")
    raise DataError(
        codes.DATA_BAD_CHAT_TEMPLATE(
            "the chat template is not the name of a built-in template, a file or Jinja text",
            "model.chat_template",
            value,
            f"one of {', '.join(BUILTIN_TEMPLATES)}, the path of a .jinja file, or the template itself",
        )
    )


def syntax_error(template: str) -> str | None:
    """Return ``line N: what`` of the first syntax error; None if there is none.

    Accepted tags: Jinja's own, loop controls, and Transformers' ``generation``.
    """
    from jinja2 import TemplateSyntaxError

    from paceline.data.chat_template.jinja_sandbox import environment

    try:
        environment().parse(template)
    except TemplateSyntaxError as error:
        return f"line {error.lineno}: {error.message}"
    except RecursionError:
        return "it is nested too deeply"
    return None


def templates_in(folder: Path) -> dict[str, str]:
    """Return the chat templates in a tokenizer's folder by name, as Transformers finds them; empty if there
    is none, or they cannot be read.
    """
    try:
        files = {DEFAULT: folder / "chat_template.jinja"} | {
            path.name.removesuffix(".jinja"): path for path in sorted(folder.glob(f"{ADDITIONAL}/*.jinja"))
        }
        return {name: read_text(path) for name, path in files.items() if path.is_file()} or named_templates(
            json.loads(read_text(folder / "tokenizer_config.json")).get("chat_template")
        )
    except (OSError, ValueError, AttributeError):
        return {}


def named_templates(templates: Json) -> dict[str, str]:
    """Return chat templates by name: a text is the one named ``default``, a list or an object names each."""
    if isinstance(templates, str):
        return {DEFAULT: templates} if templates else {}
    pairs = (
        templates.items()
        if isinstance(templates, dict)
        else [_pair(entry) for entry in templates or ()]
        if isinstance(templates, list)
        else ()
    )
    return {name: text for name, text in pairs if isinstance(name, str) and isinstance(text, str)}


def _pair(entry: Json) -> tuple[Json, Json]:
    return (entry.get("name"), entry.get("template")) if isinstance(entry, dict) else (None, None)


def name_for(templates: Collection[str], *, tools: bool) -> str | None:
    """Return the name of the template that renders a conversation, as Transformers chooses it: with tools
    ``tool_use``, else the default. None if there is no such template.
    """
    wanted = (TOOL_USE, DEFAULT) if tools else (DEFAULT,)
    return next((name for name in wanted if name in templates), None)


def look_at_template(template: str | None, folder: Path | None) -> Diagnostic | None:
    """Check ``model.chat_template``'s text, or else the templates in a tokenizer's folder."""
    remedy = "set model.chat_template to correct Jinja, or to a built-in name such as chatml"
    message, texts = "the chat template is not valid Jinja", {"": template or ""}
    try:
        if template is None and folder is not None:
            paths = [folder / "chat_template.jinja", *sorted(folder.glob(f"{ADDITIONAL}/*.jinja"))]
            texts = {f"{path}: ": read_text(path) for path in paths if path.is_file()}
    except (OSError, ValueError) as error:
        return codes.DATA_BAD_CHAT_TEMPLATE(message, "model.chat_template", str(error), remedy)
    errors = (
        f"{prefix}{wrong}" for prefix, text in texts.items() if (wrong := syntax_error(text)) is not None
    )
    wrong = next(errors, None)
    return (
        None if wrong is None else codes.DATA_BAD_CHAT_TEMPLATE(message, "model.chat_template", wrong, remedy)
    )


def rendered(formats: Set[str]) -> frozenset[str]:
    """Return the row formats that need a chat template."""
    return frozenset(formats) - PLAIN_TEXTS


def no_template(tokenizer: str) -> Diagnostic:
    """Return the error for conversations with a tokenizer that has no chat template."""
    others = ", ".join(name for name in BUILTIN_TEMPLATES if name != "chatml")
    return codes.DATA_NO_CHAT_TEMPLATE("model.chat_template", tokenizer, others=others)


def costly(where: str, detail: str) -> Diagnostic:
    """Return the error for a template that takes too much time or memory."""
    code, meaning, advice = REASONS[ALWAYS_REFUSED]
    return code(meaning, where, detail, advice)


def idle_options(templates: Iterable[str], options: Mapping[str, Json]) -> Diagnostic | None:
    """Return the error for options that none of the valid templates of a tokenizer reads."""
    texts = list(templates)
    idle = [name for name in options if all(name in not_read(text, options) for text in texts)]
    if not idle:
        return None
    read = frozenset[str]().union(*map(options_read, texts))
    reads = ", ".join(sorted(read - set(options))) or "no options"
    return codes.DATA_TEMPLATE_OPTION(
        "model.chat_template_kwargs", f"the template reads {reads}", idle=", ".join(idle)
    )
