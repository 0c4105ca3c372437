"""Read files as rows, each with its place (``file:line``).

A line that cannot be read is a problem of that row; a file that cannot be read is an error.
"""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import DataError
from paceline.core.files import open_file, pointers
from paceline.data import codes
from paceline.data.rows.values import DECODER, Cell, RawRow, check_value, parse_row
from paceline.data.sources.file_kinds import (
    disguised,
    frame_orientation,
    is_packed,
    kind_of,
    objects_over_lines,
    open_rows,
    reading,
    wrong_csv,
)
from paceline.data.sources.locate import Located
from paceline.data.sources.read_tables import (
    arrow_rows,
    check_names,
    load_hub,
    parquet_rows,
    records,
    saved_rows,
)
from paceline.data.sources.user_code import own_rows

if TYPE_CHECKING:
    pass


MAX_LINE = 1 << 26  # characters of one row
MAX_LIST = 1 << 32  # characters of a compressed JSON list, whose size its file does not tell
_GIVE_UP_AFTER = 20  # consecutive unreadable lines at the start of a file: it is not JSONL


def read_rows(located: Located, split: str) -> Iterator[RawRow]:
    """Yield all rows of a data set, in order. Raises DataError for a file that cannot be read at all."""
    saved = located.folder if located.kind == "saved" else None
    if (wrong := pointers(saved.rglob("*.arrow") if saved else located.files)) is not None:
        raise DataError(wrong)
    if saved:
        yield from saved_rows(saved, split)
    elif located.kind == "own":
        yield from own_rows(located.own)
    elif located.kind == "hub":
        yield from records(load_hub(located, split), located.hub)
    before = 0
    for file in located.files:
        with reading(file):
            for row in _READERS[kind_of(file) or ""](file):
                # How far a compressed file is read is known at its end.
                yield row._replace(consumed=before + (0 if is_packed(file) else row.consumed))
        before += file.stat().st_size


def total_bytes(located: Located) -> int:
    """Return the size of the files, for progress; 0 if unknown."""
    return sum(f.stat().st_size for f in located.files)


@contextmanager
def _open(file: Path) -> Iterator[TextIO]:
    if file.stat().st_size == 0:
        raise DataError(codes.DATA_EMPTY("the file is empty", str(file), "0 bytes", "give a file with rows"))
    with open_rows(file) as stream:
        yield stream


def _not_utf8(file: Path, line: int, exc: UnicodeDecodeError) -> DataError:
    charset = _charset(file, exc.object[exc.start : exc.start + 400])
    return DataError(
        codes.DATA_NOT_UTF8(
            "the file is not UTF-8 text",
            f"{file}:{line}",
            f"byte {exc.object[exc.start]:#04x}",
            f"iconv -f {charset} -t UTF-8 {file.name} > NEW; -f names the encoding that the file has",
        )
    )


def _charset(file: Path, text: bytes) -> str:
    """Return the encoding from a file's first bytes, else one that can decode ``text``."""
    with open_file(file) as stream:
        if stream.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            return "UTF-16"
    try:
        codecs.getincrementaldecoder("GB18030")().decode(text)
    except UnicodeDecodeError:
        return "CP1252"
    return "GB18030"


def _lines(file: Path) -> Iterator[tuple[int, str, int]]:
    """Yield (number, line, bytes so far) of the non-blank lines of a text file."""
    number, consumed = 0, 0
    with _open(file) as stream:
        try:
            for number, line in enumerate(iter(partial(stream.readline, MAX_LINE), ""), 1):  # noqa: B007
                # A longer line would come in pieces, and each be a row of its own
                if len(line) == MAX_LINE:
                    raise DataError(_too_large(file, number))
                _check_text(line, file, number)
                consumed += len(line)
                if line.strip():
                    yield number, line, consumed
        except UnicodeDecodeError as exc:
            raise _not_utf8(file, number + 1, exc) from exc


def _too_large(file: Path, line: int) -> Diagnostic:
    return codes.DATA_ROW_TOO_LARGE(
        f"{file}:{line}", f"more than {MAX_LINE >> 20} Mi characters without a line break"
    )


def _check_text(text: str, file: Path, line: int) -> None:
    """Raise DataError for a NUL character, which no text has."""
    if "\0" in text:
        raise DataError(
            codes.DATA_NOT_UTF8(
                "the file is not UTF-8 text",
                f"{file}:{line}",
                "a NUL character: the file is binary, or UTF-16",
                f"iconv -f UTF-16 -t UTF-8 {file.name} > NEW",
            )
        )


