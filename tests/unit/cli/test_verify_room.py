"""``paceline verify`` makes a model small: what the whole one would take of this machine does not keep it
from that.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from paceline.config.load import load_config
from paceline.core.errors import ConfigError
from paceline.launch.preflight.plan_job import planned
from paceline.plan.model.model_catalogue import known_models


def test_a_model_beyond_this_machine_is_refused_to_train_and_not_to_verify(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # no look at files that are not there
    monkeypatch.setattr("paceline.launch.preflight.child_checks.run_child", lambda job: ({}, ""))
    path = tmp_path / "c.yaml"
    model = {"config": known_models()["llama-3.1-405b"].config, "tokenizer": "./t"}
    path.write_text(
        yaml.safe_dump(
            {
                "model": model,
                "data": {"train": "x.jsonl", "max_length": 64},
                "training": {"use_cpu": True, "save_strategy": "no", "output_dir": str(tmp_path)},
            }
        )
    )
    loaded = load_config(str(path))
    with pytest.raises(ConfigError) as caught:
        planned(loaded)
    assert [d.code for d in caught.value.diagnostics] == ["plan.states_host"]
    plan, _ = planned(loaded, needs_room=False)
    assert plan.strategy == "single"
