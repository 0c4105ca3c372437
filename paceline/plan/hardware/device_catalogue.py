"""Hardware by name: the shipped catalogue, ``16xH100``, or a user's YAML file.

Machines that clouds sell by name, such as ``p5.48xlarge`` or ``a3-highgpu-8g``.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from paceline.core.errors import ConfigError
from paceline.core.files import read_text
from paceline.core.json_types import Json
from paceline.plan import codes
from paceline.plan.hardware.device_kinds import CPU, CUDA
from paceline.plan.hardware.probe import Hardware, peak_flops
from paceline.plan.plan_json import shipped_table
from paceline.plan.workload.step_spec import ATTENTION_SHARE, ATTENTION_SHARE_LATER, Machine


@dataclass(frozen=True)
class CloudInstance:
    """One kind of instance: ``cards`` accelerators ``card`` of the catalogue.

    - ``network_gbit``: of the whole instance; None if no fast network between instances is sold with it
    - ``host_memory_gb``: 1e9 bytes
    """

    name: str
    cloud: str
    card: str
    cards: int
    network_gbit: float | None
    host_memory_gb: float
    aliases: tuple[str, ...]

    @property
    def fabric(self) -> float | None:
        """Bytes per second and card, one way, to other instances; None if unknown."""
        return self.network_gbit and self.network_gbit / 8 * 1e9 / self.cards


@dataclass(frozen=True)
class _InstanceTable:
    instances: tuple[CloudInstance, ...]


@cache
def instances() -> Mapping[str, CloudInstance]:
    """Return the table by name."""
    return {row.name: row for row in shipped_table("instances", _InstanceTable).instances}


@cache
def _host_memory_a_card() -> Mapping[str, float]:
    """Return the most bytes of host memory a card that clouds sell with each card."""
    most: dict[str, float] = {}
    for row in instances().values():
        most[row.card] = max(most.get(row.card, 0.0), row.host_memory_gb * 1e9 / row.cards)
    return most


@cache
def _by_spelling() -> Mapping[str, CloudInstance]:
    return {_plain_name(word): row for row in instances().values() for word in (row.name, *row.aliases)}


def instance_named(name: str) -> CloudInstance | None:
    """Return an instance by name or alias, ignoring case and separators; None if there is none."""
    return _by_spelling().get(_plain_name(name))


def spellings() -> Mapping[str, str]:
    """Return every spelling without separators → the instance's name, to find near ones."""
    return {word: row.name for word, row in _by_spelling().items()}


