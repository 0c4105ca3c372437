"""Check the chat template, and the first rows rendered with it, before any heavy import."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import DataError
from paceline.core.files import read_text
from paceline.core.json_types import as_object
from paceline.core.security.resource_limits import SpentError, bounded_memory, bounded_time, limit_of
from paceline.data import codes
from paceline.data.chat_template.capabilities import facts_of, unopened_header, written_alike
from paceline.data.chat_template.conversation import Renderer, Renderers
from paceline.data.chat_template.dropped_content import OPTION
from paceline.data.chat_template.options import options_read, with_defaults
from paceline.data.chat_template.render import GENERATION
from paceline.data.chat_template.template_texts import (
    TOOL_USE,
    costly,
    name_for,
    named_templates,
    rendered,
    template_text,
    templates_in,
)
from paceline.data.preflight.find_sets import LocatedDataset, read_head
from paceline.data.rows.examples import Reading
from paceline.data.rows.formats import Example
from paceline.data.rows.row_errors import Tally, refusal
from paceline.data.rows.values import RowError
from paceline.data.tokenizer.load import tokenizer_here

if TYPE_CHECKING:
    from paceline.config.sections.model import ModelSection

# What a template does not write whatever its tokens are; the others are left to the preparation.
_CERTAIN = ("tools", "tool_calls", "reasoning", "documents", "turn_left_out")
_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


class LocalTemplate(NamedTuple):
    """The chat templates on this machine. ``name``: for messages; ``texts``: the templates by name, with the
    config's options; ``tokens``: the tokenizer's special tokens.
    """

    name: str
    texts: Mapping[str, str]
    tokens: Mapping[str, str]


def local_template(model: ModelSection) -> LocalTemplate | None:
    """Return the templates that rows are rendered with; None if there is none here."""
    folder = tokenizer_here(model)
    if folder is None:
        return None
    try:
        text = template_text(model.chat_template)
    except DataError:  # reported with the tokenizer
        return None
    texts = named_templates(text) if text is not None else templates_in(folder)
    if not texts:
        return None
    label = "the tokenizer's own" if text is None else "of model.chat_template"
    if text is not None and text != model.chat_template:
        label = str(model.chat_template)
    texts = {name: with_defaults(text, model.chat_template_kwargs) for name, text in texts.items()}
    return LocalTemplate(label, texts, named_tokens(folder))


def named_tokens(folder: Path) -> dict[str, str]:
    """Return special tokens by name; tokens missing from the files get their name as text."""
    try:
        stored = as_object(json.loads(read_text(folder / "tokenizer_config.json")))
    except (OSError, ValueError):
        stored = {}
    values = {name: stored.get(name) for name in _TOKENS}
    texts = {n: value.get("content") if isinstance(value, dict) else value for n, value in values.items()}
    return {name: text if isinstance(text, str) else f"<{name}>" for name, text in texts.items()}


def template_key(model: ModelSection) -> str:
    """Return the key of the config that names the chat template."""
    if model.chat_template:
        return "model.chat_template"
    return "model.tokenizer" if model.tokenizer else "model.name_or_path"


class Described(NamedTuple):
    """The chat template's line in the plan: ``choice``, and ``reason`` (what it writes)."""

    choice: str
    reason: str


def describe(model: ModelSection, formats: Set[str]) -> Described | None:
    """Return the plan's description of the template; None if no row needs it, or it is unknown here."""
    template = local_template(model) if rendered(formats) else None
    if template is None:
        return None
    try:
        with bounded_memory(), bounded_time(template.texts.values()):
            facts = {
                name: facts_of(template.texts[name], template.tokens).sentence()
                for name in dict.fromkeys(name_for(template.texts, tools=tools) for tools in (False, True))
                if name is not None
            }
    except (RowError, SpentError, MemoryError):  # found by the tokenizer's trial, or in the preparation
        return None
    options = ", ".join(f"{name}: {json.dumps(value)}" for name, value in model.chat_template_kwargs.items())
    of_tools = facts.pop(TOOL_USE, None)
    sentences = [*facts.values(), *([f"rows with tools take '{TOOL_USE}': {of_tools}"] if of_tools else [])]
    return Described(template.name + (f", with {options}" if options else ""), "; ".join(sentences))


