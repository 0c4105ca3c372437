"""What the nodes send each other, as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar, get_type_hints

from paceline.core.json_types import JsonObject
from paceline.plan.plan_json import from_json

T = TypeVar("T")
_SCALARS = (str, int, float, bool)


def received(kind: type[T], data: JsonObject) -> T:
    """Return the dataclass that another node has sent. Raises OSError for anything else."""
    hints = get_type_hints(kind, localns={"JsonObject": dict})
    try:
        for name, value in data.items():
            hint = hints.get(name)
            if hint in _SCALARS and not isinstance(value, (int, float) if hint is float else hint):
                raise TypeError(f"{name}: {value!r}"[:100])
        return from_json(kind, data)
    except (TypeError, ValueError, AttributeError) as error:
        raise OSError(f"not a message of this version: {error}"[:200]) from error


@dataclass(frozen=True)
class Hello:
    """A node's first message: ``address``, ``port``: where it listens for its partners."""

    rank: int
    nnodes: int
    host: str
    address: str
    port: int

    @property
    def label(self) -> str:
        """The node's name in findings."""
        return node_name(self.rank, self.host)


def node_name(rank: int, host: str) -> str:
    """Return a node's name in findings."""
    return f"node {rank} ({host[:64]})"


@dataclass(frozen=True)
class NodeRequest:
    """NodeServer 0's request, or its verdict.

    - ``kind``: what to do (``node.HANDLERS``), or ``verdict``
    - ``partners``: the nodes to try
    - ``size``: bytes to send, or ranks to start
    - ``token``: names the files of this check in the run's folder, or the device of the ranks
    - ``port``: where the ranks meet
    - ``verdict``: the report
    """

    kind: str
    partners: tuple[Hello, ...] = ()
    size: int = 0
    token: str = ""
    port: int = 0
    verdict: NodesVerdict | None = None


@dataclass(frozen=True)
class NodesVerdict:
    """The report that all nodes print: ``lines`` about nodes and links, and findings as JSON."""

    lines: tuple[str, ...] = ()
    findings: tuple[JsonObject, ...] = ()


@dataclass(frozen=True)
class ClockReading:
    """The answer to ``clock``: seconds since 1970."""

    now: float


@dataclass(frozen=True)
class Trial:
    """One connection from this node to ``rank``: its error (empty: it works), and its round trip.

    ``resolved``: the addresses that the partner's host name has here; ``unresolved``: why it has none.
    """

    rank: int
    error: str = ""
    round_trip: float = 0.0
    resolved: tuple[str, ...] = ()
    unresolved: str = ""


@dataclass(frozen=True)
class Trials:
    """The answer to ``connect``."""

    trials: tuple[Trial, ...] = ()


@dataclass(frozen=True)
class SentBytes:
    """The answer to ``transfer``: bytes a second to ``rank``; ``error``: why there are none.

    ``arrived``: bytes that arrived in any case.
    """

    rank: int
    speed: float = 0.0
    arrived: int = 0
    error: str = ""


@dataclass(frozen=True)
class Transfers:
    """The answers of one round."""

    transfers: tuple[SentBytes, ...] = ()


@dataclass(frozen=True)
class FolderView:
    """The answer to ``look``: the ranks whose tokens this node sees, and whether node 0's lock holds here."""

    sees: tuple[int, ...] = ()
    excluded: bool = True


@dataclass(frozen=True)
class RanksAnswer:
    """The answer to ``ranks``: lines and findings of this node's ranks in an all-reduce of all ranks.

    ``failures``: ranks that ended early.
    """

    lines: tuple[str, ...] = ()
    findings: tuple[JsonObject, ...] = ()
    failures: tuple[str, ...] = ()


@dataclass(frozen=True)
class FileDigest:
    """A file: the config's ``key`` that names it, its name below, its size, and a hash of it or of samples.

    ``digest`` is empty where there was no time for it.
    """

    key: str
    name: str
    size: int
    digest: str = ""


@dataclass(frozen=True)
class NodeFacts:
    """What a node reports of itself; compared over the nodes.

    - ``versions``: by package; ``environment``: variables that matter
    - ``config``: the values that decide the result, by key, shortened
    - ``files``: those that the config names
    - ``network``: interface, its network, MTU and speed, by name
    - ``cards``: number and names; ``topology``: how they are joined
    - ``own_name``: the addresses of the own host name here; ``address``: the one towards node 0
    - ``device``, ``ranks``: what the plan starts here
    - ``line``: the node in a line; ``findings``: those about this node alone
    """

    versions: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)
    files: tuple[FileDigest, ...] = ()
    network: Mapping[str, str] = field(default_factory=dict)
    cards: Mapping[str, str] = field(default_factory=dict)
    own_name: tuple[str, ...] = ()
    address: str = ""
    device: str = "cpu"
    ranks: int = 1
    line: str = ""
    findings: tuple[JsonObject, ...] = ()
