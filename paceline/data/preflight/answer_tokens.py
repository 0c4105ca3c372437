"""Check for special tokens in expected answers: the model learns them, but generated text never shows
them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from paceline.core.diagnostics import Diagnostic
from paceline.data import codes
from paceline.data.preflight.chat_template import local_template, named_tokens
from paceline.data.preflight.find_sets import DatasetHead
from paceline.data.rows.examples import Reading
from paceline.data.rows.formats import Example
from paceline.data.tokenizer.load import tokenizer_here
from paceline.data.tokenizer.special_texts import SpecialTexts, special_in_files

if TYPE_CHECKING:
    from paceline.config.sections.model import ModelSection


def unshown_tokens(
    model: ModelSection, head: DatasetHead, reading: Reading, where: str
) -> Iterator[Diagnostic]:
    """Warn of special tokens in the expected answers of the first rows; ``where`` names the data set.

    End-of-text tokens and the chat template's markers do not count.
    """
    special = _of_answers(model)
    if special.tokens:
        examples = (example for _, those in head.usable(reading) for example in those)
        yield from unshown(special, expected_texts(examples), where, added=model.add_special_tokens)


def unshown(
    special: SpecialTexts, texts: Iterable[str], where: str, *, added: Iterable[str] = ()
) -> Iterator[Diagnostic]:
    """Warn if ``texts``, expected answers, have special tokens. ``added``: those that the config adds."""
    found = list(dict.fromkeys(token for text in texts for token in special.found_in(text)))
    if not found:
        return
    own = [token for token in found if token in set(added)]
    remedy = (
        f"model.add_tokens: {json.dumps(own, ensure_ascii=False)} instead of model.add_special_tokens"
        if own
        else "write these marks as ordinary text, or as tokens that a tokenizer has from model.add_tokens"
    )
    yield codes.DATA_SPECIAL_IN_ANSWER(where, ", ".join(found), hint=remedy)


def expected_texts(examples: Iterable[Example]) -> Iterator[str]:
    """Yield the texts of the answers that rows expect."""
    for example in examples:
        if example.facts and (answer := json.loads(example.facts).get("answer")) is not None:
            yield str(answer)
        for turn in example.messages[example.learn_from :]:
            if turn["role"] == "assistant":
                yield turn["content"]


def _of_answers(model: ModelSection) -> SpecialTexts:
    folder, added = tokenizer_here(model), frozenset(model.add_special_tokens)
    if folder is None:
        return SpecialTexts(added)
    template = local_template(model)
    written = "".join(template.texts.values()) if template is not None else ""
    ends = frozenset(named_tokens(folder).values())
    of_files = {token for token in special_in_files(folder) - ends if token not in written}
    return SpecialTexts(added | of_files)
