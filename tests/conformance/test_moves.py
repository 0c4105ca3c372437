"""Moves between layouts through the real worker: one in CI, every one with ``--slow`` or ``make moves``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
from cells import VARIANTS
from check import Failure
from moves import LAYOUTS, OTHERS, PARTS, Move, Mover, check_state, check_steps
from moves_main import data_in
from moves_table import MOVES_MD, load, markdown

from paceline.core.plugins.tables import STRATEGIES
from paceline.core.rundir import RunDir
from paceline.plan.strategies.spec import strategy_spec

pytestmark = [pytest.mark.integration]
BY_NAME = {v.name: v for v in VARIANTS}
MOVES = [move for part in PARTS.values() for move in part()]
QUICK = Move((BY_NAME["ZeRO-3"], LAYOUTS[4]))  # 2 ranks of an engine of its own, then 3 of another


@pytest.fixture(scope="module")
def mover(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mover]:
    folder = tmp_path_factory.mktemp("moves")
    yield Mover(folder, *data_in(folder))


@pytest.mark.full
def test_a_move(mover: Mover, tmp_path: Path) -> None:
    moved = mover.move(QUICK)
    assert (moved.result, moved.reason) == ("works", "")
    # and what holds it would have seen other states, rows and losses
    whole = mover.whole(QUICK.cells()[0], QUICK.steps)
    with pytest.raises(Failure, match="restored tensors differ"):
        check_state(whole.checkpoint(5), next(iter(RunDir.at(whole.root).checkpoints.glob("step-*8"))))
    assert check_steps(whole, whole, range(6, 9)) == 0.0
    with pytest.raises(Failure, match="no step"):
        check_steps(whole, whole, range(8, 10))


@pytest.mark.slow
@pytest.mark.parametrize("move", MOVES, ids=lambda move: move.name)
def test_every_move(mover: Mover, move: Move) -> None:
    moved = mover.move(move)
    assert moved.result in ("works", "refused"), moved.reason


def test_every_strategy_is_among_the_layouts() -> None:
    asked = [str(v.training["distributed_strategy"]) for v in (*LAYOUTS, *OTHERS)]
    engines = {strategy_spec(name).engine_name for name in asked}
    assert {strategy_spec(name).engine_name for name in STRATEGIES.names()} <= engines
    assert len(LAYOUTS) == 14 and len(PARTS["pairs"]()) == 14 * 13
    assert len({move.name for move in MOVES}) == len(MOVES)


def test_the_page_is_made_from_the_results_and_none_fails() -> None:
    moves = load()
    assert MOVES_MD.read_text(encoding="utf-8") == markdown(moves)
    assert {m["move"] for m in moves["moves"]} <= {move.name for move in MOVES}
    assert [m["move"] for m in moves["moves"] if m["result"] == "fails"] == []
