"""Whether and how the pictures of a config's rows are seen. Imports no numpy: a start asks it, too.

The first rows of a job's data sets decide ``model.vision: auto``.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.config.sections.model import AUTO
from paceline.core.errors import DataError, PacelineError
from paceline.core.json_types import Json
from paceline.data import codes
from paceline.data.images.open_image import MediaFolder
from paceline.data.preflight.check_sets import is_looked_into
from paceline.data.preflight.find_sets import LOOKED_AT, converter_named, find_set, media_beside, sections_of
from paceline.data.rows.formats import IMAGE_COLUMNS, IMAGE_PARTS
from paceline.data.rows.kinds.base import RowKind
from paceline.data.rows.messages import parsed_turns
from paceline.data.rows.values import Cell, Row, is_empty
from paceline.data.sources.readers import read_rows
from paceline.data.sources.user_code import converted
from paceline.data.tokenizer.load import tokenizer_folder
from paceline.plan.images.settings import ImageSettings, image_settings
from paceline.plan.model.family import image_family
from paceline.plan.model.read_config import config_from_path

if TYPE_CHECKING:
    from paceline.config.sections.data import DataSection, Dataset
    from paceline.config.sections.model import ModelSection


_TAG = re.compile(r"<img>[^<]+</img>")  # of ms-swift: it names its picture itself
_DEEPEST = 6  # a row's columns, lists of turns, turns, lists of parts, parts


def images_in_rows(data: DataSection, *, imports: bool) -> bool | None:
    """Return whether the first rows of any data set have an image; None if some were not read.

    ``imports``: sets that need the user's code or the ``datasets`` library are read, too. What cannot be
    read is not said here: other checks name it.
    """
    left = False
    for key, section in sections_of(data):
        with suppress(PacelineError):
            converter = converter_named(section, data.converter)
            data_set = find_set(key, section)
            here = is_looked_into(data_set, None) and converter is None
            if data_set.located.kind == "hub" or not (here or imports):
                left = True
                continue
            rows = iter(read_rows(data_set.located, section.split))
            rows = rows if converter is None else converted(rows, converter)
            head = parsed_turns(itertools.islice(rows, LOOKED_AT), section.columns)
            values = (row.value for row in head if row.value is not None)
            if any(has_image(value, _columns(section)) for value in values):
                return True
    return None if left else False


def _columns(section: Dataset) -> tuple[str, ...]:
    """Return the columns in which a data set's images may stand."""
    return (
        *IMAGE_COLUMNS,
        *(str(section.columns[name]) for name in IMAGE_COLUMNS if name in section.columns),
    )


def has_image(row: Row, columns: tuple[str, ...] = IMAGE_COLUMNS) -> bool:
    """Whether a row has an image: in a column, as a part of a turn's content, or in a tag of a text."""
    return any(not is_empty(row.get(name)) for name in columns) or any(_parts(row, 0))


def _parts(value: Cell, depth: int) -> Iterator[bool]:
    if depth > _DEEPEST:
        return
    if isinstance(value, str):
        yield _TAG.search(value) is not None
    if isinstance(value, Mapping):
        yield value.get("type") in IMAGE_PARTS or (
            depth > 1 and any(not is_empty(value.get(n)) for n in IMAGE_COLUMNS)
        )
    inner = (
        value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    )
    for item in inner:
        yield from _parts(item, depth + 1)


def sees_pictures(data: DataSection, model: ModelSection, kind: RowKind, *, imports: bool = True) -> bool:
    """Whether rows have pictures that the model sees, as the plan decides it (``Plan.vision``).

    ``imports``: data sets that need the user's code are read, too, and a model is downloaded.
    """
    if model.vision != AUTO:
        return bool(model.vision)
    if kind.answered:
        return False
    with suppress(PacelineError):
        here = imports or model.config or Path(model.name_or_path or "/nowhere").expanduser().is_dir()
        known = not here or image_family(str(config_of(model).get("model_type"))) is not None
        return known and images_in_rows(data, imports=imports) is True
    return False


def settings_of(data: DataSection, model: ModelSection) -> ImageSettings:
    """Return how pictures become tokens and pixels. Raises DataError for a family without pictures."""
    folder, config = _folder(model), config_of(model)
    settings = image_settings(
        config,
        folder,
        options=model.processor_kwargs,
        min_pixels=data.image_min_pixels,
        max_pixels=data.image_max_pixels,
    )
    if settings is None:
        raise DataError(codes.DATA_IMAGE_FAMILY("model.name_or_path", str(config.get("model_type"))))
    return settings


def config_of(model: ModelSection) -> Mapping[str, Json]:
    """Return the model's ``config.json``. Raises PacelineError if it cannot be read."""
    return model.config or config_from_path(_folder(model))


def _folder(model: ModelSection) -> Path:
    """Return the folder with the processor's files: the model's, else the tokenizer's. Raises DataError."""
    here = Path(model.name_or_path or "/nowhere").expanduser()
    return here if here.is_dir() else tokenizer_folder(model)


def media_folders(data: DataSection) -> list[str]:
    """Return the folder of the pictures of each data set. Raises DataError if a set is missing."""
    beside = (media_beside(find_set(key, section).located) for key, section in sections_of(data))
    return [MediaFolder.of(data.media_dir, folder).folder for folder in beside]
