"""Items of lists, set one by one on the command line and in the environment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.config.load import load_config
from paceline.config.render.effective_values import render_show
from paceline.core.errors import ConfigError

MIXTURE = """\
data:
  train: a.jsonl, b.jsonl
  eval:
    - path: e.jsonl
      max_rows: 5
training:
  algorithm: grpo
  rollout:
    rewards:
      - numeric
      - {name: regex, options: {pattern: a}}
"""


def test_an_item_keeps_its_neighbours(load):
    loaded = load(
        MIXTURE,
        "data.train.1.weight=2",
        "data.train.1.name=010",
        "data.eval.0.max_rows=7",
        "rollout.rewards.1.weight=0.5",
        "training.rollout.rewards.1.options.pattern=b+",
        "training.rollout.rewards.0=exact_match",
    )
    first, second = loaded.config.data.train
    assert (first.path, first.weight, second.path, second.weight) == ("a.jsonl", 1.0, "b.jsonl", 2.0)
    assert second.name == "010"  # a text keeps its spelling
    (held_out,) = loaded.config.data.eval
    assert (held_out.path, held_out.max_rows) == ("e.jsonl", 7)
    one, two = loaded.config.training.rollout.rewards
    assert (one.name, one.weight) == ("exact_match", 1.0)
    assert (two.name, two.weight, two.options) == ("regex", 0.5, {"pattern": "b+"})


def test_the_list_and_its_item_each_have_a_source(load):
    loaded = load(MIXTURE, "data.train.1.weight=2")
    assert loaded.provenance["data.train"].place().endswith("config.yaml:2")
    assert loaded.provenance["data.train.1.weight"].place() == "command line data.train.1.weight=2"
    text = render_show(loaded, only_set=True)
    train = text.index("  train ")
    assert train < text.index("config.yaml:2") < text.index("command line  data.train.1.weight=2")


def test_an_item_is_set_in_the_list_whichever_comes_first(load):
    for written in (
        ["data.train.0.weight=3", "data.train=[x, y]"],
        ["data.train=[x, y]", "data.train.0.weight=3"],
    ):
        found = load(MIXTURE, *written).config.data.train
        assert [(item.path, item.weight) for item in found] == [("x", 3.0), ("y", 1.0)]


def test_the_command_line_is_above_the_environment(load):
    environ = {"PACELINE_DATA__TRAIN__0__WEIGHT": "4", "PACELINE_DATA__TRAIN__1__WEIGHT": "5"}
    loaded = load(MIXTURE, "data.train.1.weight=6", environ=environ)
    assert [item.weight for item in loaded.config.data.train] == [4.0, 6.0]
    assert loaded.provenance["data.train.0.weight"].layer == "environment"


def test_a_list_of_texts_has_items_too(load):
    loaded = load("lora: {target_modules: 'q_proj, v_proj'}", "lora.target_modules.1=k_proj")
    assert loaded.config.lora.target_modules == ("q_proj", "k_proj")


@pytest.mark.parametrize(
    ("written", "says", "found", "hint"),
    [
        ("data.train.2.weight=1", "it has 0 to 1", '["a.jsonl", "b.jsonl"]', "data.train.1.weight=1"),
        ("data.eval.1.weight=1", "it has 0 alone", '["e.jsonl"]', "data.eval.0.weight=1"),
        ("data.train.weight=2", "its items have numbers", "data.train.weight", "data.train.0.weight=2"),
        ("data.train.-1.weight=2", "its items have numbers", "data.train.-1.weight", "data.train.0.weight=2"),
        ("data.train.1.wieght=1", "no key 'wieght'", "data.train.1.wieght", "data.train.1.weight=…"),
        ("data.max_length.0=1", "has no keys inside it", "data.max_length.0", "the complete value"),
        ("report_to.0.x=a", "a single value without keys", "report_to.0.x", "training.report_to.0=a"),
    ],
)
def test_what_is_not_there_is_refused(refuse, written, says, found, hint):
    (finding,) = refuse(MIXTURE + "  report_to: [tensorboard]\n", written).diagnostics
    assert finding.where == f"command line {written}"
    assert says in finding.what
    assert found in finding.found
    assert hint in finding.hint


def test_an_empty_list_has_no_item(refuse):
    (finding,) = refuse("training: {seed: 1}", "data.train.0.weight=2").diagnostics
    assert (finding.code, finding.hint) == ("config.no_item", "give the list first: data.train=[…]")


def test_a_wrong_value_stands_where_it_was_written(refuse):
    text = "data:\n  train:\n    - {path: a, weight: -1}\n    - {path: b}\n"
    places = {
        finding.where.rpartition("/")[2] for finding in refuse(text, "data.train.1.weight=-2").diagnostics
    }
    assert places == {"config.yaml:3", "command line data.train.1.weight=-2"}


@pytest.mark.parametrize(
    ("sets", "said"), [({"a": "x.jsonl", "b": "y.jsonl"}, True), ({"pth": "x.jsonl"}, False)]
)
def test_named_evaluation_sets_are_named_as_such(tmp_path: Path, sets: dict[str, str], said: bool) -> None:
    """Transformers' ``eval_dataset`` may have names; a misspelt path is none."""
    file = tmp_path / "a.yaml"
    file.write_text(json.dumps({"data": {"train": "t.jsonl", "eval": sets}}))
    with pytest.raises(ConfigError) as caught:
        load_config(str(file))
    assert ("no names here" in str(caught.value)) is said
