"""The YAML that ``accelerate config`` writes, as the lowest layer: precision, processes, nodes, kind of distribution."""

from __future__ import annotations

import difflib
from typing import Any

from paceline.config.foreign import fsdp
from paceline.config.foreign.layer import Document, Foreign
from paceline.core.diagnostics import Diagnostic

# Fields of accelerate 1.15's ClusterConfig and the blocks that its questionnaire writes.
KNOWN = frozenset(
    [
        "compute_environment",
        "debug",
        "distributed_type",
        "downcast_bf16",
        "dynamo_config",
        "deepspeed_config",
        "fsdp_config",
        "megatron_lm_config",
        "ipex_config",
        "mpirun_config",
        "parallelism_config",
        "fp8_config",
        "enable_cpu_affinity",
        "gpu_ids",
        "machine_rank",
        "main_process_ip",
        "main_process_port",
        "main_training_function",
        "mixed_precision",
        "num_machines",
        "num_processes",
        "rdzv_backend",
        "same_network",
        "tpu_env",
        "tpu_name",
        "tpu_zone",
        "tpu_use_cluster",
        "tpu_use_sudo",
        "tpu_vm",
        "tpu_command_file",
        "commands",
        "command_file",
        "use_cpu",
        "log_level",
        "gradient_accumulation_steps",
        "deepspeed_hostfile",
        "deepspeed_multinode_launcher",
        "fsdp",
        "main_process_ip_address",
    ]
)
_STRATEGY = {
    "NO": "single",
    "MULTI_GPU": "ddp",
    "MULTI_CPU": "ddp",
    "MULTI_XPU": "ddp",
    "MULTI_HPU": "ddp",
    "DEEPSPEED": "deepspeed",
    "FSDP": "fsdp",
}


def read(document: Document, found: Foreign) -> None:
    """Adds this document's settings to the lowest layer."""
    data = document.data
    for key in data:
        if key not in KNOWN:
            near = difflib.get_close_matches(key, sorted(KNOWN), n=1)
            hint = f"did you mean '{near[0]}'?" if near else "remove it"
            found.problems.append(
                Diagnostic(
                    "accelerate.unknown_key",
                    f"Accelerate has no setting '{key}'",
                    where=document.place(key),
                    found=key,
                    hint=hint,
                )
            )
    _distribution(document, found)
    for key, to in (
        ("mixed_precision", "training.mixed_precision"),
        ("use_cpu", "training.use_cpu"),
        ("gradient_accumulation_steps", "training.gradient_accumulation_steps"),
        ("num_machines", "launch.nnodes"),
        ("machine_rank", "launch.node_rank"),
        ("main_process_ip", "launch.master_addr"),
        ("main_process_port", "launch.master_port"),
    ):
        if data.get(key) is not None:
            found.entries.append(document.entry(to, data[key], key))
    _processes(document, found)
    _blocks(document, found)


def _distribution(document: Document, found: Foreign) -> None:
    kind = document.data.get("distributed_type")
    if kind is None:
        return
    # A bare NO is the word "NO" here, and false for those who write it so.
    name = "NO" if kind is False else str(kind).upper()
    if name in _STRATEGY:
        found.entries.append(document.entry("training.distributed_strategy", _STRATEGY[name], "distributed_type"))
    else:
        found.problems.append(
            Diagnostic(
                "config.value",
                f"distributed_type {name} is not supported",
                where=document.place("distributed_type"),
                found=name,
                hint=f"one of {', '.join(_STRATEGY)}",
            )
        )


def _processes(document: Document, found: Foreign) -> None:
    total, machines = document.data.get("num_processes"), document.data.get("num_machines") or 1
    if total is None:
        return
    if not (
        isinstance(total, int) and isinstance(machines, int) and machines > 0 and total > 0 and total % machines == 0
    ):
        found.problems.append(
            Diagnostic(
                "config.value",
                "num_processes must be a multiple of num_machines",
                where=document.place("num_processes"),
                found=f"{total} over {machines}",
                hint="processes of all machines together",
            )
        )
        return
    found.entries.append(document.entry("launch.nproc", total // machines, "num_processes"))


def _blocks(document: Document, found: Foreign) -> None:
    block: Any = document.data.get("fsdp_config")
    if isinstance(block, dict) and block:
        lines = {
            path.removeprefix("fsdp_config."): line
            for path, line in document.lines.items()
            if path.startswith("fsdp_config.")
        }
        fsdp.read(Document(block, document.name, lines, document.lines.get("fsdp_config")), found)
        found.entries.append(document.entry("training.fsdp_config", block, "fsdp_config"))
    block = document.data.get("deepspeed_config")
    if isinstance(block, dict):
        for key, to in (
            ("gradient_accumulation_steps", "training.gradient_accumulation_steps"),
            ("gradient_clipping", "training.max_grad_norm"),
        ):
            if block.get(key) not in (None, "auto"):
                found.entries.append(document.entry(to, block[key], f"deepspeed_config.{key}"))
        if block.get("deepspeed_config_file"):
            found.notes.append(
                document.note(
                    "deepspeed_config.deepspeed_config_file",
                    "this DeepSpeed file is not read from here",
                    f"training.deepspeed: {block['deepspeed_config_file']}",
                )
            )
