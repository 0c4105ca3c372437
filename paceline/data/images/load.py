"""Pixels while training: made of the files of prepared pictures, by the threads of the loader.

Pixels on disk (``data.image_cache: disk``): a file for each picture and each way of processing it.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.core.errors import DataError
from paceline.core.files import open_file
from paceline.core.json_types import Json
from paceline.data import codes
from paceline.data.dataset_store import TOKENIZER
from paceline.data.file_digests import digest_of
from paceline.data.images.decide import config_of
from paceline.data.images.open_image import MAX_BYTES, decoded
from paceline.data.images.processor import ImageMarks, ImageProcessor, Inputs
from paceline.data.images.table import BYTES, IN_FILE, ImageTable, PlacedImage, StoredImage
from paceline.data.rows.values import RowError
from paceline.data.tokenizer.load import TokenizerSpec, open_tokenizer
from paceline.models.vision.positions import VisionPositions
from paceline.protocols.images import Images

if TYPE_CHECKING:
    from PIL.Image import Image

    from paceline.config.schema import Config
    from paceline.plan.images.settings import ImageSettings


_LEAST_FREE = 0.1  # of the disk: with less, pixels are made anew in place of being kept


@dataclass(frozen=True)
class PixelCache:
    """A folder of safetensors files. A file that cannot be read counts as missing; nothing is added to a disk
    that is nearly full.
    """

    folder: Path

    @classmethod
    def of(cls, folder: Path, identity: Mapping[str, Json]) -> PixelCache:
        """Return the cache in ``folder`` for a processor with these settings."""
        return cls(folder / digest_of(dict(identity))[:16])

    def get(self, name: str) -> dict[str, NDArray] | None:
        """Return the arrays kept under a name; None if there are none."""
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        try:
            return dict(load_file(self._file(name)))
        except (OSError, SafetensorError):
            return None

    def put(self, name: str, arrays: Mapping[str, NDArray]) -> None:
        """Keep arrays under a name, if the disk has room."""
        from safetensors.numpy import save_file

        file = self._file(name)
        with suppress(OSError):  # what is not kept is made again
            file.parent.mkdir(parents=True, exist_ok=True)
            usage = shutil.disk_usage(file.parent)
            if usage.free - sum(a.nbytes for a in arrays.values()) < _LEAST_FREE * usage.total:
                return
            staged = file.with_name(f".{file.name}.{os.getpid()}.{threading.get_ident()}")
            save_file({n: a.copy() for n, a in arrays.items()}, staged)
            staged.replace(file)

    def _file(self, name: str) -> Path:
        return self.folder / name[:2] / f"{name}.safetensors"


@dataclass(frozen=True)
class ImageLoader:
    """Makes what the tower reads of documents' pictures. Threads may share it.

    ``config``: the model's ``config.json``; ``token_id``: of the tokens that stand for features;
    ``most_pixels``: bound of a decoded picture; ``cache``: pixels on disk, if they are kept.
    """

    table: ImageTable
    processor: ImageProcessor
    config: Mapping[str, Json]
    token_id: int
    most_pixels: int
    cache: PixelCache | None = None

    def within(self, pictures: Sequence[PlacedImage], tokens: NDArray[np.int32]) -> list[PlacedImage]:
        """Return the first of a document's pictures, those whose tokens are all among its first ``tokens``
        (coded).
        """
        here = int(np.count_nonzero(np.maximum(tokens, ~tokens) == self.token_id))
        ends = itertools.accumulate(count for _, count in pictures)
        return [picture for picture, end in zip(pictures, ends, strict=True) if end <= here]

    def fitted(
        self, document: NDArray[np.int32], pictures: Sequence[PlacedImage]
    ) -> tuple[NDArray[np.int32], list[PlacedImage]]:
        """Return a truncated document (coded) without a cut picture, and the pictures that it still has."""
        kept = self.within(pictures, document)
        places = np.flatnonzero(np.maximum(document, ~document) == self.token_id)
        count = sum(tokens for _, tokens in kept)
        return (document[: places[count]] if len(places) > count else document), kept

    def images(
        self, pictures: Sequence[Sequence[PlacedImage]], documents: Sequence[NDArray[np.int32]]
    ) -> Images | None:
        """Return the images of documents in order; None if there are none.

        ``pictures``: of each document, with their tokens; ``documents``: their ids, int32 [n]. Raises
        DataError if a picture has changed since it was prepared.
        """
        listed = [[*pairs] for pairs in pictures]
        if not any(listed):
            return None
        made: dict[tuple[str, bool], Inputs] = {}
        parts: list[Inputs] = []
        for pairs in listed:
            parts += self._of_document([picture for picture, _ in pairs], made)
        inputs = {
            name: torch.from_numpy(np.ascontiguousarray(a))
            for name, a in self.processor.joined(parts).items()
        }
        places = np.flatnonzero(np.concatenate(documents) == self.token_id)
        counts = tuple(count for pairs in listed for _, count in pairs)
        if len(places) != sum(counts):
            raise DataError(
                codes.DATA_IMAGE_CHANGED("data.train", f"{len(places)} tokens, {sum(counts)} features")
            )
        grids = inputs.get("image_grid_thw")
        positions = self._positions(
            documents, [len(p) for p in listed], None if grids is None else grids.numpy()
        )
        return Images.of(inputs, torch.from_numpy(places), counts, positions)

    def _of_document(
        self, pictures: Sequence[StoredImage], made: dict[tuple[str, bool], Inputs]
    ) -> list[Inputs]:
        """Return the inputs of one document's pictures; ``made``: those of this batch so far."""
        alone = len(pictures) == 1
        parts = []
        for picture in pictures:
            key = (picture.digest, alone)
            if key not in made:
                made[key] = self._inputs(picture, alone)
            parts.append(dict(made[key]))
        return self.processor.counted(parts)

    def _inputs(self, picture: StoredImage, alone: bool) -> Inputs:
        name = f"{picture.digest}-{int(alone)}"
        if self.cache is not None and (kept := self.cache.get(name)) is not None:
            return kept
        inputs = self.processor.of_image(self.decoded(picture), alone=alone)
        if self.cache is not None:
            self.cache.put(name, inputs)
        return inputs

    def decoded(self, picture: StoredImage) -> Image:
        """Return a picture, upright and RGB. Raises DataError if it has changed since it was prepared."""
        data = self._bytes(picture)
        if hashlib.sha256(data).hexdigest() != picture.digest:
            raise DataError(codes.DATA_IMAGE_CHANGED(self._shown(picture), "its bytes are others"))
        try:
            return decoded(data, self._shown(picture), self.most_pixels)
        except RowError as error:
            raise DataError(codes.DATA_IMAGE_CHANGED(self._shown(picture), error.detail)) from error

    def _bytes(self, picture: StoredImage) -> bytes:
        stored = picture.offset != IN_FILE
        path = self.table.folder / BYTES if stored else self.table.file(picture)
        try:
            # Checked again: a link may have been put there since
            if not stored and os.path.realpath(path) != os.path.normpath(path):
                raise OSError(0, "it is a link now")
            with open_file(path) as file:
                if stored:
                    file.seek(picture.offset)
                return file.read(min(picture.size + (not stored), MAX_BYTES))
        except OSError as error:
            why = error.strerror or str(error)
            raise DataError(codes.DATA_IMAGE_CHANGED(self._shown(picture), why)) from error

    def _shown(self, picture: StoredImage) -> str:
        return (
            str(self.table.file(picture)) if picture.offset == IN_FILE else f"picture {picture.digest[:12]}"
        )

    @cached_property
    def _axes(self) -> VisionPositions | None:
        return VisionPositions.of(self.config)

    def _positions(
        self, documents: Sequence[NDArray[np.int32]], counts: Sequence[int], grids: NDArray[np.int64] | None
    ) -> torch.Tensor | None:
        """Return the rotary positions on several axes, int64 [A, 1, T], restarting at each document."""
        axes = self._axes
        if axes is None or grids is None:
            return None
        ends = np.cumsum(counts)
        parts = [
            axes(document.astype(np.int64), grids[end - count : end])
            for document, count, end in zip(documents, counts, ends, strict=True)
        ]
        return torch.from_numpy(np.concatenate(parts, axis=1))[:, None]


def image_loader(table: ImageTable, settings: ImageSettings, config: Config, prepared: Path) -> ImageLoader:
    """Return the loader of the pictures of the data set in the folder ``prepared``. Raises DataError."""
    data, processor = config.data, ImageProcessor(settings)
    marks = ImageMarks(settings.family, open_tokenizer(TokenizerSpec(str(prepared / TOKENIZER))))
    folder = prepared.parents[1] / "pixels"
    cache = PixelCache.of(folder, settings.identity()) if data.image_cache == "disk" else None
    of_model = config_of(config.model)
    return ImageLoader(table, processor, of_model, marks.token_id, data.image_refuse_pixels, cache)
