"""``training:`` part 1 — algorithm, distribution, batch, precision, memory."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, create_model

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
    Text,
    Word,
    to_bool,
    to_mapping,
    to_texts,
)
from paceline.core.tables import ALGORITHMS, STRATEGIES


def to_path_or_mapping(value: Any) -> Any:
    """Text and mappings pass, anything else is refused."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, dict):
        return to_mapping(value)
    raise ValueError("must be the path of a file or a mapping")


def to_fsdp(value: Any) -> Any:
    """FSDP options as one text of words; true means full_shard; false, an empty text and an empty list mean no FSDP."""
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        value = to_bool(value)
    if isinstance(value, bool):
        return "full_shard" if value else None
    if value is None:
        return None
    return " ".join(to_texts(value.replace(" ", ",") if isinstance(value, str) else value)) or None


#: The mesh, outermost first; their product is the number of processes.
MESH_SIZES = ("pp_size", "dp_replicate_size", "dp_shard_size", "cp_size", "tp_size")


class Parallelism(Section):
    """Sizes of the mesh axes; their product is the number of processes."""

    dp_replicate_size: Int = Field(default=1, description="Replicas of the (sharded) model.")
    dp_shard_size: Int = Field(default=1, description="Processes that share one copy of the weights (FSDP, ZeRO).")
    cp_size: Int = Field(default=1, description="Processes that share one sequence (context parallel).")
    tp_size: Int = Field(default=1, description="Processes that share one matrix (tensor parallel).")
    pp_size: Int = Field(default=1, description="Pipeline stages (processes in a row).")
    sequence_parallel: Bool = Field(
        default=False, description="With tp_size: norms and residuals are shared out along the sequence too."
    )
    loss_parallel: Bool = Field(
        default=True, description="With tp_size: the head and the loss stay shared out along the vocabulary."
    )
    cp_method: Annotated[str, Word("ulysses", "allgather")] = Field(
        default="ulysses",
        description="With cp_size: ulysses exchanges heads for sequence (needs as many heads); allgather collects keys and values.",
    )
    pp_schedule: Annotated[str, Word("1f1b", "gpipe", "interleaved", "zero_bubble", "zbv")] = Field(
        default="1f1b", description="With pp_size: the order of forwards and backwards over the micro-batches."
    )
    pp_stages_per_rank: OptInt = Field(
        default=None,
        ge=1,
        description="Stages a process holds; 2 under interleaved, zero_bubble and zbv when empty, else 1.",
    )

    def size(self, axis: str) -> int:
        """Of an axis of the mesh (``tp``), at least 1."""
        return int(getattr(self, f"{axis}_size")) or 1


class AlgorithmFields(Section):
    """What is learnt."""

    algorithm: Annotated[str, Word(*ALGORITHMS.names(), own=True)] = Field(
        default="sft", description="What is learnt: a name, or an algorithm of your own as module:SPEC."
    )
    algorithm_options: Mapping = Field(default={}, description="Options of an algorithm of your own (module:SPEC).")


def _options_of(name: str, section: type[Section]) -> Any:
    return section | None, Field(default=None, description=f"Options of algorithm: {name}.")


#: A key for each algorithm that has options, by its name: ``ALGORITHMS`` says which section they are.
OptionsFields = create_model(
    "OptionsFields",
    __base__=AlgorithmFields,
    **{name: _options_of(name, section) for name, section in ALGORITHMS.sections().items()},
)


