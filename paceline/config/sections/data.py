"""``data:`` — the training data and its preprocessing."""

from __future__ import annotations

import difflib
from typing import Annotated

from pydantic import BeforeValidator, Field

from paceline.config.sections.extensions import own_name, to_data_path
from paceline.config.sections.types import (
    Bool,
    Float,
    Int,
    Mapping,
    OptInt,
    OptPath,
    OptText,
    Section,
    Text,
    Word,
    optional,
    to_int,
    to_number,
)
from paceline.core.json_types import Json

Converter = Annotated[str | None, BeforeValidator(optional(own_name("converters", only=True)))]
FORMATS = ("auto", "alpaca", "sharegpt", "messages", "prompt_completion", "text", "preference")


class Dataset(Section):
    """One data set of a mixture."""

    path: Annotated[str, BeforeValidator(to_data_path)] = Field(
        description=(
            "A file (JSON, JSONL, Parquet, Arrow, CSV, TSV, text; text also as .gz, .zst, .xz, .bz2), a"
            " folder, a `datasets` directory, a hub name, a hub file (hf://datasets/owner/name/file), or your"
            " own module:function."
        )
    )
    format: Annotated[str, Word(*FORMATS)] = Field(
        default="auto", description="Format of the rows; auto detects it from the rows."
    )
    weight: Float = Field(
        default=1.0,
        gt=0,
        description=(
            "How often each row is used per epoch: 2 is twice, 0.5 is half of the rows. With "
            "1 everywhere the data sets are concatenated."
        ),
    )
    split: Text = Field(
        default="train", description="Split of a folder, a `datasets` directory or a hub data set."
    )
    name: OptText = Field(
        default=None, description="Configuration of a folder (`configs:` in its README) or of a hub data set."
    )
    columns: Mapping = Field(
        default={},
        description=(
            "Column names where they differ from the format's, e.g. `{instruction: question, output:"
            " answer}`."
        ),
    )
    converter: Converter = Field(default=None, description="Converter of this data set's rows alone.")
    max_rows: OptInt = Field(default=None, ge=1, description="Use only the first rows, at most this many.")
    replace: Mapping = Field(
        default={},
        description="Texts within the rows, and what stands in their place, e.g. `{'{{NAME}}': Ada}`.",
    )


def to_datasets(value: Json) -> Json:
    """Convert a path, a comma-separated list of paths, a mapping, or a list of these to data sets.

    Raises ValueError for sets with names, as Transformers' ``eval_dataset`` may have.
    """
    if (
        isinstance(value, dict)
        and value
        and not any(difflib.get_close_matches(name, Dataset.model_fields, n=1, cutoff=0.6) for name in value)
    ):
        sets = ", ".join(str(path) for path in value.values())[:80]
        raise ValueError(
            f"data sets have no names here, and those of a list are one evaluation: write [{sets}]; `paceline"
            " evaluate RUN --data FILE` measures one"
        )
    if isinstance(value, str):
        return [{"path": part.strip()} for part in value.split(",") if part.strip()]
    if isinstance(value, dict):
        return [value]
    if isinstance(value, (list, tuple)):
        return [{"path": item} if isinstance(item, str) else item for item in value]
    return value


def to_split(value: Json) -> Json:
    """Convert a split: below 1 a float (a fraction), from 1 on an int (a number of rows)."""
    if value is None:
        return None
    number = to_number(value)
    return to_int(number) if number >= 1 else number


class ImageFields(Section):
    """Images of the rows."""

    media_dir: OptPath = Field(
        default=None,
        description=(
            "Folder in which the paths of images in the rows begin; the folder of each data file when empty."
        ),
    )
    image_min_pixels: OptInt = Field(
        default=None,
        ge=1,
        description="Images with fewer pixels (width × height) are enlarged to it before the processor.",
    )
    image_max_pixels: OptInt = Field(
        default=None,
        ge=1,
        description="Images with more pixels (width × height) are made smaller before the processor.",
    )
    image_refuse_pixels: Int = Field(
        default=89_478_485,
        ge=1,
        description=(
            "Images with more pixels are bad rows (on_bad_row) and never decoded; the default is the bound of"
            " Pillow's warning."
        ),
    )
    image_cache: Annotated[str, Word("none", "disk")] = Field(
        default="none",
        description=(
            "Where the pixels that the model gets are kept: none (made from the files by the threads of the"
            " loader, each epoch anew), or disk (written once to cache_dir)."
        ),
    )


