"""A base whose model ends its answers with a stop token that only its generation config names: rollouts,
merged export, ``generate`` and Transformers end there, through the program.
"""

from __future__ import annotations

import json
import runpy
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
CASE = Path(__file__).resolve().parents[3] / "shared/cases/turn3/stop_tokens/make_base.py"


def generated(base: Path, tokenizer: Path) -> list[int]:
    """Write a base with chat templates in a folder; return its stop tokens, the last of which it writes."""
    from transformers import GenerationConfig

    stops = [FIRST + 1, FIRST, 65]
    make_base(base, seed=3, writes=stops[-1])
    GenerationConfig(eos_token_id=stops).save_pretrained(base)
    return stops


def shared(base: Path, tokenizer: Path) -> list[int]:
    """Write the base of ../shared/cases; return its stop tokens, the last it writes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", [str(CASE), str(base), str(tokenizer)])
        runpy.run_path(str(CASE))
    return [2, 0, 50]


@pytest.mark.parametrize(
    "write",
    [generated, pytest.param(shared, marks=pytest.mark.skipif(not CASE.is_file(), reason="no ../shared"))],
)
def test_answers_end_at_every_stop_token_of_the_base(
    write: Callable[[Path, Path], list[int]],
    tiny: Callable[..., dict[str, Any]],
    paceline: Callable[..., Run],
    tokenizer_dir: Path,
    tmp_path: Path,
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    pytest.importorskip("starlette")
    from starlette.testclient import TestClient

    from paceline.evaluation.serve import front, load

    base = tmp_path / "base"
    stops = write(base, tokenizer_dir)
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
    assert set(stops) <= set(model.generation_config.eos_token_id)
    assert (
        model.generate(torch.tensor([[7, 8]]), max_new_tokens=16, do_sample=False)[0, 2:].tolist()
        == stops[-1:]
    )
    to = tmp_path / "a.jsonl"
    done = paceline("generate", str(run.root), "--data", str(tmp_path / "prompts.jsonl"), "--to", str(to))
    assert done.code == 0, done.err
    answers = [json.loads(line) for line in to.read_text().splitlines()]
    letter = AutoTokenizer.from_pretrained(base).decode(stops[-1])
    assert len(answers) == len(rows) and 2 * letter not in json.dumps(answers)
    with TestClient(front(load(tmp_path / "out", "mine", "float32"), "the-key")) as client:
        client.base_url = "http://127.0.0.1"  # type: ignore[assignment]
        asked = {"messages": [{"role": "user", "content": "say red"}]}
        served = client.post("/v1/chat/completions", json=asked, headers={"authorization": "Bearer the-key"})
    (choice,) = served.json()["choices"]
    assert served.json()["usage"]["completion_tokens"] == 1 and choice["finish_reason"] == "stop"
