"""What weights in bfloat16 without fp32 masters cannot be combined with (``pure_bf16``, or an optimizer that
rounds by chance).
"""

from __future__ import annotations

from collections.abc import Iterator

from paceline.config.registries.optimizers import BUILT, supports
from paceline.core.diagnostics import Diagnostic
from paceline.plan import codes
from paceline.plan.specs.feature_combination import Combination
from paceline.plan.strategies.spec import strategy_spec

_OPTIM, _PURE = "training.optim", "training.pure_bf16"


def rounds(name: str) -> bool:
    """Whether the optimizer ``name`` keeps the weights in bfloat16 alone."""
    return name in BUILT and BUILT[name].rounds


def check_bf16_weights(run: Combination) -> Iterator[Diagnostic]:
    """Refuse what would compute in another dtype, or has masters of its own."""
    optimizer, precision, strategy, mesh = run.optimizer, run.precision, run.strategy, run.mesh
    by_optimizer = rounds(optimizer.name)
    if not by_optimizer and not run.pure_bf16:
        return
    who = optimizer.name if by_optimizer else "pure_bf16"
    where, value = (_OPTIM, optimizer.name) if by_optimizer else (_PURE, "pure_bf16: true")
    instead = "optim: adamw_torch_fused" if by_optimizer else "pure_bf16: false"
    if precision.compute != "bfloat16":
        what = f"{who} keeps the weights in bfloat16, but training computes in {precision.compute}"
        other = "model.dtype: float32" if precision.compute == "float64" else "mixed_precision: bf16"
        hint = f"set {other} (the device must compute it), or {instead}"
        yield codes.PREC_BF16_WEIGHTS(what, "training.mixed_precision", precision.compute, hint)
    if run.adapter is not None:
        what = f"{who} is for weights trained in full; LoRA's are few, and stay in float32"
        yield codes.PREC_BF16_WEIGHTS(what, where, value, f"set {instead}")
    if not by_optimizer and optimizer.name in BUILT and BUILT[optimizer.name].averaged:
        what = f"{optimizer.name} averages the weights, and bfloat16 alone loses what each step adds"
        yield codes.PREC_BF16_WEIGHTS(what, where, value, f"set {instead}, or optim: adamw_bf16_rounding")
    if strategy is not None and not strategy_spec(strategy).bf16_masters:
        if not by_optimizer or supports(optimizer.name, strategy_spec(strategy).state_split):  # else refused
            what = f"{who} has no float32 masters, which {strategy} trains with"
            hint = f"set distributed_strategy: single, ddp or fsdp, or {instead}"
            yield codes.PREC_BF16_WEIGHTS(what, where, value, hint)
    elif mesh is not None and (mesh.tp, mesh.cp, mesh.pp) != (1, 1, 1):
        axes = ", ".join(f"{n}_size: {v}" for n in ("tp", "cp", "pp") if (v := getattr(mesh, n)) > 1)
        what = f"{who} shards over data-parallel ranks only"
        hint = f"remove {axes}, or set {instead}"
        yield codes.PREC_BF16_WEIGHTS(what, "training.parallelism", axes, hint)
