#!/usr/bin/env python
"""Three steps of other programs' files by them and by us, on small models: the losses side by side.

    PACELINE_PEERS=/opt/envs python tests/peers/losses.py llamafactory [FILE …] [--write]

Without FILE: the files of ``shared/spec`` under the table of replacements (``of_*.py``), and the ``SMALL``
cases. ``--write`` puts the outcomes into ``recorded/losses.json``.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import of_axolotl
import of_llamafactory
import of_swift
import of_trl
import ours
from ask import ask
from by_file import COUNTS, PROGRAMS, kind_of_command, kind_of_file
from small import write_model

from paceline.config.import_export.import_config import read_foreign
from paceline.config.import_export.programs.trl import algorithm_of
from paceline.core.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
RECORDED = Path(__file__).parent / "recorded" / "losses.json"
TOLERANCE = 1e-4
#: trainings that draw their own answers: their losses cannot be compared this way
_OF_ROLLOUTS = ("ppo", "grpo", "rloo", "online_dpo", "gkd", "ebft")
Case = tuple[str, Any]


@dataclass
class Compared:
    """One file: the losses of both, the largest difference, and what the import said of its keys."""

    program: str
    file: str
    theirs: list[float] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)
    difference: float | None = None
    said: dict[str, str] = field(default_factory=dict)
    error: str = ""

    def within(self) -> bool:
        """Whether the losses are equal."""
        return self.difference is not None and self.difference <= TOLERANCE


def main() -> None:
    """Compare, print, and write what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("program", choices=list(PROGRAMS))
    parser.add_argument("files", nargs="*")
    parser.add_argument("--match", default="", help="only cases whose name matches this pattern")
    parser.add_argument("--count", type=int, default=1000, help="so many of them, drawn by a fixed seed")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    chosen = [Path(file) for file in options.files] or examples(options.program)
    cases = [case for file in chosen for case in of_file(options.program, file)]
    cases += [] if options.files else extra(options.program)
    cases += commands(ROOT.parent / "shared/spec") if options.program == "swift" and not options.files else []
    cases = [case for case in cases if re.search(options.match, case[0])]
    cases = random.Random(39).sample(cases, min(options.count, len(cases)))
    found: list[Compared] = []
    with tempfile.TemporaryDirectory(prefix="paceline-equality-") as name:
        for one in compare(options.program, cases, Path(name)):
            found.append(one)
    print(f"{sum(one.within() for one in found)} of {len(found)} within {TOLERANCE:g}")
    if options.write:
        record(options.program, found)


def commands(spec: Path) -> list[Case]:
    """Return ms-swift's commands in ``spec`` that train text, but those that draw their own answers."""
    lines = (spec / PROGRAMS["swift"][1][0]).read_text(encoding="utf-8").splitlines()
    made = [(row["example"], row["arguments"][1:]) for row in map(json.loads, lines)]
    return [
        (name, words)
        for name, words in made
        if kind_of_command(name, ["swift", *words]) == COUNTS and words[1].startswith("--")
        if of_swift.keys_of(words).get("rlhf_type", [""])[0] not in _OF_ROLLOUTS
    ]


def examples(program: str) -> list[Path]:
    """Return the files of ``shared/spec`` that train text by the program."""
    spec = ROOT.parent / "shared/spec"
    folders = [spec / place for place in PROGRAMS[program][1] if (spec / place).is_dir()]
    files = [file for folder in folders for file in sorted(folder.iterdir())]
    return [file for file in files if kind_of_file(file) == COUNTS]


def of_file(program: str, file: Path) -> Iterator[Case]:
    """Yield the file's name and keys (TRL: [trainer, keys]), unless it draws its own answers."""
    try:
        keys, _ = read_foreign(str(file))
    except ConfigError:
        return
    trainer = algorithm_of(keys) if program == "trl" else str(keys.get("stage") or keys.get("rl") or "")
    # a file of version 1 has no stage
    first = "train_dataset" in keys and "_dpo" not in file.name
    trains = program != "llamafactory" or "stage" in keys or first
    if trains and trainer not in _OF_ROLLOUTS:
        yield file.name, ((trainer, keys) if program == "trl" else keys)


def extra(program: str) -> list[Case]:
    """Return the cases that no file has."""
    made: dict[str, Any] = {"llamafactory": of_llamafactory, "axolotl": of_axolotl}
    made |= {"trl": of_trl, "swift": of_swift}
    cases: Mapping[str, Any] = made[program].SMALL
    return list(cases.items())


def small(program: str, folder: Path, given: Any) -> Any:
    """Return what both programs get of a case; writes model, rows and adapter."""
    write_model(folder)
    if program == "trl":
        return of_trl.small(folder, given[0], given[1])
    if program == "swift":
        return of_swift.small(folder, given)
    return (of_axolotl if program == "axolotl" else of_llamafactory).small(folder, given)


def compare(program: str, cases: list[Case], folder: Path) -> Iterator[Compared]:
    """Yield each case: the program trains all of them in one go, then we train one by one.

    Files of which the table leaves the same are trained once.
    """
    given, first = [], dict[str, int]()
    for number, (_, keys) in enumerate(cases):
        place = folder / str(number)
        place.mkdir()
        made = small(program, place, keys)
        given.append(made)
        first.setdefault(_same(made, place), number)
    which = [first[_same(made, folder / str(number))] for number, made in enumerate(given)]
    numbers = sorted({*which})
    answers = ask(program, "losses", [given[number] for number in numbers], folder, timeout=7200)
    done = {
        number: _one(program, cases[number][0], given[number], answer, folder / str(number))
        for number, answer in zip(numbers, answers, strict=True)
    }
    for (name, _), number in zip(cases, which, strict=True):
        yield replace(done[number], file=name)


def _same(given: Any, folder: Path) -> str:
    return json.dumps(given, sort_keys=True, default=str).replace(f"{folder}/", "")


def _one(program: str, name: str, keys: Any, answer: Any, folder: Path) -> Compared:
    one = Compared(program, name)
    try:
        made = ours.imported(program, of_axolotl.for_ours(keys) if program == "axolotl" else keys)
        one.said = made.said
        if isinstance(answer, dict):
            one.error = f"{program}: {answer['error']}"
        else:
            one.theirs, one.ours = answer, ours.losses(made, folder)
            one.difference = max(abs(a - b) for a, b in zip(one.theirs, one.ours, strict=True))
    except (ConfigError, RuntimeError, ValueError) as exc:
        one.error = str(exc)
    print(f"{one.file}: {one.theirs} {one.ours}: {one.difference} {one.error} {one.said}", flush=True)
    return one


def record(program: str, found: list[Compared]) -> None:
    """Write the outcomes of one program, next to the others."""
    kept = json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.exists() else []
    anew = {(program, one.file) for one in found}
    rows = [row for row in kept if (row["program"], row["file"]) not in anew] + [asdict(one) for one in found]
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    RECORDED.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
