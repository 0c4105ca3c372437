"""Forecasts for ``paceline plan``: for a named model, or for a config's plan."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from paceline.cli import codes
from paceline.core.errors import ConfigError

if TYPE_CHECKING:
    from paceline.plan.cost.report import Forecast
    from paceline.plan.hardware.catalogue import AcceleratorCluster
    from paceline.plan.plan import Plan

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
    from paceline.plan.hardware.catalogue import cluster_of
    from paceline.plan.model.catalogue import model_shape
    from paceline.plan.parts import AdapterSpec, Quantization

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
    from paceline.core.tables import ALGORITHMS

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
        raise ConfigError(
            codes.PLAN_BITS(
                "a base model quantised to 4 bits can only be trained with an adapter",
                "--bits",
                str(bits),
                "use --lora 16 --bits 4",
            )
        )
    if algorithm not in ALGORITHMS.names() and ":" not in algorithm:
        raise ConfigError(
            codes.PLAN_ALGORITHM(
                "there is no such algorithm",
                "--algorithm",
                algorithm,
                f"{', '.join(ALGORITHMS.names())}, or module:SPEC",
            )
        )
    return model, hardware


def forecast_of_plan(plan: Plan, cluster: AcceleratorCluster | None) -> Forecast | None:
    """Forecast a config's job along with the layout its plan has chosen.

    ``cluster`` None means this machine, corrected by its ledger. None on a CPU, an unlisted card, or for a
    model of unknown size.
    """
    from paceline.cli.lengths import epoch_lengths
    from paceline.core.tables import CHOOSERS
    from paceline.plan.cost.from_plan import cluster_of_hardware, of_length, planned_candidate, search_spec_of
    from paceline.plan.cost.report import forecast
    from paceline.plan.hardware.kinds import is_accelerator
    from paceline.plan.hardware.probe import Hardware

    if not is_accelerator(plan.device):
        return None
    corrections = (1.0, 1.0)
    if cluster is None:
        from paceline.cli.ledger import corrections_here
        from paceline.plan.hardware.probe import probe_hardware

        probed: Hardware = probe_hardware(os.environ)
        cluster = cluster_of_hardware(probed, plan.num_nodes)
        corrections = corrections_here(probed)
    spec = search_spec_of(plan, cluster, corrections) if cluster else None
    if spec is None:
        return None
    spec = of_length(spec, plan, epoch_lengths(plan.config))
    name = str(plan.config.model.name_or_path or plan.shape.model_type if plan.shape else "model")
    chooser = CHOOSERS.get(plan.config.training.distributed_strategy)
    by_size = chooser is not None and not chooser.searches
    return forecast(name, spec, planned_candidate(plan, spec), plan.strategy_reason if by_size else "")


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
