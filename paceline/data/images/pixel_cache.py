"""Pixels on disk (``data.image_cache: disk``): a file for each picture and each way of processing it."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from numpy.typing import NDArray

from paceline.core.json_types import Json
from paceline.data.file_digests import digest_of

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
