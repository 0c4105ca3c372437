"""Open pictures: from files in ``data.media_dir`` alone, within bounds of bytes and pixels, decoded to the end."""

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

MAX_BYTES = 256 << 20  # of one picture's file
#: Formats that Pillow decodes itself: none that starts another program (EPS), or holds documents.
FORMATS = ("JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
_EIGHT_BIT = frozenset({"1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV"})
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
        real = os.path.realpath(os.path.join(self.folder, os.path.expanduser(name)))
        if real != self.folder and not real.startswith(self.folder.rstrip(os.sep) + os.sep):
            raise RowError("image_outside", f"{name[:100]} is not in {self.folder}")
        return real

    def relative(self, real: str) -> str:
        """Return a path in the folder as prepared data name it."""
        return os.path.relpath(real, self.folder)


def opened(image: RowImage, media: MediaFolder, most_pixels: int) -> RowImage:
    """Return a picture with its size and digest, after reading it to its end. Raises RowError."""
    where = image.path
    data = image.data or read_image(media.path(where), where)
    picture = _header(data, where, most_pixels)
    width, height = picture.size
    if picture.getexif().get(_ORIENTATION, 1) >= 5:
        width, height = height, width
    try:
        # A JPEG's coefficients are all read, but fewer pixels are made of them
        picture.draft("RGB", (max(1, picture.width // _DRAFT), max(1, picture.height // _DRAFT)))
        picture.load()
    except Exception as error:  # noqa: BLE001  (each format's decoder raises its own kinds)
        raise RowError("image_damaged", _shown(where, error)) from error
    path = media.relative(media.path(where)) if where else ""
    return RowImage(path, image.data, width, height, hashlib.sha256(data).hexdigest())


def read_image(path: str, shown: str) -> bytes:
    """Return the bytes of a picture's file. Raises RowError."""
    try:
        with open_file(Path(path)) as file:
            if (size := os.fstat(file.fileno()).st_size) > MAX_BYTES:
                raise RowError("image_bomb", f"{shown} has {size:,} bytes, at most {MAX_BYTES:,} are read")
            return file.read(MAX_BYTES)
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
    """Return a picture of which the header alone is read, if its kind and size are allowed. Raises RowError."""
    try:
        picture: Image = _pillow().open(BytesIO(data), formats=FORMATS)
    except Exception as error:  # noqa: BLE001  (as above)
        if b"<svg" in data[:1024]:
            raise RowError("image_kind", f"{where or 'a picture'} is a drawing (SVG)") from error
        raise RowError("image_damaged", _shown(where, error, data)) from error
    width, height = picture.size
    if width * height > most_pixels:
        raise RowError("image_bomb", f"{where or 'a picture'} has {width:,} x {height:,} pixels")
    if not width or not height:
        raise RowError("image_damaged", f"{where or 'a picture'} has {width} x {height} pixels")
    if picture.mode not in _EIGHT_BIT:
        raise RowError("image_kind", f"{where or 'a picture'} has more than 8 bits a channel ({picture.mode})")
    if (frames := _frames(picture)) > 1:
        raise RowError("image_kind", f"{where or 'a picture'} has {frames} frames")
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
    return f"{where or 'a picture'}: {str(error).split(' <')[0].replace(' object', '')[:120] or type(error).__name__}"


@cache
def _pillow() -> ModuleType:
    """Return Pillow's module, whose own bound on pixels, a warning, is replaced by ours."""
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None
    return Image
