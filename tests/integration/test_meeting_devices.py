"""Ranks that do not fit each other end by name before or as the group opens, long before the time-out."""

from __future__ import annotations

import json
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ranks import collect, free_port, rank_environment, run_ranks, start
from support import write_yaml

from paceline.config.sections.launch import LaunchSection
from paceline.core.errors import ConfigError, PacelineError
from paceline.launch import codes as launch_codes
from paceline.launch.run_secret import VALUE
from paceline.launch.start_run import reported_to_other_nodes
from paceline.runtime.process_group.rendezvous import arrive, connect_store
from paceline.runtime.rank_env import RankEnv

pytestmark = pytest.mark.integration
WORKER = Path(__file__).with_name("meeting_worker.py")


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_a_rank_of_another_torch_is_named_on_both(tmp_path: Path) -> None:
    codes, output = run_ranks("differs", 2, tmp_path, script=WORKER)
    assert codes == [3, 3], output
    for rank in (0, 1):
        [finding] = read(tmp_path / f"{rank}.json")
        assert (finding["code"], finding["evidence"]["ranks"]) == ("runtime.ranks_differ", [1])


def test_a_rank_that_does_not_come_to_the_first_reduce_is_named(tmp_path: Path) -> None:
    port = free_port()
    argv = [sys.executable, str(WORKER), "absent", str(tmp_path)]
    absent = start(argv, rank_environment(1, 2, port))
    first = start(argv, rank_environment(0, 2, port))
    codes, output = collect([first], 90)
    absent.send_signal(signal.SIGKILL)
    collect([absent], 30)
    assert codes == [3], output
    [finding] = read(tmp_path / "0.json")
    assert (finding["code"], finding["evidence"]) == ("runtime.first_reduce", {"silent_ranks": [1]})


def test_ranks_alike_meet_and_rank_0_knows_the_bandwidth(tmp_path: Path) -> None:
    codes, output = run_ranks("alike", 2, tmp_path, script=WORKER)
    assert codes == [0, 0], output
    [line] = read(tmp_path / "0.json")["links"]
    assert "all ranks: 2 ranks, all-reduce of 1 MiB at" in line and "GB/s" in line
    assert read(tmp_path / "1.json")["links"] == []


@pytest.mark.parametrize("whose", [0, 1])
def test_what_one_rank_is_refused_for_ends_both_at_once(whose: int, tmp_path: Path) -> None:
    """start_timeout is 30 minutes here; the deadline of this test is 90 s."""
    codes, output = run_ranks(f"refused {whose}", 2, tmp_path, script=WORKER)
    assert codes == [3, 3], output
    for rank in (0, 1):
        [finding] = read(tmp_path / f"{rank}.json")
        assert (finding["code"], finding["found"]) == ("runtime.device", f"rank {whose}")
        heard = f"rank {whose} was refused, so this one ends as well: "
        assert finding["what"] == heard * (rank != whose) + "this device is broken"


def test_a_rank_with_another_secret_ends_both_at_once(tmp_path: Path) -> None:
    codes, output = run_ranks(f"refused 2 {'a' * 16} {'b' * 16}", 2, tmp_path, script=WORKER)
    assert codes == [3, 3], output
    for rank in (0, 1):
        [finding] = read(tmp_path / f"{rank}.json")
        assert finding["code"] == "runtime.store_secret"
        assert finding["what"] == "rank 1 and rank 0 have different secrets for their messages"


@pytest.mark.parametrize("late", [0, 1])
def test_a_node_says_for_whom_it_waits(late: int, tmp_path: Path) -> None:
    argv = [sys.executable, str(WORKER), f"late {late}", str(tmp_path)]
    port = free_port()
    ranks = [start(argv, rank_environment(rank, 2, port) | {"LOCAL_RANK": "0"}) for rank in (0, 1)]
    said = ""
    stream = ranks[1 - late].stdout
    assert stream is not None
    while "has waited" not in said:
        line = stream.readline()
        assert line, said
        said += line if isinstance(line, str) else line.decode()
    (tmp_path / "said").touch()
    codes, output = collect(ranks, 90)
    assert codes == [0, 0], output
    whom = (
        "rank 0, which does not answer at 127.0.0.1"
        if late == 0
        else "rank 1 (training.start_timeout: 1800 s)"
    )
    assert f"rank {1 - late} of 2 has waited" in said and f" s for {whom}" in said


def test_a_node_that_its_own_launcher_refuses_tells_the_ranks_that_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VALUE, "s" * 32)
    port, secret = free_port(), b"s" * 32
    env = RankEnv(world_size=2, num_nodes=2, master_port=port)
    store, heard = connect_store(env, 60), list[PacelineError]()

    def wait() -> None:
        with pytest.raises(PacelineError) as caught:
            arrive(store, env, 60, secret)
        heard.append(caught.value)

    waiting = threading.Thread(target=wait)
    waiting.start()
    launch = LaunchSection(nnodes=2, node_rank=1, master_addr="127.0.0.1", master_port=port)
    error = ConfigError(launch_codes.LAUNCH_UNKNOWN(requested="x"))
    with pytest.raises(ConfigError, match="launch.unknown"), reported_to_other_nodes(launch):
        raise error
    waiting.join()
    [finding] = heard[0].diagnostics
    assert (finding.code, heard[0].exit_code) == ("launch.unknown", 76)
    assert finding.what == "rank 1 was refused, so this one ends as well: there is no launcher named 'x'"


@pytest.mark.full
def test_a_node_that_starts_after_node_0_was_refused_hears_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Node 0 hosts the store: it answers until all have heard, a minute at most."""
    monkeypatch.setenv(VALUE, "s" * 32)
    port = free_port()
    launch = LaunchSection(nnodes=2, node_rank=0, master_addr="127.0.0.1", master_port=port)
    error = ConfigError(launch_codes.LAUNCH_UNKNOWN(requested="x"))

    def refuse() -> None:
        with pytest.raises(ConfigError), reported_to_other_nodes(launch):
            raise error

    refusing = threading.Thread(target=refuse)
    refusing.start()
    while not _answers(port):
        time.sleep(0.1)
    time.sleep(7)
    env = RankEnv(rank=1, world_size=2, num_nodes=2, master_port=port)
    with pytest.raises(PacelineError, match="rank 0 was refused, so this one ends as well"):
        arrive(connect_store(env, 60), env, 60, b"s" * 32)
    refusing.join()


def _answers(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def test_a_rank_of_several_nodes_without_a_secret_is_refused_and_so_are_those_that_wait(
    tiny: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    yaml, port = write_yaml(tmp_path / "nodes.yaml", tiny(max_steps=1)), free_port()
    argv = [sys.executable, "-m", "paceline.training.rank", "--config", str(yaml)]
    nodes = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    first = start(argv, rank_environment(0, 2, port) | nodes | {VALUE: "s" * 32})
    other = start(argv, rank_environment(1, 2, port) | nodes)
    codes, (told, others) = collect([first, other], 120)
    assert codes == [1, 2], told + others
    assert "error[launch.store_unsigned]" in others and "PACELINE_STORE_SECRET_FILE=FILE" in others
    assert "error[runtime.store_secret]" in told and "rank 1: none, rank 0: another" in told
