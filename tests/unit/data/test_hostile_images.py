"""Hostile and odd picture files: each is named by its row, or decoded as the datasets library does it."""

from __future__ import annotations

import io
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_rows import config_for, loader_of, png, prepared_of, turns
from PIL import Image, ImageFile

from paceline.core.errors import DataError

MOST = 1_000_000  # pixels


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format=kind, **options)
    return stream.getvalue()


def noise(mode: str = "RGB", size: tuple[int, int] = (40, 24)) -> Image.Image:
    return Image.open(io.BytesIO(png(size, 3))).convert(mode)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def claimed(width: int, height: int, data: bytes = b"") -> bytes:
    """A small PNG that claims a size."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def turned(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return saved(noise(), "JPEG", exif=exif, quality=95)


def frames(kind: str) -> bytes:
    return saved(noise(), kind, save_all=True, append_images=[noise("L").convert("RGB")] * 2)


JPEG, PNG = saved(noise(), "JPEG"), saved(noise(), "PNG")
SIXTEEN = Image.fromarray(np.arange(600, dtype=np.uint16).reshape(20, 30) * 100)
SVG = b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"></svg>'


def bitmap(width: int, height: int) -> bytes:
    """The header of a BMP that claims a size."""
    return b"BM" + struct.pack("<IHHIIiiHHIIiiII", 54, 0, 0, 54, 40, width, height, 1, 24, *[0] * 6)


#: Name → (bytes, the reason that is named); None: it is read
FILES: dict[str, tuple[bytes, str | None]] = {
    "empty.jpg": (b"", "image_damaged"),
    "text.jpg": (b"not a picture at all", "image_damaged"),
    "zeros.png": (bytes(4096), "image_damaged"),
    "page.html": (b"<html><body>404</body></html>", "image_damaged"),
    "drawing.svg": (SVG, "image_kind"),
    "drawing.png": (b"<svg></svg>", "image_kind"),
    "document.pdf": (b"%PDF-1.7\n1 0 obj\n<<>>\nendobj\n", "image_damaged"),
    "script.eps": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "image_damaged"),
    "pickle.png": (b"\x80\x04cos\nsystem\n(S'true'\ntR.", "image_damaged"),
    "cut_head.jpg": (JPEG[:20], "image_damaged"),
    "cut_half.jpg": (JPEG[: len(JPEG) // 2], "image_damaged"),
    "cut_end.jpg": (JPEG[:-40], "image_damaged"),
    "cut_half.png": (PNG[: len(PNG) // 2], "image_damaged"),
    "cut_head.png": (PNG[:30], "image_damaged"),
    "flipped.png": (PNG[:80] + bytes([PNG[80] ^ 255]) + PNG[81:], "image_damaged"),
    "short_data.png": (claimed(40, 40, b"\0" * 100), "image_damaged"),
    "cut.webp": (saved(noise(), "WEBP")[:-60], "image_damaged"),
    "cut.bmp": (saved(noise(), "BMP")[:-500], "image_damaged"),
    "cut.tif": (saved(noise(), "TIFF")[:-200], "image_damaged"),
    "cut.gif": (saved(noise("P"), "GIF")[:300], "image_damaged"),
    "bomb.png": (claimed(60_000, 60_000), "image_bomb"),
    "wide_bomb.png": (claimed(2_000_000_000, 1), "image_bomb"),
    "just_over.png": (claimed(1001, 1000), "image_bomb"),
    "bomb.bmp": (bitmap(50_000, 50_000), "image_bomb"),
    "zero.png": (claimed(0, 40), "image_damaged"),
    "zero.bmp": (bitmap(0, 9), "image_damaged"),
    "sixteen.png": (saved(SIXTEEN, "PNG"), "image_kind"),
    "sixteen.tif": (saved(SIXTEEN, "TIFF"), "image_kind"),
    "float.tif": (saved(Image.fromarray(np.ones((9, 9), np.float32)), "TIFF"), "image_kind"),
    "moving.gif": (frames("GIF"), "image_kind"),
    "moving.webp": (frames("WEBP"), "image_kind"),
    "moving.png": (frames("PNG"), "image_kind"),
    "pages.tif": (frames("TIFF"), "image_kind"),
    "long.png": (saved(noise(size=(3000, 12)), "PNG"), "image_shape"),
    "cmyk.jpg": (saved(noise("CMYK"), "JPEG"), None),
    "grey.jpg": (saved(noise("L"), "JPEG"), None),
    "palette.png": (saved(noise("P"), "PNG"), None),
    "clear_palette.png": (saved(noise("P"), "PNG", transparency=3), None),
    "alpha.png": (saved(noise("RGBA"), "PNG"), None),
    "alpha.webp": (saved(noise("RGBA"), "WEBP", lossless=True), None),
    "grey_alpha.png": (saved(noise("LA"), "PNG"), None),
    "bits.png": (saved(noise("1"), "PNG"), None),
    "one_frame.gif": (saved(noise("P"), "GIF"), None),
    "progressive.jpg": (saved(noise(), "JPEG", progressive=True), None),
    "wrong_name.png": (JPEG, None),
    "more_behind.jpg": (JPEG + b"and more", None),
    **{f"turned_{n}.jpg": (turned(n), None) for n in (3, 6, 8)},
}  # fmt: skip
#: What is no file in the folder of the rows
PLACES: dict[str, str] = {
    "missing.jpg": "image_missing",
    "folder": "image_damaged",
    "fifo": "image_damaged",
    "../outside.png": "image_outside",
    "/etc/hostname": "image_outside",
    "link_out.png": "image_outside",
    "folder/../../outside.png": "image_outside",
    "https://example.org/a.png": "image_url",
    "data:image/png;base64,!!!!": "image_damaged",
    "data:image/png,abc": "image_damaged",
    "a\0b.png": "image_missing",
    "x" * 5000: "image_missing",
}


def test_each_file_is_named_or_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[tuple[int, int]] = []
    load = ImageFile.ImageFile.load
    folder = tmp_path / "rows"
    folder.mkdir()
    config_for([], folder)
    for name, (data, _) in FILES.items():
        (folder / name).write_bytes(data)
    (tmp_path / "outside.png").write_bytes(PNG)
    (folder / "link_out.png").symlink_to(tmp_path / "outside.png")
    (folder / "link_in.png").symlink_to(folder / "alpha.png")
    (folder / "folder").mkdir()
    os.mkfifo(folder / "fifo")
    expected = {**{name: reason for name, (_, reason) in FILES.items()}, **PLACES, "link_in.png": None}

    def watched(image: ImageFile.ImageFile) -> Any:
        loaded.append(image.size)
        return load(image)

    monkeypatch.setattr(ImageFile.ImageFile, "load", watched)
    rows = [turns("<image>", images=[name]) for name in expected]
    options = {"image_refuse_pixels": MOST, "on_bad_row": "skip", "num_proc": 1}
    config = config_for(rows, folder, **options)
    prepared = prepared_of(config, folder)
    assert len(expected) >= 40 and max(width * height for width, height in loaded) <= MOST
    table = prepared.train
    used = set(table.source_row.tolist())
    for number, (name, reason) in enumerate(expected.items()):
        assert (number in used) == (reason is None), (name, reason)
    refused = config_for(rows, folder, **{**options, "on_bad_row": "refuse"})
    with pytest.raises(DataError) as raised:
        prepared_of(refused, folder)
    counts: dict[str, int] = {}
    for reason in filter(None, expected.values()):
        counts[f"data.{reason}"] = counts.get(f"data.{reason}", 0) + 1
    found = {finding.code: finding for finding in raised.value.diagnostics}
    assert {code: finding.evidence["count"] for code, finding in found.items()} == counts
    first = {f"data.{reason}": n for n, reason in reversed(list(enumerate(expected.values(), 1))) if reason}
    assert all(finding.where == f"{folder}/rows.jsonl:{first[code]}" for code, finding in found.items())
    # What is read is what the datasets library decodes, as RGB
    import datasets

    assert table.images is not None
    loader, feature = loader_of(prepared, config), datasets.Image()
    for document in range(len(table)):
        ((picture, _),) = table.images.of(table.row_in_file(document))
        judge = feature.decode_example({"path": None, "bytes": (folder / picture.path).read_bytes()})
        ours = loader.decoded(picture)
        assert ours.size == (picture.width, picture.height) == judge.size
        assert np.array_equal(np.asarray(ours), np.asarray(judge.convert("RGB"))), picture.path
