"""A rank or a store that stands still, is slow or is cut off: named, and the run ends everywhere, though
torch's own timeouts are not kept.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from proxy import Wire
from ranks import free_port, rank_environment

from paceline.core.errors import ExitCode

pytestmark = [pytest.mark.integration]
WORKER = Path(__file__).with_name("silence_worker.py")
TIMEOUT, LEAST, QUIET = 6.0, 5.0, 2.5
LATEST = 240.0  # a hang is what this finds; the real delay is LEAST + 1


class Job:
    """Ranks of ``silence_worker.py``."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.ranks, self.wires = folder, [], []  # type: ignore[var-annotated]

    def start(
        self,
        size: int = 2,
        wires: dict[int, Wire] | None = None,
        port: int | None = None,
        prefix: tuple[str, ...] = (),
    ) -> None:
        port = port or free_port()
        argv = [*prefix, sys.executable, str(WORKER), str(self.folder), str(TIMEOUT), str(LEAST), str(QUIET)]
        for rank in range(size):
            own = (wires or {})[rank].port if rank in (wires or {}) else port
            with (self.folder / f"{rank}.log").open("w") as log:
                self.ranks.append(
                    subprocess.Popen(
                        argv,
                        env=rank_environment(rank, size, own),
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                )
        self.until(lambda: all((self.folder / f"{r}.up").exists() for r in range(size)))

    def until(self, came: Any) -> None:
        deadline = time.monotonic() + LATEST
        while not came():
            assert time.monotonic() < deadline, self.logs()
            assert all(r.poll() is None for r in self.ranks), self.logs()
            time.sleep(0.05)

    def end(self, *ranks: int) -> list[int]:
        """The exit codes of these ranks, that end by themselves."""
        for rank in ranks:
            try:
                self.ranks[rank].wait(timeout=LATEST)
            except subprocess.TimeoutExpired:
                pytest.fail(f"rank {rank} hangs\n{self.logs()}")
        return [self.ranks[r].returncode for r in ranks]

    def heard(self, rank: int) -> dict[str, Any]:
        return json.loads((self.folder / f"{rank}.heard.json").read_text())

    def warned(self, rank: int) -> list[dict[str, Any]]:
        path = self.folder / f"{rank}.warned.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def logs(self) -> str:
        return "\n".join(f"--- {p.name}\n{p.read_text()[-3000:]}" for p in sorted(self.folder.glob("*.log")))


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    yield made
    for process in made.ranks:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("frozen", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_frozen_rank_is_named_ends_the_run_and_ends_itself_when_it_goes_on(job: Job, frozen: int) -> None:
    job.start(3)
    process = job.ranks[frozen]
    process.send_signal(signal.SIGSTOP)
    others = [r for r in range(3) if r != frozen]
    codes = job.end(*others)
    assert ExitCode.PEER_SILENT in codes and set(codes) <= {
        ExitCode.PEER_SILENT,
        ExitCode.PEER_FAILED,
    }, job.logs()
    for rank in others:
        found = job.heard(rank)["diagnostic"]
        assert found["code"] in ("runtime.rank_silent", "runtime.store_silent")
        assert found["evidence"]["silent_ranks"] == [frozen]
        assert f"its process {process.pid} is stopped" in found["found"]
    speaker = 1 if frozen == 0 else 0
    named = [w for w in job.warned(speaker) if w["code"] in ("runtime.rank_quiet", "runtime.store_silent")]
    assert named and named[0]["loud"] and f"{process.pid} is stopped" in named[0]["found"], (
        "not named before the end"
    )
    process.send_signal(signal.SIGCONT)
    assert job.end(frozen)[0] in (ExitCode.FAILED, ExitCode.PEER_SILENT, ExitCode.PEER_FAILED)


def test_a_cut_wire_to_the_store_ends_both_sides(job: Job) -> None:
    """The collectives have ways of their own and go on; nobody would hear of an error any more."""
    port = free_port()
    wire = Wire(port)
    try:
        job.start(2, {1: wire}, port)
        wire.cut = True
        codes = job.end(0, 1)
    finally:
        wire.close()
    assert ExitCode.PEER_SILENT in codes and set(codes) <= {ExitCode.PEER_SILENT, ExitCode.FAILED}, job.logs()
    found = (
        job.heard(1)["diagnostic"] if (job.folder / "1.heard.json").exists() else job.heard(0)["diagnostic"]
    )
    assert found["code"] in ("runtime.store_silent", "runtime.rank_silent")
    # The other side ends by its own clock, on a busy machine before this one looks.
    assert " is there, in the state " in found["found"] or " no longer exists" in found["found"]


@pytest.mark.full
def test_a_slow_wire_is_no_silence(job: Job) -> None:
    port = free_port()
    wire = Wire(port, delay=0.15)  # a start takes some ten round trips, within TIMEOUT
    try:
        job.start(2, {1: wire}, port)
        time.sleep(LEAST + 3)
        (job.folder / "stop").write_text("")
        assert job.end(0, 1) == [0, 0], job.logs()
    finally:
        wire.close()
    assert not list(job.folder.glob("*.heard.json"))


@pytest.mark.full
def test_a_rank_that_is_stopped_most_of_the_time_is_named_as_slow(job: Job) -> None:
    job.start(2)
    slow = job.ranks[1]

    def named() -> bool:
        slow.send_signal(signal.SIGSTOP)
        time.sleep(0.75)
        slow.send_signal(signal.SIGCONT)
        time.sleep(0.25)
        return any(w["code"] == "runtime.rank_slow" for w in job.warned(0))

    job.until(named)
    (job.folder / "stop").write_text("")
    assert job.end(0, 1) == [0, 0], job.logs()
    (found,) = [w for w in job.warned(0) if w["code"] == "runtime.rank_slow"]
    assert (found["where"], found["loud"]) == ("rank 1", True)


@pytest.mark.slow
def test_a_rank_that_is_stopped_in_short_slices_is_named_as_slow(job: Job) -> None:
    job.start(2)
    slow = job.ranks[1]

    def named() -> bool:
        for _ in range(20):
            slow.send_signal(signal.SIGSTOP)
            time.sleep(0.08)
            slow.send_signal(signal.SIGCONT)
            time.sleep(0.02)
        return any(w["code"] == "runtime.rank_slow" for w in job.warned(0))

    job.until(named)
    (job.folder / "stop").write_text("")
    assert job.end(0, 1) == [0, 0], job.logs()


OUTAGE_SECONDS = 20  # twice what the kernel's probes of a line once waited


@pytest.mark.slow
def test_an_outage_of_the_network_between_two_machines_ends_nothing(tmp_path: Path) -> None:
    """Two network namespaces and a cable; it is pulled for some seconds, well within ``ddp_timeout``."""
    names = [f"paceline-{os.getpid()}-{r}" for r in range(2)]
    cable = [f"plv{os.getpid() % 100000}{r}" for r in range(2)]

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    job = Job(tmp_path)
    try:
        try:
            for name in names:
                ip("netns", "add", name)
            ip("link", "add", cable[0], "type", "veth", "peer", "name", cable[1])
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("no network namespaces here")
        for r, name in enumerate(names):
            ip("link", "set", cable[r], "netns", name)
            ip("-n", name, "addr", "add", f"10.99.0.{r + 1}/24", "dev", cable[r])
            ip("-n", name, "link", "set", cable[r], "up")
            ip("-n", name, "link", "set", "lo", "up")
        for r, name in enumerate(names):
            argv = [sys.executable, str(WORKER), str(tmp_path), "120", "60", "5"]
            env = rank_environment(r, 2, 29999) | {
                "MASTER_ADDR": "10.99.0.1",
                "GLOO_SOCKET_IFNAME": cable[r],
                "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": "1",
            }
            log = (tmp_path / f"{r}.log").open("w")
            job.ranks.append(
                subprocess.Popen(
                    ["ip", "netns", "exec", name, *argv],
                    env=env,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )
            log.close()
        job.until(lambda: all((tmp_path / f"{r}.up").exists() for r in range(2)))
        ip("-n", names[0], "link", "set", cable[0], "down")
        time.sleep(OUTAGE_SECONDS)
        ip("-n", names[0], "link", "set", cable[0], "up")
        time.sleep(15)  # a cut line was judged within 8 s
        (tmp_path / "stop").write_text("")
        assert job.end(0, 1) == [0, 0], job.logs()
    finally:
        for process in job.ranks:
            process.kill()
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
    assert not list(tmp_path.glob("*.heard.json"))


@pytest.mark.slow
def test_a_network_that_is_gone_ends_every_rank(job: Job) -> None:
    inside = ("unshare", "--net", "--map-root-user", "sh", "-c")
    if subprocess.run([*inside, "ip link set lo up"], check=False, capture_output=True).returncode:
        pytest.skip("no network namespaces here")
    argv = " ".join([sys.executable, str(WORKER), str(job.folder), str(TIMEOUT), str(LEAST), str(QUIET)])
    ranks = "".join(
        f"RANK={r} LOCAL_RANK={r} {argv} > {job.folder}/{r}.log 2>&1 & p{r}=$!; " for r in range(2)
    )
    cut = f"while [ ! -e {job.folder}/cut ]; do sleep 0.1; done; ip link set lo down"
    ends = "".join(f"wait $p{r}; echo $? > {job.folder}/{r}.code; " for r in range(2))
    process = subprocess.Popen(
        [*inside, f"ip link set lo up; {ranks} {cut}; {ends}"],
        env=rank_environment(0, 2, 29999),
        start_new_session=True,
    )
    job.ranks.append(process)
    job.until(lambda: all((job.folder / f"{r}.up").exists() for r in range(2)))
    (job.folder / "cut").write_text("")
    job.end(0)
    assert [int((job.folder / f"{r}.code").read_text()) for r in range(2)] == [ExitCode.PEER_SILENT] * 2, (
        job.logs()
    )
    for rank in range(2):
        assert job.heard(rank)["diagnostic"]["code"] in ("runtime.store_silent", "runtime.rank_silent")
