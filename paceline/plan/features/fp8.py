"""Products in 8-bit floating point: where they can be computed, and what the plan says of them."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.core.diagnostics import Diagnostic
from paceline.plan import codes
from paceline.plan.hardware.device_kinds import CUDA
from paceline.plan.hardware.probe import Hardware
from paceline.plan.plan import Decision, Plan
from paceline.plan.specs.feature_combination import Combination
from paceline.plan.strategies.spec import strategy_spec

FP8_CAPABILITY = 8.9  # the first with FP8 tensor cores (Ada; then Hopper, 9.0)
_FP8, _WITHOUT_FP8 = "training.fp8", "set fp8: false"


def check_fp8(run: Combination, hardware: Hardware) -> Iterator[Diagnostic]:
    """Refuse fp8 where it has no products, or would act on other weights than those that are trained."""
    precision, strategy, mesh = run.precision, run.strategy, run.mesh
    if not precision.fp8:
        return
    found, name = hardware.capability, hardware.device_name
    if hardware.device != CUDA.name or found is None or found < FP8_CAPABILITY:
        has = f"{name} has {found}" if found else f"this run is on {name}"
        what = f"fp8 needs an NVIDIA device of compute capability {FP8_CAPABILITY} or higher: {has}"
        yield codes.PREC_FP8(what, _FP8, "fp8: true", _WITHOUT_FP8)
    if precision.compute != "bfloat16":
        what = f"all but fp8's products is computed in bfloat16, but training computes in {precision.compute}"
        yield codes.PREC_FP8(what, "training.mixed_precision", precision.compute, "set mixed_precision: bf16")
    if run.adapter is not None:
        what = "fp8 converts layers that are trained in full; LoRA's layers stay as they are"
        yield codes.PREC_FP8(what, _FP8, "fp8: true", _WITHOUT_FP8)
    if strategy is not None and not strategy_spec(strategy).fp8:
        what = (
            f"fp8 is not supported under {strategy}, whose engine reads or casts the layers' weights itself"
        )
        yield codes.PREC_FP8(what, _FP8, "fp8: true", f"distributed_strategy: single, ddp or fsdp; or {_WITHOUT_FP8}")
    elif mesh is not None and (mesh.tp, mesh.pp) != (1, 1):
        axes = ", ".join(f"{n}_size: {v}" for n in ("tp", "pp") if (v := getattr(mesh, n)) > 1)
        what = "fp8 needs whole layers, each on one rank"
        yield codes.PREC_FP8(what, "training.parallelism", axes, f"remove {axes}; or {_WITHOUT_FP8}")


def fp8_decisions(plan: Plan) -> Iterator[Decision]:
    """Yield what fp8 means for speed and memory."""
    if not plan.precision.fp8:
        return
    speed = (
        "torch.compile joins the scaling with what is around it"
        if plan.compile
        else "without torch_compile the passes that scale may cost more than the products save"
    )
    why = (
        "linear layers of the decoder whose sides are multiples of 16, by torchao, a scale a tensor; head,"
        " embedding, norms and attention stay in bfloat16; masters, gradients and moments are as large as in"
        f" bf16; MLP and attention are not fused; {speed}"
    )
    yield Decision(_FP8, "on", why)
