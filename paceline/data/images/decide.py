"""Whether and how the pictures of a config's rows are seen. Imports no numpy: a start asks it, too."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.config.sections.model import AUTO
from paceline.core.errors import DataError, PacelineError
from paceline.core.json_types import Json
from paceline.data import codes
from paceline.data.images.open_image import MediaFolder
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
