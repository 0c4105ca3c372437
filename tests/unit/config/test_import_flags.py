"""A program's arguments are what Transformers' HfArgumentParser makes of them: the judge is the parser."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any, Literal, Optional

import pytest

from paceline.config.import_export.argument_tables import as_parsed
from paceline.config.import_export.commands.command_line import read_command
from paceline.config.import_export.import_config import import_command

NAMES = [
    "alpha_rate",
    "beta",
    "no_gamma",
    "delta_list",
    "epsilon_x_y",
    "zeta",
    "eta_words",
    "theta",
    "iota_map",
]
TRUE, FALSE = ["true", "True", "yes", "t", "y", "1"], ["false", "False", "no", "f", "n", "0"]


def field(draw: random.Random) -> tuple[Any, Any, list[list[str]]]:
    """A type, a default and the words that may follow the option."""
    number = [["3"], ["-1"], ["0"]]
    return draw.choice(
        [
            (bool, True, [[], *([word] for word in TRUE + FALSE)]),
            (bool, False, [[], *([word] for word in TRUE + FALSE)]),
            (int, 7, number),
            (float, 0.5, [["1e-4"], ["-0.5"], ["2"]]),
            (Optional[float], None, [["1e-4"], ["-2"]]),  # noqa: UP045
            (str, "x", [["a b"], ["a=b"], ["[INST] x"], ["{% if x"], ["no"], ["a,b"]]),
            (list[int], [1], [["1", "2"], ["-1", "3"], ["4", "5", "6"]]),
            (list[str], ["u"], [["p"], ["p", "q"], ["q_proj", "v_proj", "a.b"]]),
            (Literal["no", "steps"], "no", [["steps"], ["no"]]),
        ]
    )


def case(draw: random.Random) -> tuple[Any, list[str]]:
    made = {name: field(draw) for name in draw.sample(NAMES, 6)}
    fields = []
    words: list[str] = []
    for name, (kind, default, _) in made.items():
        held = (
            dataclasses.field(default_factory=lambda default=default: list(default))
            if isinstance(default, list)
            else dataclasses.field(default=default)
        )
        fields.append((name, kind, held))
    for name in [*draw.sample(list(made), 4), draw.choice(list(made))]:  # one perhaps again
        _, default, values = made[name]
        if default is True and draw.random() < 0.4:
            words.append(draw.choice([f"--no_{name}", f"--no-{name.replace('_', '-')}"]))
            continue
        value = draw.choice(values)
        spelled = draw.choice([name, name.replace("_", "-")])
        one = len(value) == 1 and (draw.random() < 0.4 or value[0].startswith("--"))
        words += [f"--{spelled}={value[0]}"] if one else [f"--{spelled}", *value]
    return dataclasses.make_dataclass("Arguments", fields), words


@pytest.mark.parametrize("seed", range(150))
def test_arguments_are_what_the_parser_makes_of_them(seed: int) -> None:
    from transformers import HfArgumentParser

    kind, words = case(random.Random(seed))
    theirs = dataclasses.asdict(
        HfArgumentParser(kind).parse_args_into_dataclasses(words, look_for_args_file=False)[0]
    )
    defaults = dataclasses.asdict(kind())
    ours, renamed = as_parsed(read_command(["swift", "sft", *words]).data, defaults)
    assert {**defaults, **ours} == theirs, words
    assert all(name in defaults and ours[name] is False for name in renamed)


def test_an_abbreviation_is_its_one_argument() -> None:
    known = {"learning_rate": 1.0, "learning_other": 2, "remove_unused_columns": True}
    assert as_parsed({"learning_r": 3, "no_remove": True}, known)[0] == {
        "learning_rate": 3,
        "remove_unused_columns": False,
    }
    assert as_parsed({"learning": 3}, known)[0] == {"learning": 3}


@pytest.mark.parametrize(
    ("line", "path", "value", "key"),
    [
        ("trl sft --dataset_name d --no_shuffle_dataset", "data.shuffle", None, "no_shuffle_dataset"),
        (
            "trl dpo --dataset_name d --no-remove-unused-columns",
            "training.algorithm",
            "dpo",
            "no_remove_unused_columns",
        ),
        (
            "llamafactory-cli train --stage sft --dataset d --template qwen --no_train_on_x 1",
            "",
            None,
            "no_train_on_x",
        ),
    ],
)
def test_each_flag_keeps_its_own_name_in_the_report(line: str, path: str, value: object, key: str) -> None:
    found = import_command(read_command([line]))
    assert key in found.findings and found.findings[key].line > 1
    if value is not None:
        assert found.settings[path].value == value


def test_llamafactorys_overrides_may_name_files(tmp_path: Path) -> None:
    file = tmp_path / "lf.yaml"
    file.write_text("stage: sft\nmodel_name_or_path: m\ndataset: d\ntemplate: qwen\noutput_dir: a\n")
    (tmp_path / "ds=1").mkdir()
    job = tmp_path / "ds=1" / "ds.json"
    job.write_text(json.dumps({"zero_optimization": {"stage": 3}}))
    command = read_command(
        ["llamafactory-cli", "train", str(file), f"deepspeed={job}", "report_to=[wandb,tensorboard]"]
    )
    assert command.config == str(file)
    assert command.data == {"deepspeed": str(job), "report_to": ["wandb", "tensorboard"]}
    odd = tmp_path / "lr=1" / "lf.yaml"
    odd.parent.mkdir()
    odd.write_text(file.read_text())
    assert read_command(["llamafactory-cli", "train", str(odd)]).config == str(odd)
