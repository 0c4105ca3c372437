"""Time of a collective from latency and bandwidth of its process group, given where the ranks are."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.plan.cost.coefficients import SpeedCoefficients
from paceline.plan.workload.step_spec import Machine


@dataclass(frozen=True)
class Group:
    """A process group: ``size`` ranks, ``stride`` apart, on nodes of ``Machine.node`` devices."""

    size: int
    stride: int

    def members_in_node(self, machine: Machine) -> int:
        """Number of the group's ranks in one node."""
        return max(1, min(self.size, machine.node // self.stride if self.stride < machine.node else 1))

    def nodes(self, machine: Machine) -> int:
        """Number of nodes that the group spans."""
        return -(-self.size // self.members_in_node(machine))


def bandwidth(group: Group, machine: Machine, c: SpeedCoefficients) -> float:
    """Return a ring's bus bandwidth over the group, in bytes per second.

    Inside a node this is NVLink; between nodes the network adapters of the group's ranks in a node, less on
    more nodes. The fall with the number of nodes is fitted: measured all-gathers over 1 to 64 nodes (HF's
    cluster) fall from 250 to 11 GB/s.
    """
    nodes = group.nodes(machine)
    inside = machine.inside * c.link_inside
    if nodes == 1:
        return inside
    outside = machine.outside * group.members_in_node(machine) * c.link_outside / nodes**c.link_fall
    return min(inside, outside)


def latency(group: Group, machine: Machine, c: SpeedCoefficients) -> float:
    """Return the seconds before the first byte: a base plus one hop per ring step.

    After NCCL's model (src/graph/tuning.cc).
    """
    nodes = group.nodes(machine)
    return 8.4e-6 + (group.size - nodes) * 3.4e-6 + (nodes - 1) * 14e-6 * c.hop


def pass_time(group: Group, count: float, machine: Machine, c: SpeedCoefficients) -> float:
    """Return the seconds of one all-gather or reduce-scatter of ``count`` bytes (the whole tensor)."""
    if group.size <= 1:
        return 0.0
    return latency(group, machine, c) + count * (group.size - 1) / group.size / bandwidth(group, machine, c)
