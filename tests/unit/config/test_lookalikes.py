"""Characters that look right, and numbers as people write them: named at their line, with what to write."""

from __future__ import annotations

import json

import pytest

from paceline.config.keys.suggest import number_meant

BASE = "model: {name_or_path: a/b}\ndata: {train: x.jsonl}\n"


@pytest.mark.parametrize(
    ("text", "line", "character", "hint"),
    [
        ("training:\n  max_steps：4\n", 4, "U+FF1A", "max_steps: 4"),
        ("training:\n  max_steps：4\n  report_to: none\n", 4, "U+FF1A", "max_steps: 4"),
        ("training:\n  seed: 1\n  report_to: none\n  max_steps：4\n", 6, "U+FF1A", "max_steps: 4"),
        ("training:\n  max_steps： 4\n  # 说明：注释\n  seed: 2\n", 4, "U+FF1A", "max_steps: 4"),
        ("training：\n  max_steps: 4\n", 3, "U+FF1A", "training:"),
        ("training:\n  max_steps\u00a0: 4\n", 4, "U+00A0", "max_steps"),
        ("training:\n  max_steps:\u00a04\n  seed: 1\n", 4, "U+00A0", "max_steps: 4"),
        ("training:\n\u3000\u3000max_steps: 4\n", 4, "U+3000", "max_steps"),
        ("training:\n  \u200bmax_steps: 4\n", 4, "U+200B", "max_steps"),
        ("training:\n  max_steps\ufeff: 4\n", 4, "U+FEFF", "max_steps"),
        ("training:\n  max_steps: ４００\n", 4, "U+FF14", "400"),
        ("training:\n  learning_rate: 1e−4\n", 4, "U+2212", "1e-4"),
        ("training:\n  learning_rate: 0。1\n", 4, "U+3002", "0.1"),
        ("training:\n  use_cpu: true，\n", 4, "U+FF0C", "true,"),
        ("training:\n  output_dir: “runs/x”\n", 4, "U+201C", '"runs/x"'),
        ("training:\n  output_dir: runs\u200b/x\n", 4, "U+200B", "runs/x"),
        ("training:\n  output_dir: 'runs\u00a0x'\n", 4, "U+00A0", "runs x"),
        ("lora:\n  target_modules: [q_proj，v_proj]\n", 4, "U+FF0C", "q_proj,v_proj"),
    ],
)
def test_a_character_that_only_looks_right_is_named_at_its_line(
    refuse, text: str, line: int, character: str, hint: str
) -> None:
    found = refuse(BASE + text).diagnostics[0]
    assert (found.code, found.where.rpartition(":")[2]) == ("config.lookalike", str(line))
    assert character in found.what
    assert hint in found.hint


def test_each_line_with_a_wide_colon_is_said(refuse) -> None:
    found = refuse(BASE + "training:\n  max_steps：4\n  seed：1\n  use_cpu：true\n").diagnostics
    assert [d.where.rpartition(":")[2] for d in found] == ["4", "5", "6"]


@pytest.mark.parametrize(
    "text",
    [
        "training: {run_name: 实验，第一次：基线}\n",
        "training: {output_dir: runs/数据（新）}\n",
        "training: {run_name: it’s a run – the second}\n",
        "training: {run_name: '“quoted” on purpose'}\n",
        "training: {run_name: 'café über'}\n",
        "# 注释：全角冒号，没有关系\ntraining: {seed: 1}\n",
        "training:\n  run_name: |\n    说明：\u00a0x\n",
        "training: {run_name: 👩\u200d💻}\n",
    ],
)
def test_text_in_another_script_is_no_slip(load, text: str) -> None:
    load(BASE + text)


def test_a_tab_and_a_bom(load, refuse) -> None:
    assert load("\ufeff" + BASE).config.model.name_or_path == "a/b"
    found = refuse(BASE + "training:\n\tseed: 1\n").diagnostics[0]
    assert (found.code, found.where.rpartition(":")[2]) == ("config.yaml_tab", "4")


def test_on_the_command_line_and_in_json(refuse, tmp_path) -> None:
    assert refuse(BASE, "training.max_steps=４").diagnostics[0].code == "config.lookalike"
    assert refuse(BASE, "training.max_steps＝4").diagnostics[0].hint == "training.max_steps=4"
    (tmp_path / "ds.json").write_text('{\n "zero_optimization"： {"stage": 2}\n}\n')
    found = refuse(BASE + "training: {deepspeed: ds.json}\n").diagnostics[0]
    assert (found.code, found.hint) == ("config.lookalike", '"zero_optimization": {"stage": 2}')
    assert found.where.endswith("ds.json:2")
    assert json.loads("{" + found.hint + "}")


@pytest.mark.parametrize(
    ("key", "written", "meant"),
    [
        ("max_steps", "4k", "4000"),
        ("max_steps", "1,000", "1000"),
        ("max_steps", "1 000 000", "1000000"),
        ("max_steps", "2M", "2000000"),
        ("learning_rate", "1e-4%", "1e-06"),
        ("warmup_steps", "5%", "0.05"),
        ("learning_rate", "0,0001", "0.0001"),
        ("learning_rate", "5e -5", "5e-5"),
        ("learning_rate", "2 x 10^-5", "2e-5"),
        ("learning_rate", "10^-4", "0.0001"),
        ("max_steps", "2**10", "1024"),
        ("weight_decay", "1/10", "0.1"),
        ("max_steps", "100 steps", "100"),
        ("ddp_timeout", "30m", "1800"),
        ("ddp_timeout", "2h", "7200"),
        ("max_steps", "4,", "4"),
        ("max_steps", "2*8", "16"),
    ],
)
def test_a_number_as_people_write_it_is_answered_with_the_number(
    refuse, key: str, written: str, meant: str
) -> None:
    (found,) = [
        d for d in refuse(BASE + f"training:\n  {key}: '{written}'\n").diagnostics if d.code == "config.type"
    ]
    assert found.hint.startswith(f"{key}: {meant}")
    assert found.where.endswith(":4")


@pytest.mark.parametrize(
    "word", ["many", "a lot", "fp16", "1-2", "", "all of them", "1.2.3", "0x", "9" * 60, "1/0", "10**99999"]
)
def test_what_is_no_number_gets_none(word: str) -> None:
    assert number_meant("max_steps", word) is None


def test_a_quoted_number_is_one(load) -> None:
    loaded = load(BASE + "training: {max_steps: '2e2', learning_rate: '2e-5'}\n")
    assert (loaded.config.training.max_steps, loaded.config.training.learning_rate) == (200, 2e-5)
