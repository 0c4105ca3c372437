"""Machines and a small model that tests plan for."""

from __future__ import annotations

from paceline.plan.hardware.probe import Hardware

GIB = 2**30
A100 = Hardware(
    "cuda",
    "NVIDIA A100",
    8,
    80 * GIB,
    512 * GIB,
    1,
    True,
    True,
    64,
    {"bfloat16": 312e12},
    ("nccl", "gloo"),
    capability=8.0,
    packages=("deepspeed", "peft", "bitsandbytes"),
)
H100 = Hardware(
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
)
LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "num_hidden_layers": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
}
