"""``python -m paceline.data.preview --config-json FILE``: rows as the model gets them, or totals.

Tokens with loss are green on a terminal and stand between « and » elsewhere.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from paceline.config.schema import Config
from paceline.core.errors import ConfigError, ExitCode, PacelineError
from paceline.core.security.file_permissions import written_for
from paceline.data import codes
from paceline.data.chat_template.encode import Encoder
from paceline.data.preflight.find_sets import look
from paceline.data.prepare.choose_template import settle_template
from paceline.data.prepare.main import Bar, read_config
from paceline.data.prepare.prepare import prepare, sets_of, setup_of
from paceline.data.preview_rows import ShownDocument, ShownRow, Totals, meaning_of, show_rows, totals_of
from paceline.data.rows.kinds.base import row_kind
from paceline.data.tokenizer.load import open_tokenizer
from paceline.launch.exit_handling import ended
from paceline.launch.redacted_output import redacted, terminal
from paceline.plan.algorithms.spec import algorithm_spec
from paceline.runlog.redact import printable

_GREEN, _DIM, _OFF = "\033[32m", "\033[2m", "\033[0m"


def row_lines(row: ShownRow, *, colour: bool) -> Iterator[str]:
    """Yield a row as text."""
    yield f"row {row.number}  {printable(row.where)}"
    for reason, detail in row.problems:
        yield f"  not used: {meaning_of(reason)}" + (f" ({printable(detail)})" if detail else "")
    for number, document in enumerate(row.documents, 1):
        name = f"  document {number}: " if len(row.documents) > 1 else "  "
        cut = f", {document.cut:,} more are cut off at data.max_length" if document.cut else ""
        yield f"{name}{document.tokens:,} tokens, {document.labels:,} with loss{cut}"
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
        own = [piece for piece in document.pieces if piece.turn == turn]
        tokens = sum(piece.tokens for piece in own)
        loss = sum(piece.tokens for piece in own if piece.has_loss)
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
            what = f"there is no data set {arguments.dataset}"
            hint = f"set --dataset to a number from 1 to {len(sets)}" if sets else "set data.eval"
            raise ConfigError(codes.DATA_NO_SUCH_ROW(what, "--dataset", f"{len(sets)} data sets", hint))
        tokenizer = open_tokenizer(setup.tokenizer)
        chosen = sets[arguments.dataset - 1]
        setup, _ = settle_template(setup, tokenizer, {look(chosen, setup.reading).shape.format})
        encoder = Encoder(tokenizer, setup.train_on)
        count = 0
        for row in show_rows(setup, chosen, encoder, arguments.row, arguments.rows):
            count += 1
            print("\n".join(row_lines(row, colour=colour)), file=terminal(sys.stdout))
        if not count:
            what = f"there is no row {arguments.row}"
            raise ConfigError(codes.DATA_NO_SUCH_ROW(what, "--row", hint="rows count from 1"))
        return
    seed = config.training.seed if config.data.seed is None else config.data.seed
    shown = Console(file=terminal(sys.stderr))
    with written_for(cache, config.training.output_access), Bar(shown) as bar:
        prepared = prepare(config.data, config.model, seed=seed, cache_dir=cache, report=bar, kind=kind)
    totals = totals_of(prepared)
    print(json.dumps(totals.to_json()) if arguments.json else "\n".join(total_lines(totals)))
    if arguments.totals:
        Path(arguments.totals).write_text(json.dumps(totals.to_json()), encoding="utf-8")


@redacted
@ended
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
    parser.add_argument("--totals", help="a file for the totals as JSON")
    arguments = parser.parse_args(argv)
    arguments.plan = None
    try:
        run(read_config(arguments), Path(arguments.cache).expanduser(), arguments)
    except PacelineError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)
    return int(ExitCode.OK)


if __name__ == "__main__":
    sys.exit(main())
