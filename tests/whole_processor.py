"""A row's pictures as one call, for comparisons with Transformers' whole processors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from PIL.Image import Image

from paceline.core.json_types import Json
from paceline.data.images.processor import ImageProcessor, Inputs
from paceline.plan.images.layouts import image_layout
from paceline.plan.images.settings import image_settings


class WholeProcessor(ImageProcessor):
    """Our image processor with texts and tokens, as a whole processor has them."""

    @classmethod
    def of(
        cls,
        folder: Path,
        config: Mapping[str, Json],
        *,
        options: Mapping[str, Json] | None = None,
        min_pixels: int | None = None,
        max_pixels: int | None = None,
    ) -> WholeProcessor:
        """The processor of a model's folder, whose ``config.json`` is ``config``."""
        settings = image_settings(
            config, folder, options=options, min_pixels=min_pixels, max_pixels=max_pixels
        )
        assert settings is not None
        return cls(settings)

    def expansion(self, width: int, height: int, names: Mapping[str, str], *, alone: bool = True) -> str:
        """Return the text in place of a picture's mark. Raises ValueError for a shape that is refused."""
        return image_layout(self.settings, width, height, alone=alone).text(names)

    def tokens(self, width: int, height: int, *, alone: bool = True) -> int:
        """Return the features of a picture, each of which replaces a token. Raises ValueError."""
        return image_layout(self.settings, width, height, alone=alone).tokens

    def inputs(self, images: Sequence[Image]) -> Inputs:
        """Return what the tower reads of a row's pictures (upright, RGB), in order."""
        return self.joined(self.of_document(images))

    def of_document(self, images: Sequence[Image]) -> list[Inputs]:
        """Return what the tower reads of each picture of one row."""
        alone = len(images) == 1
        return self.counted([self.of_image(image, alone=alone) for image in images])
