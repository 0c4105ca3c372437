"""``paceline train`` on rows with images: on two processes, resumed bit for bit and under another strategy,
measured, exported.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from support import Run, write_yaml
from vision_models import write_vision_folder

from paceline.checkpoint.export.hf_export import export_hf
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.core.rundir import RunDir
from paceline.runlog.events import Eval, Step, read_events

pytestmark = [pytest.mark.integration]
Paceline = Callable[..., Run]
IMAGES = (0, 1, 2, 0, 1, 7)


def _rows(folder: Path, count: int = 24) -> Path:
    """Rows with no image, one, two and seven."""
    lines = []
    for row in range(count):
        names = [f"{row}-{n}.png" for n in range(IMAGES[row % len(IMAGES)])]
        for n, name in enumerate(names):
            Image.new("RGB", (30 + 20 * n, 56), (row * 9 % 256, n * 30, 99)).save(folder / name)
        turns = [
            {"role": "user", "content": "<image>" * len(names) + f"what is number {row}"},
            {"role": "assistant", "content": "red apple"},
        ]
        lines.append(json.dumps({"messages": turns, "images": names}) + "\n")
    (folder / "rows.jsonl").write_text("".join(lines))
    return folder / "rows.jsonl"


def _tensors(run: Path, step: int) -> dict[tuple[str, str, str], torch.Tensor]:
    with CheckpointReader(run / "checkpoints" / f"step-{step:08d}") as reader:
        return {(n.role, n.name, n.kind): reader.read(n.role, n.name, n.kind) for n in reader.names()}


def test_rows_with_images_train_resume_and_leave(paceline: Paceline, tmp_path: Path) -> None:
    base = write_vision_folder(tmp_path / "base", "qwen2_5_vl")
    rows = _rows(tmp_path)

    def run(name: str, nproc: int, strategy: str, **training: Any) -> tuple[list[Step], list[Eval]]:
        made = {
            "model": {"name_or_path": str(base)},
            "data": {
                "train": str(rows),
                "eval": str(rows),
                "max_length": 160,
                "cache_dir": str(tmp_path / "c"),
            },
            "training": {
                "output_dir": str(tmp_path / name),
                "distributed_strategy": strategy,
                "max_steps": 4,
                "gradient_accumulation_steps": 2 // nproc,
                "per_device_train_batch_size": 1,
                "learning_rate": 1e-3,
                "save_strategy": "steps",
                "save_steps": 2,
                "eval_strategy": "steps",
                "eval_steps": 4,
                "logging_steps": 1,
                "report_to": "none",
                **training,
            },
        }
        done = paceline("train", str(write_yaml(tmp_path / f"{name}.yaml", made)), "--nproc", str(nproc))
        assert done.code == 0, done.out[-2000:] + done.err[-2000:]
        events = [r.event for r in read_events(RunDir.at(tmp_path / name).events(0))]
        return [e for e in events if isinstance(e, Step)], [e for e in events if isinstance(e, Eval)]

    steps, evals = run("ddp", 2, "ddp")
    saved = str(tmp_path / "ddp" / "checkpoints" / "step-00000002")
    again, measured = run("again", 2, "ddp", resume_from_checkpoint=saved)
    assert [e.losses for e in again] == [e.losses for e in steps[2:]]
    assert measured[-1].metrics["eval_loss"] == evals[-1].metrics["eval_loss"]
    whole, other = _tensors(tmp_path / "ddp", 4), _tensors(tmp_path / "again", 4)
    assert whole.keys() == other.keys() and all(torch.equal(t, other[n]) for n, t in whole.items())
    alone, _ = run("single", 1, "single", resume_from_checkpoint=saved)
    assert [e.loss for e in alone] == pytest.approx([e.loss for e in steps[2:]], abs=1e-5)
    export_hf(tmp_path / "ddp" / "checkpoints" / "step-00000004", tmp_path / "out")
    _check_folder(base, tmp_path / "out")


def _check_folder(base: Path, out: Path) -> None:
    """The class and image processor load; the tower is as it was, the rest was trained."""
    from transformers import AutoImageProcessor, AutoModelForImageTextToText

    before, after = (
        dict(AutoModelForImageTextToText.from_pretrained(f).named_parameters()) for f in (base, out)
    )
    same = {name for name, p in before.items() if torch.equal(p, after[name])}
    assert same == {name for name in before if ".visual." in name and ".merger." not in name}
    assert AutoImageProcessor.from_pretrained(out, backend="pil") is not None
    kept = {file.name for file in base.iterdir()} - {"model.safetensors"}
    assert kept <= {file.name for file in out.iterdir()}
