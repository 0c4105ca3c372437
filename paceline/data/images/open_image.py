"""Open pictures: of files in ``data.media_dir`` alone, within bounds of bytes and pixels, to their end."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from paceline.core.files import open_file
from paceline.data.images.slots import RowImage
from paceline.data.rows.values import RowError

if TYPE_CHECKING:
    from PIL.Image import Image

    from paceline.config.sections.data import DataSection

MAX_BYTES = 256 << 20  # of one picture's file
#: Formats that Pillow decodes itself: none that starts another program (EPS), or holds documents.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
_EIGHT_BIT = frozenset(
    {"1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV"}
)
_ORIENTATION = 0x0112  # EXIF: values from 5 on turn the picture by a quarter
_DRAFT = 8


@dataclass(frozen=True)
class MediaFolder:
    """The folder in which the paths of pictures begin (``data.media_dir``), with links resolved."""

    folder: str

    @classmethod
    def of(cls, media_dir: str | None, beside: Path) -> MediaFolder:
        """Return ``media_dir``, or without it the folder ``beside`` the rows."""
        return cls(os.path.realpath(Path(media_dir).expanduser() if media_dir else beside))

    def path(self, name: str) -> str:
        """Return the real path of a file. Raises RowError if it lies outside, itself or by a link."""
        real = os.path.realpath(os.path.join(self.folder, name))
        if real != self.folder and not real.startswith(self.folder.rstrip(os.sep) + os.sep):
            raise RowError("image_outside", f"{name[:100]} is not in {self.folder}")
        return real

    def relative(self, real: str) -> str:
        """Return a path in the folder as prepared data name it."""
        return os.path.relpath(real, self.folder)


@dataclass(frozen=True)
class ImageRules:
    """How pictures are opened. ``media_dir``: where paths begin, None: beside the rows."""

    most_pixels: int
    media_dir: str | None = None

    @classmethod
    def of(cls, data: DataSection) -> ImageRules:
        """Return the rules of a config's ``data``."""
        return cls(data.image_refuse_pixels, data.media_dir)

    def media(self, beside: str) -> MediaFolder:
        """Return the folder of the pictures of rows in the folder ``beside``."""
        return MediaFolder.of(self.media_dir, Path(beside or "."))

    def opened(self, image: RowImage, media: MediaFolder) -> RowImage:
        """Return a picture with its size and digest, after reading it to its end. Raises RowError."""
        real = media.path(image.path) if image.path else ""
        data, stamp = (image.data, 0) if image.data else read_image(real, image.path)
        picture = _header(data, image.path, self.most_pixels)
        width, height = picture.size
        try:
            # A JPEG's coefficients are all read, but fewer pixels are made of them
            picture.draft("RGB", (max(1, width // _DRAFT), max(1, height // _DRAFT)))
            picture.load()
            turned = picture.getexif().get(_ORIENTATION, 1) >= 5
        except Exception as error:  # noqa: BLE001  (each format's decoder raises its own kinds)
            raise RowError("image_damaged", _shown(image.path, error)) from error
        size = (height, width) if turned else (width, height)
        path = media.relative(real) if real else ""
        return RowImage(path, image.data, *size, hashlib.sha256(data).hexdigest(), len(data), stamp)


def read_image(path: str, shown: str) -> tuple[bytes, int]:
    """Return the bytes of a picture's file, and its time of change in ns. Raises RowError."""
    try:
        with open_file(Path(path)) as file:
            status = os.fstat(file.fileno())
            if status.st_size > MAX_BYTES:
                raise RowError("image_bomb", f"{shown} has {status.st_size:,} bytes, more than {MAX_BYTES:,}")
            return file.read(MAX_BYTES), status.st_mtime_ns
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RowError("image_missing", shown[:200]) from error
    except OSError as error:
        raise RowError("image_damaged", f"{shown[:200]}: {error.strerror or error}") from error


def decoded(data: bytes, shown: str, most_pixels: int) -> Image:
    """Return a picture as models see it: upright, RGB. Raises RowError."""
    picture = _header(data, shown, most_pixels)
    try:
        from PIL import ImageOps

        upright = ImageOps.exif_transpose(picture)
        return upright if upright.mode == "RGB" else upright.convert("RGB")
    except Exception as error:  # noqa: BLE001  (as above)
        raise RowError("image_damaged", _shown(shown, error)) from error


def _header(data: bytes, where: str, most_pixels: int) -> Image:
    """Return a picture of which the header alone is read. Raises RowError if its kind or size is refused."""
    try:
        picture: Image = _pillow().open(BytesIO(data), formats=FORMATS)
    except Exception as error:  # noqa: BLE001  (as above)
        if b"<svg" in data[:1024]:
            raise RowError("image_kind", f"{where or 'a picture'} is a drawing (SVG)") from error
        raise RowError("image_damaged", _shown(where, error, data)) from error
    (width, height), name = picture.size, where or "a picture"
    if width * height > most_pixels:
        raise RowError("image_bomb", f"{name} has {width:,} x {height:,} pixels")
    if not width or not height:
        raise RowError("image_damaged", f"{name} has {width} x {height} pixels")
    if picture.mode not in _EIGHT_BIT:
        raise RowError("image_kind", f"{name} has more than 8 bits a channel ({picture.mode})")
    if (frames := _frames(picture)) > 1:
        raise RowError("image_kind", f"{name} has {frames} frames")
    return picture


def _frames(picture: Image) -> int:
    """Return the number of frames; a JPEG with further views (MPO) is its first."""
    if picture.format == "MPO":
        return 1
    try:
        return int(getattr(picture, "n_frames", 1))
    except Exception:  # noqa: BLE001  (a damaged list of frames: decoding says so)
        return 1


def _shown(where: str, error: Exception, data: bytes = b"x") -> str:
    if not data:
        return f"{where or 'a picture'} is empty"
    why = str(error).split(" <")[0][:120] or type(error).__name__
    return f"{where or 'a picture'}: {why}"


@cache
def _pillow() -> ModuleType:
    """Return Pillow's module, whose own bound on pixels, a warning, is replaced by ours."""
    from PIL import Image

    Image.init()
    Image.MAX_IMAGE_PIXELS = None
    return Image
