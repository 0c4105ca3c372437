"""Which ranks the others wait for, by what each spent on its own work."""

from __future__ import annotations

import pytest

from paceline.training.loop.time_bands import BandClock, Bands, bands_of_ranks, stragglers


def rank(own: float, wait: float, data: float = 0.0) -> Bands:
    return Bands(data=data, compute=own, wait=wait, seconds=own + wait + data, steps=10)


def test_a_rank_above_the_median_of_the_others_is_one_with_its_share() -> None:
    late = stragglers([rank(60, 40), rank(95, 5), rank(62, 38), rank(58, 42)])
    assert [(s.rank, s.seconds, s.percent) for s in late] == [(1, 35.0, 35.0)]
    assert "rank 1: 35 %" in late[0].finding().what


def test_slow_rows_count_like_slow_computation() -> None:
    assert [s.rank for s in stragglers([rank(60, 40), rank(60, 5, data=35), rank(61, 39)])] == [1]


@pytest.mark.parametrize(
    "ranks",
    [[rank(9, 1)], [], [rank(60, 40), rank(64, 36)], [rank(0.2, 0.8), rank(0.9, 0.1)], [Bands(), Bands()]],
)
def test_alone_alike_or_short_there_is_none(ranks: list[Bands]) -> None:
    assert stragglers(ranks) == []


def test_a_step_is_waiting_and_the_rest() -> None:
    waited = [0.0]
    clock = BandClock(lambda: waited[0])
    waited[0] = 0.75
    clock.step(0.5, 2.0)
    with clock.saving():
        waited[0] = 9.0  # of a save, in no step
    clock.step(0.0, 1.0)
    clock.evaluated(3.0)
    event = clock.due(2, last=True)
    assert event is not None and (event.data, event.compute, event.wait) == (0.5, 2.25, 0.75)
    assert (event.steps, event.evaluation) == (2, 3.0) and event.save >= 0.0
    assert clock.due(2, last=True) is None and clock.total.steps == 2
    assert bands_of_ranks([clock.total, clock.total])["compute"] == 2.25
    assert bands_of_ranks([]) == {}
