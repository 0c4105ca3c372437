"""A shortened demo as a user starts it, and what the README tells to do with its run: chat, plot, export,
resume.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import warm
from PIL import Image
from support import Run

from paceline.demo.main import RECIPES

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_SECONDS = 550
STEPS = 6


def paceline(
    folder: Path, *arguments: str, given: str = "", deadline: float = DEADLINE_SECONDS, fresh: bool = False
) -> Run:
    """``paceline ARGUMENTS`` in ``folder``, with a cache of its own. ``fresh``: by an interpreter that has
    imported nothing yet.
    """
    environ = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("PACELINE_", "RANK", "WORLD_SIZE", "MASTER_", "LOCAL_"))
    }
    environ |= {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "PACELINE_CACHE": str(folder / "cache"),
        "COLUMNS": "120",
    }
    argv = [sys.executable, "-m", "paceline.cli.main", *arguments]
    start = warm.Fresh if fresh else warm.Popen
    pipe = subprocess.PIPE
    with start(argv, cwd=folder, env=environ, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            out, err = process.communicate(given, deadline)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return Run(process.returncode, out, err)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run]:
    """A folder in which a demo of a few steps was run."""
    folder = tmp_path_factory.mktemp("demo")
    return folder, paceline(folder, "demo", "--steps", str(STEPS))


@pytest.mark.timeout(DEADLINE_SECONDS)
def test_the_demo_shows_numbers_answers_and_places(demo: tuple[Path, Run]) -> None:
    folder, done = demo
    assert done.code == 0, done.out[-3000:] + done.err[-3000:]
    run = folder / "outputs" / "demo"
    for word in (
        "held-out questions",
        "before",
        "after",
        "Some answers, side by side",
        "paceline chat outputs/demo",
        "outputs/demo/plot.png",
    ):
        assert word in done.out, word
    assert (run / "plot.png").read_bytes().startswith(b"\x89PNG")
    answers = json.loads((run / "answers.json").read_text())
    assert [a["step"] for a in answers] == [0, 2, 4, 6]
    assert answers[0]["exact_match"] < 0.02, "an untrained model cannot guess"
    assert all(len(a["rows"]) == 240 for a in answers)
    assert json.loads((run / "result.json").read_text())["world_size"] == 2


@pytest.mark.timeout(DEADLINE_SECONDS)
def test_chat_plot_and_export_follow(demo: tuple[Path, Run]) -> None:
    folder, _ = demo
    last = json.loads((folder / "outputs" / "demo" / "answers.json").read_text())[-1]["rows"][0]
    said = paceline(folder, "chat", "outputs/demo", "--prompt", last["prompt"], "--max-new-tokens", "12")
    assert said.code == 0, said.err
    assert said.out.rstrip("\n") == last["answer"], "chat answers as the evaluation did"
    assert paceline(folder, "plot", "outputs/demo", "--to", "again.png").code == 0
    assert (folder / "again.png").stat().st_size > 10_000
    exported = paceline(folder, "export", "outputs/demo", "--to", "model")
    assert exported.code == 0, exported.err
    piped = paceline(folder, "chat", "model", "--max-new-tokens", "12", given=f"{last['prompt']}\n")
    assert piped.out == said.out, "the exported model says the same, asked through a pipe"


@pytest.mark.slow
@pytest.mark.timeout(DEADLINE_SECONDS)
def test_another_algorithm_goes_on_from_a_finished_demo(demo: tuple[Path, Run]) -> None:
    """A demo of three steps, from a checkpoint that is said to be half-way."""
    folder, _ = demo
    scores = folder / "outputs" / "demo" / "answers.json"
    claimed = [{**a, "exact_match": 0.41 if a["step"] == 4 else 0.9} for a in json.loads(scores.read_text())]
    scores.write_text(json.dumps(claimed))
    done = paceline(folder, "demo", "--algorithm", "grpo", "--steps", "3")
    assert done.code == 0, done.out[-3000:] + done.err[-3000:]
    assert "step 4 of the SFT demo in outputs/demo" in done.out and "Fewer steps than needed" in done.out
    root = folder / "outputs" / "demo-grpo"
    assert (
        not (root / "sft").exists()
        and (root / "grpo" / "plot.png").is_file()
        and (root / "grpo.yaml").is_file()
    )
    numbers = json.loads((root / "numbers.json").read_text())["numbers"]
    assert [n["name"] for n in numbers] == ["exact match on held-out questions"]
    assert numbers[0]["goal"] == pytest.approx(numbers[0]["before"] + 0.25)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("algorithm", RECIPES)
def test_every_demo_reaches_its_goals(algorithm: str, tmp_path: Path) -> None:
    """The whole demo, as a user starts it."""
    done = paceline(tmp_path, "demo", "--algorithm", algorithm, deadline=3600, fresh=True)
    assert done.code == 0, done.out[-3000:] + done.err[-3000:]
    assert "Every goal was reached" in done.out
    numbers = json.loads((tmp_path / "outputs" / f"demo-{algorithm}" / "numbers.json").read_text())["numbers"]
    assert numbers and all(n["reached"] for n in numbers)


def test_a_directory_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine").write_text("mine")
    done = paceline(tmp_path, "demo", "--to", "taken")
    assert done.code == 2
    assert "demo.not_empty" in done.err
    assert [p.name for p in (tmp_path / "taken").iterdir()] == ["mine"]


@pytest.mark.full
@pytest.mark.timeout(DEADLINE_SECONDS)
def test_the_demo_with_images_trains_and_says_how_many_pictures_it_answers(tmp_path: Path) -> None:
    done = paceline(tmp_path, "demo", "--algorithm", "vision", "--steps", str(STEPS))
    assert done.code == 0, done.out[-3000:] + done.err[-3000:]
    root = tmp_path / "outputs" / "demo-vision"
    numbers = json.loads((root / "numbers.json").read_text())["numbers"]
    assert numbers[0]["name"].startswith("held-out pictures") and 0 <= numbers[0]["after"] <= 1
    assert "--image" in done.out
    assert (root / "vision/plot.png").is_file() and "Fewer steps" in done.out
    assert json.loads((root / "vision/plan.json").read_text())["vision"] is True
    report = tmp_path / "report.html"
    assert paceline(tmp_path, "report", str(root / "vision"), "--to", str(report)).code == 0
    sent = {
        base64.b64decode(text)
        for text in re.findall(r"data:image/jpeg;base64,([\w+/=]+)", report.read_text())
    }
    assert len(sent) > 20
    held = np.asarray(Image.open(root / "material/held_out/00000.png"), np.float32)
    apart = [np.abs(np.asarray(Image.open(BytesIO(data)), np.float32) - held).mean() for data in sent]
    assert sorted(apart)[0] < 5 < sorted(apart)[1], "the report shows the first question's picture, once"
