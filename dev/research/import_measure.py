#!/usr/bin/env python
"""How much of other systems' configs `paceline config import` keeps.

    python dev/research/import_measure.py FOLDER

FOLDER holds ``llamafactory_yaml``, ``trl_yaml_cli`` and ``axolotl_yaml``. A top-level key of a file is one
occurrence; it counts as kept if its verdict is "mapped" or "no effect", and a list or mapping only if
all of it is kept. Values that our own reading refuses count as lost. Files of other programs are counted
apart.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from paceline.config.import_export.import_config import import_config, read_foreign
from paceline.config.import_export.verdicts import KeyVerdict
from paceline.config.import_export.write_yaml import accepted
from paceline.core.errors import ConfigError
from paceline.rules import of_config

FOLDERS = {"llamafactory_yaml": "llamafactory", "trl_yaml_cli": "trl", "axolotl_yaml": "axolotl"}
#: Part of a file's name → why it is no config of that system
OTHERS = {
    "OptimalScale__LMFlow__configs__iterative_dpo": "LMFlow's loop around several programs",
    "open-r1__recipes__dataset_filtering": "Open-R1's filter of a data set; nothing is trained",
    ".runpod__src__config__config": "a template: each value is a ${placeholder}",
}


def main() -> None:
    """Print the shares and the keys that are lost most often."""
    for folder, system in FOLDERS.items():
        counts, other, why = Counter[KeyVerdict](), Counter[KeyVerdict](), Counter[str]()
        files = refused = 0
        for file in sorted((Path(sys.argv[1]) / folder).iterdir()):
            files += 1
            try:
                found = import_config(str(file), system)
                _, problems = accepted(found, "measured", of_config)
            except ConfigError as error:
                refused += 1
                print(f"{file.name}: {error.diagnostics[0].what}")
                continue
            for problem in problems:
                print(f"{file.name}: {problem.render()}")
            top = read_foreign(str(file))[0]
            mine = [found.findings[key] for key in top]
            apart = any(part in file.name for part in OTHERS)
            (other if apart else counts).update(finding.verdict for finding in mine)
            if not apart:
                why.update(
                    f"{f.key}: {f.says[:70]}"
                    for f in mine
                    if f.verdict in (KeyVerdict.LOST, KeyVerdict.DIFFERS)
                )
        kept = {
            name: _kept(count)
            for name, count in (("", counts), ("with files of other programs ", other + counts))
        }
        print(f"{system}: {files} files ({refused} unreadable), {sum(counts.values())} keys: {dict(counts)}")
        print("; ".join(f"{name}kept {share:.1%}" for name, share in kept.items()))
        print("\n".join(f"    {number} {line}" for line, number in why.most_common(12)))


def _kept(counts: Counter[KeyVerdict]) -> float:
    return (counts[KeyVerdict.MAPPED] + counts[KeyVerdict.NO_EFFECT]) / max(1, sum(counts.values()))


if __name__ == "__main__":
    main()
