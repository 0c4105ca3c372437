"""Build one prepared set: read, tokenise, write, split, publish. The caller holds the lock."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.core.bounded import SpentError, bounded_memory, bounded_time
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import DataError
from paceline.data.looking import DataSet
from paceline.data.pairs import CONVERSATION
from paceline.data.problems import (
    ALWAYS_REFUSED,
    LENGTH_REASONS,
    REASONS,
    PrepareCounts,
    Problem,
    Tally,
    fields_unread,
    left_out,
    refusal,
)
from paceline.data.progress import Meter, PrepareProgress, Report
from paceline.data.prompts import CONVERSATION as PROMPT_CONVERSATION
from paceline.data.readers import total_bytes
from paceline.data.sets import OpenSet, open_set
from paceline.data.split import overlap, split_rows
from paceline.data.store import EVAL, TOKENIZER, TOKENS, TRAIN, Store, save_index
from paceline.data.table import TableWriter, TokenTable
from paceline.data.template import CostlyTemplateError, Encoder
from paceline.data.tokenise import Chunk, ChunkResult, Setup, tokenise
from paceline.data.tokenizer import BUILTIN_TEMPLATES, builtin_template, open_tokenizer, pad_token_id, vocab_size

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from paceline.config.sections.data import DataSection


def build(
    store: Store,
    key: str,
    setup: Setup,
    train: list[DataSet],
    evaluation: list[DataSet],
    data: DataSection,
    *,
    seed: int,
    num_proc: int,
    report: Report,
) -> None:
    """Prepare and publish the set ``key``. Raises DataError; nothing is left behind then."""
    sets = [*train, *evaluation]
    opened = _open_all(sets, setup)
    tokenizer = open_tokenizer(setup.tokenizer)
    setup, notes = settle_template(setup, tokenizer, opened)
    notes = [note for o in opened for note in o.notes] + notes
    with store.staged(key) as stage:
        tally = _write_tokens(stage / TOKENS, setup, sets, opened, data, num_proc, report)
        notes += [
            n for s, unread in zip(sets, tally.unread, strict=True) for n in fields_unread(unread, s.section.path)
        ]
        report(PrepareProgress("write", tally.counts.rows_read, 1.0, tokens=tally.counts.tokens))
        notes += _write_indices(stage, tally, len(train), bool(evaluation), data.validation_split, seed, setup.group)
        if setup.tokenizer.chat_template is not None:
            tokenizer.chat_template = setup.tokenizer.chat_template
        tokenizer.save_pretrained(str(stage / TOKENIZER))
        meta = {
            "vocab_size": vocab_size(tokenizer),
            "pad_token_id": pad_token_id(tokenizer),
            "stop_token_ids": _stops(setup, tokenizer),
            "longest": tally.longest,
            "max_token_id": tally.max_token_id,
            "group": setup.group,
            "counts": tally.counts.to_json(),
            "notes": [note.to_json() for note in [*notes, *tally.counts.diagnostics()]],
            "data_sets": [
                {"path": s.section.path, "format": o.shape.format, "rows": n}
                for s, o, n in zip(sets, opened, tally.documents, strict=True)
            ],
        }
        store.publish(stage, key, meta)


def _open_all(sets: list[DataSet], setup: Setup) -> list[OpenSet]:
    opened: list[OpenSet] = []
    problems: list[Diagnostic] = []
    for number, data_set in enumerate(sets):
        try:
            opened.append(open_set(number, data_set, setup.reading))
        except DataError as error:
            problems.extend(error.diagnostics)
    if problems:
        raise DataError(*problems)
    return opened


def settle_template(
    setup: Setup, tokenizer: PreTrainedTokenizerBase, opened: list[OpenSet]
) -> tuple[Setup, list[Diagnostic]]:
    """The template conversations are rendered with. A tokenizer that has none: questions and answers get the built-in ``plain`` one (with a note),
    real conversations are refused, for how turns are marked is a decision. Raises DataError."""
    formats = {o.shape.format for o in opened} - {"text"}
    notes: list[Diagnostic] = []
    if not formats:
        return setup, notes
    if not tokenizer.chat_template:
        if needs_template(formats):
            raise DataError(no_template(setup.tokenizer.folder))
        what = "the tokenizer has no chat template: prompt, line break, answer, end of text (built-in 'plain'; it is saved with the tokenizer)"
        notes.append(Diagnostic("data.plain_template", what, "model.chat_template", severity=Severity.NOTE))
        setup = replace(setup, tokenizer=replace(setup.tokenizer, chat_template=builtin_template("plain")))
    _check_syntax(setup.tokenizer.chat_template or tokenizer.get_chat_template(), setup.tokenizer.folder)
    if setup.train_on == "assistant" and not setup.prompts and not tokenizer.is_fast:
        hint = "data.train_on: all, or a tokenizer with tokenizer.json"
        raise DataError(
            Diagnostic(
                "data.no_offsets",
                "the tokenizer cannot say which characters a token covers, so answers cannot be told from prompts",
                "model.tokenizer",
                type(tokenizer).__name__,
                hint,
            )
        )
    return setup, [*notes, *_end_notes(setup, tokenizer)]


def needs_template(formats: Set[str]) -> bool:
    """Whether rows of these formats are conversations, whose turns somebody has to say how to mark."""
    return bool(formats & {"messages", "sharegpt", CONVERSATION, PROMPT_CONVERSATION})


def no_template(tokenizer: str) -> Diagnostic:
    """Conversations, and a tokenizer that cannot render them."""
    others = ", ".join(name for name in BUILTIN_TEMPLATES if name != "chatml")
    hint = f"model.chat_template: chatml (or {others}, the path of a .jinja file, or a tokenizer that has one)"
    what = "the tokenizer has no chat template, and the data is conversations"
    return Diagnostic("data.no_chat_template", what, "model.chat_template", tokenizer, hint)


def _check_syntax(template: str, where: str) -> None:
    """Raises DataError when the template is no Jinja at all (a template that refuses a conversation is a matter of that row)."""
    from jinja2 import TemplateSyntaxError
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        with bounded_memory(), bounded_time():
            render_jinja_template([[]], chat_template=template)
    except TemplateSyntaxError as exc:
        where, found = f"chat template of {where}, line {exc.lineno}", exc.message or str(exc)
        hint = "model.chat_template: correct Jinja, or a built-in name such as chatml"
        raise DataError(
            Diagnostic("data.bad_chat_template", "the chat template is not Jinja", where, found, hint)
        ) from exc
    except (SpentError, MemoryError) as exc:
        raise DataError(_costly(where, type(exc).__name__)) from exc
    except Exception:  # noqa: BLE001  (of an empty conversation anything may be said: what counts is a row's)
        return


def _costly(where: str, found: str) -> Diagnostic:
    what, hint = REASONS[ALWAYS_REFUSED]
    return Diagnostic("data.template_costly", what, f"chat template of {where}", found, hint)


def _stops(setup: Setup, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Tokens that end an answer. Raises DataError when the template is never done."""
    try:
        return list(Encoder(tokenizer, setup.train_on).stop_token_ids())
    except CostlyTemplateError as exc:
        raise DataError(_costly(setup.tokenizer.folder, exc.detail)) from exc


