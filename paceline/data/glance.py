"""A glance at the first rows, for a plan: ``python -m paceline.data.glance --config-json FILE`` prints what preparation would refuse of them, as JSON.

Only files that are here and quickly opened are looked at; nothing is tokenised, written or asked of a hub.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from paceline.config.schema import Config
from paceline.config.sections.data import Dataset
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import DataError
from paceline.data.examples import Reading, RowReader
from paceline.data.looking import LOOKED_AT, find_sets, look
from paceline.data.problems import LENGTH_REASONS, Problem, Tally, refusal
from paceline.launch.ending import ended
from paceline.launch.outlet import redacted
from paceline.plan.roles import reads_pairs, reads_prompts

WHOLE_JSON = 4_000_000  # bytes of a list that is parsed in passing; of lines only the first are read
IN_PASSING = (".jsonl", ".ndjson", ".json", ".csv", ".txt")


def glance(config: Config) -> list[Diagnostic]:
    """What is wrong with the first rows of the config's local files, each data set on its own; empty when nothing is, or nothing can be told."""
    algorithm = config.training.algorithm
    reading = Reading(config.data.train_on, reads_pairs(algorithm), reads_prompts(algorithm))
    found: list[Diagnostic] = []
    for key, sections in (("data.train", config.data.train), ("data.eval", config.data.eval or ())):
        for section in sections:
            if _quickly_read(Path(section.path).expanduser()):
                try:
                    found += _of(key, section, reading, refuses=config.data.on_bad_row == "refuse")
                except DataError as error:
                    found += error.diagnostics
    return found


def _quickly_read(file: Path) -> bool:
    suffix = file.suffix.lower()
    return file.is_file() and suffix in IN_PASSING and (suffix != ".json" or file.stat().st_size <= WHOLE_JSON)


def _of(key: str, section: Dataset, reading: Reading, *, refuses: bool) -> list[Diagnostic]:
    (data_set,) = find_sets(key, (section,))
    looked = look(data_set, reading)
    if not refuses:
        return []
    reader, refused = RowReader(looked.shape, reading), dict[str, Tally]()
    for row in looked.head:
        bad = Problem(row.reason, row.where, row.detail) if row.value is None else reader.read(row.value, row.where)
        for one in bad.each() if isinstance(bad, Problem) else ():
            if one.reason not in LENGTH_REASONS:
                refused.setdefault(one.reason, Tally()).add(one.where, one.detail)
    first = "the first " if len(looked.head) >= LOOKED_AT else ""
    return list(refusal(refused, len(looked.head), of=first))


@redacted
@ended
def main(argv: Sequence[str] | None = None) -> int:
    """Prints the findings; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m paceline.data.glance", description="Look at the first rows.")
    parser.add_argument("--config-json", required=True, help="the effective config as JSON")
    asked = parser.parse_args(argv)
    config = Config.from_json(json.loads(Path(asked.config_json).read_text("utf-8")))
    print(json.dumps([d.to_json() for d in glance(config)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
