#!/usr/bin/env python
"""How large the named differences are, as the other programs' losses and rows show it.

    PACELINE_PEERS=/opt/envs python tests/peers/sizes.py [--ask PROGRAM [--match KEY]]

Reads ``recorded/losses.json``: of files in which one difference acts, how far apart the losses of three steps
lie. ``--ask`` measures the cases of ``differences.py`` anew, and the rows that differ, which
``recorded/differences.json`` keeps. Writes ``arguments/sizes.json``, which the report of an import shows.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import code_scores
import ours
from ask import ask
from by_file import PROGRAMS
from differences import Apart, Rows, changed, of_program, rows_of_program
from losses import RECORDED, ROOT, TOLERANCE, small

from paceline.config.import_export.import_config import TRANSLATORS
from paceline.config.import_export.sizes import shape_of
from paceline.core.errors import PacelineError

TO = ROOT / "paceline/config/import_export/arguments/sizes.json"
ASKED = RECORDED.with_name("differences.json")


def main() -> None:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ask", choices=list(PROGRAMS))
    parser.add_argument("--match", default="", help="only cases whose key and keys match this pattern")
    options = parser.parse_args()
    if options.ask:
        for shape, size in _measured(options.ask, options.match):
            _write(ASKED, _asked() | {shape: size})
    found = of_losses() | _asked()
    for key, text in sorted(found.items()):
        print(f"{text}: {key}")
    _write(TO, found)


def _measured(program: str, match: str) -> Iterator[tuple[str, str]]:
    cases = [one for one in of_program(program) if re.search(match, f"{one.key} {one.theirs}")]
    largest: dict[str, float] = {}
    for shape, size in of_cases(program, cases) if cases else ():
        largest[shape] = max(size, largest.get(shape, 0.0))
    yield from ((shape, _losses(size)) for shape, size in largest.items() if not shape.endswith(": "))
    rows = [one for one in rows_of_program(program) if re.search(match, f"{one.key} {one.theirs}")]
    yield from of_rows(program, rows) if rows else ()
    if program == "trl" and re.search(match, "reward_funcs"):
        with tempfile.TemporaryDirectory(prefix="paceline-sizes-") as name:
            yield code_scores.compared(Path(name))


def _asked() -> dict[str, str]:
    found: dict[str, str] = json.loads(ASKED.read_text(encoding="utf-8"))
    return found


def _write(path: Path, texts: dict[str, str]) -> None:
    lines = ",\n".join(
        f"{json.dumps(key, ensure_ascii=False)}: {json.dumps(text)}" for key, text in sorted(texts.items())
    )
    path.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


def _losses(size: float) -> str:
    if size <= TOLERANCE:
        return f"losses of three steps are equal to {TOLERANCE:g}"
    return f"losses of three steps differ by up to {size:.1g}"


def of_cases(program: str, cases: list[Apart]) -> Iterator[tuple[str, float]]:
    """Yield each case's difference and its size; the program trains all of them in one go."""
    with tempfile.TemporaryDirectory(prefix="paceline-sizes-") as name:
        folders = [Path(name) / str(number) for number in range(len(cases))]
        trained, places = list[Any](), list[tuple[int, int]]()
        for case, folder in zip(cases, folders, strict=True):
            folder.mkdir()
            given = small(program, folder, case.base)
            case.rows(folder)
            both = [case.theirs] if case.ours is None else [case.theirs, case.ours]
            places.append((len(trained), len(both)))
            trained += [changed(program, given, keys, folder) for keys in both]
        unknown = {"ALLOW_EXTRA_ARGS": "1"}  # LLaMA-Factory's: a key that it does not know is left out
        answers = ask(program, "losses", trained, Path(name), 7200, unknown)
        for case, folder, (place, count) in zip(cases, folders, places, strict=True):
            mine = answers[place : place + count]
            try:
                yield _one(case, trained[place], mine, folder)
            except (RuntimeError, ValueError, KeyError, PacelineError) as exc:
                print(f"{case.key} {dict(case.theirs)}: not measured: {exc}", flush=True)


