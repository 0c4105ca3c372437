"""What weights in bfloat16 without fp32 masters cannot be combined with (optimizers that round by chance)."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.config.optimizers import BUILT, supports
from paceline.core.diagnostics import Diagnostic
from paceline.plan import codes
from paceline.plan.combination import Combination
from paceline.plan.strategies.base import strategy_spec

_OPTIM, _INSTEAD = "training.optim", "adamw_torch_fused"


def rounds(name: str) -> bool:
    """Whether the optimizer ``name`` keeps the weights in bfloat16 alone."""
    return name in BUILT and BUILT[name].rounds


def check_bf16_weights(run: Combination) -> Iterator[Diagnostic]:
    """Refuse what would compute in another dtype, or has masters of its own."""
    optimizer, precision, strategy, mesh = run.optimizer, run.precision, run.strategy, run.mesh
    if not rounds(optimizer.name):
        return
    if precision.compute != "bfloat16":
        what = f"{optimizer.name} keeps the weights in bfloat16, but training computes in {precision.compute}"
        hint = f"set mixed_precision: bf16, or optim: {_INSTEAD}"
        yield codes.PREC_BF16_WEIGHTS(what, "training.mixed_precision", precision.compute, hint)
    if run.adapter is not None:
        what = f"{optimizer.name} is for weights trained in full; LoRA's are few, and stay in float32"
        yield codes.PREC_BF16_WEIGHTS(what, _OPTIM, optimizer.name, f"set optim: {_INSTEAD}")
    if strategy is not None and not strategy_spec(strategy).bf16_masters:
        if supports(optimizer.name, strategy_spec(strategy).state_split):  # else refused for that
            what = f"{optimizer.name} has no float32 masters, which {strategy} trains with"
            hint = f"set distributed_strategy: single, ddp or fsdp, or optim: {_INSTEAD}"
            yield codes.PREC_BF16_WEIGHTS(what, _OPTIM, optimizer.name, hint)
    elif mesh is not None and (mesh.tp, mesh.cp, mesh.pp) != (1, 1, 1):
        axes = ", ".join(f"{n}_size: {v}" for n in ("tp", "cp", "pp") if (v := getattr(mesh, n)) > 1)
        what = f"{optimizer.name} shards over data-parallel ranks only"
        hint = f"remove {axes}, or set optim: {_INSTEAD}"
        yield codes.PREC_BF16_WEIGHTS(what, "training.parallelism", axes, hint)
