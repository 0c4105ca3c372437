#!/usr/bin/env python
"""How large the named differences are, as the other programs' losses and rows show it.

    PACELINE_PEERS=/opt/envs python tests/peers/sizes.py [--rows]

Reads ``recorded/losses.json``: of files in which one difference acts, how far apart the losses of three steps
lie. ``--rows`` asks for the rows that differ, too. Writes ``arguments/sizes.json``, which the report of an
import shows.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import of_swift
import ours
from ask import ask
from losses import RECORDED, ROOT, TOLERANCE
from small import ROWS, write_model

from paceline.config.import_export.import_config import TRANSLATORS
from paceline.config.import_export.sizes import shape_of

TO = ROOT / "paceline/config/import_export/arguments/sizes.json"


def main() -> None:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", action="store_true")
    options = parser.parse_args()
    found = of_losses()
    before = json.loads(TO.read_text(encoding="utf-8")) if TO.exists() else {}
    kept = {key: text for key, text in before.items() if "rows" in text}
    found |= of_rows() if options.rows else kept
    for key, text in sorted(found.items()):
        print(f"{text}: {key}")
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(text)}" for key, text in sorted(found.items()))
    TO.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


def of_losses() -> dict[str, str]:
    """Return the size of each difference that acts alone in a recorded file: the largest of such files."""
    rows = [row for row in json.loads(RECORDED.read_text(encoding="utf-8")) if row["difference"] is not None]
    idle = {
        (row["program"], *said)
        for row in rows
        if row["difference"] <= TOLERANCE
        for said in row["said"].items()
    }
    largest: dict[str, float] = {}
    for row in rows:
        inner = [key for key in row["said"] if not any(each.startswith(f"{key}.") for each in row["said"])]
        acting = [(key, row["said"][key]) for key in inner]
        acting = [said for said in acting if (row["program"], *said) not in idle]
        if len(acting) == 1 and row["difference"] > TOLERANCE:
            key = shape_of(TRANSLATORS[row["program"]].name, *acting[0])
            largest[key] = max(row["difference"], largest.get(key, 0.0))
    return {key: f"losses of three steps differ by up to {size:.1g}" for key, size in largest.items()}


def of_rows() -> dict[str, str]:
    """Return how many rows differ where ms-swift draws some of a data set."""
    with tempfile.TemporaryDirectory(prefix="paceline-sizes-") as name:
        folder = Path(name)
        write_model(folder)
        words = of_swift.small(folder, of_swift.SMALL["sft full"])
        place = words.index("--dataset") + 1
        words[place] = f"{words[place]}#{ROWS // 2}"
        (theirs,) = ask("swift", "tokens", [words], folder)
        made = ours.imported("swift", words)
        mine = [ids for ids, _ in ours.tokens(made, folder)]
    drawn = [list(row["input_ids"]) for row in theirs]
    others = sum(ids not in mine for ids in drawn)
    says = made.said["dataset"]
    return {shape_of("ms-swift", "dataset", says): f"{others} of {len(drawn)} rows differ, drawn of {ROWS}"}


if __name__ == "__main__":
    main()
