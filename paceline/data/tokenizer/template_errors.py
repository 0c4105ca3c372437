"""What is wrong with a chat template where its text is all that is known: no tokenizer, no rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from paceline.core.diagnostics import Diagnostic
from paceline.core.json_types import Json
from paceline.data import codes
from paceline.data.chat_template.options import not_read, options_read
from paceline.data.rows.row_errors import ALWAYS_REFUSED, REASONS
from paceline.data.tokenizer.load import BUILTIN_TEMPLATES

END_MARKS = ("<|im_end|>", "<|eot_id|>")  # end-of-turn tokens in the templates of most model families


def rendered(formats: Set[str]) -> frozenset[str]:
    """Return those of the row formats that need a chat template."""
    return frozenset(formats) - {"text"}


def no_template(tokenizer: str) -> Diagnostic:
    """Return the error for conversations with a tokenizer that has no chat template."""
    others = ", ".join(name for name in BUILTIN_TEMPLATES if name != "chatml")
    return codes.DATA_NO_CHAT_TEMPLATE("model.chat_template", tokenizer, others=others)


def costly(where: str, found: str) -> Diagnostic:
    """Return the error for a template that takes too much time or memory."""
    code, what, hint = REASONS[ALWAYS_REFUSED]
    return code(what, where, found, hint)


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
