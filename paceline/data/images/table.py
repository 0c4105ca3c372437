"""The pictures of prepared data: for each document which stand in it, and for each where its bytes are.

They are there only where rows have pictures. ``images.arrow`` lists each document's pictures.
``pictures.arrow`` has a line for each, and ``pictures.bin`` the bytes that rows held themselves.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from io import BufferedWriter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from paceline.data.file_digests import sha256_of
from paceline.data.images.slots import RowImage

if TYPE_CHECKING:
    import pyarrow as pa

IMAGES, PICTURES, BYTES = "images.arrow", "pictures.arrow", "pictures.bin"
IN_FILE = -1  # the offset of a picture that is a file of its own


class StoredImage(NamedTuple):
    """A picture: the ``path`` of its file below the media folder of data set ``dataset``, or the ``offset``
    of its bytes in the store. ``stamp``: the file's time of change in ns; ``size``: bytes; ``digest``: hex.
    """

    path: str
    dataset: int
    offset: int
    size: int
    stamp: int
    width: int
    height: int
    digest: str


#: A picture of a document, and the number of tokens that stand for it.
PlacedImage: TypeAlias = tuple[StoredImage, int]


@dataclass(frozen=True)
class ImageBlock:
    """Pictures of a block of documents: ``numbers`` and ``tokens`` of each document's, and the pictures."""

    numbers: Sequence[Sequence[int]] = ()
    tokens: Sequence[Sequence[int]] = ()
    images: Sequence[RowImage] = ()

    @classmethod
    def of(cls, documents: Iterable[tuple[Sequence[RowImage], Sequence[int]]]) -> ImageBlock:
        """Return the block of documents of (pictures, tokens of each); equal pictures are stored once."""
        known: dict[tuple[str, str], int] = {}
        numbers, tokens, images = [], [], list[RowImage]()
        for pictures, counts in documents:
            for image in pictures:
                if known.setdefault((image.path, image.digest), len(images)) == len(images):
                    images.append(image)
            numbers.append([known[image.path, image.digest] for image in pictures])
            tokens.append(list(counts))
        return cls(numbers, tokens, images)


@dataclass
class ImageTableWriter:
    """Writes the pictures of prepared data to ``folder``, block by block; ``count``: those so far."""

    folder: Path
    count: int = 0
    _end: int = 0
    _bytes: BufferedWriter | None = None
    _digests: dict[bool, hashlib._Hash] = field(
        default_factory=lambda: {t: hashlib.sha256() for t in (True, False)}
    )

    def __post_init__(self) -> None:
        import pyarrow as pa

        lists = [("image", pa.large_list(pa.int64())), ("tokens", pa.large_list(pa.int32()))]
        kinds = {"path": pa.large_string(), "digest": pa.binary(32), "dataset": pa.int32()}
        rest = {name: pa.int64() for name in ("offset", "size", "stamp", "width", "height")}
        self._schemas = pa.schema(lists), pa.schema([*kinds.items(), *rest.items()])
        self._sinks = [pa.OSFile(str(self.folder / name), "wb") for name in (IMAGES, PICTURES)]
        self._writers = [
            pa.ipc.new_file(sink, schema) for sink, schema in zip(self._sinks, self._schemas, strict=True)
        ]

    def write(self, block: ImageBlock, dataset: int, *, train: bool) -> None:
        """Append the pictures of a block of documents of one data set."""
        import pyarrow as pa

        documents, pictures = self._schemas
        numbers = [[self.count + number for number in row] for row in block.numbers]
        columns = [pa.array(numbers, documents.types[0]), pa.array(block.tokens, documents.types[1])]
        self._writers[0].write_batch(pa.record_batch(columns, schema=documents))
        if not block.images:
            return
        lines = [self._line(image, dataset) for image in block.images]
        arrays = [
            pa.array([line[name] for line in lines], kind)
            for name, kind in zip(pictures.names, pictures.types, strict=True)
        ]
        self._writers[1].write_batch(pa.record_batch(arrays, schema=pictures))
        for row in block.numbers:
            for number in row:
                self._digests[train].update(bytes.fromhex(block.images[number].digest))
        self.count += len(block.images)

    def _line(self, image: RowImage, dataset: int) -> dict[str, str | bytes | int]:
        offset = IN_FILE
        if image.data:
            offset, self._end = self._end, self._end + len(image.data)
            self._bytes = self._bytes or (self.folder / BYTES).open("wb")
            self._bytes.write(image.data)
        return {
            "path": image.path,
            "digest": bytes.fromhex(image.digest),
            "dataset": dataset,
            "offset": offset,
            "size": image.size,
            "stamp": image.stamp,
            "width": image.width,
            "height": image.height,
        }

    def digests(self) -> dict[str, str]:
        """Return the digests of all pictures, in the order of the documents: for training, and all."""
        train, held = (self._digests[t].hexdigest() for t in (True, False))
        return {"train": train, "all": hashlib.sha256((train + held).encode()).hexdigest()}

    def close(self) -> None:
        """Finish the files."""
        for closed in (*self._writers, *self._sinks, *([self._bytes] if self._bytes else [])):
            closed.close()


