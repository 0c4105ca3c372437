#!/usr/bin/env python
"""What becomes of configuration files of other systems:
`python scripts/intake.py [--kind KIND] [--notes] FILE ...`.

One line a file (taken, refused with every reason, template, unparseable), then the counts. Kinds: deepspeed,
accelerate, fsdp, config.
"""

from __future__ import annotations

import argparse
from collections import Counter

from paceline.config.backend_files.check_file import KINDS, intake
from paceline.rules import of_config


def main() -> None:
    """Reads the files named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--notes", action="store_true", help="show what was translated or left out")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    for file in options.files:
        found = intake(file, options.kind, of_config)
        counts[found.verdict] += 1
        print(f"{found.verdict:12s} {found.kind:10s} {file}")
        for item in (*found.problems, *(found.notes if options.notes else ())):
            print(
                f"      {item.code}: {item.where.rpartition('/')[2]}: {item.what} [{item.found}] ->"
                f" {item.hint}"
            )
    judged = counts["taken"] + counts["refused"]
    share = f", {100 * counts['taken'] / judged:.0f} % of the parseable ones taken" if judged else ""
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()) + share)


if __name__ == "__main__":
    main()
