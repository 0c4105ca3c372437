"""The state of this node's NVIDIA cards, from nvidia-smi and the kernel's log: errors, throttling, links."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.doctor.inspect import command_output
from paceline.doctor.nodes import codes

_FIELDS = (
    "index",
    "ecc.errors.uncorrected.volatile.total",
    "retired_pages.pending",
    "remapped_rows.pending",
    "remapped_rows.failure",
    "pcie.link.width.current",
    "pcie.link.width.max",
    "temperature.gpu",
    "clocks_event_reasons.hw_thermal_slowdown",
    "clocks_event_reasons.hw_power_brake_slowdown",
)
_FORMAT = "--format=csv,noheader,nounits"
#: Drivers before 535 have the older name.
QUERIES = tuple(
    ("nvidia-smi", f"--query-gpu={','.join(field.replace('_event_', name) for field in _FIELDS)}", _FORMAT)
    for name in ("_event_", "_throttle_")
)
TOPOLOGY = ("nvidia-smi", "topo", "-m")
KERNEL_LOG = ("dmesg",)  # on many machines for root alone
#: Xids of the hardware; the others are an application's own faults, or follow from one of these.
_HARDWARE_XIDS = {
    48: "an uncorrectable memory error",
    62: "a halted microcontroller",
    64: "a failed retirement of memory",
    74: "an NVLink error",
    79: "the card has fallen off the bus",
    92: "a high rate of memory errors",
    94: "a contained memory error",
    95: "an uncontained memory error",
    119: "a time-out of its firmware",
    120: "an error of its firmware",
    140: "an unrecovered memory error",
}
_NO = ("no", "0", "not active", "n/a", "not supported", "unknown error", "")


@dataclass(frozen=True)
class CardState:
    """One card's line of ``QUERIES``. ``memory_error``: pending or failed repairs; ``slowed``: by heat or
    power.
    """

    index: str
    uncorrected: int
    memory_error: bool
    width: int
    full_width: int
    celsius: str
    slowed: tuple[str, ...]


def card_findings() -> list[Diagnostic]:
    """Ask nvidia-smi and the kernel. Nothing where there is no NVIDIA card."""
    text = next(filter(None, map(command_output, QUERIES)), "")
    if not text:
        return []
    return [*state_findings(parse_states(text)), *xid_findings(command_output(KERNEL_LOG))]


def parse_states(text: str) -> tuple[CardState, ...]:
    """Parse the answer to one of ``QUERIES``."""
    states = []
    for line in text.splitlines():
        cells = [cell.strip().strip("[]") for cell in line.split(",")]
        if len(cells) != len(_FIELDS) or not cells[0].isdecimal():
            continue
        index, uncorrected, *repairs, width, full_width, celsius, heat, power = cells
        slowed = [word for word, value in (("heat", heat), ("power", power)) if value.lower() not in _NO]
        states.append(
            CardState(
                index,
                _number(uncorrected),
                any(value.lower() not in _NO for value in repairs),
                _number(width),
                _number(full_width),
                celsius,
                tuple(slowed),
            )
        )
    return tuple(states)


def state_findings(states: tuple[CardState, ...]) -> Iterator[Diagnostic]:
    """Return what is wrong with the cards."""
    for card in states:
        where = f"card {card.index}"
        if card.memory_error or card.uncorrected:
            repair = "a repair of its memory is pending or has failed" if card.memory_error else ""
            shown = ", ".join(
                filter(None, (f"{card.uncorrected} uncorrectable errors since the last reset", repair))
            )
            severity = Severity.ERROR if card.memory_error else Severity.WARNING
            yield codes.NODE_CARD_MEMORY(where, shown, severity=severity)
        if card.slowed:
            yield codes.NODE_CARD_SLOWED(where, f"{card.celsius} °C", cause=" and ".join(card.slowed))
        if 0 < card.width < card.full_width:
            yield codes.NODE_CARD_LINK(where, f"{card.width} of {card.full_width} PCIe lanes")


def xid_findings(log: str) -> Iterator[Diagnostic]:
    """Return the hardware's errors in the kernel's log since the last boot, one for each card and number."""
    seen = Counter(re.findall(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)", log))
    for (place, number), count in sorted(seen.items()):
        if (meaning := _HARDWARE_XIDS.get(int(number))) is not None:
            yield codes.NODE_CARD_XID(f"card at {place}", f"Xid {number}, {count} times: {meaning}")


def parse_topology(text: str) -> str:
    """Summarise ``nvidia-smi topo -m``: how many pairs of cards are joined in which way."""
    links: Counter[str] = Counter()
    for line in re.sub(r"\x1b\[[\d;]*m", "", text).splitlines():
        cells = line.split()
        if len(cells) > 2 and re.fullmatch(r"GPU\d+", cells[0]) and not cells[1].startswith("GPU"):
            number = int(cells[0].removeprefix("GPU"))
            links.update(cell for cell in cells[1 : number + 1] if cell != "X")
    return ", ".join(f"{count} × {kind}" for kind, count in sorted(links.items()))


def card_facts(names: Counter[str]) -> Mapping[str, str]:
    """Return number, names and joints of the cards, for comparison. ``names``: of the visible ones."""
    if not names:
        return {"cards": "none"}
    cards = ", ".join(f"{count} × {name}" for name, count in sorted(names.items()))
    joints = parse_topology(command_output(TOPOLOGY))
    return {"cards": cards} | ({"topology": joints} if joints else {})


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