def _jsonl(file: Path) -> Iterator[RawRow]:
    good, bad, first = 0, 0, ""
    lines = _lines(file)
    head = list(islice(lines, 2))
    for number, line, consumed in chain(head, lines):
        # Some .jsonl files hold a single JSON list; in others each line is a list, which is no row.
        if number == 1 and line.lstrip().startswith("[") and not (len(head) > 1 and _is_json(line)):
            yield from _json_list(file)
            return
        where = f"{file}:{number}"
        try:
            value = parse_row(line)
        except (ValueError, RecursionError) as exc:
            bad, first = bad + 1, first or f"{line.strip()[:60]!r} ({_complaint(exc)})"
            # A file that starts with many unreadable lines is not JSONL; one bad line is that row's problem.
            if good == 0 and bad >= _GIVE_UP_AFTER:
                raise DataError(_no_line_is_json(file, bad, first)) from exc
            yield RawRow(None, where, "bad_json", f"{_complaint(exc)}: {line.strip()[:60]!r}", consumed)
            continue
        if len(head) == 1 and (key := _nested(value)):
            raise DataError(
                codes.DATA_NOT_A_LIST(
                    f"the rows stand in a list '{key}' within one object; a line, or an object of a list,"
                    " is a row",
                    where,
                    f"keys {key}",
                    _unnest(file, key),
                )
            )
        if good == 0 and isinstance(value, dict) and (orient := frame_orientation(value)):
            read = f"pandas.read_json('{file.name}', orient='{orient}')"
            raise DataError(
                codes.DATA_NOT_A_LIST(
                    "the file is one table, as pandas' to_json writes it; a line, or an object of a list,"
                    " is a row",
                    where,
                    f"keys {', '.join(islice(value, 8))}",
                    f"write it anew: {read}.to_json('rows.jsonl', orient='records', lines=True)",
                )
            )
        good += 1
        yield _row(value, where, consumed)
    if good == 0 and bad:
        raise DataError(_no_line_is_json(file, bad, first))


def _no_line_is_json(file: Path, lines: int, first: str) -> Diagnostic:
    """Return the finding about a file whose first lines are not JSON; ``first``: the first line and its
    error."""
    return objects_over_lines(file) or codes.DATA_NOT_JSON(
        "no line of the file is JSON",
        f"{file}:1",
        f"{lines} lines, none readable: {first}",
        "write one JSON object per line (.jsonl), or a list of objects (.json)",
    )


def _is_json(line: str) -> bool:
    with suppress(ValueError, RecursionError):
        parse_row(line)
        return True
    return False


def _nested(value: Cell) -> str:
    """Return the only key of an object whose value is a list of rows, not of turns; else nothing."""
    if not isinstance(value, dict) or len(value) != 1:
        return ""
    [(key, rows)] = value.items()
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) and row for row in rows):
        return ""
    return key if not any({"role", "from"} & set(row) for row in rows) else ""


def _unnest(file: Path, key: str) -> str:
    return f"write one row per line: jq -c '.\"{key}\"[]' {file.name} > rows.jsonl"


def _complaint(exc: Exception) -> str:
    """Return the JSON parser's message without its line numbers (they count from the start of the row)."""
    if isinstance(exc, RecursionError):
        return "nested too deeply"
    return f"{exc.msg}, column {exc.colno}" if isinstance(exc, json.JSONDecodeError) else str(exc)


def _row(value: Cell, where: str, consumed: int) -> RawRow:
    if not isinstance(value, dict):
        return RawRow(None, where, "not_an_object", f"{type(value).__name__} {str(value)[:60]!r}", consumed)
    return RawRow(value, where, consumed=consumed)


def _not_json(file: Path, line: int, shown: str, exc: Exception) -> Diagnostic:
    return codes.DATA_NOT_JSON(
        "the file is not JSON",
        f"{file}:{line}",
        f"{shown} ({_complaint(exc)})",
        "write one JSON object per line (.jsonl), or a list of objects (.json)",
    )


def _json(file: Path) -> Iterator[RawRow]:
    """Read a .json file: a list of objects or JSON lines, by its first character."""
    first = next(_lines(file), None)
    if first is None:
        raise DataError(
            codes.DATA_EMPTY("the file is empty", str(file), "only white space", "give a file with rows")
        )
    if first[1].lstrip().startswith("["):
        yield from _json_list(file)
        return
    try:
        parse_row(first[1])
    except json.JSONDecodeError as exc:
        raise DataError(_whole_json(file, first[0], first[1], exc)) from exc
    except (ValueError, RecursionError):
        pass  # JSON lines whose first line is refused, with its line number
    yield from _jsonl(file)


