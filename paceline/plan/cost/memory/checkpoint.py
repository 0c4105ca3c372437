"""What a checkpoint takes: bytes on disk, and in host memory where it is saved beside training."""

from __future__ import annotations

from dataclasses import replace

from paceline.core.units import human_bytes
from paceline.plan.hardware.probe import Hardware
from paceline.plan.model.shape import ModelShape
from paceline.plan.plan import Decision, Plan
from paceline.plan.workload.local_tensors import pieces_of
from paceline.plan.workload.state_bytes import SIZES, piece_counters, piece_moments

_KEY = "training.save_async"


def checkpoint_bytes(plan: Plan) -> int | None:
    """Return the bytes of a checkpoint's tensors over all ranks: trained weights and their moments.

    None if a model's tensors cannot be listed.
    """
    trained = [model.shape for model in plan.models.values() if model.trained]
    found = [_of_model(plan, shape) for shape in (plan.shape, *trained)]
    known = [num_bytes for num_bytes in found if num_bytes is not None]
    return sum(known) if len(known) == len(found) else None


def _of_model(plan: Plan, shape: ModelShape | None) -> int | None:
    pieces = None if shape is None else pieces_of(shape, plan.adapter, SIZES[plan.precision.master])
    if pieces is None:
        return None
    return sum(
        p.numel * p.size + piece_moments(p, plan.optimizer) + piece_counters(p, plan.optimizer)
        for p in pieces
        if p.trained
    )


def with_snapshot(plan: Plan, hardware: Hardware, held: int) -> Plan:
    """Return ``plan`` with the decision whether checkpoints are saved beside training, if that is asked for.

    Each rank copies what it saves: over a node's ranks about its share of a checkpoint. That must fit beside
    the states in its host memory.
    """
    if not plan.config.training.save_async:
        return plan
    whole, host = checkpoint_bytes(plan), hardware.host_memory_bytes
    decision = Decision(
        _KEY,
        "on",
        "a save copies what it writes into host memory, which later saves reuse; hashing and writing go on"
        " beside training; the size of the copy is not known before the start",
    )
    if whole is not None:
        node = whole // plan.num_nodes
        each = node // (plan.world_size // plan.num_nodes)
        copy = f"{human_bytes(each)} a process, {human_bytes(node)} a node"
        if host and held + node > host:
            reason = (
                f"the copy of what is saved needs {copy}, beside {human_bytes(held)} of states and"
                f" interpreters: more than the {human_bytes(host)} of host memory; saves are synchronous"
            )
            return replace(plan, decisions=(*plan.decisions, Decision(_KEY, "off", reason, granted=False)))
        known = f" (of {human_bytes(host)})" if host else ""
        decision = Decision(
            _KEY,
            "on",
            f"a save copies what it writes into host memory, which later saves reuse: {copy}{known};"
            " hashing and writing go on beside training, at most one save at a time",
        )
    return replace(plan, save_async=True, decisions=(*plan.decisions, decision))
