"""``python -m paceline.data.preview --config-json FILE``: show rows as the model gets them, or totals.

Tokens with loss are green on a terminal and between « and » elsewhere.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from paceline.config.schema import Config
from paceline.core.errors import ConfigError, ExitCode
from paceline.core.json_types import JsonObject
from paceline.core.security.file_permissions import written_for
from paceline.data import codes
from paceline.data.chat_template.encode import Encoded, Encoder
from paceline.data.images.expand import ImageWriter
from paceline.data.images.open_image import ImageRules, decoded, read_image
from paceline.data.images.processor import ImageProcessor, shown_pictures
from paceline.data.images.slots import RowImage
from paceline.data.preflight.find_sets import LocatedDataset, media_beside, read_head
from paceline.data.prepare.choose_template import settle_template
from paceline.data.prepare.main import Bar, read_config
from paceline.data.prepare.prepare import Prepared, prepare, sets_of, setup_of
from paceline.data.prepare.tokenize import Chunk, ChunkRow, Setup, encode_for, tokenise_chunk
from paceline.data.prepare.truncate import kept_tokens
from paceline.data.random_keys import text_key
from paceline.data.rows.examples import RowReader
from paceline.data.rows.formats import Example
from paceline.data.rows.kinds.base import row_kind
from paceline.data.rows.row_errors import REASONS, Problem
from paceline.data.token_table import TokenTable
from paceline.data.tokenizer.load import open_tokenizer
from paceline.launch.program import program, terminal
from paceline.plan.algorithms.spec import algorithm_spec
from paceline.plan.images.settings import ImageSettings
from paceline.runlog.redact import printable

_GREEN, _DIM, _OFF = "\033[32m", "\033[2m", "\033[0m"
BINS = 60  # of the histogram of lengths


@dataclass(frozen=True)
class ShownPiece:
    """Tokens in a row that have loss or have none, of one turn (None: of no turn)."""

    text: str
    tokens: int
    has_loss: bool
    turn: int | None


@dataclass(frozen=True)
class ShownPicture:
    """A picture of a document: its size in pixels, its tokens, and the place of the first (from 1)."""

    image: RowImage
    tokens: int
    place: int


@dataclass(frozen=True)
class ShownDocument:
    """One document of a row: ``pieces`` in order; ``roles`` of its turns; ``cut``: tokens beyond max_length;
    ``left_out``: fields that the chat template did not render; ``behind_end``: turns after the end token
    added to the last answer, which the row therefore lacks. ``pictures``: with their places.
    """

    pieces: tuple[ShownPiece, ...]
    roles: tuple[str, ...]
    cut: int
    left_out: tuple[str, ...]
    behind_end: tuple[int, ...] = ()
    pictures: tuple[ShownPicture, ...] = ()

    @property
    def tokens(self) -> int:
        return sum(piece.tokens for piece in self.pieces)

    @property
    def labels(self) -> int:
        """Tokens with loss; the first one is never predicted."""
        count = sum(piece.tokens for piece in self.pieces if piece.has_loss)
        return count - (1 if self.pieces and self.pieces[0].has_loss else 0)


@dataclass(frozen=True)
class ShownRow:
    """A row with its documents, or the ``problems`` (reason, detail) that make it unusable."""

    number: int
    where: str
    documents: tuple[ShownDocument, ...] = ()
    problems: tuple[tuple[str, str], ...] = ()


def show_rows(
    setup: Setup, data_set: LocatedDataset, encoder: Encoder, first: int, count: int
) -> Iterator[ShownRow]:
    """Yield rows ``first`` (from 1) and following of a data set. Raises DataError."""
    looked = read_head(data_set, setup.reading)
    reader = RowReader(looked.shape, setup.reading)
    for number, row in enumerate(itertools.islice(looked.rows, first - 1, first - 1 + count), first):
        if row.value is None:
            yield ShownRow(number, row.where, problems=((row.reason, row.detail),))
            continue
        chunk = Chunk(0, looked.shape, [ChunkRow(number, row.where, row.value)], 1, 0, [])
        result = tokenise_chunk(setup, chunk)
        if result.skipped:
            problems = tuple((reason, detail) for p in result.skipped for reason, _, detail in p.each())
            yield ShownRow(number, row.where, problems=problems)
            continue
        examples = reader.read(row.value, row.where)
        assert not isinstance(examples, Problem)
        whole = [each for each in encode_for(setup.kind, encoder)(examples) if isinstance(each, Encoded)]
        kept = kept_tokens(whole, setup.limit, setup.truncation)
        rows = zip(examples, whole, kept, strict=True)  # the row was used
        yield ShownRow(number, row.where, tuple(_document(encoder, *each) for each in rows))


def _document(encoder: Encoder, example: Example, encoded: Encoded, kept: NDArray[np.int64]) -> ShownDocument:
    ids = encoded.input_ids[kept].tolist()
    turns = encoder.turns_of_tokens(example)
    written = len(encoded.input_ids) - encoded.end_added
    turns, behind = turns[:written], {*turns[written:]} - {*turns[:written], None}
    owners = [*turns, *([turns[-1] if turns else None] * len(encoded.input_ids))]
    keys = [(bool(encoded.labelled[position]), owners[position]) for position in kept]
    pieces = []
    for (has_loss, turn), group in itertools.groupby(range(len(ids)), key=lambda position: keys[position]):
        tokens = [ids[position] for position in group]
        text = _shortened(str(encoder.tokenizer.decode(tokens)), encoder)
        pieces.append(ShownPiece(text, len(tokens), has_loss, turn))
    roles = tuple(message["role"] for message in example.messages)
    cut = len(encoded.input_ids) - len(ids)
    unread = tuple(sorted(turn for turn in behind if turn is not None))
    pictures = _pictures(encoder, example, encoded, ids)
    return ShownDocument(tuple(pieces), roles, cut, encoded.left_out, unread, pictures)


def _shortened(text: str, encoder: Encoder) -> str:
    """Return a text in which tokens of pictures that follow each other are counted."""
    if encoder.images is None:
        return text
    token = re.escape(encoder.images.marks.names["image"])
    return re.sub(f"({token})(?:{token})+", lambda m: f"{m[1]} × {len(m[0]) // len(m[1])}", text)


def _pictures(
    encoder: Encoder, example: Example, encoded: Encoded, ids: Sequence[int]
) -> tuple[ShownPicture, ...]:
    if encoder.images is None:
        return ()
    places = [n for n, token in enumerate(ids, 1) if token == encoder.images.marks.token_id]
    starts = itertools.accumulate(encoded.images, initial=0)
    each = zip(example.images, encoded.images, starts, strict=False)
    return tuple(ShownPicture(image, count, places[start]) for image, count, start in each)


@dataclass(frozen=True)
class Totals:
    """The totals of a prepared data set.

    - ``lengths``: int32, tokens of each document
    - ``duplicates``: documents that are equal to an earlier one
    - ``not_read``: unused field → number of rows
    - ``set_aside``: the same for metadata fields
    - ``in_a_row``: number of rows with consecutive answers
    """

    rows: int
    used: int
    skipped: dict[str, int]
    truncated: int
    lengths: NDArray[np.int32]
    labels: int
    duplicates: int
    not_read: dict[str, int]
    set_aside: dict[str, int]
    in_a_row: int = 0

    @property
    def tokens(self) -> int:
        return int(self.lengths.sum(dtype=np.int64))

    def to_json(self) -> JsonObject:
        """Return the totals as JSON, with quantiles in place of all lengths."""
        return {
            "rows": self.rows,
            "used": self.used,
            "skipped": dict(self.skipped),
            "truncated": self.truncated,
            "documents": len(self.lengths),
            "tokens": self.tokens,
            "tokens_with_loss": self.labels,
            "lengths": dict(zip(("min", "median", "p95", "max"), self.quantiles(), strict=True)),
            "histogram": self.histogram(),
            "duplicates": self.duplicates,
            "not_read": dict(self.not_read),
            "set_aside": dict(self.set_aside),
            "answers_in_a_row": self.in_a_row,
        }

    def histogram(self) -> JsonObject:
        """Return ``edges`` (tokens, from 0) and ``counts`` (documents) of bins of equal width."""
        top = max(int(self.lengths.max()) if len(self.lengths) else 0, 1)
        counts, edges = np.histogram(self.lengths, bins=min(BINS, top), range=(0, top))
        return {"edges": [round(float(edge), 2) for edge in edges], "counts": counts.tolist()}

    def quantiles(self) -> tuple[int, int, int, int]:
        """Return minimum, median, 95th percentile and maximum of the lengths."""
        values = np.quantile(self.lengths, [0, 0.5, 0.95, 1]) if len(self.lengths) else np.zeros(4)
        low, middle, high, most = (int(value) for value in values)
        return low, middle, high, most


def totals_of(prepared: Prepared) -> Totals:
    """Return the totals of training and evaluation data together."""
    tables: Sequence[TokenTable] = [t for t in (prepared.train, prepared.eval) if t is not None]
    keys = [_content_key(table, document) for table in tables for document in range(len(table))]
    counts = prepared.counts
    not_read: dict[str, int] = {}
    for note in prepared.notes:
        for name, rows in note.evidence.items() if note.code == "data.fields_unread" else ():
            not_read[name] = not_read.get(name, 0) + (rows if isinstance(rows, int) else 0)
    return Totals(
        counts.rows_read,
        counts.rows_used,
        {reason: tally.count for reason, tally in counts.skipped.items()},
        counts.rows_truncated,
        np.concatenate([table.lengths for table in tables]),
        sum(int(table.num_labels.sum(dtype=np.int64)) for table in tables),
        len(keys) - len(set(keys)),
        not_read,
        dict(counts.set_aside),
        sum(n.evidence["rows"] for n in prepared.notes if n.code == codes.DATA_ANSWERS_IN_A_ROW.name),
    )


def _content_key(table: TokenTable, document: int) -> int:
    """Return a key of a document's tokens and pictures."""
    pictures = table.images.of(table.row_in_file(document)) if table.images is not None else ()
    return text_key(table.coded(document).tobytes().hex() + "".join(p.digest for p, _ in pictures))


