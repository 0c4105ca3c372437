"""What goes into a checkpoint, and how a run starts from one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.seam.roles import Role
from paceline.training.state import TrainState


def run_state(state: TrainState, algorithm: Any, plan: Any, data_fingerprint: str) -> dict[str, Any]:
    """The JSON part of a checkpoint: position, best metric, and what a resumed run is compared with."""
    return {
        "train": state.to_json(),
        "algorithm": algorithm.state() if algorithm is not None else {},
        "config": dict(plan.config),
        "config_digest": plan.config_digest,
        "data_fingerprint": data_fingerprint,
        "global_batch": plan.batch.global_batch,
        "seq_len": plan.seq_len,
        "packing": plan.packing,
        "seed": plan.config["training"]["seed"],
        "world_size": plan.world_size,
        "strategy": plan.strategy,
        "plan_digest": plan.digest(),
    }


def hugging_face_files(
    hf_config: Mapping[str, Any], tokenizer: Path, generation: Mapping[str, Any]
) -> dict[str, bytes]:
    """``config.json``, ``generation_config.json`` and the tokenizer's files: a checkpoint can be exported without the place it came from."""
    files = {
        path.name: path.read_bytes()
        for path in sorted(tokenizer.iterdir())
        if path.suffix in {".json", ".jinja", ".txt", ".model"}
    }
    configs = {"config.json": hf_config, "generation_config.json": generation}
    return {
        **files,
        **{name: json.dumps(dict(values), indent=2, ensure_ascii=False).encode() for name, values in configs.items()},
    }


def exported_shards(strategy: Any, handles: Mapping[Role, Any], algorithm: Any) -> Any:
    """This rank's shards of every trained role."""
    for role in algorithm.trains:
        yield from strategy.export_state(handles[role])
