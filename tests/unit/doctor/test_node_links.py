"""Which nodes try each other, and what the trials tell: the odd one is named, whatever their number."""

from __future__ import annotations

import random

import pytest

from paceline.doctor.nodes.compare import clock_findings, differences, folder_findings
from paceline.doctor.nodes.messages import Hello, SentBytes, Trial
from paceline.doctor.nodes.partners import (
    link_findings,
    name_findings,
    partners_of,
    port_findings,
    shifts_of,
    suspects,
    to_try,
)

FAST, SLOW = 2e9, 3e7


def where(ranks: object) -> str:
    return str(list(ranks))  # type: ignore[call-overload]


@pytest.mark.parametrize("count", [2, 3, 5, 33, pytest.param(512, marks=pytest.mark.full)])
def test_a_node_tries_the_same_few_others_whatever_their_number(count: int) -> None:
    for seed in range(20):
        shifts = shifts_of(count, random.Random(seed))
        tried = to_try(range(count), shifts)
        assert all(len(others) <= 4 and rank not in others for rank, others in tried.items())
        assert all(rank in tried[other] for rank, others in tried.items() for other in others), "both ways"
        assert len(shifts) <= 2 and all(0 < shift < count for shift in shifts)


def speeds(
    count: int, shifts: tuple[int, ...], slow: set[tuple[int, int]]
) -> dict[tuple[int, int], SentBytes]:
    links = [link for shift in shifts for link in partners_of(range(count), shift).items()]
    return {(a, b): SentBytes(b, SLOW if (a, b) in slow else FAST, 1 << 20) for a, b in links}


@pytest.mark.parametrize("count", [3, 4, 9, 64])
def test_a_slow_pair_is_named_alone_and_a_slow_node_with_all_its_links(count: int) -> None:
    shifts = shifts_of(count, random.Random(count))
    pair = speeds(count, shifts, {(1, 2)})
    (found,) = link_findings(pair, suspects(pair), where)
    assert found.where == "[1] → [2]" and found.evidence["ranks"] == [1, 2]
    node = speeds(count, shifts, {(1, other) for other in range(count)})
    assert {f.evidence["ranks"][0] for f in link_findings(node, suspects(node), where)} == {1}
    alike = speeds(count, shifts, set())
    assert suspects(alike) == []


def test_two_slow_nodes_are_slow_without_others_to_compare() -> None:
    both = {(0, 1): SentBytes(1, 1e6, 1 << 16), (1, 0): SentBytes(0, 1e6, 1 << 16)}
    assert suspects(both) == [(0, 1), (1, 0)]


def test_ways_of_a_closed_port() -> None:
    closed = "no answer"
    one_way = {0: [Trial(1), Trial(2)], 1: [Trial(0), Trial(2, closed)], 2: [Trial(0), Trial(1)]}
    (found,) = port_findings(one_way, where)
    assert found.where == "[2]" and "one way" in found.what and found.found == "no answer, from [1]"
    both_ways = one_way | {2: [Trial(0), Trial(1, closed)]}
    assert ["both ways" in f.what for f in port_findings(both_ways, where)] == [True, True]


def test_names_of_one_machine_are_not_judged() -> None:
    hellos = {r: Hello(r, 2, "same", f"10.0.0.{r}", 1) for r in range(2)}
    trials = {0: [Trial(1, resolved=("127.0.1.1",))], 1: [Trial(0, unresolved="unknown")]}
    assert list(name_findings(trials, hellos, where)) == []
    hellos[1] = Hello(1, 2, "other", "10.0.0.1", 1)
    codes = [f.code for f in name_findings(trials, hellos, where)]
    assert codes == ["node.name_wrong", "node.name_unknown"]


@pytest.mark.parametrize(
    ("offsets", "named"),
    [
        ({0: 0.0, 1: 0.4, 2: -0.3}, []),
        ({0: 0.0, 1: 300.0, 2: 0.1}, ["[1]"]),
        ({0: 0.0, 1: 300.0, 2: 300.2}, ["[0]"]),  # node 0's own clock is the wrong one
        ({0: 0.0, 1: -5.0}, ["[1]"]),
        ({0: 0.0, 1: 0.0, 2: 9.0, 3: -9.0}, ["[2]", "[3]"]),
    ],
)
def test_the_wrong_clock_is_the_one_that_differs_from_most(
    offsets: dict[int, float], named: list[str]
) -> None:
    assert [f.where for f in clock_findings(offsets, where)] == named


@pytest.mark.parametrize(
    ("sees", "named"),
    [
        ({0: [0, 3], 1: [0], 2: [0, 1], 3: [0, 2]}, []),
        ({0: [0], 1: [], 2: [], 3: []}, []),  # each node has its own
        ({0: [0, 3], 1: [0], 2: [], 3: [0]}, ["[2]"]),
        ({0: [0], 1: [], 2: [1], 3: [2]}, ["[0]"]),
    ],
)
def test_a_folder_is_shared_by_all_by_none_or_the_odd_node_is_named(
    sees: dict[int, list[int]], named: list[str]
) -> None:
    before = {0: 3, 1: 0, 2: 1, 3: 2}
    assert [f.where for f in folder_findings(sees, before, where)] == named


def test_of_two_values_most_are_right_and_a_tie_is_node_0s() -> None:
    values = {0: {"a": "1", "b": "x"}, 1: {"a": "2", "b": "y"}, 2: {"a": "2", "b": "x"}, 3: {"a": "1"}}
    seen = {(odd.name, odd.ranks, odd.value, odd.usual) for odd in differences(values)}
    assert seen == {("a", (1, 2), "2", "1"), ("b", (1,), "y", "x"), ("b", (3,), "none", "x")}
