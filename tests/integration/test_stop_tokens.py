"""A base whose model ends its answers with a stop token that only its generation config names: rollouts,
merged export, ``generate`` and Transformers end there, through the program.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import Run, write_yaml

from paceline.core.rundir import RunDir
from paceline.runlog.events import Step, read_events
from tests.unit.checkpoint.generated_bases import FIRST, make_base

pytestmark = [pytest.mark.integration]
REWARDS = [{"name": "length", "options": {"target": 4}}]
STOPS = [FIRST + 1, FIRST, 65]


def test_answers_end_at_every_stop_token_of_the_base(
    tiny: Callable[..., dict[str, Any]], paceline: Callable[..., Run], tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM, GenerationConfig

    base = tmp_path / "base"
    make_base(base, seed=3, writes=65)  # chat templates in a folder of their own
    GenerationConfig(eos_token_id=STOPS).save_pretrained(base)
    rows = [{"prompt": f"say red {i}", "answer": "red"} for i in range(4)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = tiny(
        algorithm="grpo", max_steps=1, learning_rate=1e-12, per_device_train_batch_size=4,
        save_strategy="steps", save_steps=1,
        rollout={"rewards": REWARDS, "num_generations": 2, "max_completion_length": 16},
    )  # fmt: skip
    config["lora"] = {"r": 2, "target_modules": ["q_proj"]}
    config["model"] = {"name_or_path": str(base)}
    config["data"]["train"] = str(tmp_path / "prompts.jsonl")
    done = paceline("train", str(write_yaml(tmp_path / "c.yaml", config)))
    assert done.code == 0, done.err
    run = RunDir.at(tmp_path / "run")
    (step,) = [one.event for one in read_events(run.events(0)) if isinstance(one.event, Step)]
    lengths = {
        name: value for name, value in step.extras.items() if "length" in name and "completion" in name
    }
    assert lengths and set(lengths.values()) <= {1.0}, step.extras
    done = paceline("export", str(run.root), "--to", str(tmp_path / "out"), "--merge")
    assert done.code == 0, done.err
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert set(STOPS) <= set(model.generation_config.eos_token_id)
    assert model.generate(torch.tensor([[7, 8]]), max_new_tokens=16, do_sample=False)[0, 2:].tolist() == [65]
    said = paceline(
        "generate",
        str(run.root),
        "--data",
        str(tmp_path / "prompts.jsonl"),
        "--to",
        str(tmp_path / "a.jsonl"),
    )
    assert said.code == 0, said.err
    answers = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert len(answers) == len(rows) and "AA" not in json.dumps(answers)
