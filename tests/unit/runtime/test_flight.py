"""What torch's flight recorder says of collectives under way, and of ranks side by side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.runtime.failures import stragglers
from paceline.runtime.failures.stragglers import active, write_flight


def entry(number: int, *, ended: bool, group: str = "dp_shard", began: int = 0) -> dict[str, object]:
    return {
        "profiling_name": "nccl:all_reduce",
        "collective_seq_id": number,
        "process_group": ["3", group],
        "input_sizes": [[1024, 8]],
        "time_created_ns": began,
        "state": "completed" if ended else "started",
        "retired": False,
    }


def dump(*entries: dict[str, object]) -> str:
    return json.dumps({"entries": list(entries), "version": "2.10"})


def test_the_collective_that_is_waited_in_is_described() -> None:
    text = dump(entry(411, ended=True), entry(413, ended=False, began=int(90e9)), entry(412, ended=False))
    first, second = active(text, now_ns=int(100e9))
    assert first.describe() == "nccl:all_reduce 412 of [1024, 8] in group dp_shard for 100 s"
    assert second.seconds == 10.0
    assert active(dump(entry(1, ended=True))) == active("{}") == active("nonsense") == []


def test_a_dump_is_written_where_there_is_something_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stragglers, "dump_entries", lambda: dump())
    write_flight(tmp_path / "flight_0.json")
    assert not (tmp_path / "flight_0.json").exists()
    monkeypatch.setattr(stragglers, "dump_entries", lambda: dump(entry(1, ended=False)))
    write_flight(tmp_path / "flight_0.json")
    assert active((tmp_path / "flight_0.json").read_text())[0].number == 1


def test_this_torch_gives_its_records_as_json() -> None:
    assert isinstance(active(), list)
