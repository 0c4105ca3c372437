"""Whole programs of a tiny model on the CPU or on an emulated device: the rows, the config, the ranks."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from ranks import ROOT, base_environment, collect, free_port, start
from support import TINY_LLAMA, instruction_rows, labelled_rows, preference_rows

from paceline.core.rundir import RunDir
from paceline.runlog.events import Step, read_events

DEVICES = ROOT / "tests" / "unit" / "device"
WORKER = Path(__file__).with_name("device_worker.py")
MODEL = TINY_LLAMA
ROLLOUT = {
    "rewards": [{"name": "length", "options": {"target": 6}}],
    "max_completion_length": 8,
    "num_generations": 4,
}


def close(training: dict[str, Any]) -> float:
    """How near a device's losses have to be to the CPU's."""
    return 2e-6 if training.get("mixed_precision") == "no" else 2e-4


def write_all_rows(folder: Path) -> dict[str, Path]:
    """Rows of each kind in files; the path by algorithm."""
    prompts = [{"prompt": r["instruction"], "answer": r["output"]} for r in instruction_rows(40)]
    made = {
        "sft": instruction_rows(60),
        "reward": preference_rows(60),
        "kto": labelled_rows(60),
        "grpo": prompts,
    }
    for kind, some in made.items():
        (folder / f"{kind}.jsonl").write_text("\n".join(json.dumps(r) for r in some))
    named = {
        "distillation": "sft",
        "dpo": "reward",
        "orpo": "reward",
        "ppo": "grpo",
        "rloo": "grpo",
        "reinforce_plus_plus": "grpo",
    }
    return {kind: folder / f"{named.get(kind, kind)}.jsonl" for kind in (*made, *named)}


def run(
    folder: Path,
    where: str,
    config: dict[str, Any],
    capability: tuple[int, int] = (9, 0),
    world_size: int = 1,
    resume: bool = False,
) -> dict[int, float]:
    """Run to the end and return the loss of each step."""
    folder.mkdir(parents=True, exist_ok=True)
    given = {**config, "training": {**config["training"], "output_dir": str(folder / "run")}}
    card = {(7, 5): "T4", (8, 0): "A100"}.get(capability, "H100")
    case = {"folder": str(folder), "where": where, "config": given, "capability": capability, "card": card}
    if resume:
        case["set"] = ["training.resume_from_checkpoint=latest"]
    path = folder / "case.json"
    path.write_text(json.dumps(case))
    port, ranks = free_port(), []
    for rank in range(world_size):
        several = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "LOCAL_WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        environment = {
            **base_environment(),
            "PYTHONPATH": os.pathsep.join(
                map(str, [ROOT, DEVICES, *([DEVICES / "ascend"] * (where == "npu"))])
            ),
            "PACELINE_LEDGER": "off",
            "HF_HUB_OFFLINE": "1",
            **(several if world_size > 1 else {}),
        }
        ranks.append(start([sys.executable, str(WORKER), str(path)], environment))
    codes, output = collect(ranks, 500)
    assert codes == [0] * world_size, "\n".join(text[-3000:] for text in output)
    events = [record.event for record in read_events(RunDir.at(folder / "run").events(0))]
    return {e.step: e.loss for e in events if isinstance(e, Step)}


def config_of(
    training: dict[str, Any], sections: dict[str, Any], rows: dict[str, Path], tokenizer: Path, cache: Path
) -> dict[str, Any]:
    algorithm = training.get("algorithm", "sft")
    return {
        "model": {"config": MODEL, "tokenizer": str(tokenizer)},
        "data": {
            "train": str(rows[algorithm]),
            "max_length": 96,
            "validation_split": 0.1,
            "cache_dir": str(cache),
        },
        "training": {
            "max_steps": 4,
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 2,
            "learning_rate": 1e-3,
            "logging_steps": 1,
            "eval_strategy": "steps",
            "eval_steps": 2,
            "save_steps": 2,
            "report_to": "none",
            "distributed_strategy": "single",
            **training,
        },
        **sections,
    }