def _plain_name(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


GIB = 2**30
HOST_MEMORY = 256e9  # of a node whose card no cloud of the table sells: eight modules of 32 GB, or four of 64
USABLE = 0.985  # share of the nominal memory, if what torch reports is unknown (80 GB A100: 79.15 GiB, 0.989)
FULL_PRECISION = 0.5  # of the 16-bit peak: fp32 matmuls run on tensor cores as TF32 at best
FIELDS = (
    "name",
    "card",
    "cards",
    "cards_per_node",
    "memory_gb",
    "tflops",
    "hbm_gbps",
    "inside_gbps",
    "outside_gbps",
    "host_gbps",
    "host_memory_gb",
)


@dataclass(frozen=True)
class Card:
    """A row of the catalogue; None: not measured or published, and estimated.

    ``usable_gib``: the memory that torch reports; ``reached_tflops``: of the fastest measured matmul.
    ``nvlink_gbps`` links cards of a node, or the ``nvlink_domain`` cards of several; ``fabric_gbps`` links
    nodes (GB/s, one way, per card).
    """

    name: str
    memory_gb: float
    usable_gib: float | None
    tflops: float
    reached_tflops: float | None
    bf16: bool
    hbm_gbps: float
    nvlink_gbps: float | None
    fabric_gbps: float
    pcie_gbps: float
    cards_per_node: int
    nvlink_domain: int | None
    capability: float | None
    aliases: tuple[str, ...]
    unverified: tuple[str, ...]
    sources: Mapping[str, str | list[str]]  # for readers, as the note
    note: str | None

    def machine(self, node: int | None = None) -> Machine:
        """Return the card as the cost model's ``Machine``."""
        return Machine(
            name=self.name,
            memory=(self.usable_gib or self.memory_gb * USABLE) * GIB,
            flops=self.tflops * 1e12,
            reached=(self.reached_tflops or 0.8 * self.tflops) * 1e12,
            hbm=self.hbm_gbps * 1e9,
            node=node or self.cards_per_node,
            inside=(self.nvlink_gbps or self.pcie_gbps / 2) * 1e9,
            outside=self.fabric_gbps * 1e9,
            host=self.pcie_gbps * 1e9,
            domain=self.nvlink_domain or 0,
            attention=ATTENTION_SHARE if 8 <= (self.capability or 9) < 9 else ATTENTION_SHARE_LATER,
        )


@dataclass(frozen=True)
class AcceleratorCluster:
    """``cards`` accelerators like ``machine``.

    ``source``: where the numbers are from; ``unverified``: which of them are unverified.
    """

    machine: Machine
    cards: int
    source: str
    bf16: bool = True
    capability: float | None = None
    unverified: tuple[str, ...] = ()

    @property
    def nodes(self) -> int:
        return max(1, -(-self.cards // self.machine.node))

    def hardware(self) -> Hardware:
        """Return one node as ``Hardware``, for the plan's other rules."""
        flops = {"bfloat16": self.machine.flops, "float16": self.machine.flops}
        return Hardware(
            device=CUDA.name,
            device_name=self.machine.name,
            num_devices=min(self.cards, self.machine.node),
            memory_bytes=int(self.machine.memory),
            host_memory_bytes=int(self.machine.host_memory),
            num_nodes=self.nodes,
            bf16=self.bf16,
            fp16=True,
            cpu_count=128,
            peak_flops=flops if self.bf16 else {"float16": self.machine.flops},
            torch_backends=(CUDA.backend, CPU.backend),
            device_note=f"given by --hardware, {self.source}",
            capability=self.capability,
            packages=None,
        )


@dataclass(frozen=True)
class _CardTable:
    cards: tuple[Card, ...]


@cache
def cards() -> Mapping[str, Card]:
    """Return the catalogue by card name."""
    return {card.name: card for card in shipped_table("hardware", _CardTable).cards}


def card_named(name: str, where: str = "--hardware") -> Card:
    """Return a card by name or alias, ignoring case and separators.

    Raises ConfigError with the nearest names.
    """
    by_spelling = {
        _plain(spelling): card for card in cards().values() for spelling in (*card.aliases, card.name)
    }
    found = by_spelling.get(_plain(name))
    if found is None:
        raise ConfigError(codes.PLAN_HARDWARE_UNKNOWN(where, name, hint=_near(name, by_spelling)))
    return found


def data_sheet_peak(name: str, compute: str) -> float | None:
    """Return the dense peak in FLOP/s of an accelerator in dtype ``compute``; None if unknown.

    Predicted MFU is relative to it.
    """
    try:
        flops: float | None = card_named(name).tflops * 1e12
    except ConfigError:
        flops = max((peak_flops(name) or {}).values(), default=None)
    return None if flops is None else flops * (1.0 if compute in ("bfloat16", "float16") else FULL_PRECISION)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower().replace("nvidia", "").replace("geforce", ""))


def _near(name: str, by_spelling: Mapping[str, Card]) -> str:
    known = dict(spellings()) | {spelling: card.name for spelling, card in by_spelling.items()}
    near = difflib.get_close_matches(_plain(name), known, n=4, cutoff=0.4)
    names = list(dict.fromkeys(known[n] for n in near)) or [
        "H100-SXM-80GB",
        "A100-SXM4-80GB",
        "RTX-4090-24GB",
    ]
    return f"nearest: {', '.join(names)}; or a YAML with {', '.join(FIELDS[1:6])}"


def cluster_of(text: str) -> AcceleratorCluster:
    """Return the cluster for ``16xH100``, ``H100`` (one), ``2xp5.48xlarge`` (two instances of a cloud),
    ``8xH100+8xA100`` (unlike nodes), or a YAML file's path. Raises ConfigError.
    """
    if text.endswith((".yaml", ".yml")):
        return _from_yaml(Path(text))
    parts = [_alike(part, text) for part in text.split("+")]
    return parts[0] if len(parts) == 1 else _slowest(parts)


def _alike(part: str, text: str) -> AcceleratorCluster:
    match = re.fullmatch(r"(?:(\d+)\s*[x×*]\s*)?(\S.*)", part.strip(), re.IGNORECASE)
    count = int(match.group(1) or 1) if match else 0
    if match is None or count < 1:
        raise ConfigError(codes.PLAN_HARDWARE_FORM("--hardware", text))
    instance = instance_named(match.group(2))
    if instance is None:
        card = card_named(match.group(2))
        machine, source = _whole_nodes(card.machine(), count), "the catalogue's data sheet"
        sold = _host_memory_a_card().get(card.name, 0.0) * machine.node
        machine = replace(machine, assumed_host=max(HOST_MEMORY, sold))
    else:
        card, count = cards()[instance.card], count * instance.cards
        machine = replace(
            card.machine(instance.cards),
            outside=instance.fabric or card.fabric_gbps * 1e9,
            host_memory=instance.host_memory_gb * 1e9,
        )
        source = f"{instance.name} of {instance.cloud}"
    return AcceleratorCluster(machine, count, source, card.bf16, card.capability, card.unverified)


def _slowest(parts: list[AcceleratorCluster]) -> AcceleratorCluster:
    """Count every node as the slowest and smallest: each step waits for it, and it decides what fits."""
    machines = [part.machine for part in parts]
    capabilities = [part.capability for part in parts]
    host = [m.host_memory for m in machines]
    machine = Machine(
        name=" + ".join(dict.fromkeys(m.name for m in machines)),
        memory=min(m.memory for m in machines),
        flops=min(m.flops for m in machines),
        hbm=min(m.hbm for m in machines),
        node=math.gcd(*(m.node for m in machines)),
        inside=min(m.inside for m in machines),
        outside=min(m.outside for m in machines),
        reached=min(m.reached for m in machines),
        attention=min(m.attention for m in machines),
        host=min(m.host for m in machines),
        host_memory=min(host),  # 0: unknown
        assumed_host=min(m.host_memory or m.assumed_host for m in machines),
    )
    return AcceleratorCluster(
        machine,
        sum(part.cards for part in parts),
        f"unlike nodes, planned by the slowest of each number ({'; '.join(p.source for p in parts)})",
        all(part.bf16 for part in parts),
        None if None in capabilities else min(c for c in capabilities if c is not None),
        tuple(dict.fromkeys(name for part in parts for name in part.unverified)),
    )


def _whole_nodes(machine: Machine, count: int) -> Machine:
    """Shrink the node if there are fewer cards than a node has; refuse partial nodes."""
    if count > machine.node and count % machine.node:
        upper = -(-count // machine.node) * machine.node
        raise ConfigError(
            codes.PLAN_HARDWARE_NODES(
                f"nodes with {machine.name} have {machine.node} devices, and all nodes are assumed"
                " to be alike",
                "--hardware",
                str(count),
                f"{count // machine.node * machine.node} or {upper}, or a YAML with cards_per_node",
            )
        )
    return replace(machine, node=min(machine.node, count))


def _from_yaml(path: Path) -> AcceleratorCluster:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        data = YAML(typ="safe").load(read_text(path))
    except (OSError, ValueError, YAMLError) as exc:
        raise ConfigError(
            codes.PLAN_HARDWARE_FILE("this hardware file cannot be read", str(path), str(exc).splitlines()[0])
        ) from exc
    if not isinstance(data, dict):
        raise ConfigError(
            codes.PLAN_HARDWARE_FILE(
                "a hardware file must contain one mapping", str(path), type(data).__name__, ", ".join(FIELDS)
            )
        )
    _check_values(path, data)
    # Start from the named card, or require all of its numbers.
    card = card_named(str(data["card"]), f"{path}: card") if data.get("card") else None
    missing = [
        key for key in ("memory_gb", "tflops", "hbm_gbps", "inside_gbps") if card is None and key not in data
    ]
    if missing:
        raise ConfigError(codes.PLAN_HARDWARE_MISSING(str(path), ", ".join(missing)))
    count = int(data.get("cards", 1))
    node = int(data.get("cards_per_node", card.cards_per_node if card else min(count, 8)))
    base = card.machine(node) if card else Machine("", 0, 0, 0, node, 0, 0)
    # The file's numbers, in bytes and FLOP/s, override the card's.
    inside = _scaled(data, "inside_gbps", 1e9)
    machine = replace(
        base,
        name=str(data.get("name") or base.name or path.stem),
        memory=_scaled(data, "memory_gb", GIB * USABLE) or base.memory,
        flops=_scaled(data, "tflops", 1e12) or base.flops,
        hbm=_scaled(data, "hbm_gbps", 1e9) or base.hbm,
        inside=inside or base.inside,
        outside=_scaled(data, "outside_gbps", 1e9) or base.outside or inside or 0.0,
        host=_scaled(data, "host_gbps", 1e9) or base.host,
        host_memory=_scaled(data, "host_memory_gb", 1e9) or base.host_memory,
    )
    return AcceleratorCluster(
        _whole_nodes(machine, count),
        count,
        str(path),
        card.bf16 if card else True,
        card.capability if card else None,
    )


def _check_values(path: Path, data: Mapping[str, Json]) -> None:
    """Raise ConfigError for unknown keys, and for values that are not numbers above 0."""
    wrong = sorted(str(key) for key in data if key not in FIELDS)
    if wrong:
        near = [difflib.get_close_matches(key, FIELDS, n=1, cutoff=0.0)[0] for key in wrong]
        raise ConfigError(codes.PLAN_HARDWARE_KEY(str(path), ", ".join(wrong), near=", ".join(near)))
    for key, value in data.items():
        if key not in ("name", "card") and (
            isinstance(value, bool) or not isinstance(value, int | float) or value <= 0
        ):
            raise ConfigError(codes.PLAN_HARDWARE_VALUE(f"{path}: {key}", repr(value), key=key))


def _scaled(data: Mapping[str, Json], key: str, unit: float) -> float | None:
    value = data.get(key)
    return value * unit if isinstance(value, (int, float)) else None
