"""What nvidia-smi and the kernel's log tell of cards, from answers as their manuals print them."""

from __future__ import annotations

import pytest

from paceline.doctor.nodes.cards import QUERIES, parse_states, parse_topology, state_findings, xid_findings

HEALTHY = """\
0, 0, [N/A], No, No, 16, 16, 31, Not Active, Not Active
1, 0, [N/A], No, No, 16, 16, 33, Not Active, Not Active
"""
#: Boards without ECC, and without a PCIe link of their own.
WITHOUT = "0, [N/A], [N/A], [N/A], [N/A], [N/A], [N/A], 45, Not Active, [N/A]\n"
SICK = """\
0, 0, [N/A], No, No, 16, 16, 31, Not Active, Not Active
1, 3, [N/A], Yes, No, 16, 16, 35, Not Active, Not Active
2, 0, [N/A], No, No, 8, 16, 40, Not Active, Not Active
3, 0, Yes, [N/A], [N/A], 16, 16, 91, Active, Active
"""


@pytest.mark.parametrize("text", [HEALTHY, WITHOUT, "", "No devices were found\n"])
def test_healthy_cards_have_no_findings(text: str) -> None:
    assert list(state_findings(parse_states(text))) == []


def test_each_sick_card_is_named_with_what_it_has() -> None:
    found = [(f.where, f.code.partition(".")[2], f.found) for f in state_findings(parse_states(SICK))]
    pending = "a repair of its memory is pending or has failed"
    assert found == [
        ("card 1", "card_memory", f"3 uncorrectable errors since the last reset, {pending}"),
        ("card 2", "card_link", "8 of 16 PCIe lanes"),
        ("card 3", "card_memory", f"0 uncorrectable errors since the last reset, {pending}"),
        ("card 3", "card_slowed", "91 °C"),
    ]


def test_xids_of_the_hardware_count_and_those_of_a_program_do_not() -> None:
    log = """
[ 12.3] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
[ 13.0] NVRM: Xid (PCI:0000:3b:00): 79, pid=12, GPU has fallen off the bus.
[ 14.9] NVRM: Xid (PCI:0000:86:00): 31, pid=4711, name=python, Ch 00000008, intr 00000000. MMU Fault
[ 15.2] NVRM: Xid (PCI:0000:86:00): 43, pid=4711, name=python, Ch 00000008
"""
    (found,) = xid_findings(log)
    assert (found.where, found.found) == (
        "card at 0000:3b:00",
        "Xid 79, 2 times: the card has fallen off the bus",
    )


def test_a_topology_is_summed_up() -> None:
    matrix = (
        "\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m\n"
        "GPU0\t X \tNV18\tSYS\tPIX\t0-47\t0\n"
        "GPU1\tNV18\t X \tNODE\tSYS\t0-47\t0\n"
        "GPU2\tSYS\tNODE\t X \tSYS\t48-95\t1\n"
        "NIC0\tPIX\tSYS\tSYS\t X \t\t\n"
        "\nLegend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n"
    )
    assert parse_topology(matrix) == "1 × NODE, 1 × NV18, 1 × SYS"


def test_older_drivers_are_asked_by_the_older_name() -> None:
    assert all("clocks_event_reasons" in word or word != QUERIES[0][1] for word in QUERIES[0])
    assert "clocks_throttle_reasons.hw_thermal_slowdown" in QUERIES[1][1] and "_event_" not in QUERIES[1][1]
