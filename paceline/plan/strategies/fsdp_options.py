"""FSDP2's mesh and options. Every key of ``fsdp`` and ``fsdp_config`` is used or reported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from paceline.config import codes as config_codes
from paceline.config.sections.training import TrainingSection
from paceline.plan import codes
from paceline.plan.mesh import PARALLELISM, Mesh
from paceline.plan.strategies.spec import Findings, Job
from paceline.plan.strategy_options import FsdpOptions, Wrap


def fsdp_mesh(job: Job, findings: Findings) -> Mesh:
    """Return the mesh ``pp × dp_replicate × dp_shard × cp × tp``.

    Data-parallel sizes left at 1 take the processes that the other axes leave.
    """
    requested = read_fsdp(job.training)
    sizes = Mesh(pp=job.axis("pp"), cp=job.axis("cp"), tp=job.axis("tp"))
    replicate, shard = job.axis("dp_replicate"), job.axis("dp_shard")
    if job.world_size % sizes.model_copies:
        return Mesh(dp_shard=job.world_size)  # reported as par.product
    left = job.world_size // sizes.model_copies
    hybrid = (requested.sharding or "").startswith("hybrid")
    if (replicate, shard) == (1, 1):
        replicate, shard = _data_axes(requested, hybrid, left, sizes, job, findings)
    elif hybrid and replicate == 1 and left % shard == 0:
        replicate = left // shard
    elif replicate > 1 and shard == 1 and requested.sharding != "no_shard" and (hybrid or left > replicate):
        shard = left // replicate if left % replicate == 0 else 1
    _check_sharding(requested, replicate, shard, findings)
    _check_width(sizes.tp, job, findings)
    mesh = replace(sizes, dp_replicate=replicate, dp_shard=shard)
    return mesh if mesh.size == job.world_size else Mesh(dp_shard=job.world_size)


def _data_axes(
    requested: FsdpRequest, hybrid: bool, left: int, sizes: Mesh, job: Job, findings: Findings
) -> tuple[int, int]:
    """Return (dp_replicate, dp_shard) for ``left`` ranks if the config leaves both open."""
    if requested.sharding == "no_shard":
        return left, 1
    if not hybrid:
        return 1, left
    inside = max(1, job.ranks_per_node // (sizes.cp * sizes.tp))
    if left % inside:
        inside = left
    if inside == left:
        findings.explain(
            "fsdp groups",
            "one",
            f"{requested.sharding}: weights are sharded inside a node and replicated between nodes;"
            f" all {left} ranks are on one node, so there is one copy."
            " training.parallelism.dp_shard_size sets smaller groups",
        )
    return left // inside, inside


def _check_sharding(requested: FsdpRequest, replicate: int, shard: int, findings: Findings) -> None:
    """Refuse a sharding that contradicts the mesh sizes."""
    if requested.sharding in ("full_shard", "shard_grad_op") and replicate > 1:
        other = "hybrid_shard" if requested.sharding == "full_shard" else "hybrid_shard_zero2"
        findings.refuse(
            codes.PAR_SHARDING(
                f"{requested.sharding} shards the weights over all data-parallel ranks, but the mesh"
                f" has {replicate} copies of them",
                PARALLELISM,
                f"dp_replicate_size: {replicate} with fsdp: {requested.sharding}",
                f"set fsdp: {other}, or dp_replicate_size: 1",
            )
        )
    if requested.sharding == "no_shard" and shard > 1:
        findings.refuse(
            codes.PAR_SHARDING(
                "no_shard keeps complete weights on every rank, but the mesh shards them",
                PARALLELISM,
                f"dp_shard_size: {shard} with fsdp: no_shard",
                "set fsdp: full_shard, or dp_replicate_size instead of dp_shard_size",
            )
        )


def _check_width(tp: int, job: Job, findings: Findings) -> None:
    """Refuse tp sizes without a family plan, or that do not divide the MLP (heads: the config rules)."""
    if job.shape is None or tp == 1:
        return
    family = job.shape.model_type
    if not job.shape.family.tensor_plan:
        findings.refuse(
            codes.MODELS_TP_NO_PLAN(
                "this model has no tensor-parallel plan",
                f"{PARALLELISM}.tp_size",
                f"model_type {family} with tp_size {tp}",
                "fsdp without tp_size shards any model",
            )
        )
        return
    if job.shape.experts % tp:
        findings.refuse(
            codes.PAR_TP_WIDTH(
                f"{job.shape.experts} experts cannot be split into {tp} equal parts",
                f"{PARALLELISM}.tp_size",
                f"tp_size: {tp}",
                "a tp_size that divides the experts, and the other ranks for dp_shard_size",
            )
        )
    if job.shape.experts and job.parallelism.sequence_parallel:
        findings.refuse(
            codes.MODELS_TP_STYLE(
                "sequence parallelism shards tokens between blocks, but routers of experts choose for all",
                f"{PARALLELISM}.sequence_parallel",
                f"model_type {family} with tp_size {tp}",
                "sequence_parallel: false",
            )
        )
    if job.shape.experts:
        return  # widths of what is beside the experts differ: the model itself is asked
    if job.shape.intermediate % tp == 0:
        return
    width = job.shape.intermediate
    fitting = max(size for size in range(1, tp + 1) if width % size == 0)
    findings.refuse(
        codes.PAR_TP_WIDTH(
            f"an MLP of width {width} cannot be split into {tp} equal parts",
            f"{PARALLELISM}.tp_size",
            f"tp_size: {tp}",
            f"tp_size: {fitting}, and use the other ranks for dp_shard_size",
        )
    )


def fsdp_engine(job: Job, mesh: Mesh, findings: Findings) -> FsdpOptions:
    """Return FSDP2's options on ``mesh`` (``Plan.engine``, or the ``fsdp`` part of a pipeline's)."""
    requested = read_fsdp(job.training)
    sharding, reason = _sharding(requested, mesh)
    findings.explain("fsdp sharding", sharding, reason)
    if requested.offload and sharding not in ("full_shard", "shard_grad_op"):
        findings.refuse(
            config_codes.FSDP_OFFLOAD(
                f"offload works with full_shard or shard_grad_op, not with {sharding}",
                KEY,
                f"offload with {sharding}",
                "fsdp: [full_shard, offload]",
            )
        )
    engine = FsdpOptions(
        sharding=sharding,
        reshard_after_forward=sharding in ("full_shard", "hybrid_shard"),
        cpu_offload=requested.offload,
        wrap=Wrap(
            requested.wrap or "transformer",
            tuple(requested.classes) if requested.wrap != "size" else (),
            requested.min_num_params if requested.wrap == "size" else 0,
        ),
        backward_prefetch=requested.backward_prefetch,
        forward_prefetch=requested.forward_prefetch,
        meta_start=requested.meta_start,
        sequence_parallel=mesh.tp > 1 and job.parallelism.sequence_parallel,
        loss_parallel=_loss_parallel(job, mesh, findings),
        cp_method=job.parallelism.cp_method,
    )
    _explain_main(engine, requested, job, mesh.pp > 1, findings)
    _report_axes(engine, mesh, job, findings)
    _explain_settings(requested, job, findings)
    return engine


def _loss_parallel(job: Job, mesh: Mesh, findings: Findings) -> bool:
    """Whether head and loss stay sharded along the vocabulary: if tp divides it."""
    if mesh.tp == 1 or not job.parallelism.loss_parallel:
        return False
    if job.shape is None or job.shape.vocab % mesh.tp == 0:
        return True
    findings.explain(
        f"{PARALLELISM}.loss_parallel",
        "off",
        f"a vocabulary of {job.shape.vocab} cannot be divided among {mesh.tp} ranks; if the"
        f" embedding is resized, model.embedding_multiple: {mesh.tp} pads it",
        granted=False,
    )
    return False


def _sharding(requested: FsdpRequest, mesh: Mesh) -> tuple[str, str]:
    """Return (sharding, reason) from the config and the mesh."""
    why = {
        "full_shard": (
            "weights, gradients and optimizer sharded; weights are freed between forward and backward"
        ),
        "shard_grad_op": (
            "weights, gradients and optimizer sharded; weights stay gathered between forward and backward"
        ),
        "no_shard": "complete weights on every rank, gradients averaged",
        "hybrid_shard": f"sharded over {mesh.dp_shard} ranks, {mesh.dp_replicate} copies",
        "hybrid_shard_zero2": (
            f"sharded over {mesh.dp_shard} ranks, {mesh.dp_replicate} copies; weights stay gathered"
            " until the backward"
        ),
    }
    if requested.sharding is not None:
        return requested.sharding, f"requested: {why[requested.sharding]}"
    if mesh.dp_shard == 1 and mesh.dp_replicate > 1:
        return "no_shard", f"the mesh only replicates: {why['no_shard']}"
    if mesh.dp_replicate > 1:
        return "hybrid_shard", f"the mesh replicates and shards: {why['hybrid_shard']}"
    if mesh.pp > 1:
        return (
            "shard_grad_op",
            (f"{why['shard_grad_op']}; gathering them for every micro-batch of a pipeline would cost more"),
        )
    return "full_shard", f"default: {why['full_shard']}"


def _explain_main(
    engine: FsdpOptions, requested: FsdpRequest, job: Job, pipeline: bool, findings: Findings
) -> None:
    version = "with FSDP2 (torch's fully_shard)"
    if requested.version == 1:
        findings.explain(
            "fsdp_version",
            "2",
            f"1 was requested; its sharding strategies are computed {version}: the same numbers,"
            " with parameters sharded one by one instead of in flat buffers",
        )
    else:
        findings.explain("fsdp_version", "2", version)
    wrap = engine.wrap
    if wrap.policy == "size":
        findings.explain(
            "fsdp wrap",
            f"modules of {wrap.min_num_params:,} parameters or more",
            "requested: each is gathered as one unit",
        )
    elif wrap.policy == "none":
        findings.explain(
            "fsdp wrap",
            "the complete model at once",
            "NO_WRAP requested: all weights are gathered together in a forward",
        )
    else:
        findings.explain(
            "fsdp wrap",
            ", ".join(wrap.classes) or "the model's own decoder layers",
            (
                "requested"
                if requested.wrap
                else "default; gathering layer by layer gives the same numbers with less memory"
            ),
        )
    if engine.cpu_offload:
        host = "; on a CPU this saves nothing" if job.hardware.device == "cpu" else ""
        findings.explain(
            "fsdp offload", "cpu", f"requested: shards and their optimizer states are in host memory{host}"
        )
    _explain_start(engine.meta_start, requested, job, pipeline, findings)


def _explain_start(
    meta_start: bool, requested: FsdpRequest, job: Job, pipeline: bool, findings: Findings
) -> None:
    """Explain which ranks read the weights."""
    quantised = job.lora is not None and bool(job.lora.quantization_bit)
    if meta_start and quantised and job.config.model.config:
        findings.explain(
            "fsdp start",
            "all ranks make the model",
            "the weights of model.config are drawn, so there are no files to read a part of: every rank makes"
            " the complete model before its layers are packed in 4 bits",
            granted=requested.cpu_ram_efficient_loading is not True,
        )
        return
    if meta_start and quantised:
        findings.explain(
            "fsdp start",
            "each rank reads its part",
            "of the model's files: it packs one weight after the other in 4 bits and keeps its shard of"
            " each; where the files cannot be read so, every rank reads the complete model",
        )
        return
    if meta_start:
        part = "the tensors of its stages" if pipeline else "its part"
        findings.explain(
            "fsdp start",
            f"each rank reads {part}",
            "of the model's files, below adapters as well; what they do not hold (new weights, and values"
            " that are converted) rank 0 makes and sends",
        )
        return
    findings.explain(
        "fsdp start", "all ranks read", "requested: every rank reads the complete model before it is sharded"
    )


def _report_axes(engine: FsdpOptions, mesh: Mesh, job: Job, findings: Findings) -> None:
    if mesh.tp > 1:
        parts = ["attention heads and MLP columns are sharded"]
        parts.append(
            "norms are sharded along the sequence as well"
            if engine.sequence_parallel
            else "every rank computes the norms"
        )
        parts.append(
            "head and loss are sharded by vocabulary"
            if engine.loss_parallel
            else "logits are gathered for the loss"
        )
        findings.explain("tensor parallel", f"{mesh.tp} ranks", "; ".join(parts))
    elif job.parallelism.sequence_parallel:
        findings.explain(f"{PARALLELISM}.sequence_parallel", "off", "it needs tp_size above 1", granted=False)
    if mesh.cp > 1:
        how = {
            "ulysses": "heads are exchanged for sequence around attention",
            "allgather": "keys and values are gathered in attention",
        }
        findings.explain(
            "context parallel",
            f"{mesh.cp} ranks share each row",
            f"{engine.cp_method}: {how[engine.cp_method]}",
        )


def _explain_settings(requested: FsdpRequest, job: Job, findings: Findings) -> None:
    """Explain what replaces keys of ``fsdp_config`` that have no counterpart."""
    for key, granted in requested.fixed.items():
        findings.explain(f"fsdp_config.{key}", "true", FIXED[key], granted=granted)
    state = requested.state_dict_type
    if state == "local_state_dict":
        findings.refuse(codes.FSDP2_LOCAL_STATE(CONFIG, state))
    elif state:
        findings.explain(
            "fsdp_config.state_dict_type",
            "sharded_state_dict",
            "every rank writes its shards to checkpoints; the export converts them to one Hugging Face"
            " folder",
            granted=state == "sharded_state_dict",
        )
    if requested.backward_prefetch != "backward_pre" or requested.forward_prefetch:
        findings.explain(
            "fsdp prefetch",
            f"backward: {requested.backward_prefetch}, forward: {str(requested.forward_prefetch).lower()}",
            "requested: when the next layer's weights are gathered; the numbers do not change",
        )


SHARDINGS = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")
KEY, CONFIG = "training.fsdp", "training.fsdp_config"
#: Settings that cannot be changed here, and why.
FIXED = {
    "use_orig_params": "FSDP2 keeps every parameter under its own name",
    "limit_all_gathers": "FSDP2 frees gathered weights in stream order, so they never accumulate",
    "sync_module_states": "every rank starts with rank 0's weights",
}
SIZE_BASED_DEFAULT = 100_000_000  # torch's own default of size_based_auto_wrap_policy


@dataclass(frozen=True)
class FsdpRequest:
    """FSDP settings as configured. ``sharding`` and ``wrap`` (transformer, size, none) are None if not set.

    ``version``: 1 or 2 as configured. ``fixed``: which of ``FIXED`` are configured, and whether they match.
    """

    sharding: str | None
    offload: bool
    wrap: str | None
    classes: tuple[str, ...]
    min_num_params: int
    backward_prefetch: str
    forward_prefetch: bool
    meta_start: bool
    version: int | None
    cpu_ram_efficient_loading: bool | None
    state_dict_type: str
    fixed: Mapping[str, bool]


def read_fsdp(training: TrainingSection) -> FsdpRequest:
    """Return the FSDP settings of the config."""
    words = (training.fsdp or "").lower().split()
    written = training.fsdp_config
    settings = {
        key: value
        for key, value in (written if isinstance(written, dict) else {}).items()
        if value is not None
    }
    # The wrap policy, named or implied by other keys.
    classes = tuple(map(str, settings.get("transformer_layer_cls_to_wrap") or ()))
    smallest = int(settings.get("min_num_params") or 0)
    wrap = settings.get("auto_wrap_policy")
    if wrap is None and (classes or "auto_wrap" in words):
        wrap = "transformer"
    elif wrap is None and smallest > 0:
        wrap = "size"
    if wrap == "size" and smallest <= 0:
        smallest = SIZE_BASED_DEFAULT
    # The sharding, or FSDP2's reshard_after_forward.
    sharding = next((word for word in words if word in SHARDINGS), None)
    if sharding is None and isinstance(settings.get("reshard_after_forward"), bool):
        sharding = "full_shard" if settings["reshard_after_forward"] else "shard_grad_op"
    return FsdpRequest(
        sharding=sharding,
        offload="offload" in words or settings.get("cpu_offload") is True,
        wrap=wrap,
        classes=classes,
        min_num_params=smallest,
        backward_prefetch=str(settings.get("backward_prefetch") or "backward_pre"),
        forward_prefetch=settings.get("forward_prefetch") is True,
        meta_start=settings.get("cpu_ram_efficient_loading", True) is not False,
        version=settings.get("version"),
        cpu_ram_efficient_loading=settings.get("cpu_ram_efficient_loading"),
        state_dict_type=str(settings.get("state_dict_type") or ""),
        fixed={key: settings[key] is True for key in FIXED if key in settings},
    )
