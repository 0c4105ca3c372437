"""Pipelines on real processes: one process's numbers from every schedule, and the whole program with save,
resume and export.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks
from support import Run, write_yaml

from paceline.core.rundir import RunDir
from paceline.runlog.events import Eval, Step, read_events

pytestmark = [pytest.mark.integration]
WORKER = Path(__file__).with_name("pipeline_worker.py")
Tiny = Callable[..., dict[str, Any]]
Paceline = Callable[..., Run]
BOUNDS = {"float32": 2e-6, "bfloat16": 5e-3, "sharded bfloat16": 5e-3}  # anything else: float64

FROM_FOLDER = ("1f1b from a folder", "zero_bubble", "sharded", "tensor")


def answers(scenario: str, world_size: int, out: Path) -> list[dict[str, Any]]:
    codes, outputs = run_ranks(scenario, world_size, out, script=WORKER)
    assert codes == [0] * world_size, "\n".join(outputs)
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(world_size)]


@pytest.mark.parametrize(
    ("world_size", "scenario"),
    [
        (2, "parity:tied+parity:folder"),  # three schedules, recomputation, a folder
        pytest.param(2, "parity+resume", marks=pytest.mark.full),
        pytest.param(4, "parity", marks=pytest.mark.slow),
    ],
)
def test_every_schedule_gives_one_process_s_numbers(world_size: int, scenario: str, tmp_path: Path) -> None:
    ranks = answers(scenario, world_size, tmp_path)
    for rank in ranks:
        cases = {n: c for key, part in rank.items() if key.startswith("parity") for n, c in part.items()}
        assert len(cases) >= 4
        for name, apart in cases.items():
            bound = BOUNDS.get(name, 1e-10)
            # the loss moves and clipping is active
            assert apart["learnt"] > 0.3 and apart["largest_norm"] > 0.5, name
            assert max(apart["loss"], apart["eval"]) < bound, (name, apart)
            if name in FROM_FOLDER:  # layers are most of it
                assert 0.4 < apart["read"] * world_size / 2 < 0.6, (name, apart)
            if name != "sharded bfloat16":
                assert max(apart["norm"], apart["parameters"]) < 10 * bound, (name, apart)
    if "resume" in scenario:
        for rank in ranks:
            for name, found in rank["resume"].items():
                assert found["straight"] == found["again"], name
                assert found["tied copies equal"], name


def tensors_of(checkpoint: Path) -> dict[str, bytes]:
    """Every tensor of a checkpoint as its bytes."""
    from safetensors import safe_open

    found: dict[str, bytes] = {}
    for path in sorted(checkpoint.glob("*.safetensors")):
        with safe_open(path, framework="np") as file:
            found.update({name: file.get_tensor(name).tobytes() for name in file.keys()})  # noqa: SIM118
    return found


def test_the_program_trains_evaluates_saves_resumes_and_exports(
    tiny: Tiny, paceline: Paceline, tmp_path: Path
) -> None:
    def run(name: str, **training: Any) -> list[Any]:
        made = tiny(
            output_dir=str(tmp_path / name),
            max_steps=6,
            save_strategy="steps",
            save_steps=3,
            eval_strategy="steps",
            eval_steps=6,
            max_grad_norm=0.5,
            distributed_strategy="pipeline",
            parallelism={"pp_size": 2, "pp_schedule": "interleaved"},
            gradient_accumulation_steps=4,
            **training,
        )
        layers = {"num_hidden_layers": 4, "attention_dropout": 0.1}
        made["model"]["config"] |= {"tie_word_embeddings": True, **layers}
        made["data"]["eval"] = made["data"]["train"]
        done = paceline("train", str(write_yaml(tmp_path / "config.yaml", made)), "--nproc", "2")
        assert done.code == 0, done.err
        events = [r.event for r in read_events(RunDir.at(tmp_path / name).events(0))]
        steps = [(e.step, e.loss, e.grad_norm) for e in events if isinstance(e, Step)]
        return [steps, [e.metrics for e in events if isinstance(e, Eval)]]

    whole = run("whole")
    again = run("again", resume_from_checkpoint=str(tmp_path / "whole/checkpoints/step-00000003"))
    assert len(whole[0]) == 6 and len(whole[1]) == 1 and whole[0][-1][1] < whole[0][0][1]
    assert again == [whole[0][3:], whole[1]]
    one, other = (tensors_of(tmp_path / name / "checkpoints/step-00000006") for name in ("whole", "again"))
    assert one == other and len(one) > 30
    # loads what it wrote and compares
    done = paceline("export", str(tmp_path / "again"), "--to", str(tmp_path / "hf"))
    assert done.code == 0, done.err
    assert (tmp_path / "hf/model.safetensors").is_file()
