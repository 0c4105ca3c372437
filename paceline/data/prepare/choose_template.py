"""Choose and check the chat template before the first row: validity, cost, how answers end."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Set
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import DataError
from paceline.core.security.resource_limits import SpentError, bounded_memory, bounded_time, limit_of
from paceline.data import codes
from paceline.data.chat_template.encode import CostlyTemplateError, Encoder
from paceline.data.chat_template.options import set_template
from paceline.data.chat_template.template_texts import (
    END_MARKS,
    builtin_template,
    costly,
    idle_options,
    named_templates,
    no_template,
    rendered,
)
from paceline.data.prepare.tokenize import Setup
from paceline.data.tokenizer.file_facts import ends_in_config

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def settle_template(
    setup: Setup, tokenizer: PreTrainedTokenizerBase, row_formats: Set[str]
) -> tuple[Setup, list[Diagnostic]]:
    """Put the chat template into the tokenizer; return the setup and notes.

    If the tokenizer has none, prompts and answers get the built-in ``plain`` template (with a note).
    Conversations are refused, since the user must decide how turns are marked. Raises DataError.
    """
    formats, notes = rendered(row_formats), list[Diagnostic]()
    if not formats:
        return setup, list(_missing_ends(setup, tokenizer))
    if not tokenizer.chat_template:
        if formats & setup.kind.conversations:
            raise DataError(no_template(setup.tokenizer.folder))
        notes.append(codes.DATA_PLAIN_TEMPLATE("model.chat_template"))
        setup = replace(setup, tokenizer=replace(setup.tokenizer, chat_template=builtin_template("plain")))
        set_template(tokenizer, setup.tokenizer.chat_template, setup.tokenizer.template_options)
    templates = named_templates(tokenizer.chat_template)
    _check_syntax(templates.values(), setup.tokenizer.folder)
    if wrong := idle_options(templates.values(), json.loads(setup.tokenizer.template_options)):
        raise DataError(wrong)
    if setup.train_on == "assistant" and not setup.kind.answered and not tokenizer.is_fast:
        raise DataError(codes.DATA_NO_OFFSETS("model.tokenizer", type(tokenizer).__name__))
    return setup, [*notes, *_end_notes(setup, tokenizer)]


def _check_syntax(templates: Collection[str], where: str) -> None:
    """Raise DataError if a template is not valid Jinja, or is costly already.

    A template may refuse a conversation; only that row then fails.
    """
    from jinja2 import TemplateSyntaxError

    from paceline.data.chat_template.jinja_sandbox import environment

    try:
        with bounded_memory(), bounded_time(templates):
            for template in templates:
                compiled = environment().from_string(template)
                with suppress(Exception):  # an empty conversation may be refused; only rows count
                    compiled.render(messages=[], tools=None, documents=None)
    except TemplateSyntaxError as exc:
        where, complaint = f"chat template of {where}, line {exc.lineno}", exc.message or str(exc)
        raise DataError(
            codes.DATA_BAD_CHAT_TEMPLATE(
                "the chat template is not valid Jinja",
                where,
                complaint,
                "set model.chat_template to correct Jinja, or to a built-in name such as chatml",
            )
        ) from exc
    except (SpentError, MemoryError) as exc:
        raise DataError(costly(f"chat template of {where}", limit_of(exc))) from exc
    except Exception:  # noqa: BLE001  (a template may raise anything; only rows count)
        return


def stop_tokens(setup: Setup, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the tokens that end an answer. Raises DataError if the template does not terminate."""
    try:
        return list(Encoder(tokenizer, setup.train_on).stop_token_ids())
    except CostlyTemplateError as exc:
        raise DataError(costly(f"chat template of {setup.tokenizer.folder}", exc.detail)) from exc


def _end_notes(setup: Setup, tokenizer: PreTrainedTokenizerBase) -> Iterator[Diagnostic]:
    templates = "\n".join(named_templates(tokenizer.chat_template).values())
    vocabulary = tokenizer.get_vocab()
    for mark in END_MARKS:
        if mark in templates and mark not in vocabulary:
            yield codes.DATA_TEMPLATE_TOKEN(
                f"the chat template writes {mark}, which is not a single token of this tokenizer",
                "model.chat_template",
                hint=f"model.add_special_tokens: ['{mark}'] (and the template's other marks)",
                severity=Severity.WARNING,
            )
    if tokenizer.eos_token is None:
        yield codes.DATA_NO_EOS(
            "the tokenizer has no end-of-text token, so the model will not learn where an answer ends",
            "model.tokenizer",
            hint="use a tokenizer with eos_token set",
            severity=Severity.WARNING,
        )


def _missing_ends(setup: Setup, tokenizer: PreTrainedTokenizerBase) -> Iterator[Diagnostic]:
    """Yield the tokens that the tokenizer's config asks for around plain texts, and that it does not add."""
    ids = tokenizer("a")["input_ids"]
    # Texts whose tokens are learnt get end of text in any case
    adds = {
        "add_bos_token": ids[:1] == [tokenizer.bos_token_id],
        "add_eos_token": ids[-1:] == [tokenizer.eos_token_id] or setup.kind.learns_tokens,
    }
    for key in ends_in_config(Path(setup.tokenizer.folder)):
        if not adds[key]:
            yield codes.DATA_TOKENIZER_ENDS("model.tokenizer", f"{key}: true", key=key)
