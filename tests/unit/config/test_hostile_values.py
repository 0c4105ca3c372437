"""Whatever stands at a key, the answer is a Config or a named error, never another exception."""

from __future__ import annotations

import json

import pytest

from paceline.config.aliases import ALIASES
from paceline.config.load import load_config
from paceline.config.recognised import RECOGNISED
from paceline.config.rules import check
from paceline.config.rules.base import Facts
from paceline.config.schema import SECTIONS, fields
from paceline.config.show import render_show
from paceline.core.errors import ConfigError

ODD = [None, True, -1, 10**30, float("inf"), "a:\u202e", [1], [None], {"a": 1}, {"path": None}, {"config_path": [1]}]
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


@pytest.mark.parametrize("value", ODD, ids=lambda v: json.dumps(v)[:20])
def test_an_odd_value_anywhere(value, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    keys = [*fields(), *SECTIONS, *ALIASES, *RECOGNISED, "data.train.0", "training.lr_scheduler_kwargs.a.b"]
    for key in keys:
        try:
            loaded = load_config(None, flags={key: value})
        except ConfigError as error:
            assert all(d.code in str(error) and d.what for d in error.diagnostics)
        else:
            check(loaded.config, FULL, starting=True, provenance=loaded.provenance)
            assert render_show(loaded)
            assert (
                type(loaded.config).from_json(json.loads(json.dumps(loaded.config.to_json(), allow_nan=False)))
                == loaded.config
            )
