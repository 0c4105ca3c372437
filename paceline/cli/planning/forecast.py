"""Forecasts for ``paceline plan`` of a named model."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from paceline.cli import codes
from paceline.core.errors import ConfigError

if TYPE_CHECKING:
    from paceline.plan.cost.report import Forecast

ALL_LINEAR = (
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
    "qkv_proj",
    "gate_up_proj",
    "dense",
    "fc1",
    "fc2",
    "c_attn",
    "c_proj",
    "c_fc",
    "query_key_value",
    "dense_h_to_4h",
    "dense_4h_to_h",
)


def forecast_of_model(
    model: str | None,
    hardware: str | None,
    seq_len: int,
    rows: int | None,
    lora: int | None,
    bits: int | None,
    algorithm: str = "sft",
    tokens: float | None = None,
) -> Forecast:
    """Forecast the training of ``model`` on ``hardware``.

    ``seq_len``: tokens per row; ``rows``: rows per optimizer step; ``lora``: LoRA rank on all linear layers;
    ``bits``: 4 for QLoRA; ``tokens``: tokens of the whole training. Raises ConfigError with the nearest names
    for an unknown one.
    """
    from paceline.plan.cost.from_plan import adapter_work
    from paceline.plan.cost.report import forecast
    from paceline.plan.cost.search import SearchSpec
    from paceline.plan.hardware.device_catalogue import cluster_of
    from paceline.plan.model.model_catalogue import model_shape
    from paceline.plan.plan_sections import AdapterSpec, Quantization

    model, hardware = _together(model, hardware, lora, bits, algorithm)
    shape = model_shape(model, os.environ)
    adapter = None
    if lora is not None:
        quantization = Quantization(bits) if bits else None
        adapter = adapter_work(
            shape, AdapterSpec(lora, 2 * lora, target_modules=ALL_LINEAR, quantization=quantization)
        )
    return forecast(
        model,
        SearchSpec(
            shape,
            cluster_of(hardware),
            seq_len,
            rows or 0,
            adapter,
            algorithm=algorithm,
            tokens=tokens or 0.0,
        ),
    )


def _together(
    model: str | None, hardware: str | None, lora: int | None, bits: int | None, algorithm: str
) -> tuple[str, str]:
    """Return the model and the hardware. Raises ConfigError for options that do not go together."""
    from paceline.core.plugins.tables import ALGORITHMS

    if model is None or hardware is None:
        missing = "--model" if model is None else "--hardware"
        raise ConfigError(
            codes.PLAN_SUBJECT(
                "a plan needs a config, or a model and hardware",
                missing,
                "not given",
                "use paceline plan config.yaml, or paceline plan --model llama-3-8b --hardware 8xH100",
            )
        )
    if bits is not None and lora is None:
        raise ConfigError(codes.PLAN_BITS("--bits", str(bits)))
    if algorithm not in ALGORITHMS.names() and ":" not in algorithm:
        raise ConfigError(codes.PLAN_ALGORITHM("--algorithm", algorithm, names=", ".join(ALGORITHMS.names())))
    return model, hardware


def needs_one_subject(model: str | None) -> None:
    """Raise ConfigError when both a config and a model are given."""
    if model is not None:
        raise ConfigError(
            codes.PLAN_SUBJECT(
                "the config already names the model",
                "--model",
                model,
                f"put model.name_or_path={model} after the config, or leave the config out",
            )
        )