def _one(case: Apart, given: Any, answers: list[Any], folder: Path) -> tuple[str, float]:
    if wrong := [answer["error"] for answer in answers if isinstance(answer, dict)]:
        raise ValueError(f"{case.program}: {wrong[0]}")
    seen = changed(case.program, given, case.beside, folder)
    made = _local(ours.imported(case.program, seen), case, folder)
    shape = shape_of(TRANSLATORS[case.program].name, case.key, made.said.get(case.key, ""))
    both = answers if len(answers) == 2 else [*answers, ours.losses(made, folder)]
    size = max(abs(a - b) for a, b in zip(*both, strict=True))
    if case.key not in made.said and size > case.within:
        raise ValueError(f"it is not said, and acts: {both}")
    if case.ours is not None and size <= TOLERANCE and not case.same:
        raise ValueError(f"it does not act: {both}")
    print(f"{shape} {dict(case.theirs)}: {both}: {size:.2g}; also said: {[*made.said]}", flush=True)
    return shape, size


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
    alone = {key: _losses(size) for key, size in largest.items()}
    # what acts on an accelerator is not seen here
    same = {shape_of(TRANSLATORS[said[0]].name, *said[1:]) for said in idle if "device" not in said[2]}
    return dict.fromkeys(same, _losses(0.0)) | alone


def of_rows(program: str, cases: list[Rows]) -> Iterator[tuple[str, str]]:
    """Yield each case's difference, and how many rows have other tokens or other ones with loss."""
    with tempfile.TemporaryDirectory(prefix="paceline-sizes-") as name:
        folders, given = [Path(name) / str(number) for number in range(len(cases))], list[Any]()
        for case, folder in zip(cases, folders, strict=True):
            folder.mkdir()
            made = small(program, folder, case.base)
            case.rows(folder)
            given.append(changed(program, made, case.theirs, folder))
        answers = ask(program, "tokens", given, Path(name), timeout=7200)
        for case, folder, keys, theirs in zip(cases, folders, given, answers, strict=True):
            try:
                yield _rows_of(case, keys, theirs, folder)
            except (RuntimeError, ValueError, KeyError, PacelineError) as exc:
                print(f"{case.key} {dict(case.theirs)}: not measured: {exc}", flush=True)


def _rows_of(case: Rows, given: Any, theirs: Any, folder: Path) -> tuple[str, str]:
    if isinstance(theirs, dict):
        raise ValueError(f"{case.program}: {theirs['error']}")
    made = _local(
        ours.imported(case.program, changed(case.program, given, case.beside, folder)), case, folder
    )
    wanted = re.compile(case.part)
    says = next(
        part for part in [made.said[case.key], *made.said[case.key].split("; ")] if wanted.search(part)
    )
    shape = shape_of(TRANSLATORS[case.program].name, case.key, says)
    mine = ours.tokens(made, folder)
    rows = [(list(row["input_ids"]), _list(row.get("labels"))) for row in theirs]
    apart = [min((_apart(row, one) for one in mine), default=_OTHER) for row in rows]
    others = sum(each > 0 for each in apart) + max(0, len(mine) - len(rows))
    size = f"{others} of {max(len(mine), len(rows))} rows differ{case.where}"
    if 0 < max(apart) < _OTHER:
        size += f", in the loss of up to {max(apart)} of {max(len(ids) for ids, _ in rows)} tokens"
    print(f"{shape} {dict(case.theirs)}: {size}; ours {len(mine)}; also said: {[*made.said]}", flush=True)
    return shape, size


def _local(made: ours.Ours, case: Apart | Rows, folder: Path) -> ours.Ours:
    """Return an import in whose YAML local files stand for names of the hub."""
    text = made.text
    for name, place in case.local.items():
        text = text.replace(name, str(place).replace("FOLDER", str(folder)))
    return replace(made, text=text)


def _list(value: object) -> list[int]:
    return list(value) if isinstance(value, list) else []  # the label of a whole text is none of a token


#: how far apart rows of other tokens are
_OTHER = 1 << 30


def _apart(theirs: tuple[list[int], list[int]], ours_: tuple[list[int], list[int]]) -> int:
    """Return how many tokens have loss in one row alone."""
    if theirs[0] != ours_[0]:
        return _OTHER
    return sum(one != other for one, other in zip(theirs[1], ours_[1], strict=True)) if theirs[1] else 0


if __name__ == "__main__":
    main()
