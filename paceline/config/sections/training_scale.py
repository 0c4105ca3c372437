"""``training:`` part 1 — algorithm, distribution, batch, precision."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, create_model

from paceline.config.sections.extensions import own_name
from paceline.config.sections.rollout import RolloutOptions
from paceline.config.sections.types import (
    Bool,
    Int,
    Mapping,
    OptBool,
    OptInt,
    OptMapping,
    OptText,
    Section,
    Word,
    to_bool,
    to_mapping,
    to_texts,
)
from paceline.core.json_types import Json
from paceline.core.plugins.tables import ALGORITHMS, CHOOSERS, STRATEGIES

_STRATEGIES = (*STRATEGIES.names(), *CHOOSERS)


def to_path_or_mapping(value: Json) -> Json:
    """Accept None, a text or a mapping. Raises ValueError otherwise."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, dict):
        return to_mapping(value)
    raise ValueError("must be the path of a file or a mapping")


def to_fsdp(value: Json) -> Json:
    """Convert FSDP options to one text of words.

    ``true`` means full_shard; ``false``, an empty text and an empty list mean None.
    """
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        value = to_bool(value)
    if isinstance(value, bool):
        return "full_shard" if value else None
    if value is None:
        return None
    return " ".join(to_texts(value.replace(" ", ",") if isinstance(value, str) else value)) or None


#: Sizes of the device mesh, outermost dimension first; their product is the number of processes.
MESH_SIZES = ("pp_size", "dp_replicate_size", "dp_shard_size", "cp_size", "tp_size")


class Parallelism(Section):
    """Sizes of the device mesh; their product is the number of processes."""

    dp_replicate_size: Int = Field(default=1, description="Replicas of the (sharded) model.")
    dp_shard_size: Int = Field(
        default=1, description="Ranks over which one copy of the weights is sharded (FSDP, ZeRO)."
    )
    cp_size: Int = Field(default=1, description="Ranks over which a sequence is split (context parallelism).")
    tp_size: Int = Field(
        default=1, description="Ranks over which a weight matrix is split (tensor parallelism)."
    )
    pp_size: Int = Field(
        default=1, description="Ranks over which the layers are split (pipeline parallelism)."
    )
    sequence_parallel: Bool = Field(
        default=False, description="With tp_size: shard norms and residuals along the sequence too."
    )
    loss_parallel: Bool = Field(
        default=True,
        description="With tp_size: keep the head's logits and the loss sharded along the vocabulary.",
    )
    cp_method: Annotated[str, Word("ulysses", "allgather")] = Field(
        default="ulysses",
        description=(
            "With cp_size: ulysses exchanges heads for sequence by all-to-all (needs enough "
            "heads); allgather gathers keys and values."
        ),
    )
    pp_schedule: Annotated[str, Word("1f1b", "gpipe", "interleaved", "zero_bubble", "zbv")] = Field(
        default="1f1b",
        description=(
            "With pp_size: the pipeline schedule, i.e. the order of the micro-batches' "
            "forward and backward passes."
        ),
    )
    pp_stages_per_rank: OptInt = Field(
        default=None,
        ge=1,
        description="Pipeline stages per rank; when empty 2 with interleaved, zero_bubble and zbv, else 1.",
    )

    def size(self, axis: str) -> int:
        """Return the size of a mesh axis (``tp``), at least 1."""
        return int(getattr(self, f"{axis}_size")) or 1


class AlgorithmFields(Section):
    """The training algorithm."""

    algorithm: Annotated[str, Word(*ALGORITHMS.names(), own="algorithms")] = Field(
        default="sft", description="Training algorithm: a built-in name, or your own as module:SPEC."
    )
    algorithm_options: Mapping = Field(default={}, description="Options of your own algorithm (module:SPEC).")


def _options_of(name: str, section: type[Section]) -> Any:
    return section | None, Field(default=None, description=f"Options of algorithm: {name}.")


#: One key per algorithm that has options, named like it; ``ALGORITHMS`` gives its section class.
OptionsFields = create_model(
    "OptionsFields",
    __base__=AlgorithmFields,
    **{name: _options_of(name, section) for name, section in ALGORITHMS.sections().items()},
)


