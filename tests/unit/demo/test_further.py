"""The demos that start half-way: which commands they run in which order, and what they make of the
results. Nothing is trained here.
"""

from __future__ import annotations

import io
import json
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from paceline.core.rundir import RunDir
from paceline.demo import main, steps
from paceline.demo.files import make_material
from paceline.demo.main import RECIPES
from paceline.runlog.events import Eval, EventLog, RunStarted


class Commands:
    """Instead of child processes: notes what was asked for, and leaves behind what the command would have."""

    def __init__(self, exact: dict[int, float], ranked: Sequence[float] = (0.5, 0.9)) -> None:
        self.exact, self.ranked, self.asked = exact, ranked, []
        self.asked: list[str]

    def __call__(self, console: Console, what: str, argv: Sequence[str], *, quiet: bool = False) -> float:
        self.asked.append(what)
        if what == "Training":
            run = RunDir.at(next(a for a in argv if a.endswith(".yaml"))[: -len(".yaml")])
            with EventLog(run.events(0), 0) as log:
                log.write(RunStarted("digest", 2))
                for step, share in enumerate(self.ranked):
                    log.write(Eval(step, {"eval_accuracy": share, "eval_rewards/accuracies": share}))
        if what in ("Answering", "Supervised training"):
            run = RunDir.at(
                argv[argv.index("paceline.training.exact_match") + 1]
                if what == "Answering"
                else Path(argv[-3]).parents[1]
            )
            for step in self.exact:
                run.checkpoint(step).mkdir(parents=True, exist_ok=True)
            row = {"prompt": "?", "expected": "x", "answer": "x", "correct": True}
            answers = [{"step": s, "exact_match": e, "rows": [row] * 240} for s, e in self.exact.items()]
            run.answers_json.write_text(json.dumps(answers))
        return 1.0


def demo(
    root: Path, algorithm: str, commands: Commands, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> tuple[int, str, list[dict[str, Any]]]:
    """(exit code, what was shown, numbers.json)."""
    monkeypatch.setattr(steps, "timed", commands)
    out = io.StringIO()
    given = Namespace(**{"seed": 42, "steps": None, "nproc": 2, "algorithm": algorithm, **options})
    code = main.demo_further(RECIPES[algorithm], given, Console(file=out, width=200), root)
    return code, out.getvalue(), json.loads((root / "numbers.json").read_text())["numbers"]


def half_way_beside(root: Path) -> None:
    finished = root.parent / "demo"
    make_material(finished, seed=42, num_train=5)
    RunDir.at(finished).checkpoint(80).mkdir(parents=True)
    (finished / "answers.json").write_text(json.dumps([{"step": 80, "exact_match": 0.41, "rows": []}]))


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_a_finished_demo_is_the_start_and_25_points_are_the_goal(
    algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / f"demo-{algorithm}"
    half_way_beside(root)
    commands = Commands({0: 0.41, 100: 0.5, 200: 0.67})
    code, shown, numbers = demo(root, algorithm, commands, monkeypatch)
    assert code == 0 and commands.asked == ["Export", "Training", "Answering", "Drawing the plot"]
    assert (
        "step 80 of the SFT demo" in shown
        and "Every goal was reached" in shown
        and "0: 41%  100: 50%  200: 67%" in shown
    )
    assert [(n["before"], n["after"], n["reached"]) for n in numbers] == [(0.41, 0.67, True)]
    assert not (root / "sft").exists()


def test_a_gain_too_small_fails_unless_the_demo_was_shortened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    half_way_beside(tmp_path / "demo-grpo")
    commands = Commands({0: 0.41, 200: 0.6})
    assert demo(tmp_path / "demo-grpo", "grpo", commands, monkeypatch)[0] == 1
    assert "60.0 %, 66.0 % expected" in capsys.readouterr().err
    assert demo(tmp_path / "demo-short", "grpo", commands, monkeypatch, steps=3)[0] == 0


def test_without_a_finished_demo_a_short_one_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = Commands({5: 0.2, 80: 0.38, 85: 0.5})
    code, shown, numbers = demo(tmp_path / "mine", "dpo", commands, monkeypatch)
    assert commands.asked[:2] == ["Supervised training", "Answering"] and "step 80 of the SFT demo" in shown
    assert [n["after"] for n in numbers] == [0.9, 0.5] and code == 0
    yaml = (tmp_path / "mine" / "sft" / "material" / "demo.yaml").read_text()
    assert "max_steps: 100" in yaml and "constant_with_warmup" in yaml and "save_steps: 5" in yaml


def test_dpo_may_not_lose_exact_match(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    half_way_beside(tmp_path / "demo-dpo")
    code, _, numbers = demo(tmp_path / "demo-dpo", "dpo", Commands({0: 0.41, 80: 0.40}), monkeypatch)
    assert code == 1 and [n["reached"] for n in numbers] == [True, False]


def test_a_reward_model_is_asked_no_questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    half_way_beside(tmp_path / "demo-reward")
    commands = Commands({}, ranked=(0.49, 0.84))
    code, _, numbers = demo(tmp_path / "demo-reward", "reward", commands, monkeypatch)
    assert commands.asked == ["Export", "Training", "Drawing the plot"]
    assert code == 1 and (numbers[0]["before"], numbers[0]["after"]) == (0.49, 0.84)