class ImageTable:
    """The pictures of prepared data, memory-mapped. ``folders``: the media folder of each data set."""

    def __init__(self, folder: Path, folders: Sequence[str]) -> None:
        self.folder, self.folders = folder, tuple(folders)
        lists = _batches(folder / IMAGES)
        self._numbers = _joined([batch.column(0).values for batch in lists], np.int64)
        self._tokens = _joined([batch.column(1).values for batch in lists], np.int32)
        counts = [np.diff(_numpy(batch.column(0).offsets)) for batch in lists]
        ends = np.cumsum(np.concatenate(counts)) if counts else np.empty(0, np.int64)
        self._starts: NDArray[np.int64] = np.concatenate([np.zeros(1, np.int64), ends])
        self._pictures = _batches(folder / PICTURES)
        self._first = np.cumsum([0, *(batch.num_rows for batch in self._pictures)])
        self._names: list[str] = self._pictures[0].schema.names if self._pictures else []

    def __len__(self) -> int:
        return int(self._first[-1])

    def count(self, row: int) -> int:
        """Return the number of pictures of a document, by its row in the token file."""
        return int(self._starts[row + 1] - self._starts[row])

    def of(self, row: int) -> list[PlacedImage]:
        """Return the pictures of a document, each with the number of tokens that stand for it."""
        places = range(int(self._starts[row]), int(self._starts[row + 1]))
        return [(self.picture(int(self._numbers[n])), int(self._tokens[n])) for n in places]

    def picture(self, number: int) -> StoredImage:
        """Return a picture by its number."""
        batch = int(np.searchsorted(self._first, number, side="right")) - 1
        row = self._pictures[batch]
        local = number - int(self._first[batch])
        line = {name: row.column(n)[local].as_py() for n, name in enumerate(self._names)}
        return StoredImage(**{**line, "digest": line["digest"].hex()})

    def file(self, image: StoredImage) -> Path:
        """Return the path of a picture's file."""
        return Path(self.folders[image.dataset]) / image.path


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


def _batches(file: Path) -> list[pa.RecordBatch]:
    import pyarrow as pa

    with pa.memory_map(str(file)) as source:
        return [batch for batch in pa.ipc.open_file(source).read_all().to_batches() if batch.num_rows]


def _joined(columns: Sequence[pa.Array], dtype: type) -> NDArray:
    return np.concatenate([_numpy(column) for column in columns]) if columns else np.empty(0, dtype)


def _numpy(column: pa.Array) -> NDArray:
    """Return a view of a numeric column without nulls; ``to_numpy`` would import pandas."""
    if not len(column):
        return np.empty(0, column.type.to_pandas_dtype())
    numbers = np.frombuffer(column.buffers()[1], dtype=column.type.to_pandas_dtype())
    return numbers[column.offset : column.offset + len(column)]