class ScaleFields(OptionsFields):  # type: ignore[valid-type, misc]  # made of a table
    """Algorithm, strategy, batch and precision."""

    rollout: RolloutOptions | None = Field(
        default=None, description="How algorithms that learn from the model's own answers make and judge them."
    )
    distributed: OptBool = Field(
        default=None,
        description="false: one process only; true: more than one is expected, and one is warned about; empty: as launched.",
    )
    distributed_strategy: Text = Field(
        default="auto",
        description="auto (the rule for the model's size, checked against memory), fastest (the layout predicted to be fastest of those that fit), "
        f"{', '.join(STRATEGIES.names())}, or your own as module:Class.",
    )
    strategy_options: Mapping = Field(
        default={}, description="Options handed to a strategy of your own (module:Class)."
    )
    parallelism: Parallelism | None = Field(default=None, description="Mesh sizes; chosen by the plan when empty.")
    ddp_backend: Annotated[str, Word("auto", "nccl", "gloo", "mpi", "ccl", "xccl", "hccl")] = Field(
        default="auto", description="Communication backend: auto takes nccl on CUDA and gloo on a CPU."
    )
    ddp_timeout: Int = Field(
        default=1800, ge=1, le=10**9, description="Seconds a collective may wait before the run is ended."
    )
    ddp_find_unused_parameters: OptBool = Field(
        default=None, description="DDP looks for parameters without gradient each step; slow, off when empty."
    )
    ddp_bucket_cap_mb: OptInt = Field(
        default=None, ge=1, description="Size of DDP's gradient buckets in MiB; torch's default (25) when empty."
    )
    ddp_broadcast_buffers: OptBool = Field(
        default=None,
        description="DDP broadcasts buffers before each forward; off when empty (language models have none that change).",
    )
    gradient_as_bucket_view: Bool = Field(
        default=True, description="Gradients live inside DDP's buckets: one copy less."
    )
    ddp_static_graph: Bool = Field(default=False, description="Promise DDP that every step uses the same parameters.")

    parameters_as_bucket_view: Bool = Field(
        default=False,
        description="zero_redundancy: the parameters that a process steps lie in one buffer, sent by one broadcast; for many small ones (LoRA).",
    )

    per_device_train_batch_size: Int = Field(default=8, description="Rows per process and micro-batch.")
    per_device_eval_batch_size: Int = Field(default=8, description="Rows per process and batch in evaluation.")
    gradient_accumulation_steps: Int = Field(default=1, description="Micro-batches per optimizer step.")

    mixed_precision: Annotated[str, Word("auto", "no", "fp16", "bf16", false="no")] = Field(
        default="auto",
        description="Compute precision; masters stay float32. auto takes bf16 where the accelerator has it, else no. `bf16: true` and `fp16: true` are spellings.",
    )
    fp16_full_eval: Bool = Field(
        default=False,
        description="Evaluate with weights cast to fp16: what mixed_precision: fp16 does, refused without it.",
    )
    bf16_full_eval: Bool = Field(
        default=False,
        description="Evaluate with weights cast to bf16: what mixed_precision: bf16 does, refused without it.",
    )

    gradient_checkpointing: Bool = Field(
        default=False, description="Recompute activations in the backward instead of keeping them."
    )
    gradient_checkpointing_kwargs: OptMapping = Field(
        default=None, description="Options of recomputation; only `use_reentrant: false` is implemented."
    )
    torch_compile: Bool = Field(default=False, description="Compile the model with torch.compile.")
    torch_compile_backend: OptText = Field(default=None, description="Backend of torch.compile; inductor when empty.")
    torch_compile_mode: OptText = Field(default=None, description="Mode of torch.compile.")
    use_cpu: Bool = Field(default=False, description="Train on the CPU even where there is an accelerator.")

    deepspeed: Annotated[str | dict[str, Any] | None, BeforeValidator(to_path_or_mapping)] = Field(
        default=None,
        description="DeepSpeed JSON: its path, `{config_path: …}`, or the mapping itself. Read into the config; its values are the lowest layer.",
    )
    fsdp: Annotated[str | None, BeforeValidator(to_fsdp)] = Field(
        default=None,
        description="FSDP by its Transformers words: full_shard, shard_grad_op, no_shard, hybrid_shard or hybrid_shard_zero2, with auto_wrap and offload; or true.",
    )
    fsdp_config: Annotated[str | dict[str, Any] | None, BeforeValidator(to_path_or_mapping)] = Field(
        default=None,
        description="FSDP settings by their Transformers or Accelerate names: a mapping, or the path of a JSON or YAML file.",
    )
    accelerate_config: OptText = Field(
        default=None,
        description="YAML written by `accelerate config`; its precision, processes and type are the lowest layer.",
    )
