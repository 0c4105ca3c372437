"""Hardware by name: the catalogue, counts, YAML files, and what is said to unknown ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.core.errors import ConfigError
from paceline.plan.hardware.device_catalogue import card_named, cards, cluster_of, instances


def test_a_count_and_a_name_are_a_cluster_of_whole_nodes() -> None:
    cluster = cluster_of("16xH100")
    assert (cluster.cards, cluster.nodes, cluster.machine.node) == (16, 2, 8)
    assert (
        cluster.machine.flops == 989e12
        and cluster.machine.inside == 450e9
        and cluster.machine.outside == 50e9
    )
    assert 78 * 2**30 < cluster.machine.memory < 80 * 2**30
    assert cluster_of("4 x a100 40gb").machine.node == 4
    assert cluster_of("RTX 4090").cards == 1


@pytest.mark.parametrize("name", ["H100", "h100-sxm", "NVIDIA H100 80GB HBM3", "DGX H100"])
def test_names_are_read_whatever_their_case_and_separators(name: str) -> None:
    assert card_named(name).name == "H100-SXM-80GB"


def test_every_card_has_numbers_and_no_two_share_a_name() -> None:
    names = [spelling for card in cards().values() for spelling in (card.name, *card.aliases)]
    assert len(names) == len(set(names)) and len(cards()) >= 30
    for card in cards().values():
        machine = card.machine()
        assert (
            min(machine.memory, machine.flops, machine.reached, machine.hbm, machine.inside, machine.outside)
            > 0
        ), card.name
        assert machine.reached <= machine.flops, card.name


def test_an_unknown_card_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError) as caught:
        cluster_of("16xH101")
    assert caught.value.diagnostics[0].code == "plan.hardware_unknown"
    assert "H100-SXM-80GB" in caught.value.diagnostics[0].hint


def test_half_a_node_more_is_refused_with_the_counts_that_go() -> None:
    with pytest.raises(ConfigError) as caught:
        cluster_of("12xH100")
    assert "8 or 16" in caught.value.diagnostics[0].hint


def test_a_yaml_changes_a_card_or_describes_a_whole_machine(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("card: A100\ncards: 8\ncards_per_node: 4\noutside_gbps: 12.5\nhost_memory_gb: 512\n")
    cluster = cluster_of(str(mine))
    assert (cluster.nodes, cluster.machine.outside, cluster.machine.host_memory) == (2, 12.5e9, 512e9)
    mine.write_text("name: toy\ncards: 2\nmemory_gb: 10\ntflops: 20\nhbm_gbps: 300\ninside_gbps: 8\n")
    assert cluster_of(str(mine)).machine.flops == 20e12 and cluster_of(str(mine)).machine.name == "toy"


@pytest.mark.parametrize(
    ("written", "code", "said"),
    [
        ("cards: 2\n", "plan.hardware_missing", "memory_gb"),
        ("card: H100\nmemry_gb: 3\n", "plan.hardware_key", "memory_gb"),
        ("card: H100\ncards: -1\n", "plan.hardware_value", ""),
        ("- 1\n", "plan.hardware_file", "card"),
        ("card: [\n", "plan.hardware_file", ""),
    ],
)
def test_a_wrong_hardware_file_is_a_diagnostic(written: str, code: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(written)
    with pytest.raises(ConfigError) as caught:
        cluster_of(str(tmp_path / "x.yaml"))
    found = caught.value.diagnostics[0]
    assert found.code == code and said in found.hint + found.found


def test_instances_of_clouds_are_whole_machines() -> None:
    two = cluster_of("2xp5.48xlarge")
    assert (two.cards, two.nodes, two.machine.name) == (16, 2, "H100-SXM-80GB")
    assert two.machine.outside == 3200e9 / 8 / 8 and two.machine.host_memory > 2e12
    assert [cluster_of(name).cards for name in ("ND H100 v5", "a2-ultragpu", "DGX H100", "g5.12xlarge")] == [
        *(8, 8, 8, 4)
    ]
    for instance in instances().values():
        assert instance.card in cards() and cluster_of(instance.name).cards == instance.cards


def test_unlike_nodes_are_planned_by_the_slowest() -> None:
    mixed, slow = cluster_of("4xH100+8xA100"), cluster_of("4xA100")
    assert (mixed.cards, mixed.machine.node) == (12, 4)
    assert mixed.machine.flops == slow.machine.flops and mixed.machine.memory <= slow.machine.memory
    assert "H100" in mixed.machine.name and "A100" in mixed.machine.name
