"""What differs between the nodes, as findings that name the odd ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.doctor.nodes import codes
from paceline.doctor.nodes.messages import NodeFacts
from paceline.launch.network import is_loopback

NAMED = 8  # nodes in a finding
_ABSENT = "none"
#: Ranks of other versions of these hang, crash or compute something else; others may differ unseen.
_MUST_AGREE = (
    *("paceline", "paceline's files", "torch", "file of torch", "CUDA of torch", "NCCL"),
    *("transformers", "file of transformers"),
)
CLOCK_SECONDS, CLOCK_ERROR_SECONDS = 2.0, 60.0


@dataclass(frozen=True)
class OddNodes:
    """A value that differs: the ``ranks`` that have ``value``, where most have ``usual``."""

    name: str
    ranks: tuple[int, ...]
    value: str
    usual: str


def differences(values: Mapping[int, Mapping[str, str]]) -> Iterator[OddNodes]:
    """Yield each value that some nodes have differently from most; a tie goes to the lowest rank's."""
    for name in dict.fromkeys(name for own_values in values.values() for name in own_values):
        by_rank = {rank: own_values.get(name, _ABSENT) for rank, own_values in sorted(values.items())}
        counts = Counter(by_rank.values())
        usual = counts.most_common(1)[0][0]  # of equal counts the first, so the lowest rank's
        for value in counts:
            if value != usual:
                yield OddNodes(name, tuple(r for r, v in by_rank.items() if v == value), value, usual)


class NodeComparison:
    """The facts of all nodes, compared. ``names``: the nodes' names by rank."""

    def __init__(self, names: Mapping[int, str], facts: Mapping[int, NodeFacts]) -> None:
        self._names, self._facts = names, facts

    def findings(self) -> Iterator[Diagnostic]:
        """Yield what differs, and each node's own findings."""
        yield from self._versions()
        yield from self._config()
        yield from self._files()
        yield from self._environment()
        yield from self._hardware()
        yield from self._network()
        yield from self._own()

    def where(self, ranks: Sequence[int]) -> str:
        """Return the names of nodes."""
        if len(ranks) == len(self._names) > 1:
            return "every node"
        shown = ", ".join(self._names[rank] for rank in ranks[:NAMED])
        return shown + (" …" if len(ranks) > NAMED else "")

    def _each(self, values: Callable[[NodeFacts], Mapping[str, str]]) -> Iterator[OddNodes]:
        return differences({rank: values(facts) for rank, facts in self._facts.items()})

    def _shown(self, difference: OddNodes) -> str:
        return f"{difference.value} there, {difference.usual} on the others"

    def _versions(self) -> Iterator[Diagnostic]:
        for difference in self._each(lambda facts: facts.versions):
            severity = Severity.ERROR if difference.name in _MUST_AGREE else Severity.WARNING
            minor, usual = (text.rpartition(".")[0] for text in (difference.value, difference.usual))
            if difference.name == "python" and minor != usual:
                severity = Severity.ERROR
            where, shown = self.where(difference.ranks), self._shown(difference)
            yield codes.NODE_VERSION(where, shown, name=difference.name, severity=severity)

    def _config(self) -> Iterator[Diagnostic]:
        """Nodes without a readable config have that finding already."""
        readable = {rank: facts.config for rank, facts in self._facts.items() if facts.config}
        for difference in differences(readable):
            yield codes.NODE_CONFIG(
                self.where(difference.ranks), self._shown(difference), name=difference.name
            )

    def _files(self) -> Iterator[Diagnostic]:
        """Files without a hash, for lack of time, are compared by size."""
        readable = {rank: facts.files for rank, facts in self._facts.items() if facts.config}
        hashed = {
            (file.key, file.name): all(
                other.digest for files in readable.values() for other in files if other.name == file.name
            )
            for files in readable.values()
            for file in files
        }
        texts = {
            rank: {
                f"{file.key}\0{file.name}": f"{file.size} bytes"
                + (f", hash {file.digest}" if hashed[file.key, file.name] else "")
                if file.size >= 0
                else file.digest
                for file in files
            }
            for rank, files in readable.items()
        }
        for difference in differences(texts):
            key, _, name = difference.name.partition("\0")
            yield codes.NODE_FILES(self.where(difference.ranks), self._shown(difference), key=key, name=name)

    def _environment(self) -> Iterator[Diagnostic]:
        for difference in self._each(lambda facts: facts.environment):
            yield codes.NODE_ENVIRONMENT(
                self.where(difference.ranks), self._shown(difference), name=difference.name
            )

    def _hardware(self) -> Iterator[Diagnostic]:
        for difference in self._each(lambda facts: facts.cards):
            severity = Severity.WARNING if difference.name == "topology" else Severity.ERROR
            where, shown = self.where(difference.ranks), self._shown(difference)
            yield codes.NODE_CARDS(where, shown, name=difference.name, severity=severity)

    def _network(self) -> Iterator[Diagnostic]:
        """Names of interfaces may differ, and networks where each node has its own (a routed fabric)."""
        networks = Counter(facts.network.get("network") for facts in self._facts.values())
        together = max(networks.values(), default=0) > 1
        for difference in self._each(lambda facts: facts.network):
            if difference.name == "interface" or (difference.name.startswith("network") and not together):
                continue
            yield codes.NODE_NETWORK(
                self.where(difference.ranks), self._shown(difference), name=difference.name
            )
        by_name: dict[str, list[int]] = {}
        for rank, facts in self._facts.items():
            if facts.own_name and all(map(is_loopback, facts.own_name)) and not is_loopback(facts.address):
                by_name.setdefault(", ".join(facts.own_name), []).append(rank)
        for addresses, ranks in by_name.items():
            yield codes.NODE_NAME_LOOPBACK(self.where(ranks), f"{addresses} (/etc/hosts)")

    def _own(self) -> Iterator[Diagnostic]:
        """Findings about one node alone; the same of several nodes become one."""
        ranks: dict[tuple[str, str, str, str, str], list[int]] = {}
        kept: dict[tuple[str, str, str, str, str], Diagnostic] = {}
        for rank, facts in self._facts.items():
            for data in facts.findings:
                finding = Diagnostic.from_json(data)
                key = (finding.code, finding.what, finding.where, finding.found, finding.hint)
                ranks.setdefault(key, []).append(rank)
                kept[key] = finding
        for key, finding in kept.items():
            yield on_nodes(finding, self.where(ranks[key]), ranks[key])


