"""What ranks tell each other before a group opens: who differs is named on every rank; their links' speed."""

from __future__ import annotations

import threading

import pytest

from paceline.core.errors import PacelineError
from paceline.launch.network import free_port
from paceline.runtime.process_group.first_all_reduce import AllReduceTiming, summary
from paceline.runtime.process_group.rank_agreement import agree_on_devices, compare
from paceline.runtime.process_group.rendezvous import connect_store
from paceline.runtime.rank_env import RankEnv

GPU = {
    "host": "a",
    "device": "cuda",
    "torch": "2.13.0+cu130",
    "comm": "2.28.9",
    "compiled_for": "13.0",
    "name": "NVIDIA A100",
    "driver": "580.95.05",
    "uuid": "",
}


def ranks(count: int = 8, **other: str) -> list[dict[str, str]]:
    """``count`` ranks alike, but for rank 5."""
    return [{**GPU, "uuid": f"card {rank}", **(other if rank == 5 else {})} for rank in range(count)]


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("device", "cpu", "runtime.ranks_differ"),
        ("torch", "2.12.1+cu130", "runtime.ranks_differ"),
        ("comm", "2.26.2", "runtime.ranks_differ"),
        ("compiled_for", "12.6", "runtime.ranks_differ"),
        ("driver", "550.54.15", "runtime.ranks_unequal"),
        ("name", "Tesla T4", "runtime.ranks_unequal"),
    ],
)
def test_the_rank_that_differs_is_named_with_both_values(key: str, value: str, code: str) -> None:
    [finding] = compare(ranks(**{key: value, "host": "b"}))
    assert (finding.code, finding.evidence) == (code, {"ranks": [5], "key": key})
    assert finding.what.startswith("rank 5 ") and finding.where == "b"
    assert value in finding.found and GPU[key] in finding.found
    assert finding.severity.value == ("error" if code == "runtime.ranks_differ" else "warning")


def test_ranks_alike_and_hosts_apart_are_no_finding_and_an_even_split_is_seen_from_rank_0() -> None:
    assert compare(ranks(host="b")) == []
    [finding] = compare([{**GPU, "device": "cpu"}, GPU])
    assert finding.evidence["ranks"] == [1]
    [finding] = compare([{**GPU, "device": "cpu"}, GPU, GPU])
    assert finding.evidence["ranks"] == [0], "most decide, not rank 0"


def test_two_ranks_on_one_card_are_named() -> None:
    [finding] = compare(ranks(uuid="card 2"))
    assert (finding.code, finding.evidence["ranks"]) == ("runtime.device_shared", [2, 5])
    assert compare(ranks(uuid="card 2", host="b")) == [], "of another host it is another card"


def agreement(facts: list[dict[str, str]]) -> dict[int, object]:
    """Every rank's result, in threads: its warnings, or its error."""
    port, results, stores = free_port(), dict[int, object](), list[object]()  # rank 0's store is the server

    def rank(number: int) -> None:
        env = RankEnv(rank=number, local_rank=number, world_size=len(facts), master_port=port, one_host=True)
        stores.append(store := connect_store(env, 20))
        try:
            results[number] = agree_on_devices(store, env, b"s" * 32, facts[number], 20)
        except PacelineError as error:
            results[number] = error.diagnostics

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(len(facts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def test_every_rank_raises_the_same_error() -> None:
    facts = ranks(3)
    facts[1]["device"] = "cpu"
    found = agreement(facts)
    assert sorted(found) == [0, 1, 2] and found[0] == found[1] == found[2]
    assert [finding.what for finding in found[0]] == [  # type: ignore[attr-defined]
        "rank 1 has another kind of device than the other ranks"
    ]


def test_a_warning_lets_them_go_on() -> None:
    facts = ranks(2)
    facts[1]["driver"] = "550.54.15"
    found = agreement(facts)
    assert [[finding.code for finding in found[rank]] for rank in (0, 1)] == [  # type: ignore[attr-defined]
        ["runtime.ranks_unequal"]
    ] * 2


def test_bandwidth_and_the_slow_group() -> None:
    groups = [(0, 1), (2, 3), (4, 5), (6, 7)]
    everyone = [
        AllReduceTiming(0.1, 0.1 if group == (4, 5) else 0.001, group) for group in groups for _ in group
    ]
    [line], [warning] = summary("tp", everyone, 64 << 20)
    assert "tp: 4 groups of 2 ranks" in line and "64 MiB at 67 GB/s" in line
    assert (warning.code, warning.where) == ("runtime.link_slow", "rank 4, 5")
    assert "0.67 GB/s there, 67 GB/s in the middle" in warning.found
    assert summary("tp", [AllReduceTiming(0.1, 0.001, g) for g in groups for _ in g], 64 << 20)[1] == []


def test_a_late_rank_is_named() -> None:
    everyone = [AllReduceTiming(12.5 if rank != 3 else 0.01, 0.001, (0, 1, 2, 3)) for rank in range(4)]
    _, [warning] = summary("all ranks", everyone, 1 << 20)
    assert warning.what == "rank 3 came 12 s after the first one"
