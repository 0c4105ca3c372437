"""Rows with pictures: answers and losses are those of Transformers' own processor and model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from vision_models import write_vision_folder

from paceline.evaluation import chat
from paceline.evaluation.file_rows import read_task, settings_of
from paceline.evaluation.model_folders import NamedModel, config_of
from paceline.evaluation.pictures import write_pictures
from paceline.evaluation.processes.job import EvaluationJob
from paceline.evaluation.processes.rank import compute
from paceline.evaluation.processes.work_folder import ANSWERS, LOSSES, WorkFolder

TEXT, ANSWER, NEW = "what is it", "red apple", 6


def _pictures(folder: Path, count: int) -> list[Path]:
    drawn = np.random.default_rng(3)
    files = [folder / f"{n}.png" for n in range(count)]
    for n, file in enumerate(files):
        Image.fromarray(drawn.integers(0, 256, (40 + 8 * n, 56, 3), dtype=np.uint8)).save(file)
    return files


class Theirs:
    """Transformers' processor and model of a folder."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForImageTextToText, AutoProcessor

        self.processor: Any = AutoProcessor.from_pretrained(folder, backend="pil")
        self.hf: Any = AutoModelForImageTextToText.from_pretrained(folder).eval()

    def inputs(self, pictures: list[Path], answer: str = "") -> Any:
        parts: list[dict[str, str]] = [*[{"type": "image"}] * len(pictures), {"type": "text", "text": TEXT}]
        turns = [{"role": "user", "content": parts}]
        turns += [{"role": "assistant", "content": answer}] if answer else []
        text = self.processor.tokenizer.apply_chat_template(
            turns, tokenize=False, add_generation_prompt=not answer
        )
        images = [Image.open(file).convert("RGB") for file in pictures]
        return self.processor(text=[text], images=[images], return_tensors="pt", add_special_tokens=False)

    def answer(self, pictures: list[Path]) -> str:
        inputs = self.inputs(pictures)
        with torch.no_grad():
            made = self.hf.generate(**inputs, max_new_tokens=NEW, do_sample=False)
        return str(self.processor.tokenizer.decode(made[0, inputs["input_ids"].shape[1] :], True))

    def loss(self, pictures: list[Path]) -> float:
        """Sum of -log p over the answer's tokens."""
        prompt, whole = self.inputs(pictures), self.inputs(pictures, ANSWER)
        begin = prompt["input_ids"].shape[1]
        with torch.no_grad():
            scores = self.hf(**whole).logits[0, begin - 1 : -1].log_softmax(-1)
        ids = whole["input_ids"][0, begin:]
        return -float(scores.gather(1, ids[:, None]).sum())


@pytest.mark.parametrize("kind", ["llava", "gemma3"])
def test_answers_and_losses_are_those_of_transformers(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_vision_folder(tmp_path / kind, kind)
    files, theirs = _pictures(tmp_path, 2), Theirs(folder)
    pictures = [part for file in files for part in ("--image", str(file))]
    arguments = [str(folder), "--prompt", TEXT, "--max-new-tokens", str(NEW), *pictures]
    assert chat.main(arguments) == 0
    expected = theirs.answer(files)
    assert capsys.readouterr().out.rstrip("\n").endswith(expected)
    rows = tmp_path / "rows.jsonl"
    shown = [files, files[:1], []]
    rows.write_text("".join(_row(few) for few in shown))
    job = EvaluationJob(
        models=(str(folder),),
        data={"path": str(rows)},
        overrides=(f"generation.max_new_tokens={NEW}",),
        batch_size=2,
    )
    model, work = NamedModel("m", folder, None, None), WorkFolder(tmp_path / "work")
    work.folder.mkdir()
    config = config_of(model, folder, job)
    read = {task: read_task(task, config, []) for task in (LOSSES, ANSWERS)}
    for task, held in read.items():
        work.write_rows(task, held.documents, held.numbers)
        write_pictures(work.pictures(task), held.pictures)
    work.write(settings_of(job, config, read, folder, (LOSSES, ANSWERS)))
    compute(work, 0, 1)
    answers: Any = work.results(ANSWERS, 3, 2)
    assert [answer[0]["text"] for answer in answers[:2]] == [theirs.answer(few) for few in shown[:2]]
    losses: Any = work.results(LOSSES, 3, 2)
    assert [loss[0] for loss in losses[:2]] == pytest.approx(
        [theirs.loss(few) for few in shown[:2]], rel=1e-5
    )
    assert losses[2][1] == losses[0][1] > 0


def _row(pictures: list[Path]) -> str:
    turns = [
        {"role": "user", "content": "<image>" * len(pictures) + TEXT},
        {"role": "assistant", "content": ANSWER},
    ]
    return json.dumps({"messages": turns, "images": [file.name for file in pictures]}) + "\n"
