"""Whatever stands at a key, the answer is a Config or a named error, never another exception."""

from __future__ import annotations

import json
import re
from contextlib import suppress

import pytest

from paceline.config.keys.aliases import ALIASES
from paceline.config.keys.valid_keys import RECOGNISED
from paceline.config.load import load_config
from paceline.config.render.effective_values import render_show
from paceline.config.schema import SECTIONS, fields, nested_model, sections
from paceline.core.errors import ConfigError
from paceline.rules import check
from paceline.rules.rule import Facts

ODD = [
    None,
    True,
    -1,
    10**30,
    float("inf"),
    "a:\u202e",
    [1],
    [None],
    {"a": 1},
    {"path": None},
    {"config_path": [1]},
]
FULL = Facts(
    device="cpu",
    bf16=False,
    fp16=False,
    world_size=3,
    backends=frozenset({"gloo"}),
    max_position_embeddings=10,
    num_attention_heads=4,
    complete_checkpoints=0,
)


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize("value", ODD, ids=lambda v: json.dumps(v)[:20])
def test_an_odd_value_anywhere(value, every, tmp_path, monkeypatch):
    """Each key gets every third of the values, and each value every third of the keys; in full, all."""
    monkeypatch.chdir(tmp_path)
    keys = [*fields(), *SECTIONS, *ALIASES, *RECOGNISED, "data.train.0", "training.lr_scheduler_kwargs.a.b"]
    for key in keys[ODD.index(value) % every :: every]:
        try:
            loaded = load_config(None, flags={key: value})
        except ConfigError as error:
            assert all(d.code in str(error) and d.what for d in error.diagnostics)
        else:
            check(loaded.config, FULL, starting=True, provenance=loaded.provenance)
            assert render_show(loaded)
            assert (
                type(loaded.config).from_json(
                    json.loads(json.dumps(loaded.config.to_json(), allow_nan=False))
                )
                == loaded.config
            )


def test_a_section_that_lacks_a_key_and_has_unknown_ones():
    """Both kinds of finding drop something of the section; the order in which they do must not matter."""
    server = {f"unknown_{i}": None for i in range(40)}
    with pytest.raises(ConfigError) as caught:
        load_config(None, flags={"training.rollout": {"server": server}})
    assert {"url is missing" in d.what for d in caught.value.diagnostics} == {True, False}


def test_no_key_takes_a_whole_number_that_64_bits_do_not_hold():
    """torch, NumPy and the clocks of collectives count in 64 bits: what is larger would be an
    OverflowError of a worker, or a run without end.
    """
    for key in fields():
        for value in (2**63, 1e30):
            with suppress(ConfigError):
                config = load_config(None, flags={key: value}).config.to_json()
                assert not any(isinstance(leaf, int) and leaf >= 2**63 for leaf in leaves_of(config)), key


NUMERIC = re.compile(r"\b(float|int)\b")
NO_NUMBERS = (".inf", "-.inf", ".nan", "1e400", "'1e400'", "-1e400", "[.nan]", "[1.0, .inf]")


@pytest.mark.parametrize("value", NO_NUMBERS)
def test_no_numeric_key_takes_what_is_no_finite_number(value, tmp_path):
    """Every key of the schema that holds numbers, in a YAML: refused at its own line, all in one answer."""
    lists = {"data.train": "path: a", "data.eval": "path: a", "training.rollout.rewards": "name: ended"}
    keys = {
        f"{section}.{name}"
        for section, model in sections()
        for name, info in model.model_fields.items()
        if NUMERIC.search(str(info.annotation)) and nested_model(info) is None
    }
    assert len(keys) > 100 and "training.dpo.loss_weights" in keys
    yaml = tmp_path / "k.yaml"
    for key in (*sorted(keys), *(f"{path}.weight" for path in lists)):
        *outer, name = key.split(".")
        more = lists.get(".".join(outer))
        lines = [f"{'  ' * depth}{part}:" for depth, part in enumerate(outer)]
        lines.append(
            f"{'  ' * len(outer)}{f'- {{{more}, ' if more else ''}{name}: {value}{'}' if more else ''}"
        )
        yaml.write_text("\n".join(lines) + "\n")
        with pytest.raises(ConfigError) as caught:
            load_config(str(yaml))
        places = [d.where for d in caught.value.diagnostics]
        assert f"{yaml}:{len(lines)}" in places, (key, str(caught.value))
        assert not any(d.hint.endswith(": " + value.strip("'")) for d in caught.value.diagnostics), str(
            caught.value
        )


def leaves_of(tree):
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else None
    return [tree] if parts is None else [leaf for part in parts for leaf in leaves_of(part)]


@pytest.mark.parametrize("text", ["~nosuchuser/x", "~nosuchuser"])
def test_the_home_of_nobody_is_refused_wherever_a_path_may_stand(text):
    for key in (
        "training.output_dir",
        "training.experiment_name",
        "data.cache_dir",
        "data.train",
        "model.name_or_path",
        "model.tokenizer",
        "training.resume_from_checkpoint",
    ):
        with pytest.raises(ConfigError) as caught:
            load_config(None, flags={key: text})
        assert "config.variable" in {d.code for d in caught.value.diagnostics}, key
