"""Whether and how a config's pictures are seen, and whether they are still those that were prepared."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.config.sections.model import AUTO
from paceline.core.errors import DataError, PacelineError
from paceline.core.json_types import Json
from paceline.data import codes
from paceline.data.file_digests import sha256_of
from paceline.data.images.open_image import MediaFolder
from paceline.data.images.table import IN_FILE, ImageTable
from paceline.data.preflight.find_sets import find_set, media_beside, sections_of
from paceline.data.preflight.image_rows import images_in_rows
from paceline.data.rows.kinds.base import RowKind
from paceline.data.tokenizer.load import tokenizer_folder
from paceline.plan.images.settings import ImageSettings, image_settings
from paceline.plan.model.family import image_family
from paceline.plan.model.read_config import config_from_path

if TYPE_CHECKING:
    from paceline.config.sections.data import DataSection
    from paceline.config.sections.model import ModelSection


def sees_pictures(data: DataSection, model: ModelSection, kind: RowKind) -> bool:
    """Whether rows have pictures that the model sees, as the plan decides it (``Plan.vision``)."""
    if model.vision != AUTO:
        return bool(model.vision)
    if kind.answered:
        return False
    with suppress(PacelineError):
        family = image_family(str(config_of(model).get("model_type")))
        return family is not None and images_in_rows(data, imports=True) is True
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


def changed_picture(folder: Path, media: list[str]) -> str:
    """Return the first picture whose file is no longer what was prepared; empty if there is none."""
    return next(_changed(ImageTable(folder, media)), "")


def _changed(table: ImageTable) -> Iterator[str]:
    for number in range(len(table)):
        image = table.picture(number)
        if image.offset != IN_FILE:
            continue
        file = table.file(image)
        try:
            status = os.stat(file)
            same = (status.st_size, status.st_mtime_ns) == (image.size, image.stamp)
            if not same and sha256_of(file) != image.digest:
                yield f"{file} has changed"
        except OSError as error:
            yield f"{file}: {error.strerror}"
