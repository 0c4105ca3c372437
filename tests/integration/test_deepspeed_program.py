"""The program under DeepSpeed as a user starts it: by the deepspeed launcher with a JSON, resumed by
``paceline train``, exported.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import free_port
from support import ROOT, Run, run_process, write_yaml

from paceline.core.rundir import RunDir
from paceline.runlog.events import Step, read_events

pytestmark = [
    pytest.mark.integration,
    pytest.mark.fresh,
    pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="needs the extra deepspeed"),
]
Tiny = Callable[..., dict[str, Any]]
Paceline = Callable[..., Run]


def steps_of(run: Path) -> list[Step]:
    return [r.event for r in read_events(RunDir.at(run).events(0)) if isinstance(r.event, Step)]


def tensors_of(run: Path, step: int) -> dict[str, bytes]:
    from safetensors import safe_open

    found: dict[str, bytes] = {}
    for path in sorted((run / f"checkpoints/step-{step:08d}").glob("*.safetensors")):
        with safe_open(path, framework="np") as file:
            found |= {f"{path.name} {name}": file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118
    return found


def launch(config: Path, json_file: Path, folder: Path, *more: str) -> Run:
    """``deepspeed --num_gpus 2 main.py … --deepspeed --deepspeed_config FILE``, which adds
    ``--local_rank`` to each worker.
    """
    argv = [
        sys.executable,
        "-m",
        "deepspeed.launcher.runner",
        "--num_gpus",
        "2",
        "--master_port",
        str(free_port()),
    ]
    script = [
        str(ROOT / "main.py"),
        "--config",
        str(config),
        "--deepspeed",
        "--deepspeed_config",
        str(json_file),
    ]
    return run_process([*argv, *script, *more], 240, {"DS_ACCELERATOR": "cpu"}, folder)


@pytest.mark.slow
def test_started_by_deepspeed_resumed_by_paceline_and_exported(
    tiny: Tiny, paceline: Paceline, tmp_path: Path
) -> None:
    zero3 = json.loads((ROOT / "configs/deepspeed/zero3.json").read_text())
    zero3["zero_optimization"]["stage3_param_persistence_threshold"] = 0
    zero3["train_batch_size"] = 32  # does not multiply to what runs: repaired, and said
    file = tmp_path / "zero3.json"
    file.write_text(json.dumps(zero3))
    common = {
        "distributed_strategy": "deepspeed",
        "max_steps": 6,
        "save_strategy": "steps",
        "save_steps": 3,
        "max_grad_norm": 0.5,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "lr_scheduler_type": "warmup_lr",  # what the JSON's WarmupLR is
    }
    whole = tiny(**common, output_dir=str(tmp_path / "whole"))
    done = launch(write_yaml(tmp_path / "whole.yaml", whole), file, tmp_path)
    assert done.code == 0, done.out[-3000:] + done.err[-3000:]
    plan = json.loads((tmp_path / "whole/plan.json").read_text())
    assert (plan["strategy"], plan["launcher"], plan["world_size"], plan["num_nodes"]) == (
        "deepspeed",
        "deepspeed",
        2,
        1,
    )
    assert any("32" in d["reason"] and d["subject"] == "train_batch_size" for d in plan["decisions"])

    alone = tiny(
        **{**common, "distributed_strategy": "single", "gradient_accumulation_steps": 4},
        output_dir=str(tmp_path / "alone"),
    )
    assert paceline("train", str(write_yaml(tmp_path / "alone.yaml", alone)), "--nproc", "1").code == 0
    losses = [step.loss for step in steps_of(tmp_path / "whole")]
    assert losses[-1] < losses[0] - 0.1
    assert losses == pytest.approx([step.loss for step in steps_of(tmp_path / "alone")], abs=2e-6)

    part = tiny(
        **common,
        deepspeed=str(file),
        output_dir=str(tmp_path / "part"),
        resume_from_checkpoint=str(tmp_path / "whole/checkpoints/step-00000003"),
    )
    done = paceline("train", str(write_yaml(tmp_path / "part.yaml", part)), "--nproc", "2")
    assert done.code == 0, done.err
    before, after = steps_of(tmp_path / "whole")[3:], steps_of(tmp_path / "part")
    assert [(s.step, s.loss, s.grad_norm, s.lr) for s in after] == [
        (s.step, s.loss, s.grad_norm, s.lr) for s in before
    ]
    assert tensors_of(tmp_path / "whole", 6) == tensors_of(tmp_path / "part", 6)
    same_logits(tmp_path, paceline)


def same_logits(folder: Path, paceline: Paceline) -> None:
    """Exports of the ZeRO-3 run and of one process answer alike: nothing but rounding between them."""
    from transformers import AutoModelForCausalLM

    ids = torch.arange(40)[None]
    logits = []
    for run in ("whole", "alone"):
        assert paceline("export", str(folder / run), "--to", str(folder / f"hf-{run}")).code == 0
        auto: Any = AutoModelForCausalLM
        model = auto.from_pretrained(folder / f"hf-{run}", dtype=torch.float32)
        logits.append(model.eval()(ids).logits.detach())
    assert float((logits[0] - logits[1]).abs().max()) < 1e-4
