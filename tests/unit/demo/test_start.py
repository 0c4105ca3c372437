"""Where the later demos start: the checkpoint nearest to 40 %, of a finished demo where one with the same
questions lies beside.
"""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from paceline.config.load import load_config
from paceline.core.rundir import RunDir
from paceline.demo.files import make_material
from paceline.demo.main import RECIPES
from paceline.demo.report import Number, table_of, verdict, write_numbers
from paceline.demo.steps import HalfWay, finished_nearby, nearest


def finished(root: Path, seed: int, exact: dict[int, float], kept: set[int] | None = None) -> None:
    """What a finished SFT demo leaves: material, scores, checkpoints."""
    make_material(root, seed=seed, num_train=5)
    (root / "answers.json").write_text(
        json.dumps([{"step": s, "exact_match": e, "rows": []} for s, e in exact.items()])
    )
    for step in exact if kept is None else kept:
        RunDir.at(root).checkpoint(step).mkdir(parents=True)


def test_the_nearest_of_all_finished_demos_is_taken(tmp_path: Path) -> None:
    finished(tmp_path / "demo", 42, {20: 0.2, 40: 0.44, 60: 0.8})
    finished(tmp_path / "demo-dpo" / "sft", 42, {20: 0.1, 70: 0.39})
    found = finished_nearby(tmp_path, 42)
    assert found is not None
    run, material, answers = found
    assert run.root == tmp_path / "demo-dpo" / "sft" and answers["step"] == 70
    assert len(material.questions) == 240 and material.train.is_file()


def test_other_questions_far_scores_and_lost_checkpoints_are_passed_over(tmp_path: Path) -> None:
    finished(tmp_path / "demo", 1, {20: 0.4})
    finished(tmp_path / "demo-2", 42, {20: 0.2, 40: 0.6})
    finished(tmp_path / "demo-3", 42, {20: 0.4, 40: 0.9}, kept={40})
    (tmp_path / "demo-4").mkdir()
    assert finished_nearby(tmp_path, 42) is None
    assert finished_nearby(tmp_path / "nowhere", 42) is None


def test_nearest_is_by_exact_match() -> None:
    assert (
        nearest(
            [
                {"step": 1, "exact_match": 0.1},
                {"step": 2, "exact_match": 0.43},
                {"step": 3, "exact_match": 0.35},
            ]
        )["step"]
        == 2
    )


@pytest.mark.parametrize("algorithm", RECIPES)
def test_every_recipe_is_a_config_that_reaches_its_files(algorithm: str, tmp_path: Path) -> None:
    root = tmp_path / "a folder: with 'odd' characters"
    material = make_material(root / "sft", seed=11, num_train=20, num_held_out=12)
    start, recipe = HalfWay(material, root / "start", 0.4, {}), RECIPES[algorithm]
    recipe.lay(root, start, 11)
    yaml = root / f"{algorithm}.yaml"
    yaml.write_text(recipe.yaml(root, start, 11, 30, 2), encoding="utf-8")
    config = load_config(str(yaml)).config
    assert (
        config.training.algorithm == algorithm
        and config.training.max_steps == 30
        and config.training.seed == 11
    )
    assert config.training.output_dir == str(root / algorithm)
    assert config.model.name_or_path == str(start.model)
    for source in (*config.data.train, *(config.data.eval or ())):
        assert Path(source.path).is_file()


def test_goals_decide_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = Number("pairs", None, 0.9, 0.85), Number("exact match", 0.4, 0.35, 0.4)
    silent = Console(file=io.StringIO())
    assert verdict(silent, [good], shortened=False) == 0
    assert verdict(silent, [good, bad], shortened=True) == 0
    assert verdict(silent, [good, bad], shortened=False) == 1
    assert "exact match 35.0 %, 40.0 % expected" in capsys.readouterr().err
    out = io.StringIO()
    Console(file=out, width=120).print(table_of([good, bad]))
    assert "90.0 %" in out.getvalue() and "missed" in out.getvalue() and "≥ 85.0 %" in out.getvalue()
    write_numbers(tmp_path / "numbers.json", "dpo", [good, bad], {"training": 3.14159})
    written = json.loads((tmp_path / "numbers.json").read_text())
    assert written["seconds"] == {"training": 3.1}
    assert written["numbers"][0] == {
        "name": "pairs",
        "before": None,
        "after": 0.9,
        "goal": 0.85,
        "reached": True,
    }
