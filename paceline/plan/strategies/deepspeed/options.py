"""DeepSpeed's stage, mesh and options; ZeRO's ranks count as dp_shard, AutoTP as tp, Ulysses as cp."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from paceline.core.diagnostics import Diagnostic
from paceline.core.json_types import Json, JsonObject
from paceline.plan import codes
from paceline.plan.mesh import PARALLELISM, BatchSplit, Mesh, cp_heads, tp_heads, tp_inside_node
from paceline.plan.plan import Precision
from paceline.plan.strategies.deepspeed.compile_config import compile_config
from paceline.plan.strategies.deepspeed.zero_block import (
    KEY,
    offload_device,
    requested_stage,
    user_config,
    zero_block,
)
from paceline.plan.strategies.spec import Findings, Job
from paceline.plan.strategy_options import DeepSpeedOptions

#: Axes that DeepSpeed's mesh does not have, and the strategy that has them.
LACKING = {"pp": "pipeline", "dp_replicate": "fsdp"}


def deepspeed_mesh(job: Job, findings: Findings) -> Mesh:
    """Return the mesh ``dp_shard × cp × tp``; sizes in the file and ``training.parallelism`` must agree."""
    user = user_config(job.training)
    # Sizes of both axes, and axes that DeepSpeed lacks.
    tp = _agreed("tp", autotp_size(user, Findings()), job, findings)
    cp = _agreed("cp", _whole(user.get("sequence_parallel_size")), job, findings)
    for axis, instead in LACKING.items():
        if job.axis(axis) > 1:
            findings.refuse(
                codes.PAR_DEEPSPEED(
                    f"{axis}_size is an axis of the native strategies; DeepSpeed has data parallelism,"
                    " AutoTP and Ulysses",
                    f"{PARALLELISM}.{axis}_size",
                    f"{axis}_size: {job.axis(axis)}",
                    f"distributed_strategy: {instead}, or set {axis}_size: 1",
                )
            )
    if tp > 1 and cp > 1:
        findings.refuse(
            codes.PAR_DEEPSPEED(
                "DeepSpeed's AutoTP and Ulysses cannot be combined",
                KEY,
                f"autotp_size {tp} with sequence_parallel_size {cp}",
                "keep one of the two, or set distributed_strategy: fsdp with tp_size and cp_size",
            )
        )
    # The remaining ranks are data-parallel.
    if job.world_size % (tp * cp):
        findings.refuse(
            codes.PAR_DEEPSPEED(
                f"{job.world_size} processes cannot be divided into groups of {tp * cp}",
                KEY,
                f"autotp_size {tp}" if tp > 1 else f"sequence_parallel_size {cp}",
                f"a divisor of {job.world_size}",
            )
        )
        return Mesh(dp_shard=job.world_size)
    _check_degrees(tp, cp, job, findings)
    if tp > 1 and not _own_partitions(user):
        _check_tensor_plan(tp, job, findings)
    shard, configured = job.world_size // (tp * cp), job.axis("dp_shard")
    if configured not in (1, shard):
        findings.refuse(
            codes.PAR_PRODUCT(
                f"dp_shard_size {configured} × AutoTP {tp} × Ulysses {cp} is not {job.world_size}",
                f"{PARALLELISM}.dp_shard_size",
                str(configured),
                f"dp_shard_size: {shard}",
            )
        )
    return Mesh(dp_shard=shard, cp=cp, tp=tp)


def _check_degrees(tp: int, cp: int, job: Job, findings: Findings) -> None:
    """Check sizes named in the DeepSpeed file like the config rules check ``training.parallelism``."""
    # AutoTP: heads, the family's plan, KV heads.
    heads = job.shape.heads if job.shape else None
    if heads is not None and job.axis("tp") == 1:
        findings.refuse(tp_heads(heads, tp, KEY, f"autotp_size: {tp}"))
    if job.shape is not None and tp > 1 and not job.shape.family.tensor_plan:
        findings.refuse(no_tensor_plan(KEY, f"model_type {job.shape.model_type} with autotp_size {tp}"))
    _check_kv_heads(tp, job, findings)
    # Ulysses divides heads; AutoTP groups stay inside a node.
    if heads is not None and job.axis("cp") == 1:
        findings.refuse(cp_heads(heads, cp, f"a divisor of {heads}", KEY, f"sequence_parallel_size: {cp}"))
    if job.num_nodes > 1 and job.axis("tp") == 1:
        findings.refuse(tp_inside_node(job.ranks_per_node, tp, "autotp_size: {}", KEY, f"autotp_size: {tp}"))
    if cp > 1 and job.parallelism.cp_method == "allgather":
        findings.explain(
            f"{PARALLELISM}.cp_method",
            "ulysses",
            "under DeepSpeed, Ulysses shards sequences; distributed_strategy: fsdp has allgather",
            granted=False,
        )


def no_tensor_plan(where: str, found: str) -> Diagnostic:
    """Return the refusal of AutoTP for a model without a tensor-parallel plan."""
    return codes.STRATEGY_DEEPSPEED_TP_PLAN(
        "AutoTP needs the model's own tensor-parallel plan, but this model has none",
        where,
        found,
        "use a model that has one (llama, qwen2, mistral, gemma2, …), or autotp_size: 1",
    )


def tensor_plan_without_zero(where: str, found: str, hint: str) -> Diagnostic:
    """Return the refusal of AutoTP at stage 0."""
    return codes.STRATEGY_DEEPSPEED_TP_STAGE(where, found, hint=hint)


def _own_partitions(user: Mapping[str, Json]) -> bool:
    """Whether the file itself defines how matrices are sharded."""
    block = user.get("tensor_parallel")
    return isinstance(block, Mapping) and bool(block.get("partition_config"))


def _check_tensor_plan(tp: int, job: Job, findings: Findings) -> None:
    if job.shape is not None and not job.shape.family.autotp:
        findings.refuse(
            codes.STRATEGY_DEEPSPEED_TP_PLAN(
                "AutoTP follows the model's own tensor-parallel plan, but this one shards in ways that"
                " DeepSpeed does not know",
                KEY,
                f"model_type {job.shape.model_type} with autotp_size {tp}",
                "set distributed_strategy: fsdp with tp_size, autotp_size: 1, or"
                " tensor_parallel.partition_config",
            )
        )


def _check_kv_heads(tp: int, job: Job, findings: Findings) -> None:
    heads, kv_heads = (job.shape.heads, job.shape.kv_heads) if job.shape else (None, None)
    if (
        kv_heads is not None
        and heads is not None
        and heads % tp == 0
        and kv_heads < tp
        and job.axis("tp") == 1
    ):
        findings.refuse(
            codes.PAR_TP_KV_HEADS(
                f"{kv_heads} key-value head{'s' if kv_heads > 1 else ''} for {tp} ranks: each rank of"
                " AutoTP needs its own",
                KEY,
                f"autotp_size: {tp}",
                f"autotp_size: {math.gcd(kv_heads, tp)}"
                if math.gcd(kv_heads, tp) > 1
                else "set distributed_strategy: fsdp or zero3, without autotp_size",
            )
        )


def _agreed(axis: str, in_file: int, job: Job, findings: Findings) -> int:
    """Return the size of an axis that both the file and ``training.parallelism`` may set."""
    configured = job.axis(axis)
    if configured > 1 and in_file > 1 and configured != in_file:
        name = "tensor_parallel.autotp_size" if axis == "tp" else "sequence_parallel_size"
        findings.refuse(
            codes.PAR_DEEPSPEED(
                f"{axis}_size and the DeepSpeed file's {name} differ",
                f"{PARALLELISM}.{axis}_size",
                f"{configured} and {in_file}",
                "set the same number in both, or only one of the two",
            )
        )
    return max(configured, in_file)


def autotp_size(user: Mapping[str, Json], findings: Findings) -> int:
    """Return AutoTP's degree in any of its spellings (1: off).

    Keys that DeepSpeed would reject or silently ignore are translated and reported.
    """
    block = user.get("tensor_parallel")
    if not isinstance(block, dict) or block.get("enabled") is False:
        return 1
    inner: JsonObject = next(
        (block[name] for name in ("tp", "tensor_parallel") if isinstance(block.get(name), dict)), {}
    )
    sizes = {
        "autotp_size": _whole(block.get("autotp_size")),
        "tp_size": _whole(block.get("tp_size")),
        "tp.tp_size": _whole(inner.get("tp_size")),
    }
    # All spellings must agree; others than DeepSpeed's own are translated.
    degrees = {name: size for name, size in sizes.items() if size > 1}
    if len(set(degrees.values())) > 1:
        findings.refuse(
            codes.PAR_DS_TP_MISMATCH(KEY, ", ".join(f"{name}: {size}" for name, size in degrees.items()))
        )
    size = max(degrees.values(), default=1)
    if size > 1 and "autotp_size" not in degrees:
        key = next(iter(degrees))
        why = (
            "DeepSpeed rejects the key"
            if key == "tp_size"
            else "DeepSpeed accepts the key and silently trains without tensor parallel"
        )
        findings.explain(
            "tensor_parallel",
            f"set autotp_size: {size}",
            f"{key} in the file: {why}; this is its own spelling",
        )
    return size


def _check_family(stage: int, job: Job, findings: Findings) -> None:
    """Reject sharded weights for a family whose ranks would gather them in different orders."""
    if stage == 3 and job.shape is not None and job.shape.family.experts_in_turn:
        findings.refuse(
            codes.PLAN_FAMILY_STRATEGY(
                f"models of type '{job.shape.model_type}' visit only the experts that a rank's tokens"
                " chose, but"
                " ZeRO-3 gathers and reduces the same weights on every rank",
                "training.distributed_strategy",
                "ZeRO-3",
                "distributed_strategy: fsdp",
            )
        )


def deepspeed_engine(
    named_stage: int | None, job: Job, mesh: Mesh, batch: BatchSplit, precision: Precision, findings: Findings
) -> DeepSpeedOptions:
    """Return ``Plan.engine`` for DeepSpeed; its ``config`` is passed to ``deepspeed.initialize``."""
    user = user_config(job.training)
    stage = _stage_that_counts(
        requested_stage(user) if named_stage is None else named_stage, mesh, precision, findings
    )
    _check_family(stage, job, findings)
    zero = zero_block(user)
    engine = DeepSpeedOptions(
        zero_stage=stage,
        autotp_size=max(mesh.tp, autotp_size(user, findings)),
        sequence_parallel_size=mesh.cp,
        offload_optimizer=offload_device(zero, "offload_optimizer"),
        offload_param=offload_device(zero, "offload_param") if stage == 3 else "none",
    )
    _check_stage(stage, engine.autotp_size, job, precision, findings)
    _report_engine(engine, mesh, findings)
    return replace(engine, config=compile_config(user, engine, job, batch, precision, findings))


def _stage_that_counts(stage: int, mesh: Mesh, precision: Precision, findings: Findings) -> int:
    """Use stage 2 instead of 1 for bfloat16 under Ulysses.

    DeepSpeed 0.19's optimizer for that case (``BF16_Optimizer``) takes the sequence-parallel ranks for a
    tensor-parallel group. It counts gradients only on the first of them and finds none on the others.
    """
    if stage == 1 and mesh.cp > 1 and precision.compute == "bfloat16":
        findings.explain(
            "ZeRO stage",
            "2",
            "1 was requested; in bfloat16, DeepSpeed's stage 1 loses the gradient norm when ranks"
            " share a sequence. Same numbers, with gradients sharded as well",
            granted=False,
        )
        return 2
    return stage


def _check_stage(stage: int, tp: int, job: Job, precision: Precision, findings: Findings) -> None:
    """Reject settings that DeepSpeed rejects or computes incorrectly at this stage."""
    if tp > 1 and not stage:
        findings.refuse(
            tensor_plan_without_zero(
                KEY, f"stage 0 with autotp_size {tp}", 'set "zero_optimization": {"stage": 1}'
            )
        )
    hardware = job.hardware
    if (
        stage
        and precision.compute == "float16"
        and hardware.device == "cpu"
        and "float16" not in hardware.products
    ):
        findings.refuse(
            codes.STRATEGY_DEEPSPEED_FP16(
                "training.mixed_precision", "fp16", stage=stage, device_name=hardware.device_name
            )
        )


def _report_engine(engine: DeepSpeedOptions, mesh: Mesh, findings: Findings) -> None:
    shared = {
        0: "complete copies on every rank, gradients averaged",
        1: "optimizer states sharded",
        2: "optimizer states and gradients sharded",
        3: "optimizer states, gradients and weights sharded",
    }
    findings.explain(
        f"ZeRO-{engine.zero_stage}", f"over {mesh.dp_shard * mesh.cp} ranks", shared[engine.zero_stage]
    )
    if engine.autotp_size > 1:
        findings.explain(
            "AutoTP",
            f"{engine.autotp_size} ranks share each matrix",
            "checked at the start: the run stops if the weights are not sharded",
        )
    if engine.sequence_parallel_size > 1:
        findings.explain(
            "Ulysses",
            f"{engine.sequence_parallel_size} ranks share each row",
            "heads are exchanged for sequence around attention",
        )
    parts = (("offload_optimizer", "optimizer states"), ("offload_param", "weights"))
    for (part, name), device in zip(parts, engine.places, strict=True):
        if device != "none":
            findings.explain(part, device, f"requested: {name} are kept there between steps")


def _whole(value: Json) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return 1
    try:
        return max(1, int(value))
    except ValueError:
        return 1