def _end_notes(setup: Setup, tokenizer: PreTrainedTokenizerBase) -> Iterator[Diagnostic]:
    template = setup.tokenizer.chat_template or str(tokenizer.chat_template)
    vocabulary = tokenizer.get_vocab()
    for mark in ("<|im_end|>", "<|eot_id|>"):
        if mark in template and mark not in vocabulary:
            what = f"the chat template writes {mark}, which is not one token of this tokenizer"
            hint = f"model.add_special_tokens: ['{mark}'] (and the template's other marks)"
            yield Diagnostic("data.template_token", what, "model.chat_template", hint=hint, severity=Severity.WARNING)
    if tokenizer.eos_token is None:
        what = "the tokenizer has no end-of-text token: the model will not learn where an answer ends"
        yield Diagnostic(
            "data.no_eos", what, "model.tokenizer", hint="a tokenizer with eos_token set", severity=Severity.WARNING
        )


@dataclass
class _Tally:
    counts: PrepareCounts = field(default_factory=PrepareCounts)
    refused: dict[str, Tally] = field(default_factory=dict)
    documents: list[int] = field(default_factory=list)
    unread: list[dict[str, Tally]] = field(default_factory=list)  # of each data set, by the field's name
    longest: int = 0
    max_token_id: int = -1