def _whole_json(file: Path, line: int, text: str, exc: Exception) -> Diagnostic:
    """Return the finding about a .json file that is neither a list nor JSON lines."""
    try:
        with open_rows(file) as stream:
            value = json.load(stream)
    except (ValueError, RecursionError):
        return objects_over_lines(file) or _not_json(file, line, repr(text.strip()[:60]), exc)
    keys = ", ".join(list(value)[:8]) if isinstance(value, dict) else type(value).__name__
    lists = [key for key, item in value.items() if _nested({key: item})] if isinstance(value, dict) else []
    return codes.DATA_NOT_A_LIST(
        "the file contains one object, not a list of rows",
        f"{file}:{line}",
        f"keys {keys}",
        _unnest(file, lists[0]) if len(lists) == 1 else "write a list of objects: [{…}, {…}]",
    )


def _json_list(file: Path) -> Iterator[RawRow]:
    """Yield the objects of a JSON list, with the line where each begins."""
    with _open(file) as stream:
        try:
            text = stream.read(MAX_LIST) if is_packed(file) else stream.read()
            if stream.read(1):
                raise DataError(_too_large(file, 1))
        except UnicodeDecodeError as exc:
            raise _not_utf8(file, 1 + exc.object[: exc.start].count(b"\n"), exc) from exc
    position, counted, line = _skip(text, text.index("[") + 1), 0, 1
    number, before = 0, 0  # of this object, and the line of the one before
    # One object an iteration: count lines up to it, decode it, then expect a comma or the end.
    while text[position : position + 1] != "]":
        line, counted = line + text.count("\n", counted, position), position
        try:
            value, end = DECODER.raw_decode(text, position)
            check_value(value, text[position:end])
        except (ValueError, RecursionError) as exc:
            raise DataError(
                _not_json(file, getattr(exc, "lineno", line), repr(text[position : position + 60]), exc)
            ) from exc
        position, number = end, number + 1
        # Several objects on a line are told apart by their number.
        yield _row(value, f"{file}:{line}" + (f" (row {number})" if line == before else ""), position)
        before = line
        position = _skip(text, position)
        if text[position : position + 1] == ",":
            position = _skip(text, position + 1)
        elif text[position : position + 1] != "]":
            raise _behind_value(file, text, position, "expected ',' or ']'")
    if (rest := _skip(text, position + 1)) < len(text):
        raise _behind_value(file, text, rest, "text after the list")


def _behind_value(file: Path, text: str, position: int, complaint: str) -> DataError:
    shown = repr(text[position : position + 60]) if position < len(text) else "the end of the file"
    return DataError(_not_json(file, 1 + text.count("\n", 0, position), shown, ValueError(complaint)))


def _skip(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


def _csv(file: Path, delimiter: str = ",") -> Iterator[RawRow]:
    _check_disguise(file)
    # Python's own limit is 128 KiB
    csv.field_size_limit(MAX_LINE)
    with _open(file) as stream:
        reader = csv.reader(stream, strict=True, delimiter=delimiter)
        consumed = 0
        try:
            # The header names the columns; each name must be unique.
            header = next(reader, [])
            check_names(header, f"{file}:1")
            while True:
                where = f"{file}:{reader.line_num + 1}"
                record = next(reader, None)
                if record is None:
                    return
                consumed += sum(map(len, record)) + len(record)
                _check_text("".join(record), file, reader.line_num)
                if len(record) == len(header):
                    yield RawRow(dict(zip(header, record, strict=True)), where, consumed=consumed)
                elif record:  # a record with another number of values is that row's problem
                    counts = f"{len(record)} values for {len(header)} columns"
                    yield RawRow(None, where, "bad_csv", counts, consumed)
        except csv.Error as exc:
            raise DataError(wrong_csv(f"{file}:{reader.line_num}", str(exc))) from exc
        except UnicodeDecodeError as exc:
            raise _not_utf8(file, reader.line_num + 1, exc) from exc


def _txt(file: Path) -> Iterator[RawRow]:
    _check_disguise(file)
    for number, line, consumed in _lines(file):
        yield RawRow({"text": line.rstrip("\r\n")}, f"{file}:{number}", consumed=consumed)


def _check_disguise(file: Path) -> None:
    """Raise DataError for a .txt or .csv file that holds another format."""
    with suppress(OSError):  # opening the file reports the reason
        if finding := disguised(file):
            raise DataError(finding)


_READERS: dict[str, Callable[[Path], Iterator[RawRow]]] = {
    "json": _json,
    "jsonl": _jsonl,
    "csv": _csv,
    "tsv": partial(_csv, delimiter="\t"),
    "arrow": arrow_rows,
    "txt": _txt,
    "parquet": parquet_rows,
}
