"""The effective config that a run writes holds every key; what is as by default counts as not written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.config.load import load_config
from paceline.config.source import DEFAULTS, YAML


@pytest.mark.parametrize("of_run", [True, False])
def test_defaults_in_a_run_s_own_config_are_not_taken_for_written_keys(of_run: bool, tmp_path: Path) -> None:
    """`paceline resume` starts from it: rules about keys without effect would warn of keys nobody wrote."""
    yaml = tmp_path / "mine.yaml"
    yaml.write_text(
        "model: {name_or_path: /m}\ndata: {train: rows.json}\ntraining: {max_steps: 4, seed: 7}\n"
    )
    first = load_config(str(yaml))
    file = tmp_path / "config.json"
    file.write_text(json.dumps(first.config.to_json()))
    if of_run:
        (tmp_path / "plan.json").write_text("{}")
    again = load_config(str(file))
    assert again.config == first.config
    written = {key for key, source in again.provenance.items() if source.layer == YAML}
    assert {"training.max_steps", "training.seed", "model.name_or_path"} <= written
    assert (again.provenance["training.eval_generate"].layer == DEFAULTS) is of_run
    assert (len(written) < 12) is of_run, written
