"""What rows lose that are too long: as LLaMA-Factory cuts them (``tests/peers``), or at one end."""

from __future__ import annotations

import json
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.data.chat_template.encode import Encoded
from paceline.data.prepare.truncate import kept_tokens, truncated

PEERS = Path(__file__).parents[2] / "peers"
CASES: list[dict[str, Any]] = json.loads((PEERS / "recorded/llamafactory_truncation.json").read_text())


def document(
    length: int, answers: list[tuple[int, int]], learnt: list[tuple[int, int]], end: bool
) -> Encoded:
    labelled = np.zeros(length + end, np.bool_)
    for start, stop in learnt:
        labelled[start:stop] = True
    labelled[length:] = True
    ids = np.arange(length + end, dtype=np.int32)
    ids[length:] = -1
    return Encoded(ids, labelled, end_added=end, answers=tuple(answers))


@pytest.mark.parametrize("asked", [False, True])
def test_a_share_of_each_turn_is_cut_as_llamafactory_cuts_it(asked: bool) -> None:
    """``asked``: where the answers lie is told, and not taken from what has loss."""
    compared = 0
    for case in (case for case in CASES if "turns" in case and (asked or not case["last"])):
        edges = list(accumulate((n for turn in case["turns"] for n in turn), initial=0))
        answers = list(zip(edges[1::2], edges[2::2], strict=True))
        learnt = answers[-1:] if case["last"] else answers
        row = document(edges[-1], answers if asked else [], learnt, case["end"])
        (cut,) = truncated([row], case["limit"], "ratio")
        assert cut.input_ids.tolist() == case["kept"]
        assert [i for i in cut.input_ids[cut.labelled].tolist() if i >= 0] == case["loss"]
        compared += len(row.input_ids) > case["limit"]
    assert compared > 20


def test_a_pair_shares_the_cut_of_its_question() -> None:
    for case in (case for case in CASES if "prompt" in case):
        prompt = case["prompt"]
        rows = [document(prompt + n, [], [(prompt, prompt + n)], False) for n in case["answers"]]
        kept = kept_tokens(rows, case["limit"], "ratio")
        assert [[int(i) for i in each] for each in kept] == case["kept"]


@pytest.mark.parametrize(("truncation", "kept"), [("end", [0, 1, 2]), ("start", [7, 8, 9])])
def test_a_row_loses_one_end(truncation: str, kept: list[int]) -> None:
    (cut,) = truncated([document(10, [], [(5, 10)], False)], 3, truncation)
    assert cut.input_ids.tolist() == kept
