"""Whether a chat template is Jinja, by reading it alone: nothing of it runs, and Transformers is not imported."""

from __future__ import annotations

from pathlib import Path

from paceline.core.diagnostics import Diagnostic
from paceline.core.files import read_text
from paceline.data import codes


def syntax_error(template: str) -> str | None:
    """``line N: what`` of the first mistake; None where there is none. Tags are those that Transformers' templates have: Jinja's own, loop controls, generation."""
    from jinja2 import Environment, TemplateSyntaxError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012 (Jinja's own form)

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
    """The finding about ``model.chat_template``'s text, else about the one in a tokenizer's folder."""
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
    hint = "model.chat_template: correct Jinja, or a built-in name such as chatml"
    return codes.DATA_BAD_CHAT_TEMPLATE("the chat template is not Jinja", "model.chat_template", found, hint)
