"""axolotl's keys of devices, kernels of attention, trackers and recomputation."""

from __future__ import annotations

from paceline.config.exchange.common import HUB, KERNEL, project
from paceline.config.exchange.reading import KeyReader
from paceline.core.json_types import Json

_ATTENTION = {
    "flash_attention": "flash_attention_2",
    "sdp_attention": "sdpa",
    "flex_attention": "flex_attention",
    "eager_attention": "eager",
}


def attention(reading: KeyReader) -> None:
    """Decide which kernel computes attention."""
    chosen = reading.given.get("attn_implementation")
    if isinstance(chosen, str) and chosen:
        known = chosen in ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")
        if known:
            reading.keep("attn_implementation", "model.attn_implementation", chosen)
        else:
            reading.nothing(
                "attn_implementation",
                f"{chosen} computes the same attention; ours is chosen by device and packing",
            )
    for key, word in _ATTENTION.items():
        if reading.on(key) and not chosen:
            reading.keep(key, "model.attn_implementation", word)
        else:
            reading.nothing(key, "off, or attn_implementation decides")
    reading.nothing(
        (
            "xformers_attention",
            "sage_attention",
            "flash_optimum",
            "flex_attn_compile_kwargs",
            "fused_attn_kernel",
        ),
        KERNEL,
    )
    reading.nothing(
        [
            k
            for k in reading.given
            if k.startswith(("flash_attn_", "flex_attn_compile_kwargs.", "sdpa_varlen"))
        ],
        KERNEL,
    )


def parallel(reading: KeyReader) -> None:
    """Decide how the job is split over devices."""
    sizes = {
        "dp_shard_size": "dp_shard_size",
        "dp_replicate_size": "dp_replicate_size",
        "tensor_parallel_size": "tp_size",
        "context_parallel_size": "cp_size",
        "sequence_parallel_degree": "cp_size",
    }
    for key, ours in sizes.items():
        if reading.is_given(key):
            reading.keep(key, f"training.parallelism.{ours}", reading.given[key])
    reading.nothing(
        ("heads_k_stride", "ring_attn_func"), "ways to exchange keys and values; the attention is the same"
    )
    fsdp = reading.given.get("fsdp")
    version = reading.value("fsdp_version")
    if fsdp:
        reading.keep("fsdp", "training.fsdp", " ".join(map(str, fsdp)) if isinstance(fsdp, list) else fsdp)
    inner = reading.given.get("fsdp_config")
    if isinstance(inner, dict):
        if not fsdp:
            reading.set("training.fsdp", "full_shard auto_wrap", "fsdp_config")
        plain = {
            k: v
            for k, v in inner.items()
            if k
            not in (
                "fsdp_final_state_dict_type",
                "final_state_dict_type",
                "fsdp_version",
                "cpu_offload_pin_memory",
            )
        }
        made: Json = plain | ({"fsdp_version": version} if version else {})
        reading.set("training.fsdp_config", made, "fsdp_config")
        reading.mapped(
            [k for k in reading.given if k.partition(".")[0] == "fsdp_config"], ("training.fsdp_config",)
        )
        reading.nothing(
            [f"fsdp_config.{k}" for k in inner if k not in plain], "a checkpoint is written once, in one form"
        )
    reading.mapped("fsdp_version", ("training.fsdp_config",)) if isinstance(inner, dict) else reading.nothing(
        "fsdp_version", "nothing is sharded by FSDP"
    )
    reading.nothing("fsdp_final_state_dict_type", "a checkpoint is written once, in one form")
    reading.nothing(
        ("world_size", "local_rank", "device", "device_map", "ddp"), "the launcher sets ranks and devices"
    )
    reading.nothing(
        [k for k in reading.given if k.startswith("device_map.")], "each process holds its own model"
    )


_OTHER_TRACKERS = ("mlflow", "swanlab", "trackio")


def _given_on(reading: KeyReader, key: str) -> bool:
    """Whether the file switches it on: axolotl's default of ``use_swanlab`` is true, to no effect."""
    return reading.is_given(key) and reading.on(key)


def trackers(reading: KeyReader) -> None:
    """Decide what is sent to trackers and the hub."""
    used = [
        name
        for name, on in (
            ("wandb", reading.given.get("use_wandb", reading.is_given("wandb_project"))),
            ("tensorboard", reading.on("use_tensorboard")),
            *((name, _given_on(reading, f"use_{name}")) for name in _OTHER_TRACKERS),
        )
        if on
    ]
    reading.set(
        "training.report_to",
        used or "none",
        "wandb_project" if "wandb" in used else f"use_{[*used, 'tensorboard'][0]}",
    )
    if "wandb" in used and reading.is_given("wandb_name"):
        reading.keep("wandb_name", "training.run_name", reading.given["wandb_name"])
    project(reading, [*used])
    others = tuple(f"use_{name}" for name in _OTHER_TRACKERS)
    reading.mapped(("use_tensorboard", "use_wandb", *others), ("training.report_to",))
    of_trackers = (
        "wandb_",
        "mlflow_",
        "comet_",
        "use_comet",
        "swanlab_",
        "trackio_",
        "otel_",
        "use_otel",
        "hf_mlflow",
        "gradio_",
    )
    reading.nothing(
        [k for k in reading.given if k.startswith(of_trackers) and not reading.decided(k)],
        "of trackers, which read their own variables (WANDB_PROJECT); the training is the same",
    )
    reading.nothing(
        [k for k in reading.given if k.startswith(("hub_", "push_dataset_to_hub", "hf_use_auth_token"))], HUB
    )


def checkpointing(reading: KeyReader) -> None:
    """Decide recomputation and resuming."""
    on = reading.on("gradient_checkpointing")
    reading.keep("gradient_checkpointing", "training.gradient_checkpointing", on)
    says = "recomputation gives the same values with either implementation"
    reading.nothing(
        [
            k
            for k in reading.given
            if k.partition(".")[0]
            in ("gradient_checkpointing_kwargs", "activation_offloading", "layer_offloading")
        ],
        says,
    )
    if reading.on("auto_resume_from_checkpoints"):
        reading.keep("auto_resume_from_checkpoints", "training.resume_from_checkpoint", "auto")
    if reading.is_given("resume_from_checkpoint"):
        reading.keep(
            "resume_from_checkpoint",
            "training.resume_from_checkpoint",
            reading.given["resume_from_checkpoint"],
        )
