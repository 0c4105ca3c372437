"""A world of one, and what happens when the ranks cannot meet."""

from __future__ import annotations

import socket

import pytest
import torch
import torch.distributed as dist

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import PacelineError
from paceline.runtime.failures.alarm import Alarm
from paceline.runtime.process_group.world import RankEnv, World, environment


def test_a_world_of_one_needs_no_process_group() -> None:
    world = World.open(RankEnv(), device="cpu")
    assert (world.rank, world.world_size, world.device, world.is_main) == (0, 1, torch.device("cpu"), True)
    assert not dist.is_initialized()
    assert world.all_reduce_sum([1, 2**60]) == [1, 2**60]
    assert world.all_reduce_sum_float([0.25]) == [0.25]
    assert world.any(True) is True
    assert world.broadcast_json({"a": (1, 2)}) == {"a": [1, 2]}
    assert world.all_gather_json("x") == ["x"]
    world.barrier()
    world.close(ok=True)
    world.close(ok=True)


def test_json_only() -> None:
    with pytest.raises(TypeError):
        World.single().broadcast_json({"a": object()})


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PacelineError) as caught:
            World.open(
                RankEnv(world_size=2, local_world_size=2, master_port=port), device="cpu", timeout_seconds=2
            )
    found = caught.value.diagnostics[0]
    assert found.code == "runtime.port_in_use"
    assert str(port) in found.what


def test_ranks_that_never_come_are_named() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(PacelineError) as caught:
        World.open(
            RankEnv(world_size=3, local_world_size=3, master_port=port), device="cpu", timeout_seconds=1
        )
    found = caught.value.diagnostics[0]
    assert (found.code, found.evidence["missing"]) == ("runtime.ranks_missing", [1, 2])
    assert not dist.is_initialized()


def test_nccl_on_a_cpu_is_refused() -> None:
    with pytest.raises(PacelineError, match="runtime.backend"):
        World.open(RankEnv(world_size=2, local_world_size=2), device="cpu", backend="nccl")


def test_the_alarm_of_a_world_of_one_does_nothing() -> None:
    alarm = Alarm(World.single()).start()
    assert alarm.await_root_cause(60.0) is False
    assert alarm.raise_error(Diagnostic("test.error", "x")) is True
    alarm.stop()


def test_environment_is_a_copy() -> None:
    environment()["PACELINE_TEST"] = "1"  # type: ignore[index]
    assert "PACELINE_TEST" not in environment()
