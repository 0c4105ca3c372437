"""FSDP settings by their Transformers and Accelerate names: which keys there are, and what of them is Paceline's own."""

from __future__ import annotations

import difflib

from paceline.config.foreign.layer import Document, Foreign
from paceline.core.diagnostics import Diagnostic

# Transformers 5.23 TrainingArguments.fsdp_config and accelerate 1.15 FullyShardedDataParallelPlugin; each also with the prefix fsdp_.
KNOWN = frozenset(
    [
        "version",
        "min_num_params",
        "min_num_param",
        "transformer_layer_cls_to_wrap",
        "backward_prefetch",
        "backward_prefetch_policy",
        "forward_prefetch",
        "limit_all_gathers",
        "use_orig_params",
        "sync_module_states",
        "cpu_ram_efficient_loading",
        "activation_checkpointing",
        "reshard_after_forward",
        "state_dict_type",
        "auto_wrap_policy",
        "offload_params",
        "sharding_strategy",
        "mixed_precision_policy",
        "ignored_modules",
        "cpu_offload",
        "xla",
        "xla_fsdp_settings",
        "xla_fsdp_v2",
        "xla_fsdp_grad_ckpt",
    ]
)


def read(document: Document, found: Foreign) -> None:
    """Names unknown keys; activation checkpointing becomes the lowest layer's ``gradient_checkpointing``."""
    for key, value in document.data.items():
        name = key.removeprefix("fsdp_")
        if name not in KNOWN:
            near = difflib.get_close_matches(name, sorted(KNOWN), n=1)
            hint = f"did you mean '{near[0]}'?" if near else "remove it"
            found.problems.append(
                Diagnostic(
                    "fsdp.unknown_key", f"FSDP has no setting '{key}'", where=document.place(key), found=key, hint=hint
                )
            )
        elif name == "activation_checkpointing" and value is not None:
            found.entries.append(document.entry("training.gradient_checkpointing", value, key))