def unopened_answers(model: ModelSection, formats: Set[str]) -> Iterator[Diagnostic]:
    """Warn of a template whose prompts lack the beginning of the answer: the model writes it itself."""
    template = local_template(model) if rendered(formats) else None
    name = name_for(template.texts, tools=False) if template is not None else None
    if template is None or name is None:
        return
    text = template.texts[name]
    try:
        with bounded_memory(), bounded_time([text]):
            header = unopened_header(Renderer(text, template.tokens))
    except (RowError, SpentError, MemoryError):  # found by the tokenizer's trial, or in the preparation
        return
    if header:
        loss = "which has loss as a part of the answer"
        if GENERATION.search(text):
            loss = "though its generation marks leave it without loss"
        shown = json.dumps(header, ensure_ascii=False)
        yield codes.DATA_UNOPENED_ANSWER(template_key(model), template.name, header=shown, loss=loss)


def other_template(model: ModelSection, judge: ModelSection) -> bool:
    """Whether the chat templates of ``judge`` and ``model`` render conversations differently; False unless
    both are here.
    """
    mine, theirs = local_template(model), local_template(judge)
    names = [name_for(template.texts, tools=False) if template else None for template in (mine, theirs)]
    if mine is None or theirs is None or names[0] is None or names[1] is None:
        return False
    try:
        with bounded_memory(), bounded_time([mine.texts[names[0]], theirs.texts[names[1]]]):
            renderers = (
                Renderer(mine.texts[names[0]], mine.tokens),
                Renderer(theirs.texts[names[1]], theirs.tokens),
            )
            return not written_alike(*renderers)
    except (RowError, SpentError, MemoryError):  # found by the tokenizer's trial, or in the preparation
        return False


def look_through(
    model: ModelSection, data_set: LocatedDataset, reading: Reading, *, refuses: bool
) -> Iterator[Diagnostic]:
    """Yield the content of a data set's first rows that the template would leave out. Raises DataError.

    ``refuses``: rows that lose meaning are errors (``data.on_bad_row``).
    """
    looked = read_head(data_set, reading)
    template = local_template(model) if rendered({looked.shape.format}) else None
    if template is None:
        return
    lost, idle = dict[str, Tally](), dict[str, Tally]()
    where = ""
    try:
        with bounded_memory(), bounded_time(template.texts.values()):
            renderers = Renderers(dict(template.texts), template.tokens)
            for row, examples in looked.usable(reading):
                where = row.where
                _tally(renderers, [example for example in examples if example.messages], where, lost, idle)
    except RowError:  # found by the tokenizer's trial, or in the preparation
        return
    except (SpentError, MemoryError) as error:
        yield costly(template_key(model), f"{where}: {limit_of(error)}")
        return
    first = "" if looked.is_whole else "the first "
    if refuses:
        yield from refusal(lost, len(looked.head), of=first)
    if idle:
        listed = ", ".join(
            f"{name} ({tally.count:,} {'row' if tally.count == 1 else 'rows'}, first {tally.first_place})"
            for name, tally in sorted(idle.items(), key=lambda item: -item[1].count)
        )
        counts = {name: tally.count for name, tally in idle.items()}
        yield codes.DATA_NOT_WRITTEN(
            data_set.section.path,
            template.name,
            rows=f"{first}{len(looked.head):,} rows",
            listed=listed,
            evidence=counts,
        )


def _tally(
    renderers: Renderers,
    examples: Sequence[Example],
    where: str,
    lost: dict[str, Tally],
    idle: dict[str, Tally],
) -> None:
    """Count the losses of one row's examples, each once."""
    names: dict[str, None] = {}
    reasons: dict[str, str] = {}
    for example in examples:
        try:
            renderer = renderers.of(example)
            read = options_read(renderer.template.text) if example.template_kwargs else frozenset[str]()
            dropped = renderer.left_out.names(example, renderer.text(example))
            # An option that is read may decide the generation prompt, and so the loss
            names |= dict.fromkeys(name for name in dropped if name.removeprefix(OPTION) not in read)
        except RowError as error:
            for reason, detail in ((error.reason, error.detail), *error.also):
                reasons.setdefault(reason, detail)
    for reason, detail in reasons.items():
        if reason in _CERTAIN:
            lost.setdefault(reason, Tally()).add(where, detail)
    for name in {} if reasons else names:
        idle.setdefault(name, Tally()).add(where)