def on_nodes(finding: Diagnostic, where: str, ranks: Sequence[int]) -> Diagnostic:
    """Return ``finding`` with the names of its nodes before its place."""
    from dataclasses import replace

    place = f"{where}: {finding.where}" if finding.where else where
    return replace(finding, where=place, evidence={**finding.evidence, "nodes": list(ranks)})


def clock_findings(
    offsets: Mapping[int, float], where: Callable[[Sequence[int]], str]
) -> Iterator[Diagnostic]:
    """Find the nodes whose clock is away from most. ``offsets``: seconds ahead of node 0."""
    near = {
        rank: sum(abs(other - offset) <= CLOCK_SECONDS for other in offsets.values())
        for rank, offset in offsets.items()
    }
    usual = offsets[max(near, key=lambda rank: (near[rank], -rank))]  # of equal groups node 0's
    for rank, offset in offsets.items():
        ahead = offset - usual
        if abs(ahead) > CLOCK_SECONDS:
            severity = Severity.ERROR if abs(ahead) > CLOCK_ERROR_SECONDS else Severity.WARNING
            shown = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the others"
            yield codes.NODE_CLOCK(where([rank]), shown, severity=severity)


def folder_findings(
    sees: Mapping[int, Sequence[int]], partners: Mapping[int, int], where: Callable[[Sequence[int]], str]
) -> Iterator[Diagnostic]:
    """Find the nodes that do not share the run's folder where the others do.

    ``sees``: the ranks whose files each node sees, of node 0 and its partner (``partners``).
    """
    others = [rank for rank in sees if rank != 0]
    share = [rank for rank in others if 0 in sees[rank]]
    apart = [rank for rank in others if 0 not in sees[rank]]
    if share and apart:
        yield codes.NODE_NOT_SHARED(
            where(apart), f"{len(share) + 1} nodes share the folder, {len(apart)} do not"
        )
        return
    among = [rank for rank in apart if partners.get(rank, 0) != 0 and partners[rank] in sees[rank]]
    if among:
        yield codes.NODE_NOT_SHARED(
            where([0]), f"{len({*among, *(partners[r] for r in among)})} other nodes share the folder"
        )
