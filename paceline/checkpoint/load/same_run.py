"""Whether a checkpoint belongs to this run: the fields of both must agree. No torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from paceline.checkpoint import codes
from paceline.core.errors import CheckpointError
from paceline.core.json_types import Json


def same_run(state: Mapping[str, Json], now: Mapping[str, Json], *, override: Collection[str] = ()) -> None:
    """Raise CheckpointError with every field in which the checkpoint's run differs from this one.

    ``state``: the checkpoint's; ``now``: this run's values of ``config_digest``, ``data_fingerprint``,
    ``seed``, ``global_batch``, ``seq_len``, ``packing`` (a field absent from ``now`` is not compared). World
    size and strategy may change. ``override``: fields that may differ.
    """
    differences = [
        codes.CHECKPOINT_OTHER_RUN(
            field,
            f"{_short(state.get(field))} in the checkpoint, {_short(now[field])} now",
            detail=detail,
            hint=remedy,
            evidence={"field": field, "old": state.get(field), "new": now[field]},
        )
        for field, (detail, remedy) in _FIELDS.items()
        if field in now and field not in override and state.get(field) != now[field]
    ]
    if differences:
        raise CheckpointError(*differences)


_ANEW = (
    "or start a new run from its weights: no resume_from_checkpoint, and what paceline export writes of it as"
    " lora.adapter_name_or_path or model.name_or_path"
)
_BACK = f"use the value it was saved with, {_ANEW}"
_FIELDS: Mapping[str, tuple[str, str]] = {
    "data_fingerprint": (
        "data set, tokenizer, template or length",
        f"use the data it was saved with, {_ANEW}",
    ),
    "global_batch": (
        "global batch (micro-batch × accumulation × data-parallel ranks)",
        ("choose a micro-batch and accumulation whose product with the number of ranks gives the old value"),
    ),
    "seq_len": ("sequence length", _BACK),
    "packing": ("packing", _BACK),
    "seed": ("seed", _BACK),
    "config_digest": (
        "config",
        f"use the config it was saved with (config.yaml in the run directory), {_ANEW}",
    ),
}


def _short(value: Json) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 24 else text[:12] + "…"
