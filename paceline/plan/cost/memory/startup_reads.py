"""What a node reads of the models' files in a start. Processes of a node map the same files, whose pages the
kernel reads once for all of them (``benchmarks/start_memory.py`` counts it).
"""

from __future__ import annotations

from paceline.core.units import human_bytes, human_seconds
from paceline.plan.model.shape import ModelShape
from paceline.plan.plan import Plan
from paceline.plan.strategies.spec import strategy_spec
from paceline.plan.workload.startup_memory import LoadingSpec
from paceline.plan.workload.state_bytes import SIZES

#: Bytes per second of a node's storage that the plan's seconds assume; they scale with the real one.
ASSUMED_SPEED = 10**9
_CUTS_WEIGHTS = 3  # the stage of ZeRO


def bytes_a_node(plan: Plan, start: LoadingSpec) -> int:
    """Return the bytes of models' files that a node reads in a new run: its ranks' parts where each reads its
    own, else all. 0 where weights are drawn from the seed.
    """
    models: dict[str, ModelShape] = {}
    if plan.shape is not None and plan.shape.in_files:
        models[""] = plan.shape
    for (
        role,
        model,
    ) in plan.models.items():  # one without a name is the first model again, from the same files
        if model.model is not None and model.shape is not None and model.shape.in_files:
            models[role] = model.shape
    whole = sum(
        shape.file_bytes or SIZES[shape.stored or "float32"] * shape.num_parameters
        for shape in models.values()
    )
    packs = plan.adapter is not None and plan.adapter.quantization is not None
    made_plain = any(shape.quantised and not shape.experts for shape in models.values())
    if not start.parts or packs or made_plain:  # a weight is read whole to be packed, or made plain
        return whole
    mesh, processes = plan.mesh, plan.world_size // plan.num_nodes
    layout = strategy_spec(plan.strategy).layout(mesh, plan.engine)
    cut = mesh.dp_shard * mesh.cp if layout is not None and layout.zero == _CUTS_WEIGHTS else 1
    return round(whole * min(1.0, processes / (cut * mesh.tp * mesh.pp)))


def in_words(num_bytes: int) -> str:
    """Return what a node reads, and how long that takes at the assumed speed; empty for nothing."""
    if not num_bytes:
        return ""
    seconds = human_seconds(num_bytes / ASSUMED_SPEED)
    return f"; a new run reads {human_bytes(num_bytes)} of model files a node, {seconds} at 1 GB/s"