class ScaleFields(OptionsFields):  # type: ignore[valid-type, misc]  # created from a table
    """Algorithm, strategy, batch and precision."""

    rollout: RolloutOptions | None = Field(
        default=None, description="How on-policy algorithms generate and score answers."
    )
    distributed: OptBool = Field(
        default=None,
        description=(
            "false: only one process is allowed; true: more than one is expected, with a "
            "warning otherwise; empty: as launched."
        ),
    )
    distributed_strategy: Annotated[str, BeforeValidator(own_name("strategies", _STRATEGIES))] = Field(
        default="auto",
        description=(
            "auto (the rule for the model's size, checked against memory), fastest (the layout predicted to"
            f" be fastest of those that fit), {', '.join(STRATEGIES.names())}, or your own as module:Class or"
            " module:SPEC."
        ),
    )
    strategy_options: Mapping = Field(
        default={}, description="Options of your own strategy (module:Class or module:SPEC)."
    )
    parallelism: Parallelism | None = Field(
        default=None, description="Sizes of the device mesh; chosen by the plan when empty."
    )
    ddp_backend: Annotated[str, Word("auto", "nccl", "gloo", "mpi", "ccl", "xccl", "hccl")] = Field(
        default="auto", description="Communication backend: auto takes nccl on CUDA and gloo on a CPU."
    )
    ddp_timeout: Int = Field(
        default=1800,
        ge=1,
        le=10**9,
        description="Timeout of collectives in seconds, after which the run is ended.",
    )
    start_timeout: OptInt = Field(
        default=None,
        ge=1,
        le=10**9,
        description=(
            "Seconds that ranks wait for one of them before the first step: to connect, and while models "
            "are loaded. While a node prepares data, nobody's time runs. When empty 600 to connect, or "
            "ddp_timeout if it is shorter, then ddp_timeout."
        ),
    )
    step_timeout: OptInt = Field(
        default=None,
        ge=1,
        le=10**9,
        description=(
            "Seconds that ranks wait for one of them within a step. Evaluations, saves and rollouts have "
            "ddp_timeout, or this if it is longer. ddp_timeout when empty."
        ),
    )
    ddp_find_unused_parameters: OptBool = Field(
        default=None,
        description="DDP searches for parameters without gradient in each step; slow. Off when empty.",
    )
    ddp_bucket_cap_mb: OptInt = Field(
        default=None,
        ge=1,
        description="Size of DDP's gradient buckets in MiB; torch's default (25) when empty.",
    )
    ddp_broadcast_buffers: OptBool = Field(
        default=None,
        description=(
            "DDP broadcasts buffers before each forward pass; off when empty (language models "
            "have no buffers that change)."
        ),
    )
    gradient_as_bucket_view: Bool = Field(
        default=True, description="Gradients are views of DDP's buckets, which saves a copy."
    )
    ddp_static_graph: Bool = Field(
        default=False, description="Promise DDP that every step uses the same parameters."
    )

    parameters_as_bucket_view: Bool = Field(
        default=False,
        description=(
            "zero_redundancy: keep the parameters that a rank updates in one buffer and "
            "broadcast it at once; helps with many small ones (LoRA)."
        ),
    )

    per_device_train_batch_size: Int = Field(default=8, description="Rows per process and micro-batch.")
    per_device_eval_batch_size: Int = Field(
        default=8, description="Rows per process and batch in evaluation."
    )
    gradient_accumulation_steps: Int = Field(default=1, description="Micro-batches per optimizer step.")

    mixed_precision: Annotated[str, Word("auto", "no", "fp16", "bf16", false="no")] = Field(
        default="auto",
        description=(
            "Compute dtype; master weights stay in float32, but under `pure_bf16`. auto uses bf16 where the "
            "accelerator supports it, else no. `bf16: true` and `fp16: true` are accepted "
            "too."
        ),
    )
    pure_bf16: Bool = Field(
        default=False,
        description=(
            "Keep weights, gradients and the optimizer's moments in bfloat16 alone, without float32 masters:"
            " 8 bytes a parameter with AdamW. An update of less than 1/512 of a weight is lost; `optim:"
            " adamw_bf16_rounding` loses none. Computes in bf16; single, ddp and fsdp."
        ),
    )
    fp8: Bool = Field(
        default=False,
        description=(
            "Compute the products of the decoder layers in 8-bit floating point by torchao, all else in "
            "bf16: NVIDIA devices of capability 8.9 or higher; never run on one yet."
        ),
    )
    fp16_full_eval: Bool = Field(
        default=False,
        description=(
            "Evaluate with weights cast to fp16. Part of mixed_precision: fp16, and refused without it."
        ),
    )
    bf16_full_eval: Bool = Field(
        default=False,
        description=(
            "Evaluate with weights cast to bf16. Part of mixed_precision: bf16, and refused without it."
        ),
    )

    gradient_checkpointing: Bool = Field(
        default=False, description="Recompute activations in the backward pass instead of storing them."
    )
    gradient_checkpointing_kwargs: OptMapping = Field(
        default=None,
        description=(
            "Options of gradient checkpointing: `use_reentrant: false` (the only implementation), and"
            " `keep`, which"
            " makes it selective: `[attention]`, `[matmul]` or both name the operators whose outputs"
            " are kept."
        ),
    )
    torch_compile: Bool = Field(default=False, description="Compile each decoder layer with torch.compile.")
    torch_compile_backend: OptText = Field(
        default=None, description="Backend of torch.compile; inductor when empty."
    )
    torch_compile_mode: OptText = Field(default=None, description="Mode of torch.compile.")
    use_cpu: Bool = Field(default=False, description="Train on the CPU even if there is an accelerator.")

    full_determinism: Bool = Field(
        default=False,
        description=(
            "Use deterministic kernels only, so that a run can be repeated bit for bit on the same GPUs; "
            "an operation that has none ends the run by name. Slower on GPUs; on a CPU runs repeat "
            "bit for bit without it. Refused on XPU, NPU and MPS."
        ),
    )

    deepspeed: Annotated[str | dict[str, Any] | None, BeforeValidator(to_path_or_mapping)] = Field(
        default=None,
        description=(
            "DeepSpeed JSON: its path, `{config_path: …}`, or the mapping itself. It is "
            "translated into this config; its values are the lowest layer."
        ),
    )
    fsdp: Annotated[str | None, BeforeValidator(to_fsdp)] = Field(
        default=None,
        description=(
            "FSDP options by their Transformers names: full_shard, shard_grad_op, no_shard, "
            "hybrid_shard or hybrid_shard_zero2, with auto_wrap and offload; or true."
        ),
    )
    fsdp_config: Annotated[str | dict[str, Any] | None, BeforeValidator(to_path_or_mapping)] = Field(
        default=None,
        description=(
            "FSDP settings by their Transformers or Accelerate names: a mapping, or the path of a JSON or"
            " YAML file."
        ),
    )
    accelerate_config: OptText = Field(
        default=None,
        description=(
            "YAML file written by `accelerate config`; its precision, processes and "
            "distributed type are the lowest layer."
        ),
    )