def meaning_of(reason: str) -> str:
    """Return the meaning of a reason of ``problems.REASONS``."""
    return REASONS[reason][1]


def row_lines(row: ShownRow, *, colour: bool) -> Iterator[str]:
    """Yield a row as text."""
    yield f"row {row.number}  {printable(row.where)}"
    for reason, detail in row.problems:
        yield f"  not used: {meaning_of(reason)}" + (f" ({printable(detail)})" if detail else "")
    for number, document in enumerate(row.documents, 1):
        name = f"  document {number}: " if len(row.documents) > 1 else "  "
        cut = f", {document.cut:,} more are cut off at data.max_length" if document.cut else ""
        yield f"{name}{document.tokens:,} tokens, {document.labels:,} with loss{cut}"
        for index, picture in enumerate(document.pictures, 1):
            of = picture.image
            where = f"{picture.tokens:,} tokens from token {picture.place:,} on"
            name = printable(of.path) or "in the row"
            yield f"  picture {index}  {name}: {of.width:,} x {of.height:,} pixels, {where}"
        for name in document.left_out:
            yield f"  not rendered by the chat template: {printable(name)}"
        yield from _turn_lines(document)
        yield "".join(_coloured(document, colour=colour))


def _turn_lines(document: ShownDocument) -> Iterator[str]:
    for turn, role in enumerate(document.roles):
        if turn in document.behind_end:
            why = "the template ends no answer, so the row ends with the last one"
            yield f"  turn {turn + 1:<3} {role:<10} left out: {why}"
            continue
        pieces = [piece for piece in document.pieces if piece.turn == turn]
        tokens = sum(piece.tokens for piece in pieces)
        loss = sum(piece.tokens for piece in pieces if piece.has_loss)
        yield f"  turn {turn + 1:<3} {role:<10} {tokens:>6,} tokens, {loss:>6,} with loss"
    rest = sum(piece.tokens for piece in document.pieces if piece.turn is None)
    if document.roles and rest:
        yield f"  {'outside of the turns':<19} {rest:>6,} tokens"


