"""``paceline doctor CONFIG``: the check of one node, or of all nodes together, to its verdict."""

from __future__ import annotations

import random
import secrets
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from paceline.core.diagnostics import Diagnostic, Severity, errors
from paceline.core.errors import ConfigError
from paceline.core.json_types import JsonObject
from paceline.doctor.nodes import codes
from paceline.doctor.nodes.compare import NodeComparison, clock_findings, folder_findings, on_nodes
from paceline.doctor.nodes.facts import NodeJob, node_facts
from paceline.doctor.nodes.meeting import Meeting, join
from paceline.doctor.nodes.messages import (
    ClockReading,
    FolderView,
    Hello,
    NodeFacts,
    NodeRequest,
    NodesVerdict,
    NotOurs,
    RanksAnswer,
    SentBytes,
    Transfers,
    Trial,
    Trials,
    received,
)
from paceline.doctor.nodes.network import address_towards, listen_at, resolved
from paceline.doctor.nodes.node import RANKS_SECONDS, NodeServer
from paceline.doctor.nodes.partners import (
    LARGEST,
    Link,
    PartnerListener,
    link_findings,
    name_findings,
    partners_of,
    port_findings,
    shifts_of,
    suspects,
    to_try,
)
from paceline.launch.network import DEFAULT_PORT, is_loopback, resolves_to_loopback
from paceline.launch.run_secret import read_secret, unsigned

WAIT_SECONDS = 30.0  # for the other nodes to come
_SLACK_SECONDS = 30.0  # node 0 may have begun later
_CLOCK_SECONDS, _CLOCK_TRIES = 10.0, 5
_FACTS_SECONDS = 120.0  # hashes of large files, a plan, a disk that hangs
_STEP_SECONDS = 40.0  # a look, some connections, or one transfer
_RETRIED, _AGAIN = 8, 2  # slow links that are tried again, one after the other
_LINES, _FINDINGS = 32, 500  # nodes and findings in the report
_RESOLVE_SECONDS = 0.5  # between two looks for a name that is not known yet, as a pod's


def check_nodes(job: NodeJob, wait_seconds: float = WAIT_SECONDS) -> NodesVerdict:
    """Check this node together with the others; return the verdict, the same on all that meet.

    Takes ``wait_seconds`` for nodes that do not come, and has a limit for each step after that.
    """
    if job.cluster.num_nodes == 1:
        facts = node_facts(job, "127.0.0.1")
        return NodesVerdict((f"this node: {facts.line.partition(': ')[2]}",), facts.findings)
    try:
        secret = _secret(job)
        server, mine, listener = _places(job, secret, wait_seconds)
    except ConfigError as error:
        return NodesVerdict(findings=tuple(finding.to_json() for finding in error.diagnostics))
    node = NodeServer(job, mine, secret, listener)
    try:
        if server is not None:
            meeting = Meeting(server, secret, mine)
            meeting.gather(wait_seconds)
            return _Check(job, node, meeting, wait_seconds).run()
        return _take_part(job, node, secret, wait_seconds)
    finally:
        node.close()


def _secret(job: NodeJob) -> bytes:
    """Return the run's secret. Raises ConfigError where a run could not start without one."""
    allowed = job.loaded is not None and job.loaded.config.launch.allow_unsigned_store
    cluster = job.cluster
    lacking = unsigned(job.environ, cluster.num_nodes, cluster.num_nodes, ours=True, allowed=allowed)
    if lacking is not None and lacking.severity is Severity.ERROR:
        raise ConfigError(lacking)
    return read_secret(job.environ)


def _places(
    job: NodeJob, secret: bytes, wait_seconds: float
) -> tuple[socket.socket | None, Hello, PartnerListener]:
    """Return node 0's listener (None on other nodes), this node's hello, and the listener for partners.

    Raises ConfigError (``node.master``) where the address of node 0 cannot be used.
    """
    cluster = job.cluster
    host, port = cluster.master_addr, cluster.master_port or DEFAULT_PORT
    if (local := resolves_to_loopback(host)) and not is_loopback(host):
        raise ConfigError(codes.NODE_MASTER_LOOPBACK("--master-addr", f"{host} is {local} here (/etc/hosts)"))
    server = None
    try:
        address = _own_address(host, wait_seconds)
        if cluster.node_rank == 0:
            address = resolved(host)[1]
            server = listen_at(address, port)
    except OSError as error:
        shown = f"{host}:{port}: {error.strerror or error}"
        raise ConfigError(codes.NODE_MASTER("--master-addr", shown, node=cluster.node_rank)) from error
    listener = PartnerListener(address, secret)
    mine = Hello(cluster.node_rank, cluster.num_nodes, socket.gethostname(), address, listener.port)
    return server, mine, listener


def _own_address(host: str, wait_seconds: float) -> str:
    """Return this node's address towards ``host``, whose name may become known while we wait."""
    deadline = time.monotonic() + wait_seconds
    while True:
        try:
            return address_towards(host)
        except OSError:
            if time.monotonic() > deadline:
                raise
        time.sleep(_RESOLVE_SECONDS)


