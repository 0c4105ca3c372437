"""The demo's report and its choice of a directory."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from paceline.core.errors import ConfigError
from paceline.demo.main import DEFAULT, main
from paceline.demo.report import answers_table, numbers_table, plain, share
from paceline.demo.scaling import Cell, efficiency, scaling_table
from paceline.demo.steps import free_directory


def rows(*correct: bool) -> list[dict[str, object]]:
    return [
        {"prompt": f"p{i}", "expected": "x", "answer": "x" if c else "[red]y\x1b", "correct": c}
        for i, c in enumerate(correct)
    ]


def text_of(renderable: object) -> str:
    out = io.StringIO()
    Console(file=out, width=120).print(renderable)
    return out.getvalue()


def test_share_counts_one_kind_or_all() -> None:
    kinds = ["a", "b", "a", "b"]
    assert share(rows(True, False, True, True), kinds, None) == "75.0 %"
    assert share(rows(True, False, True, True), kinds, "b") == "50.0 %"


def test_tables_show_before_and_after_and_a_wrong_answer() -> None:
    kinds = ["backwards", "capitals", "next letters"] * 4
    before, after = rows(*[False] * 12), rows(*[True] * 11, False)
    shown = text_of(numbers_table({"rows": before}, {"rows": after}, kinds))
    assert "0.0 %" in shown and "91.7 %" in shown
    answers = text_of(answers_table(before, after))
    assert "wrong" in answers and "p11" in answers and "\x1b" not in answers and "[red]y" in answers


def test_a_models_text_cannot_play_with_the_terminal() -> None:
    assert plain("a\x1b[31mb\n") == "a·\\[31mb·"


def test_a_second_demo_takes_the_next_free_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    out = io.StringIO()
    assert free_directory(None, DEFAULT, Console(file=out)).root == tmp_path / "outputs" / "demo"
    (tmp_path / "outputs" / "demo").mkdir(parents=True)
    assert free_directory(None, DEFAULT, Console(file=out)).root == tmp_path / "outputs" / "demo-2"
    assert "earlier demo" in out.getvalue()


def test_a_named_directory_that_is_not_empty_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.txt").write_text("keep me")
    with pytest.raises(ConfigError):
        free_directory(tmp_path, DEFAULT, Console(file=io.StringIO()))
    assert main(["--to", str(tmp_path)]) == 2
    assert "demo.not_empty" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


def test_efficiency_is_speed_up_over_processes() -> None:
    cells = [Cell("small", 1, "single", 8, 100.0, 1000), Cell("small", 2, "ddp", 16, 190.0, 1100)]
    assert efficiency(cells[1], cells) == pytest.approx(0.95)
    shown = text_of(scaling_table(cells, "small"))
    assert "190%" in shown and "95%" in shown and "110%" in shown
