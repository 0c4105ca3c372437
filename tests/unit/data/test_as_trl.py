"""Preference rows are read as TRL's own extraction reads them, over generated rows, or refused by name.

TRL's answers stand in ``trl_pairs.json`` (of each row how many turns or characters are the prompt, -1: the
row as it is). With ``pip install --target trl --no-deps trl==1.16.0; PYTHONPATH=trl pytest -m slow`` TRL
itself is asked, about more rows; ``PYTHONPATH=trl python THIS_FILE`` writes the answers anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from preference_rows import Row, Writer

from paceline.core.errors import DataError
from paceline.data.rows.formats import Example
from paceline.data.rows.kinds.preference_pairs import PAIRS
from paceline.data.rows.messages import parsed_turns
from paceline.data.rows.values import RawRow, RowError

RECORDED = Path(__file__).with_name("trl_pairs.json")
SEED, COUNT = 11, 300


def made(seed: int, count: int) -> Iterator[tuple[Row, Row]]:
    writer = Writer(seed)
    return (writer.row() for _ in range(count))


def cut_by_trl(row: Row) -> int:
    """How much of both answers TRL takes as the prompt; -1 if it takes the row as it is."""
    from trl.data_utils import maybe_extract_prompt

    found = maybe_extract_prompt(row)
    return -1 if found is row else len(found["prompt"])


def judged(row: Row, cut: int) -> tuple[Any, Any, Any] | None:
    """Prompt, chosen and rejected by TRL's cut, turns or texts; None without a prompt or an answer."""
    if cut < 0:
        parts = [row[name] for name in ("prompt", "chosen", "rejected")]
    else:
        if isinstance(row["chosen"], str):
            cut = at_a_blank(row, cut)
        parts = [row["chosen"][:cut], row["chosen"][cut:], row["rejected"][cut:]]
    if not all(parts) or row["chosen"] == row["rejected"]:
        return None
    if all(isinstance(row[name], str) for name in ("chosen", "rejected")) and cut >= 0:
        return parts[0], parts[1], parts[2]
    roles = ("user", "assistant", "assistant")
    prompt, chosen, rejected = (
        [{"role": role, "content": part}] if isinstance(part, str) else part
        for role, part in zip(roles, parts, strict=True)
    )
    return prompt, chosen, rejected


def at_a_blank(row: Row, cut: int) -> int:
    """Move a cut within a word of either answer to the last blank before it."""
    chosen, rejected = row["chosen"], row["rejected"]
    if chosen[:cut][-1:].strip() == "" or (chosen[cut] + rejected[cut]).strip() == "":
        return cut
    begin = chosen[:cut]
    while begin and begin[-1].strip():
        begin = begin[:-1]
    return len(begin) - begin.endswith(" ")


def read(row: Row) -> tuple[Example, Example] | str:
    """The two examples of a row, or the reason of its refusal."""
    [raw] = parsed_turns(iter([RawRow(row, "f:1")]), {})
    assert raw.value is not None, raw.detail
    try:
        return PAIRS.normalise(raw.value, PAIRS.detect([raw.value], where="f"))
    except RowError as error:
        return error.reason
    except DataError as error:
        return error.diagnostics[0].code


def differences(seed: int, cuts: list[int]) -> tuple[list[str], int]:
    """The rows that are read otherwise than TRL reads them, and how many are read."""
    wrong, count = list[str](), 0
    for (row, asked), cut in zip(made(seed, len(cuts)), cuts, strict=True):
        found, right = read(row), judged(asked, cut)
        if isinstance(found, str):
            continue
        count += 1
        shared = found[0].learn_from
        if found[0].text:
            mine = (found[0].prompt, *(one.text[one.begin :] for one in found))
            if mine != right:
                wrong.append(f"{row}: {mine} but {right}")
            continue
        mine = (list(found[0].messages[:shared]), *(list(one.messages[shared:]) for one in found))
        if mine != right or found[1].learn_from != shared:
            wrong.append(f"{row}: {mine} but {right}")
    return wrong, count


def test_generated_pairs_are_read_as_trl_read_them() -> None:
    cuts = json.loads(RECORDED.read_text())
    wrong, count = differences(SEED, cuts)
    assert len(cuts) == COUNT and not wrong, "\n".join(wrong[:5])
    assert count > 0.8 * COUNT, "too many rows are refused"


@pytest.mark.slow
def test_generated_pairs_are_read_as_trl_reads_them() -> None:
    pytest.importorskip("trl", reason="not on PYTHONPATH: see the docstring")
    assert json.loads(RECORDED.read_text()) == [cut_by_trl(asked) for _, asked in made(SEED, COUNT)]
    for seed in range(20):
        wrong, _ = differences(seed, [cut_by_trl(asked) for _, asked in made(seed, COUNT)])
        assert not wrong, "\n".join(wrong[:5])


if __name__ == "__main__":
    RECORDED.write_text(json.dumps([cut_by_trl(asked) for _, asked in made(SEED, COUNT)]) + "\n")
