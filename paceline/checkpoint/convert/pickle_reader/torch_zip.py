"""Read torch's zip archives; check all records before any is read. No torch.

The reader accepts only stored records: a compressed one could grow without end. Each must lie within the
file, overlap no other, and have a name that stays in its folder. Nothing is ever unpacked to a disk.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from paceline.checkpoint.convert.pickle_reader.values import Refused

MAX_RECORDS = 1_000_000
_END, _END64, _LOCATOR64 = b"PK\x05\x06", b"PK\x06\x06", b"PK\x06\x07"
_CENTRAL, _LOCAL = b"PK\x01\x02", b"PK\x03\x04"
_END_BYTES, _LONGEST_COMMENT = 22, 0xFFFF
# Fields that say that the true number stands in the record of 64 bits
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF


@dataclass(frozen=True)
class ZipRecord:
    """Bytes ``[start, start + size)`` of the archive."""

    name: str
    start: int
    size: int
    crc: int


class TorchArchive:
    """The records of one file of ``torch.save``, by their names within its one folder (``data.pkl``)."""

    def __init__(self, view: memoryview) -> None:
        """Raises Refused."""
        if bytes(view[:4]) != _LOCAL:
            if bytes(view[:1]) == b"\x80":  # a pickle's first instruction: its protocol
                raise Refused(
                    "a bare pickle, or torch's format before 1.6: load it where it was written, and save it"
                    " anew"
                )
            raise Refused(f"no zip of torch.save: it begins with {bytes(view[:8])!r}")
        self._view = view
        self._checked: set[str] = set()
        records = _records(view)
        folders = {name.partition("/")[0] for name in records}
        if len(folders) != 1:
            raise Refused(f"{len(folders)} folders in an archive of torch, which has one")
        self._records = {name.partition("/")[2]: record for name, record in records.items()}
        if "data.pkl" not in self._records:
            raise Refused("a zip without the pickle that torch.save writes")
        order = bytes(self.read("byteorder")) if "byteorder" in self._records else b"little"
        if order != b"little":
            raise Refused(f"the byte order {order[:20]!r}, where little is read")

    def read(self, name: str) -> memoryview:
        """Return the bytes of a record, in place; its sum is compared once. Raises Refused."""
        record = self._records.get(name)
        if record is None:
            raise Refused(f"the archive has no record {name[:100]!r}")
        content = self._view[record.start : record.start + record.size]
        if name not in self._checked:
            if zlib.crc32(content) != record.crc:
                raise Refused(f"the sum of {name!r} differs: the file is damaged")
            self._checked.add(name)
        return content

    def size(self, name: str) -> int:
        """Return the bytes of a record. Raises Refused."""
        record = self._records.get(name)
        if record is None:
            raise Refused(f"the archive has no record {name[:100]!r}")
        return record.size


def _records(view: memoryview) -> dict[str, ZipRecord]:
    """Return the records by their full names."""
    count, first, size = _directory(view)
    if count > MAX_RECORDS:
        raise Refused(f"an archive of {count} records; at most {MAX_RECORDS} are read")
    if count * 46 > size or first + size > len(view):
        raise Refused(f"a directory of {count} records in {size} bytes at byte {first} of {len(view)}")
    records: dict[str, ZipRecord] = {}
    position = first
    for _ in range(count):
        if position + 46 > first + size or bytes(view[position : position + 4]) != _CENTRAL:
            raise Refused(f"no entry of the directory at byte {position}")
        record, position = _entry(view, position, first)
        if record.name in records:
            raise Refused(f"two records {record.name!r}")
        records[record.name] = record
    end = 0
    for record in sorted(records.values(), key=lambda entry: (entry.start, entry.size)):
        if record.start < end:
            raise Refused(f"the record {record.name!r} lies over another")
        end = record.start + record.size
    return records


def _directory(view: memoryview) -> tuple[int, int, int]:
    """Return number of records, first byte and size of the directory."""
    low = max(0, len(view) - _END_BYTES - _LONGEST_COMMENT)
    position = low + bytes(view[low:]).rfind(_END)
    if position < low or position + _END_BYTES > len(view):
        raise Refused("a zip that is cut off: it has no end record")
    disk, other, _, count, size, first = struct.unpack("<HHHHII", view[position + 4 : position + 20])
    if disk or other:
        raise Refused("a zip of several volumes")
    if _FULL16 not in (count,) and _FULL32 not in (size, first):
        return count, first, size
    if position < 20 or bytes(view[position - 20 : position - 16]) != _LOCATOR64:
        raise Refused("a zip of 64 bits without its locator")
    (position,) = struct.unpack("<Q", view[position - 12 : position - 4])
    if position + 56 > len(view) or bytes(view[position : position + 4]) != _END64:
        raise Refused("a zip of 64 bits without its end record")
    count, size, first = struct.unpack("<QQQ", view[position + 32 : position + 56])
    return count, first, size


def _entry(view: memoryview, position: int, limit: int) -> tuple[ZipRecord, int]:
    """Return the record of the directory's entry at ``position``, and where the next entry begins."""
    flags, method = struct.unpack("<HH", view[position + 8 : position + 12])
    crc, packed, size, name_long, extra_long, comment_long = struct.unpack(
        "<IIIHHH", view[position + 16 : position + 34]
    )
    (local,) = struct.unpack("<I", view[position + 42 : position + 46])
    raw = bytes(view[position + 46 : position + 46 + name_long])
    name = _safe(raw)
    extra = view[position + 46 + name_long : position + 46 + name_long + extra_long]
    size, packed, local = _wide(extra, (size, packed, local), name)
    if method or flags & 1 or packed != size:
        raise Refused(f"the record {name!r} is compressed or encrypted, which torch's are not")
    if local + 30 > limit or bytes(view[local : local + 4]) != _LOCAL:
        raise Refused(f"the record {name!r} is said to be at byte {local}, where there is none")
    again, more = struct.unpack("<HH", view[local + 26 : local + 30])
    if bytes(view[local + 30 : local + 30 + again]) != raw:
        raise Refused(f"the record {name!r} has another name where it lies")
    start = local + 30 + again + more
    if start + size > limit:
        raise Refused(f"the record {name!r} of {size} bytes leads out of the file")
    return ZipRecord(name, start, size, crc), position + 46 + name_long + extra_long + comment_long


def _wide(extra: memoryview, stored: tuple[int, int, int], name: str) -> tuple[int, int, int]:
    """Return sizes and place, from the 64-bit fields where the entry has them."""
    sizes = list(stored)
    position = 0
    while position + 4 <= len(extra):
        kind, long = struct.unpack("<HH", extra[position : position + 4])
        body = extra[position + 4 : position + 4 + long]
        if kind == 1:
            inner = 0
            for which in range(3):
                if stored[which] == _FULL32:
                    if inner + 8 > len(body):
                        raise Refused(f"the record {name!r} lacks its size of 64 bits")
                    (sizes[which],) = struct.unpack("<Q", body[inner : inner + 8])
                    inner += 8
        position += 4 + long
    return sizes[0], sizes[1], sizes[2]


def _safe(raw: bytes) -> str:
    name = raw.decode("utf-8", "replace")
    parts = name.split("/")
    if not 2 <= len(parts) <= 4 or not all(parts) or ".." in parts or "\\" in name or not name.isprintable():
        raise Refused(f"a record with the name {name[:100]!r}, which is no plain one")
    return name
