"""Two hundred varied jobs, drawn by a seeded generator, and what is planned of each without its sentences:
the yardstick of a change that is to change no plan."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from paceline.config.load import load_config
from paceline.core.errors import ConfigError
from paceline.plan.hardware.probe import Hardware
from paceline.plan.strategies.spec import Job
from paceline.rules.planning import make_plan

GIB = 2**30
NUMBER = 200
SENTENCES = ("strategy_reason", "config", "config_digest", "paceline_version", "run_dir")
_INSTALLED = {"deepspeed": "0.19.8", "peft": "0.19", "bitsandbytes": "0.49", "torch_xla": None}
_PACKAGES = {name: version for name, version in _INSTALLED.items() if version}
CPU = Hardware(
    "cpu",
    "Some CPU",
    1,
    24 * GIB,
    24 * GIB,
    1,
    True,
    True,
    8,
    None,
    ("gloo",),
    "no CUDA device is visible",
    ("bf16",),
    packages=_PACKAGES,
)
MACHINES = {
    "cpu": CPU,
    "h100": Hardware(
        "cuda",
        "NVIDIA H100 80GB HBM3",
        8,
        80 * GIB,
        1024 * GIB,
        1,
        True,
        True,
        96,
        {"bfloat16": 989e12},
        ("nccl", "gloo"),
        "8 CUDA devices",
        (),
        9.0,
        packages=_PACKAGES,
    ),
    "a100_bare": Hardware(
        "cuda",
        "NVIDIA A100",
        4,
        80 * GIB,
        512 * GIB,
        1,
        True,
        True,
        64,
        {"bfloat16": 312e12},
        ("nccl", "gloo"),
        "4 CUDA devices",
        (),
        8.0,
        packages={},
    ),
    "rtx4090": Hardware(
        "cuda",
        "NVIDIA GeForce RTX 4090",
        2,
        24 * GIB,
        128 * GIB,
        1,
        True,
        True,
        32,
        {"bfloat16": 165.2e12},
        ("nccl", "gloo"),
        "2 CUDA devices",
        (),
        8.9,
        packages=_PACKAGES,
    ),
}
_ROPE = {"rope_theta": 500000.0, "rope_type": "default"}
MODELS: Mapping[str, Mapping[str, Any]] = {
    "tiny_llama": {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 512,
        "max_position_embeddings": 2048,
    },
    "llama_1b": {
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
        "rope_parameters": _ROPE,
    },
    "llama_8b": {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
        "rope_parameters": _ROPE,
    },
    "qwen3": {
        "model_type": "qwen3",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "tie_word_embeddings": True,
    },
    "gpt2": {
        "model_type": "gpt2",
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "vocab_size": 50257,
        "n_positions": 1024,
    },
    "mixtral": {
        "model_type": "mixtral",
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 1024,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 4096,
    },
}


def jobs() -> Iterator[tuple[str, dict[str, Any], Hardware, int, int]]:
    """(name, config, hardware, processes, nodes) of each case."""
    draw = random.Random(20261122)
    for i in range(NUMBER):
        machine = draw.choice([*MACHINES, "h100", "h100"])
        nodes = draw.choice([1, 1, 1, 2])
        a_node = (
            draw.choice([1, 2, 4])
            if machine == "cpu"
            else draw.choice([1, 2, *[MACHINES[machine].num_devices] * 4])
        )
        model = draw.choice([*MODELS])
        yield (
            f"{i:03d} {machine} {model}",
            _config(draw, model, a_node * nodes),
            MACHINES[machine],
            a_node * nodes,
            nodes,
        )


def _config(draw: random.Random, model: str, world: int) -> dict[str, Any]:
    algorithm = draw.choice(["sft", "sft", "sft", "reward", "dpo", "grpo", "ppo"])
    training: dict[str, Any] = {
        "algorithm": algorithm,
        "per_device_train_batch_size": draw.choice([1, 2, 4]),
        "gradient_accumulation_steps": draw.choice([1, 2, 8]),
        "gradient_checkpointing": draw.random() < 0.3,
        "mixed_precision": draw.choice(["auto", "auto", "no", "bf16", "bf16", "fp16"]),
        "optim": draw.choice(["adamw_torch_fused"] * 5 + ["adamw_torch", "sgd", "adafactor"]),
        "max_steps": draw.choice([-1, 50]),
    }
    training |= _strategy(draw, world)
    if draw.random() < 0.05:
        training["torch_compile"] = True
    if draw.random() < 0.1:
        training["ddp_bucket_cap_mb"] = 50
    if algorithm in ("grpo", "ppo"):
        training["rollout"] = {
            "rewards": ["exact_match"],
            "max_completion_length": 64,
            "num_generations": draw.choice([1, 2, 4]),
        }
        if draw.random() < 0.3:
            training[algorithm] = {
                "ref_model": None,
                **({"beta": 0.04} if algorithm == "grpo" else {"kl_coef": 0.0}),
            }
    if algorithm == "dpo" and draw.random() < 0.5:
        training["dpo"] = draw.choice(
            [{"reference_free": True}, {"precompute_ref_log_probs": True}, {"beta": 0.2}]
        )
    config: dict[str, Any] = {
        "model": {"config": dict(MODELS[model]), "tokenizer": "org/tokenizer"},
        "data": {
            "train": "rows.jsonl",
            "max_length": draw.choice([256, 512, 1024]),
            **({"packing": False} if draw.random() < 0.3 else {}),
        },
        "training": training,
    }
    if draw.random() < 0.3:
        config["lora"] = {"r": draw.choice([8, 16])} | (
            {"quantization_bit": 4} if draw.random() < 0.4 else {}
        )
    return config


def _strategy(draw: random.Random, world: int) -> dict[str, Any]:
    name = draw.choice(
        [
            "auto",
            "auto",
            "auto",
            "single",
            "ddp",
            "fsdp",
            "fsdp",
            "fsdp",
            "pipeline",
            "pipeline",
            "deepspeed",
            "deepspeed",
            "zero1",
            "zero2",
            "zero3",
            "fastest",
            "data_parallel",
            "own:Class",
        ]
    )
    found: dict[str, Any] = {"distributed_strategy": name}
    if name == "fsdp":
        found["fsdp"] = draw.choice(
            ["full_shard", "shard_grad_op", "hybrid_shard", "full_shard offload", None]
        )
        tp, cp = draw.choice([(1, 1), (1, 1), (2, 1), (1, 2), (2, 2)])
        if world % (tp * cp) == 0 and tp * cp > 1:
            found["parallelism"] = {"tp_size": tp, "cp_size": cp, "sequence_parallel": draw.random() < 0.5}
    elif name == "pipeline":
        tp = 2 if world % 4 == 0 and draw.random() < 0.4 else 1
        found["parallelism"] = {
            "pp_size": 2,
            "tp_size": tp,
            "pp_schedule": draw.choice(["1f1b", "gpipe", "interleaved", "zero_bubble"]),
        }
    elif name == "deepspeed" or (name == "auto" and draw.random() < 0.2):
        zero: dict[str, Any] = {"stage": draw.choice([0, 1, 2, 3])}
        if zero["stage"] == 3 and draw.random() < 0.5:
            zero |= {"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}
        found["deepspeed"] = {"zero_optimization": zero}
        if world % 2 == 0 and zero["stage"] < 2 and draw.random() < 0.3:
            found["deepspeed"]["tensor_parallel"] = {"autotp_size": 2}
    return found


def planned(
    config: Mapping[str, Any], hardware: Hardware, world_size: int, num_nodes: int, folder: Path
) -> Any:
    """What ``make_plan`` says without sentences, or the codes and places of what it refuses."""
    path = folder / "config.yaml"
    path.write_text(json.dumps(config), encoding="utf-8")
    try:
        loaded = load_config(str(path), environ={})
        plan = make_plan(
            Job(
                loaded.config,
                hardware,
                world_size=world_size,
                num_nodes=num_nodes,
                launcher="spawn",
                run_dir="run",
                needs_room=False,
            )
        )
    except ConfigError as error:
        return {"refused": sorted({d.code for d in error.diagnostics})}
    found = {key: value for key, value in plan.to_json().items() if key not in SENTENCES}
    found["decisions"] = [[d["subject"], d["granted"]] for d in found["decisions"]]
    return found
