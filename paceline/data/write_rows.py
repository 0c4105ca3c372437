"""Rewrite the rows of local data sets for TRL or axolotl, with the same meaning."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from paceline.config.schema import Config
from paceline.core.errors import DataError
from paceline.core.json_types import Json, JsonObject, as_object
from paceline.data import codes
from paceline.data.images.decide import sees_pictures
from paceline.data.preflight.find_sets import LocatedDataset, read_head
from paceline.data.prepare.prepare import sets_of
from paceline.data.rows.examples import Reading, RowReader
from paceline.data.rows.formats import Example
from paceline.data.rows.kinds.base import row_kind
from paceline.data.rows.messages import Message
from paceline.plan.algorithms.spec import algorithm_spec

#: Fields of a turn that only this program knows
_OWN = ("input", "trained")
Row = Callable[[Sequence[Example]], JsonObject]


def write_rows(config: Config, program: str, folder: Path) -> str:
    """Write ``train.jsonl`` and, for ``data.eval``, ``test.jsonl`` to ``folder``; return the rows' format.

    The format is ``text``, ``completion`` (one answer, with loss), ``messages``, ``pairs``, ``labelled`` or
    ``prompts``. Rows that training would refuse or skip are left out. Raises DataError.
    """
    sets, evals = sets_of(config.data)
    if sees_pictures(config.data, config.model, row_kind(algorithm_spec(config.training.algorithm).rows)):
        raise DataError(
            codes.DATA_IMAGES(
                "rows with images are not written for other programs",
                "data.train",
                "rows have images, and the model sees them",
                f"hand {program} the files that data.train names",
            )
        )
    form = _form(config, itertools.chain(sets, evals))
    write = _WRITERS[form, program] if (form, program) in _WRITERS else _WRITERS[form, ""]
    folder.mkdir(parents=True)
    for name, listed in (("train", sets), ("test", evals)):
        if listed:
            with (folder / f"{name}.jsonl").open("x", encoding="utf-8") as file:
                for examples in _examples(config, listed):
                    file.write(json.dumps(write(examples), ensure_ascii=False) + "\n")
    return form


def _examples(config: Config, sets: Iterable[LocatedDataset]) -> Iterator[tuple[Example, ...]]:
    reading = Reading.of(config.data, row_kind(algorithm_spec(config.training.algorithm).rows))
    for data_set in sets:
        head = read_head(data_set, reading)
        for _, examples in RowReader(head.shape, reading).usable(head.rows):
            yield examples


def _form(config: Config, sets: Iterable[LocatedDataset]) -> str:
    """Return the common format of all rows."""
    kind = row_kind(algorithm_spec(config.training.algorithm).rows)
    if kind.answered:
        return "prompts"
    if kind.group == 2:
        return "pairs"
    if kind.columns:
        return "labelled"
    forms = {_of_document(config, examples[0]) for examples in _examples(config, sets)}
    return forms.pop() if len(forms) == 1 else "messages"


def _of_document(config: Config, example: Example) -> str:
    if not example.messages:
        return "text"
    answers = [n for n, turn in enumerate(example.messages) if turn["role"] == "assistant"]
    alone = answers == [len(example.messages) - 1] and config.data.train_on != "all"
    return "completion" if alone else "messages"


def _turns(messages: Iterable[Message]) -> list[Json]:
    turns: list[Json] = json.loads(json.dumps(list(messages)))
    return [{key: value for key, value in as_object(turn).items() if key not in _OWN} for turn in turns]


def _text(examples: Sequence[Example]) -> JsonObject:
    return {"text": examples[0].text}


def _messages(examples: Sequence[Example]) -> JsonObject:
    return {"messages": _turns(examples[0].messages)}


def _completion(examples: Sequence[Example]) -> JsonObject:
    turns = _turns(examples[0].messages)
    return {"prompt": turns[:-1], "completion": turns[-1:]}


def _pairs(examples: Sequence[Example]) -> JsonObject:
    chosen, rejected = examples
    if not chosen.messages:  # texts that no template is applied to
        texts = {"chosen": chosen.text[chosen.begin :], "rejected": rejected.text[rejected.begin :]}
        return {"prompt": chosen.text[: chosen.begin], **texts}
    turns, start = _turns(chosen.messages), chosen.learn_from
    return {
        "prompt": turns[:start],
        "chosen": turns[start:],
        "rejected": _turns(rejected.messages)[rejected.learn_from :],
    }


def _pairs_of_axolotl(examples: Sequence[Example]) -> JsonObject:
    row = _pairs(examples)
    answers = {name: turns[-1] for name in ("chosen", "rejected") if isinstance(turns := row[name], list)}
    return {**row, **answers, "messages": row["prompt"]}


def _labelled(examples: Sequence[Example]) -> JsonObject:
    example = examples[0]
    turns, start = _turns(example.messages), example.learn_from
    (label,) = example.values.values()
    return {"prompt": turns[:start], "completion": turns[start:], "label": bool(label)}


def _prompts(examples: Sequence[Example]) -> JsonObject:
    """The prompt as turns, and the row's other columns, which rewards read."""
    facts: JsonObject = json.loads(examples[0].facts or "{}")
    return {**facts, "prompt": _turns(examples[0].messages)}


_WRITERS: dict[tuple[str, str], Row] = {
    ("text", ""): _text,
    ("completion", ""): _completion,
    ("completion", "axolotl"): _messages,
    ("messages", ""): _messages,
    ("pairs", ""): _pairs,
    ("pairs", "axolotl"): _pairs_of_axolotl,
    ("labelled", ""): _labelled,
    ("prompts", ""): _prompts,
}
