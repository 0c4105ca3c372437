"""One node of the check: it answers node 0's requests, one after the other, until the verdict."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from paceline.core.json_types import JsonObject
from paceline.doctor.nodes.facts import NodeJob, node_facts
from paceline.doctor.nodes.messages import (
    ClockReading,
    Hello,
    NodeRequest,
    NodesVerdict,
    RanksAnswer,
    Transfers,
    Trials,
    Wire,
    received,
)
from paceline.doctor.nodes.partners import PartnerListener, each, send_to, try_partner
from paceline.doctor.nodes.run_folder import FolderToken
from paceline.launch.child import run_job
from paceline.launch.environment.job_managers import MANAGERS
from paceline.launch.network import gloo_interface
from paceline.launch.process_spec import rank_environment
from paceline.plan.plan_json import to_json

REQUEST_SECONDS = 180.0  # node 0 waits for the slowest of the others
ANSWER_SECONDS = 10.0
RANKS_SECONDS = 90.0  # imports of torch from a cold disk, on every rank
_PROBE = "paceline.runtime.process_group.link_probe"


class NodeServer:
    """This node: its job, its listener, and its file in the run's folder."""

    def __init__(self, job: NodeJob, mine: Hello, secret: bytes, listener: PartnerListener) -> None:
        self._job, self.mine, self._secret, self._listener = job, mine, secret, listener
        self._token: FolderToken | None = None
        self._handlers: Mapping[str, Callable[[NodeRequest], JsonObject]] = {
            "clock": lambda request: to_json(ClockReading(time.time())),
            "facts": lambda request: to_json(node_facts(job, mine.address)),
            "connect": self._connect,
            "transfer": self._transfer,
            "mark": self._mark,
            "look": self._look,
            "ranks": self._ranks,
        }

    def answer(self, request: NodeRequest) -> JsonObject:
        """Return the answer to a request. Raises OSError for an unknown one."""
        handler = self._handlers.get(request.kind)
        if handler is None:
            raise OSError(f"node 0 runs another version: unknown request {request.kind!r}"[:100])
        return handler(request)

    def serve(self, wire: Wire, first_seconds: float) -> NodesVerdict:
        """Answer requests until the verdict comes, and return it. Raises OSError if node 0 is lost."""
        seconds = first_seconds
        while True:
            request = received(NodeRequest, wire.receive(seconds))
            if request.verdict is not None:
                return request.verdict
            wire.send(self.answer(request), ANSWER_SECONDS)
            seconds = REQUEST_SECONDS

    def close(self) -> None:
        """Close the listener and delete the file."""
        self._listener.close()
        if self._token is not None:
            self._token.remove()

    def _connect(self, request: NodeRequest) -> JsonObject:
        return to_json(
            Trials(tuple(each(request.partners, partial(try_partner, mine=self.mine, secret=self._secret))))
        )

    def _transfer(self, request: NodeRequest) -> JsonObject:
        """Send to one partner after the other."""
        sent = [send_to(partner, self.mine, self._secret, request.size) for partner in request.partners]
        return to_json(Transfers(tuple(sent)))

    def _mark(self, request: NodeRequest) -> JsonObject:
        if not (request.token.isalnum() and len(request.token) <= 32):
            raise OSError("not a token")
        self._token = FolderToken(self._job.run_folder, request.token, self.mine.rank)
        return {}

    def _look(self, request: NodeRequest) -> JsonObject:
        assert self._token is not None
        return to_json(self._token.look([partner.rank for partner in request.partners]))

    def _ranks(self, request: NodeRequest) -> JsonObject:
        """Start this node's ranks for one all-reduce; return what the first of them reports."""
        cluster = replace(self._job.cluster, nproc=request.size, master_port=request.port)
        outside = {name for manager in MANAGERS for name in manager.rank}  # they number this command, no rank
        environ = {name: value for name, value in self._job.environ.items() if name not in outside}
        environ |= gloo_interface(cluster, environ)

        def run(local_rank: int) -> RanksAnswer:
            job = {"device": request.token, "seconds": RANKS_SECONDS / 2}
            answer, ended = run_job(
                _PROBE, job, RANKS_SECONDS, environ={**environ, **rank_environment(cluster, local_rank)}
            )
            if answer is None:
                rank = cluster.node_rank * cluster.nproc + local_rank
                return RanksAnswer(failures=(f"rank {rank}: {ended}",))
            return received(RanksAnswer, answer)

        with ThreadPoolExecutor(cluster.nproc) as pool:
            answers = list(pool.map(run, range(cluster.nproc)))
        lines = [line for answer in answers for line in answer.lines]
        findings = [finding for answer in answers for finding in answer.findings]
        failures = [failure for answer in answers for failure in answer.failures]
        return to_json(RanksAnswer(tuple(lines), tuple(findings), tuple(failures)))
