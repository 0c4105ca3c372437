"""A checkpoint is resumed under another strategy, or on another number of processes: the losses go on as
if nothing had changed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import Run, write_yaml
from test_lora import save_base

from paceline.core.rundir import RunDir
from paceline.runlog.events import Step, read_events

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]
Tiny = Callable[..., dict[str, Any]]
Paceline = Callable[..., Run]

# Processes and keys of ``training``; every way takes 4 rows a step.
ALONE = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
SHARED = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 1}
WAYS: dict[str, tuple[int, dict[str, Any]]] = {
    "single": (1, {"distributed_strategy": "single", **ALONE}),
    "data_parallel": (1, {"distributed_strategy": "data_parallel", **ALONE}),
    "ddp": (2, {"distributed_strategy": "ddp", **SHARED}),
    "zero_redundancy": (2, {"distributed_strategy": "zero_redundancy", **SHARED}),
    "fsdp full_shard": (2, {"distributed_strategy": "fsdp", "fsdp": "full_shard", **SHARED}),
    "fsdp shard_grad_op": (2, {"distributed_strategy": "fsdp", "fsdp": "shard_grad_op", **SHARED}),
    "fsdp tp": (2, {"distributed_strategy": "fsdp", "parallelism": {"tp_size": 2}, **ALONE}),
    "fsdp cp": (2, {"distributed_strategy": "fsdp", "parallelism": {"cp_size": 2}, **ALONE}),
    "pipeline": (2, {"distributed_strategy": "pipeline", "parallelism": {"pp_size": 2}, **ALONE}),
    "zero1": (2, {"distributed_strategy": "zero1", **SHARED}),
    "zero2": (2, {"distributed_strategy": "zero2", **SHARED}),
    "zero3": (2, {"distributed_strategy": "zero3", **SHARED}),
}
# Those that cut the state in another way each; the others cut it as one of them does.
LAYOUTS = ("single", "ddp", "fsdp full_shard", "fsdp tp", "pipeline", "zero1", "zero3")
OTHERS = tuple(way for way in WAYS if way not in LAYOUTS)
STEPS, SAVED = 6, 3


def run(tiny: Tiny, paceline: Paceline, folder: Path, name: str, way: str, **more: Any) -> list[Step]:
    """The steps of a run by one way."""
    processes, keys = WAYS[way]
    config = tiny(
        **keys, max_steps=STEPS, max_grad_norm=0.5, warmup_steps=2, output_dir=str(folder / name), **more
    )
    done = paceline("train", str(write_yaml(folder / f"{name}.yaml", config)), "--nproc", str(processes))
    assert done.code == 0, f"{name}: {done.err[-2000:]}"
    return [r.event for r in read_events(RunDir.at(folder / name).events(0)) if isinstance(r.event, Step)]


def resumed(
    tiny: Tiny, paceline: Paceline, folder: Path, source: str, targets: list[str], bound: float = 1e-6
) -> dict[str, str]:
    """What is wrong with each target that went on from half of ``source``'s run."""
    whole = run(tiny, paceline, folder, "whole", source, save_strategy="steps", save_steps=SAVED)[SAVED:]
    checkpoint = folder / f"whole/checkpoints/step-{SAVED:08d}"
    wrong = {}
    for number, target in enumerate(targets):
        try:
            part = run(
                tiny, paceline, folder, f"part{number}", target, resume_from_checkpoint=str(checkpoint)
            )
        except AssertionError as error:
            wrong[target] = str(error)
            continue
        apart = [(a.loss - b.loss, a.grad_norm - b.grad_norm) for a, b in zip(whole, part, strict=True)]
        if [s.sample_digest for s in part] != [s.sample_digest for s in whole]:
            wrong[target] = "other samples"
        elif max(abs(x) for x, _ in apart) > bound or max(abs(y) for _, y in apart) > 10 * bound:
            wrong[target] = f"apart by {apart}"
    return wrong


@pytest.mark.parametrize(
    ("source", "target"), [("single", "ddp"), pytest.param("ddp", "single", marks=pytest.mark.full)]
)
def test_one_process_and_two(
    source: str, target: str, tiny: Tiny, paceline: Paceline, tmp_path: Path
) -> None:
    assert resumed(tiny, paceline, tmp_path, source, [target]) == {}
    planned = said_by_plan(tiny, paceline, tmp_path, target)
    assert planned.code == 0 and "resume.moved" in planned.out + planned.err, planned
    refused = said_by_plan(
        tiny, paceline, tmp_path, "ddp", distributed_strategy="paceline.strategies.ddp:DDP"
    )
    assert refused.code == 2 and "checkpoint.other_strategy" in refused.err, refused


def said_by_plan(tiny: Tiny, paceline: Paceline, folder: Path, way: str, **more: Any) -> Run:
    """What ``paceline plan --resume`` says before any process starts."""
    processes, keys = WAYS[way]
    yaml = write_yaml(folder / "planned.yaml", tiny(**{**keys, **more}, output_dir=str(folder / "planned")))
    return paceline(
        "plan",
        str(yaml),
        "--nproc",
        str(processes),
        f"training.resume_from_checkpoint={folder}/whole/checkpoints/step-{SAVED:08d}",
    )


@pytest.mark.slow
@pytest.mark.parametrize("source", WAYS)
def test_every_strategy_reads_what_the_others_have_saved(
    source: str, tiny: Tiny, paceline: Paceline, tmp_path: Path
) -> None:
    """Every pair of layouts; the ways that share one with another are read by one process and read what it
    has saved.
    """
    targets = {"single": tuple(WAYS)[1:]}.get(source, LAYOUTS if source in LAYOUTS else ("single",))
    assert resumed(tiny, paceline, tmp_path, source, [way for way in targets if way != source]) == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("single", "zero3"),
        ("zero3", "fsdp full_shard"),
        ("fsdp full_shard", "single"),
        ("single", "fsdp tp"),
        ("fsdp tp", "single"),
        ("fsdp tp", "fsdp full_shard"),
    ],
)
@pytest.mark.parametrize("kind", ["lora", "bf16"])
def test_an_adapter_and_bf16(
    source: str, target: str, kind: str, tiny: Tiny, paceline: Paceline, tmp_path: Path
) -> None:
    base = {"name_or_path": str(tmp_path / "base"), "tokenizer": tiny()["model"]["tokenizer"]}
    save_base(tmp_path / "base", tiny()["model"]["config"], seed=3)

    def made(**training: Any) -> dict[str, Any]:
        if kind == "bf16":
            return tiny(**training, mixed_precision="bf16")
        return {**tiny(**training), "model": base, "lora": {"r": 4}}

    assert resumed(made, paceline, tmp_path, source, [target], 1e-6 if kind == "lora" else 5e-3) == {}
