"""Choose dtypes: fp32 master weights, or bf16 ones with stochastic rounding; and a compute dtype that the
hardware supports.
"""

from __future__ import annotations

from collections.abc import Iterator

from paceline.config.registries.optimizers import BUILT, supports
from paceline.core.diagnostics import Diagnostic
from paceline.plan import codes
from paceline.plan.hardware.device_kinds import CUDA
from paceline.plan.hardware.probe import Hardware
from paceline.plan.plan import Combination, Decision, Plan, Precision
from paceline.plan.strategies.spec import strategy_spec

_DTYPES = {"no": "float32", "bf16": "bfloat16", "fp16": "float16"}


def choose_precision(
    requested: str, hardware: Hardware, master: str = "float32", *, bf16_weights: bool = False
) -> Precision:
    """Return the precision for ``auto``, ``no``, ``fp16`` or ``bf16``.

    The config rules refuse unsupported dtypes. ``master`` float64 (``model.dtype``) computes everything in
    float64, for comparing strategies, not for training. ``bf16_weights``: weights are only in bfloat16, and
    ``auto`` computes in it.
    """
    if master == "float64":
        return Precision("float64", "float64", "float64", False, "model.dtype: float64")
    word, reason = _auto(hardware) if requested == "auto" else (requested, "requested")
    if requested == "auto" and bf16_weights and hardware.bf16:
        word, reason = "bf16", "auto: the dtype of the weights"
    if requested in ("bf16", "fp16"):
        how = f"{hardware.device_name} computes it in hardware"
        if hardware.device == "cpu" and _DTYPES[requested] not in hardware.products:
            how = f"{hardware.device_name} converts it, and computes products in float32"
        if requested in hardware.emulated:
            how = (
                f"{hardware.device_name} has no instructions for it: correct, but hardly faster than float32"
            )
        reason = f"requested; {how}"
    return Precision(
        _DTYPES[word],
        "bfloat16" if bf16_weights and word == "bf16" else "float32",
        "float32",
        word == "fp16",
        reason,
    )


def _auto(hardware: Hardware) -> tuple[str, str]:
    """Return (``no``, ``fp16`` or ``bf16``; the reason)."""
    if hardware.device == "cpu":
        more = (
            "; bf16: true is faster on this processor"
            if hardware.bf16 and "bf16" not in hardware.emulated
            else ""
        )
        return "no", f"auto: float32 on a CPU{more}"
    if hardware.bf16:
        return (
            "bf16",
            (
                f"auto: {hardware.device_name} computes bf16 in hardware; it has fp32's range, so no"
                " loss scale is needed"
            ),
        )
    if hardware.fp16:
        return "fp16", f"auto: {hardware.device_name} has no bf16 in hardware; fp16 with a loss scale"
    return "no", f"auto: {hardware.device_name} has neither bf16 nor fp16 in hardware"


def check_full_eval(run: Combination, hardware: Hardware) -> Iterator[Diagnostic]:
    """Refuse ``bf16_full_eval`` and ``fp16_full_eval`` unless training computes in that dtype.

    Evaluation uses the same low-precision weight copies as training.
    """
    for word in run.full_eval:
        key = f"{word}_full_eval"
        # Without bf16 on the device the rules refuse the key itself
        if run.precision.compute != _DTYPES[word] and (word != "bf16" or hardware.bf16):
            yield codes.PREC_FULL_EVAL(
                f"training.{key}",
                f"{key}: true",
                compute=run.precision.compute,
                key=key,
                dtypes=_DTYPES[word],
                # Not every strategy scales fp16's loss
                alike="set mixed_precision: bf16, so that evaluation casts the weights to it as well; or "
                if word == "bf16"
                else "",
            )


FP8_CAPABILITY = 8.9  # the first with FP8 tensor cores (Ada; then Hopper, 9.0)
_FP8, _WITHOUT_FP8 = "training.fp8", "set fp8: false"