def _coloured(document: ShownDocument, *, colour: bool) -> Iterator[str]:
    for piece in document.pieces:
        text = printable(piece.text, keep_newlines=True)
        if colour:
            yield f"{_GREEN if piece.has_loss else _DIM}{text}{_OFF}"
        else:
            yield f"«{text}»" if piece.has_loss else text


def total_lines(totals: Totals) -> Iterator[str]:
    """Yield the totals as text."""
    skipped = ", ".join(f"{count:,}: {meaning_of(reason)}" for reason, count in totals.skipped.items())
    yield (
        f"rows        {totals.rows:,} read, {totals.used:,} used, {sum(totals.skipped.values()):,} left out"
        + (f" ({skipped})" if skipped else "")
    )
    documents = f"{len(totals.lengths):,}"
    yield f"documents   {documents}; rows cut off: {totals.truncated:,}; duplicates: {totals.duplicates:,}"
    low, middle, high, most = totals.quantiles()
    yield f"lengths     {low:,} to {most:,} tokens, median {middle:,}, 95 % up to {high:,}"
    share = totals.labels / max(totals.tokens, 1)
    yield f"tokens      {totals.tokens:,}, {totals.labels:,} with loss ({share:.1%})"
    for name, rows in sorted(totals.not_read.items(), key=lambda item: -item[1]):
        yield f"not read    {printable(name)}: in {rows:,} {'row' if rows == 1 else 'rows'}"
    if totals.in_a_row:
        counted = f"{totals.in_a_row:,} {'row' if totals.in_a_row == 1 else 'rows'}"
        yield f"in a row    two or more answers in {counted}, all of them learnt"
    if totals.set_aside:
        aside = ", ".join(f"{printable(name)} ({rows:,})" for name, rows in totals.set_aside.items())
        yield f"set aside   {aside}: fields that say nothing of the text"


