"""Check the syntax of a chat template without running it or importing Transformers."""

from __future__ import annotations

import json
from pathlib import Path

from paceline.core.diagnostics import Diagnostic
from paceline.core.files import read_text
from paceline.data import codes


def syntax_error(template: str) -> str | None:
    """Return ``line N: what`` of the first syntax error; None if there is none.

    Accepted tags: Jinja's own, loop controls, and Transformers' ``generation``.
    """
    from jinja2 import TemplateSyntaxError

    from paceline.data.sandbox import environment

    try:
        environment().parse(template)
    except TemplateSyntaxError as error:
        return f"line {error.lineno}: {error.message}"
    except RecursionError:
        return "it is nested too deeply"
    return None


def template_in(folder: Path) -> str | None:
    """Return the chat template in a tokenizer's folder; None if there is none, or several."""
    try:
        if (folder / "chat_template.jinja").is_file():
            return read_text(folder / "chat_template.jinja")
        found = json.loads(read_text(folder / "tokenizer_config.json")).get("chat_template")
    except (OSError, ValueError, AttributeError):
        return None
    return found if isinstance(found, str) else None


def look_at_template(given: str | None, folder: Path | None) -> Diagnostic | None:
    """Check ``model.chat_template``'s text, or else the template in a tokenizer's folder."""
    own = None if folder is None else folder / "chat_template.jinja"
    try:
        text = given if given is not None else read_text(own) if own is not None and own.is_file() else ""
    except (OSError, ValueError) as error:
        wrong: str | None = str(error)
    else:
        wrong = syntax_error(text)
    if wrong is None:
        return None
    found = wrong if given is not None else f"{own}: {wrong}"
    hint = "set model.chat_template to correct Jinja, or to a built-in name such as chatml"
    return codes.DATA_BAD_CHAT_TEMPLATE(
        "the chat template is not valid Jinja", "model.chat_template", found, hint
    )