def check_fp8(run: Combination, hardware: Hardware) -> Iterator[Diagnostic]:
    """Refuse fp8 if the device has no fp8 products, or if it would not apply to the trained weights."""
    precision, strategy, mesh = run.precision, run.strategy, run.mesh
    if not precision.fp8:
        return
    capability, name = hardware.capability, hardware.device_name
    if hardware.device != CUDA.name or capability is None or capability < FP8_CAPABILITY:
        has = f"{name} has {capability}" if capability else f"this run is on {name}"
        yield codes.PREC_FP8(
            f"fp8 needs an NVIDIA device of compute capability {FP8_CAPABILITY} or higher: {has}",
            _FP8,
            "fp8: true",
            _WITHOUT_FP8,
        )
    if precision.compute != "bfloat16" and hardware.bf16:
        yield codes.PREC_FP8(
            f"all but fp8's products is computed in bfloat16, but training computes in {precision.compute}",
            "training.mixed_precision",
            precision.compute,
            "set mixed_precision: bf16",
        )
    if run.adapter is not None:
        yield codes.PREC_FP8(
            "fp8 converts layers that are trained in full; LoRA's layers stay as they are",
            _FP8,
            "fp8: true",
            _WITHOUT_FP8,
        )
    if strategy is not None and not strategy_spec(strategy).fp8:
        yield codes.PREC_FP8(
            f"fp8 is not supported under {strategy}, whose engine reads or casts the layers' weights itself",
            _FP8,
            "fp8: true",
            f"distributed_strategy: single, ddp or fsdp; or {_WITHOUT_FP8}",
        )
    elif mesh is not None and (mesh.tp, mesh.pp) != (1, 1):
        sizes = {f"{n}_size": v for n in ("tp", "pp") if (v := getattr(mesh, n)) > 1}
        axes = ", ".join(f"{name}: {size}" for name, size in sizes.items())
        yield codes.PREC_FP8(
            "fp8 needs whole layers, each on one rank",
            "training.parallelism",
            axes,
            f"{' and '.join(f'remove {name}' for name in sizes)}; or {_WITHOUT_FP8}",
        )


def fp8_decisions(plan: Plan) -> Iterator[Decision]:
    """Yield decisions on fp8's speed and memory."""
    if not plan.precision.fp8:
        return
    speed = (
        "torch.compile joins the scaling with what is around it"
        if plan.compile
        else "without torch_compile the passes that scale may cost more than the products save"
    )
    yield Decision(
        _FP8,
        "on",
        "linear layers of the decoder whose sides are multiples of 16, by torchao, a scale a tensor; head,"
        " embedding, norms and attention stay in bfloat16; masters, gradients and moments are as"
        " large as in"
        f" bf16; MLP and attention are not fused; {speed}",
    )


_OPTIM, _PURE = "training.optim", "training.pure_bf16"


def rounds(name: str) -> bool:
    """Whether the optimizer ``name`` keeps the weights in bfloat16 alone."""
    return name in BUILT and BUILT[name].rounds


def check_bf16_weights(run: Combination) -> Iterator[Diagnostic]:
    """Refuse modules that would compute in another dtype, or that have separate master weights."""
    optimizer, precision, strategy, mesh = run.optimizer, run.precision, run.strategy, run.mesh
    by_optimizer = rounds(optimizer.name)
    if not by_optimizer and not run.pure_bf16:
        return
    who = optimizer.name if by_optimizer else "pure_bf16"
    where, value = (_OPTIM, optimizer.name) if by_optimizer else (_PURE, "pure_bf16: true")
    instead = "optim: adamw_torch_fused" if by_optimizer else "pure_bf16: false"
    if precision.compute != "bfloat16":
        other = "model.dtype: float32" if precision.compute == "float64" else "mixed_precision: bf16"
        yield codes.PREC_BF16_WEIGHTS(
            f"{who} keeps the weights in bfloat16, but training computes in {precision.compute}",
            "training.mixed_precision",
            precision.compute,
            f"set {instead}, or {other} on a device that computes it",
        )
    if run.adapter is not None:
        yield codes.PREC_BF16_WEIGHTS(
            f"{who} is for weights trained in full; LoRA's are few, and stay in float32",
            where,
            value,
            f"set {instead}",
        )
    if not by_optimizer and optimizer.name in BUILT and BUILT[optimizer.name].averaged:
        yield codes.PREC_BF16_WEIGHTS(
            f"{optimizer.name} averages the weights, and bfloat16 alone loses what each step adds",
            where,
            value,
            f"set {instead}, or optim: adamw_bf16_rounding",
        )
    if strategy is not None and not strategy_spec(strategy).bf16_masters:
        if not by_optimizer or supports(optimizer.name, strategy_spec(strategy).state_split):  # else refused
            yield codes.PREC_BF16_WEIGHTS(
                f"{who} has no float32 masters, which {strategy} trains with",
                where,
                value,
                f"set distributed_strategy: single, ddp or fsdp, or {instead}",
            )
    elif mesh is not None and (mesh.tp, mesh.cp, mesh.pp) != (1, 1, 1):
        sizes = {f"{n}_size": v for n in ("tp", "cp", "pp") if (v := getattr(mesh, n)) > 1}
        axes = ", ".join(f"{name}: {size}" for name, size in sizes.items())
        yield codes.PREC_BF16_WEIGHTS(
            f"{who} shards over data-parallel ranks only",
            "training.parallelism",
            axes,
            f"{' and '.join(f'remove {name}' for name in sizes)}, or set {instead}",
        )