def run(config: Config, cache: Path, arguments: argparse.Namespace) -> None:
    """Print what is requested. Raises PacelineError."""
    kind = row_kind(algorithm_spec(config.training.algorithm).rows)
    console = Console(file=terminal(sys.stdout))
    colour = console.is_terminal and not console.no_color
    if arguments.row is not None:
        setup = setup_of(config.data, config.model, kind)
        train, evaluation = sets_of(config.data)
        sets = evaluation if arguments.eval else train
        if not 1 <= arguments.dataset <= len(sets):
            message = f"there is no data set {arguments.dataset}"
            remedy = f"set --dataset to a number from 1 to {len(sets)}" if sets else "set data.eval"
            raise ConfigError(codes.DATA_NO_SUCH_ROW(message, "--dataset", f"{len(sets)} data sets", remedy))
        tokenizer = open_tokenizer(setup.tokenizer)
        chosen = sets[arguments.dataset - 1]
        setup, _ = settle_template(setup, tokenizer, {read_head(chosen, setup.reading).shape.format})
        writer = None if setup.images is None else ImageWriter(setup.images, tokenizer)
        encoder = Encoder(tokenizer, setup.train_on, find_answers=setup.find_answers, images=writer)
        count = 0
        for row in show_rows(setup, chosen, encoder, arguments.row, arguments.rows):
            count += 1
            print("\n".join(row_lines(row, colour=colour)), file=terminal(sys.stdout))
            if arguments.to and setup.images is not None and row.documents:
                rules, beside = ImageRules.of(config.data), media_beside(chosen.located)
                for file in write_pictures(row, Path(arguments.to), setup.images, rules, beside):
                    print(f"  written to {file}", file=terminal(sys.stdout))
        if not count:
            raise ConfigError(
                codes.DATA_NO_SUCH_ROW(f"there is no row {arguments.row}", "--row", hint="rows count from 1")
            )
        return
    seed = config.training.seed if config.data.seed is None else config.data.seed
    shown = Console(file=terminal(sys.stderr))
    with written_for(cache, config.training.output_access), Bar(shown) as bar:
        prepared = prepare(config.data, config.model, seed=seed, cache_dir=cache, report=bar, kind=kind)
    totals = totals_of(prepared)
    print(json.dumps(totals.to_json()) if arguments.json else "\n".join(total_lines(totals)))
    if arguments.totals:
        Path(arguments.totals).write_text(json.dumps(totals.to_json()), encoding="utf-8")


def write_pictures(
    row: ShownRow, folder: Path, settings: ImageSettings, rules: ImageRules, beside: Path
) -> Iterator[Path]:
    """Write the pictures of a row's first document as the model gets them; yield the files.

    ``beside``: the folder of the rows. Raises ConfigError if a file exists already.
    """
    media, processor = rules.media(str(beside)), ImageProcessor(settings)
    pictures = row.documents[0].pictures
    folder.mkdir(parents=True, exist_ok=True)
    for number, picture in enumerate(pictures, 1):
        image = picture.image
        data = image.data or read_image(media.path(image.path), image.path)[0]
        inputs = processor.of_image(decoded(data, image.path, rules.most_pixels), alone=len(pictures) == 1)
        for tile, made in enumerate(shown_pictures(processor, inputs), 1):
            file = folder / f"row{row.number}-picture{number}-{tile}.png"
            try:
                with file.open("xb") as stream:
                    made.save(stream, format="PNG")
            except FileExistsError:
                raise ConfigError(codes.DATA_IMAGE_EXISTS("--to", str(file))) from None
            yield file


@program
def main(argv: Sequence[str] | None = None) -> int:
    """Show rows or totals; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m paceline.data.preview", description=__doc__)
    parser.add_argument("--config-json", required=True)
    parser.add_argument("--cache", required=True)
    parser.add_argument("--row", type=int)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--dataset", type=int, default=1)
    parser.add_argument("--eval", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--to", help="a folder for the pictures of the rows, as the model gets them")
    parser.add_argument("--totals", help="a file for the totals as JSON")
    arguments = parser.parse_args(argv)
    arguments.plan = None
    try:
        run(read_config(arguments), Path(arguments.cache).expanduser(), arguments)
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)
    return int(ExitCode.OK)


if __name__ == "__main__":
    sys.exit(main())
