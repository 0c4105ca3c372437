"""Check the syntax of a chat template without running it or importing Transformers."""

from __future__ import annotations

from pathlib import Path

from paceline.core.diagnostics import Diagnostic
from paceline.core.files import read_text
from paceline.data import codes


def syntax_error(template: str) -> str | None:
    """Return ``line N: what`` of the first syntax error; None if there is none.

    Accepted tags: Jinja's own, loop controls, and Transformers' ``generation``.
    """
    from jinja2 import Environment, TemplateSyntaxError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012 (as Jinja declares it)

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    try:
        Environment(extensions=[loopcontrols, Generation]).parse(template)  # noqa: S701 (nothing is rendered)
    except TemplateSyntaxError as error:
        return f"line {error.lineno}: {error.message}"
    except RecursionError:
        return "it is nested too deeply"
    return None


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
