"""The plan's decisions on the optimizer: the place of its states, and the cost of its first step."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.config.registries.optimizers import BUILT, Optimizer
from paceline.core.diagnostics import Diagnostic
from paceline.plan import codes
from paceline.plan.hardware.probe import Hardware
from paceline.plan.model.parameter_list import parameters_of, projected
from paceline.plan.model.shape import ModelShape
from paceline.plan.plan import Decision, OptimizerSpec


def optimizer_decision(optimizer: OptimizerSpec, hardware: Hardware, shape: ModelShape | None) -> Decision:
    """Return the decision on ``training.optim``, with its unusual properties."""
    return Decision(
        "training.optim",
        optimizer.name,
        "; ".join(_reasons(BUILT[optimizer.name], optimizer, hardware, shape)) or "requested",
    )


def _reasons(
    row: Optimizer, optimizer: OptimizerSpec, hardware: Hardware, shape: ModelShape | None
) -> Iterator[str]:
    if row.fixed.get("fused"):
        yield "one kernel for all parameters, on this device as well"
    if row.rounds:
        yield (
            "weights and gradients in bfloat16, no fp32 masters: 12 bytes a parameter with the fp32 moments"
            " instead of 18; each update is rounded stochastically, so that none is lost on average"
        )
    if row.orthogonalises:
        yield (
            "Muon updates the matrices of hidden layers (fused experts one by one), AdamW the embeddings, the"
            " head and vectors; a sharded matrix is gathered, and each rank orthogonalises it"
        )
        yield f"iterations in {optimizer.args.get('ns_dtype', 'bfloat16')}"
    if row.projects:
        rank, gap = optimizer.args.get("rank") or 128, optimizer.args.get("update_proj_gap") or 200
        renewed = (
            "new random directions"
            if row.draws
            else "a singular value decomposition of each matrix's gradient, which takes seconds to minutes"
            " for billions of parameters"
        )
        yield f"moments of gradients projected to rank {rank}; every {gap} steps {renewed}"
    if row.by_blocks and not {"dim", "n_heads"} <= optimizer.args.keys():
        yield (
            "the sizes of heads are not known: a second moment for each row of queries and keys; optim_args:"
            " dim=HIDDEN_SIZE,n_heads=ATTENTION_HEADS for one a head"
        )
    if row.averaged:
        yield (
            "evaluation, generation and checkpoints use the averaged weights; during evaluation and"
            " generation a copy of the trained weights takes extra memory; a checkpoint contains both"
        )
    if row.quantised:
        yield (
            "moments in 8 or 4 bits with an fp32 scale per block for tensors of at least 4,096 elements;"
            " smaller ones stay in floating point; a resume with other shards dequantises them"
        )
    if row.compiles and hardware.device == "cpu":
        yield "its step is not compiled on a CPU"
    elif row.compiles:
        shapes = {(p.shape, p.decays) for p in parameters_of(shape)} if shape is not None else None
        count = "each tensor shape" if shapes is None else f"each of {len(shapes)} tensor shapes"
        yield f"the first step compiles a kernel for {count}, which takes some seconds each"


def check_targets(optimizer: OptimizerSpec, shape: ModelShape | None) -> Iterator[Diagnostic]:
    """Refuse target modules without a matrix to project, since AdamW would then train all weights."""
    row, targets = BUILT.get(optimizer.name), optimizer.target_modules
    if row is None or not row.projects or not targets or shape is None:
        return
    names = [(p.name, len(p.shape)) for p in parameters_of(shape)]
    if names and not any(projected(name, dims, targets) for name, dims in names):
        yield codes.PLAN_OPTIM_TARGET_MODULES(
            "training.optim_target_modules", ", ".join(targets), name=optimizer.name
        )
