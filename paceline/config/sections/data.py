"""``data:`` — what is trained on, and how rows become tokens."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from paceline.config.sections.types import (
    Bool,
    Float,
    Int,
    Mapping,
    OptInt,
    OptPath,
    OptText,
    PathText,
    Section,
    Text,
    Word,
    to_int,
    to_number,
)

FORMATS = ("auto", "alpaca", "sharegpt", "messages", "prompt_completion", "text", "preference")


class Dataset(Section):
    """One data set of a mixture."""

    path: PathText = Field(
        description="File (JSON, JSONL, Parquet, CSV, text), folder, `datasets` directory or hub name."
    )
    format: Annotated[str, Word(*FORMATS)] = Field(
        default="auto", description="Shape of the rows; auto finds it out from the rows."
    )
    weight: Float = Field(
        default=1.0,
        gt=0,
        description="How often each row is drawn an epoch: 2 is twice, 0.5 half of the rows; 1 everywhere means plain concatenation.",
    )
    split: Text = Field(default="train", description="Split of a hub data set.")
    name: OptText = Field(default=None, description="Configuration name of a hub data set.")
    columns: Mapping = Field(
        default={},
        description="Column names when they are not the usual ones, e.g. `{instruction: question, output: answer}`.",
    )
    max_rows: OptInt = Field(default=None, ge=1, description="Use at most this many rows, the first ones.")


def to_datasets(value: Any) -> Any:
    """A list of data sets from a path, a comma list of paths, one mapping, or a list of either."""
    if isinstance(value, str):
        return [{"path": part.strip()} for part in value.split(",") if part.strip()]
    if isinstance(value, dict):
        return [value]
    if isinstance(value, (list, tuple)):
        return [{"path": item} if isinstance(item, str) else item for item in value]
    return value


def to_split(value: Any) -> Any:
    """A fraction below 1 stays a float, 1 and above is a number of rows."""
    if value is None:
        return None
    number = to_number(value)
    return to_int(number) if number >= 1 else number


class DataSection(Section):
    """What is trained on. A plain path or a list of paths is taken for ``train`` and ``eval``."""

    train: Annotated[tuple[Dataset, ...], BeforeValidator(to_datasets)] = Field(
        default=(), description="Training data: a path, a list of paths, or a list of data sets with weights."
    )
    eval: Annotated[tuple[Dataset, ...] | None, BeforeValidator(to_datasets)] = Field(
        default=None, description="Evaluation data, same forms as train."
    )
    validation_split: Annotated[float | int | None, BeforeValidator(to_split)] = Field(
        default=None,
        description="Part of the training rows kept for evaluation, chosen by seed: a fraction below 1 or a number of rows.",
    )
    max_length: Int = Field(
        default=2048,
        ge=2,
        description="Longest sequence in tokens (of preference pairs: of each half); with packing also the length of a packed row (of pairs: half of it).",
    )
    packing: Bool = Field(default=True, description="Put several documents in one row; they do not see each other.")
    train_on: Annotated[str, Word("assistant", "all")] = Field(
        default="assistant", description="Tokens that carry loss: the assistant's only, or all."
    )
    on_bad_row: Annotated[str, Word("refuse", "skip")] = Field(
        default="refuse", description="Rows that are empty, have no answer or are no JSON: stop, or count and skip."
    )
    on_too_long: Annotated[str, Word("truncate", "skip", "refuse")] = Field(
        default="truncate", description="Rows longer than max_length: cut at the end, skip, or stop."
    )
    num_proc: OptInt = Field(
        default=None,
        ge=1,
        description="Processes that tokenise; when empty as many as have enough to do to pay for their start.",
    )
    cache_dir: OptPath = Field(
        default=None, description="Folder of prepared data; $PACELINE_CACHE or ~/.cache/paceline when empty."
    )
    seed: OptInt = Field(
        default=None, ge=0, description="Seed of the validation split and the mixture; training.seed when empty."
    )