def _write_tokens(
    path: Path,
    setup: Setup,
    sets: list[DataSet],
    opened: list[OpenSet],
    data: DataSection,
    num_proc: int,
    report: Report,
) -> _Tally:
    """Tokenise everything into the table. Raises DataError when the policy refuses rows, or none is usable."""
    tally = _Tally(documents=[0] * len(sets), unread=[{} for _ in sets])
    behind = np.cumsum([0, *(total_bytes(s.located) for s in sets)]).tolist()
    meter = Meter(behind[-1], report)
    chunks: Iterator[Chunk] = (chunk for o in opened for chunk in o.chunks)
    writer = TableWriter(path)
    try:
        for result in tokenise(setup, chunks, num_proc):
            number = _count(tally, result, data, setup.group)
            if ALWAYS_REFUSED in tally.refused:
                break
            if len(result.block):
                writer.write(result.block)
            meter.update(tally.counts.rows_read, behind[number] + result.consumed, tally.counts.tokens)
    finally:
        writer.close()
    if tally.refused:
        raise DataError(*refusal(tally.refused, tally.counts.rows_read))
    if not tally.counts.rows_used:
        raise DataError(_nothing_usable(tally.counts, setup), *left_out(tally.counts.skipped, tally.counts.rows_read))
    return tally


def _count(tally: _Tally, result: ChunkResult, data: DataSection, group: int) -> int:
    """Add a chunk to the counts; the number of its data set."""
    counts, block = tally.counts, result.block
    counts.rows_read += result.read
    counts.rows_used += len(block) // group
    counts.tokens += int(block.lengths.sum())
    counts.labels += int(block.num_labels.sum())
    tally.documents[result.dataset] += len(block) // group
    if len(block):
        tally.longest = max(tally.longest, int(block.lengths.max()))
        tally.max_token_id = max(tally.max_token_id, int(np.maximum(block.coded, ~block.coded).max()))
    for problem in result.skipped:
        counts.skip(problem)
        if _refuses(problem, data):
            for one in problem.each():
                tally.refused.setdefault(one.reason, Tally()).add(one.where, one.detail)
    for problem in result.truncated:
        counts.truncate(problem)
    for name, rows in result.unread.items():
        tally.unread[result.dataset].setdefault(name, Tally()).merge(rows)
    return result.dataset


def _refuses(problem: Problem, data: DataSection) -> bool:
    if problem.reason == ALWAYS_REFUSED:
        return True
    if problem.reason in LENGTH_REASONS:
        return data.on_too_long == "refuse"
    return data.on_bad_row == "refuse"


def _nothing_usable(counts: PrepareCounts, setup: Setup) -> Diagnostic:
    found = f"{counts.rows_read} rows read, all left out"
    if set(counts.skipped) == {"no_labels"}:
        hint = "data.train_on: all, or a chat template that marks the assistant's turns"
        return Diagnostic(
            "data.no_labels",
            "no token of any row would be learnt",
            "data.train_on",
            f"train_on: {setup.train_on}",
            hint,
        )
    return Diagnostic("data.no_usable_rows", "no row can be used", "data.train", found, "the reasons follow")


def _write_indices(
    stage: Path,
    tally: _Tally,
    num_train_sets: int,
    has_eval: bool,
    validation_split: float | int | None,
    seed: int,
    group: int,
) -> list[Diagnostic]:
    """Which rows are trained on and which are held out. Raises DataError when one side is empty."""
    table = TokenTable(stage / TOKENS, group=group)
    keys = table.keys[::group]
    train = np.flatnonzero(table.group_dataset < num_train_sets)
    held = np.flatnonzero(table.group_dataset >= num_train_sets)
    notes: list[Diagnostic] = []
    if not len(train) or (has_eval and not len(held)):
        where = "data.eval" if len(train) else "data.train"
        raise DataError(
            Diagnostic(
                "data.no_usable_rows",
                "no row can be used",
                where,
                f"{tally.counts.rows_read} rows read",
                "see the reasons",
            ),
            *left_out(tally.counts.skipped, tally.counts.rows_read),
        )
    if validation_split:
        kept, out = split_rows(keys[train], validation_split, seed)
        train, held = train[kept], train[out]
    elif has_eval:
        notes += _overlap_note(keys[train], keys[held])
    train, held = _documents(train, group), _documents(held, group)
    tally.counts.train_documents, tally.counts.eval_documents = len(train), len(held)
    save_index(stage / TRAIN, train)
    if len(held):
        save_index(stage / EVAL, held)
    return notes


def _documents(rows: Any, group: int) -> Any:
    """int64 [n · group]: the documents of these rows."""
    return (rows[:, None] * group + np.arange(group)).ravel()


def _overlap_note(train_keys: Any, eval_keys: Any) -> list[Diagnostic]:
    count = overlap(train_keys, eval_keys)
    if not count:
        return []
    what = f"{count:,} of {len(eval_keys):,} evaluation rows have a prompt that is trained on: their results say nothing about new prompts"
    return [
        Diagnostic(
            "data.eval_overlap",
            what,
            "data.eval",
            hint="data.validation_split, or take them out of one side",
            severity=Severity.WARNING,
            evidence={"count": count},
        )
    ]