def _take_part(job: NodeJob, node: NodeServer, secret: bytes, wait_seconds: float) -> NodesVerdict:
    """Join node 0 and answer it. Where it is not there, report that."""
    host, port = job.cluster.master_addr, job.cluster.master_port or DEFAULT_PORT
    place = f"{host}:{port}"
    try:
        wire = join((host, port), secret, node.mine, wait_seconds)
    except OSError as error:
        shown = f"{place}: {_reason(error)}, for {wait_seconds:.0f} s, from {node.mine.label}"
        absent = codes.NODE_NO_MASTER("node 0", shown)
        if is_loopback(host):
            absent = codes.NODE_MASTER_LOOPBACK("--master-addr", shown)
        return NodesVerdict(findings=(absent.to_json(),))
    with closing(wire):
        try:
            return node.serve(wire, wait_seconds + _SLACK_SECONDS)
        except NotOurs:
            return NodesVerdict(
                findings=(codes.NODE_OTHER_SECRET(f"{node.mine.label}, at {place}").to_json(),)
            )
        except OSError as error:
            return NodesVerdict(findings=(codes.NODE_LOST("node 0", f"{place}: {_reason(error)}").to_json(),))


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "no answer"
    return (error.strerror or str(error)).lower()


@dataclass
class _Check:
    """NodeServer 0's way through the check: a request to all nodes at a time."""

    job: NodeJob
    node: NodeServer
    meeting: Meeting
    wait_seconds: float
    found: list[Diagnostic] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    names: Mapping[int, str] = field(default_factory=dict)

    def run(self) -> NodesVerdict:
        """Go through all steps; send the verdict to all, and return it."""
        present = self.meeting.hellos
        self.names = {rank: hello.label for rank, hello in present.items()}
        self.found += self._absent()
        shifts = shifts_of(len(present), random.SystemRandom())
        self.found += clock_findings(self._clocks(), self.where)
        facts = self._facts()
        comparison = NodeComparison(self.names, facts)
        self._describe(facts)
        self.found += comparison.findings()
        if len(present) > 1:
            self.found += self._folder()
            self.found += self._links(shifts)
        self._ranks(facts)
        verdict = NodesVerdict(tuple(self.lines), tuple(f.to_json() for f in _sorted(self.found)[:_FINDINGS]))
        self.meeting.publish(verdict)
        return verdict

    def where(self, ranks: Sequence[int]) -> str:
        """Return the names of nodes."""
        return ", ".join(self.names[rank] for rank in ranks)

    def _absent(self) -> Iterator[Diagnostic]:
        findings = self.meeting.findings(self.wait_seconds)
        host = self.job.cluster.master_addr
        if findings and is_loopback(host):
            yield codes.NODE_MASTER_LOOPBACK("--master-addr", f"{host}, and not all nodes came")
        yield from findings

    def _all(self, requests: Mapping[int, NodeRequest], seconds: float) -> dict[int, JsonObject]:
        answers, lost = self.meeting.request_all(requests, seconds, self.node.answer)
        for rank in lost:
            kind = next(iter(requests.values())).kind
            self.found.append(
                codes.NODE_LOST(self.names[rank], f"no answer to {kind!r} within {seconds:.0f} s")
            )
        return answers

    def _each(self, kind: str, seconds: float, token: str = "") -> dict[int, JsonObject]:
        return self._all({rank: NodeRequest(kind, token=token) for rank in self.meeting.hellos}, seconds)

    def _clocks(self) -> dict[int, float]:
        """Return the seconds by which each node's clock is ahead, by its quickest answer of some."""
        best: dict[int, tuple[float, float]] = {0: (0.0, 0.0)}

        def measure(rank: int) -> None:
            for _ in range(_CLOCK_TRIES):
                begun, before = time.monotonic(), time.time()
                answers = self._all({rank: NodeRequest("clock")}, _CLOCK_SECONDS)
                if rank not in answers:
                    return
                trip = time.monotonic() - begun
                offset = received(ClockReading, answers[rank]).now - (before + trip / 2)
                best[rank] = min(best.get(rank, (trip, offset)), (trip, offset))

        for rank in [rank for rank in self.meeting.hellos if rank != 0]:
            measure(rank)
        return {rank: offset for rank, (_, offset) in sorted(best.items())}

    def _facts(self) -> dict[int, NodeFacts]:
        answers = self._each("facts", _FACTS_SECONDS)
        return {rank: received(NodeFacts, answer) for rank, answer in sorted(answers.items())}

    def _describe(self, facts: Mapping[int, NodeFacts]) -> None:
        self.lines += [f"{self.names[rank]}  {seen.line}" for rank, seen in list(facts.items())[:_LINES]]
        if len(facts) > _LINES:
            self.lines.append(f"and {len(facts) - _LINES} further nodes")

    def _folder(self) -> Iterator[Diagnostic]:
        token = secrets.token_hex(8)
        self._each("mark", _STEP_SECONDS, token)
        hellos = self.meeting.hellos
        before = partners_of([*hellos], -1)
        requests = {
            rank: NodeRequest("look", tuple(hellos[other] for other in sorted({0, before[rank]})))
            for rank in hellos
        }
        answers = self._all(requests, _STEP_SECONDS)
        views = {rank: received(FolderView, answer) for rank, answer in sorted(answers.items())}
        yield from folder_findings({rank: view.sees for rank, view in views.items()}, before, self.where)
        unlocked = [rank for rank, view in views.items() if not view.excluded]
        if unlocked:
            yield codes.NODE_LOCKS(self.where(unlocked), str(self.job.run_folder))
        if all(0 in view.sees for view in views.values()):
            self.lines.append(f"folder    {self.job.run_folder}: shared by all nodes")
        elif not any(0 in view.sees for rank, view in views.items() if rank != 0):
            self.lines.append(f"folder    {self.job.run_folder}: each node has its own")

    def _links(self, shifts: Sequence[int]) -> Iterator[Diagnostic]:
        """Connect both ways, then send: each node to one partner at a time, and the slow links once more."""
        hellos = self.meeting.hellos
        whom = to_try([*hellos], shifts)
        requests = {
            rank: NodeRequest("connect", tuple(hellos[r] for r in ranks)) for rank, ranks in whom.items()
        }
        answers = self._all(requests, _STEP_SECONDS)
        trials = {rank: received(Trials, answer).trials for rank, answer in sorted(answers.items())}
        yield from port_findings(trials, self.where)
        yield from name_findings(trials, hellos, self.where)
        open_links = {(r, t.rank) for r, own_trials in trials.items() for t in own_trials if not t.error}
        transfers: dict[Link, SentBytes] = {}
        for shift in shifts:
            ring = partners_of([*self.meeting.hellos], shift)
            transfers |= self._transfers([(a, b) for a, b in ring.items() if (a, b) in open_links])
        for link in [link for link in suspects(transfers)[:_RETRIED] for _ in range(_AGAIN)]:
            again = self._transfers([link])
            transfers |= {
                key: max(transfers[key], value, key=lambda t: t.speed) for key, value in again.items()
            }
        slow = suspects(transfers)
        if transfers:
            yield from link_findings(transfers, slow, self.where)
            self._describe_links(trials, transfers)

    def _describe_links(
        self, trials: Mapping[int, Sequence[Trial]], transfers: Mapping[Link, SentBytes]
    ) -> None:
        speeds = sorted(transfer.speed for transfer in transfers.values())
        trips = sorted(t.round_trip for own_trials in trials.values() for t in own_trials if not t.error)
        if trips:
            self.lines.append(
                f"links     {len(transfers)} tried: {speeds[0] / 1e9:.2g} to {speeds[-1] / 1e9:.2g} GB/s over"
                f" one connection, round trips of {trips[0] * 1e3:.2g} to {trips[-1] * 1e3:.2g} ms"
            )

    def _transfers(self, links: Sequence[Link]) -> dict[Link, SentBytes]:
        hellos = self.meeting.hellos
        requests = {
            source: NodeRequest("transfer", (hellos[target],), LARGEST)
            for source, target in links
            if source in hellos and target in hellos
        }
        if not requests:
            return {}
        answers = self._all(requests, _STEP_SECONDS)
        sent = {rank: received(Transfers, answer).transfers for rank, answer in answers.items()}
        return {(rank, one_sent.rank): one_sent for rank, own_sent in sent.items() for one_sent in own_sent}

    def _ranks(self, facts: Mapping[int, NodeFacts]) -> None:
        """An all-reduce of all ranks, unless something is wrong already that would end it."""
        if errors(self.found):
            self.lines.append("ranks     not started: first repair what is wrong")
            return
        here = facts[0]
        port = self.job.cluster.master_port or DEFAULT_PORT
        request = NodeRequest("ranks", size=here.ranks, token=here.device, port=port)
        answers = self._all(dict.fromkeys(self.meeting.hellos, request), RANKS_SECONDS + _SLACK_SECONDS)
        replies = {rank: received(RanksAnswer, answer) for rank, answer in sorted(answers.items())}
        self.lines += [line for reply in replies.values() for line in reply.lines]
        seen = set()
        for rank, reply in replies.items():
            for failure in reply.failures:
                self.found.append(codes.NODE_RANKS(self.names[rank], failure))
            for data in reply.findings:
                finding = Diagnostic.from_json(data)
                if (key := (finding.code, finding.what, finding.where)) not in seen:
                    seen.add(key)
                    self.found.append(on_nodes(finding, self.names[rank], [rank]))


def _sorted(findings: Sequence[Diagnostic]) -> list[Diagnostic]:
    """Return errors first, then warnings, then notes."""
    order = list(Severity)
    return sorted(findings, key=lambda finding: order.index(finding.severity))