class DataSection(ImageFields):
    """Training data and preprocessing. ``train`` and ``eval`` accept a path or a list of paths."""

    train: Annotated[tuple[Dataset, ...], BeforeValidator(to_datasets)] = Field(
        default=(), description="Training data: a path, a list of paths, or a list of data sets with weights."
    )
    eval: Annotated[tuple[Dataset, ...] | None, BeforeValidator(to_datasets)] = Field(
        default=None, description="Evaluation data, in the same forms as train."
    )
    validation_split: Annotated[float | int | None, BeforeValidator(to_split)] = Field(
        default=None,
        description=(
            "Part of the training rows held out for evaluation, drawn with the seed: a "
            "fraction below 1, or a number of rows."
        ),
    )
    max_length: Int = Field(
        default=2048,
        ge=2,
        description=(
            "Maximum sequence length in tokens; for preference pairs that of each of the two "
            "sequences. With packing it is also the length of a packed row (for pairs half of "
            "it)."
        ),
    )
    max_prompt_length: OptInt = Field(
        default=None,
        ge=1,
        description="Maximum of a prompt that the model answers itself; max_length holds its answer, too.",
    )
    packing: Bool = Field(
        default=True,
        description="Pack several documents into one row; attention is restricted to each document.",
    )
    train_on: Annotated[str, Word("auto", "assistant", "last", "completion", "all")] = Field(
        default="auto",
        description=(
            "Tokens in the loss: only the assistant's (rows of plain text, which have none, are refused), its"
            " last answer's alone, the completion's where a row has prompt and completion apart and else all"
            " (completion; TRL also learns what the template writes after an answer's end), or all; auto: the"
            " assistant's, and all of plain text."
        ),
    )
    default_system: OptText = Field(
        default=None,
        description=(
            "A system turn, or a .txt file with one, that is put before conversations without one; also"
            " before prompts."
        ),
    )
    query_prompt: Text = Field(
        default="",
        description="Put before every query of embedding models and rerankers: an instruction.",
    )
    document_prompt: Text = Field(
        default="", description="Put before every document of embedding models and rerankers."
    )
    converter: Converter = Field(
        default=None,
        description=(
            "Your own module:function that every row goes through before its format is detected: takes a row,"
            " returns a row, or None to leave it out (docs/reference/library.md)."
        ),
    )
    on_bad_row: Annotated[str, Word("refuse", "skip")] = Field(
        default="refuse",
        description=(
            "Rows that are empty, lack an answer or are not valid JSON: stop, or skip and count them."
        ),
    )
    strict: Bool = Field(
        default=False,
        description=(
            "Rows with fields that nothing reads are bad rows (on_bad_row). Otherwise such fields are counted"
            " and named once; fields known to carry meaning are refused in any case."
        ),
    )
    on_too_long: Annotated[str, Word("truncate", "skip", "refuse")] = Field(
        default="truncate",
        description="Rows longer than max_length: truncate (see truncation), skip, or stop.",
    )
    truncation: Annotated[str, Word("end", "start", "ratio")] = Field(
        default="end",
        description=(
            "What rows that are too long lose: their end, their start, or the ends of questions and answers"
            " in proportion (as LLaMA-Factory's cutoff_len)."
        ),
    )
    num_proc: OptInt = Field(
        default=None,
        ge=1,
        description="Processes for tokenisation; when empty, chosen by the amount of data.",
    )
    cache_dir: OptPath = Field(
        default=None, description="Folder for prepared data; $PACELINE_CACHE or ~/.cache/paceline when empty."
    )
    seed: OptInt = Field(
        default=None,
        ge=0,
        description="Seed of the validation split and of the mixture; training.seed when empty.",
    )
