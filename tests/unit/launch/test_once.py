"""A look that several processes of a node begin together is made by one of them."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from paceline.core.diagnostics import Diagnostic
from paceline.launch.preflight.once_per_node import STARTING_SECONDS, once_per_node, started

FOUND = (Diagnostic("data.missing", "there is no such file", "c.yaml:3", "x.json", "another"),)


class Look:
    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> tuple[Diagnostic, ...]:
        self.times += 1
        time.sleep(0.05)  # so that the others are there before it ends
        return FOUND


def test_those_that_come_together_look_once(tmp_path: Path) -> None:
    look, heard = Look(), list[tuple[Diagnostic, ...]]()
    comers = [
        threading.Thread(target=lambda: heard.append(once_per_node(tmp_path, "a run", look)))
        for _ in range(4)
    ]
    for comer in comers:
        comer.start()
    for comer in comers:
        comer.join()
    assert (look.times, heard) == (1, [FOUND] * 4)
    once_per_node(tmp_path, "another run", look)
    assert look.times == 2


def test_an_earlier_start_s_word_does_not_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look = Look()
    once_per_node(tmp_path, "a run", look)
    monkeypatch.setattr("paceline.launch.preflight.once_per_node.started", time.time)
    once_per_node(tmp_path, "a run", look)
    assert look.times == 2


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"began": 9e99}', '{"began": 9e99, "found": [{}]}'])
def test_a_word_that_was_cut_short_is_none(tmp_path: Path, damage: str) -> None:
    look = Look()
    once_per_node(tmp_path, "a run", look)
    [said] = tmp_path.glob("*.json")
    assert said.stat().st_mode & 0o077 == 0
    said.write_text(damage)
    assert once_per_node(tmp_path, "a run", look) == FOUND
    assert look.times == 2 and json.loads(said.read_text())["found"]


def test_a_look_that_dies_is_the_next_ones(tmp_path: Path) -> None:
    def dies() -> tuple[Diagnostic, ...]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        once_per_node(tmp_path, "a run", dies)
    assert once_per_node(tmp_path, "a run", Look()) == FOUND


def test_who_waits_too_long_looks_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.launch.preflight.once_per_node.WAIT_SECONDS", 0.0)
    inner = Look()

    def stands_still() -> tuple[Diagnostic, ...]:
        return once_per_node(tmp_path, "a run", inner)  # another comer, while this look goes on

    assert once_per_node(tmp_path, "a run", stands_still) == FOUND
    assert inner.times == 1


def test_a_process_knows_when_it_was_started() -> None:
    assert time.time() - STARTING_SECONDS - 1 <= started() < time.time()
