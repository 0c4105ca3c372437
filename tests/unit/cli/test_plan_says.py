"""What `paceline plan` says before it runs code, and of models that are not on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paceline.cli.main import application_of
from paceline.config.load import load_config
from paceline.launch.preflight.plan_job import planned
from paceline.plan.user_code import own_code


def config(folder: Path, **training: object) -> Path:
    (folder / "rows.jsonl").write_text(json.dumps({"prompt": "a b", "completion": "c"}) + "\n")
    given = {
        "model": {"name_or_path": "Qwen/Qwen2.5-0.5B"},
        "data": {"train": [{"path": str(folder / "rows.jsonl")}]},
        "training": {"output_dir": str(folder / "out"), "use_cpu": True, "save_strategy": "no", **training},
    }
    (folder / "c.yaml").write_text(json.dumps(given))
    return folder / "c.yaml"


def test_code_is_named_before_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reward file ran with no word of it; here it ends its process, and was named before."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("raise SystemExit('I RAN')\n")
    path = config(tmp_path, algorithm="grpo", rollout={"rewards": ["mine:good"]})
    ran = CliRunner().invoke(application_of("plan"), [str(path)])
    said = ran.output + repr(ran.exception)
    assert said.index("mine.py (reward mine:good)") < said.index("I RAN")
    quiet = CliRunner().invoke(application_of("plan"), [str(path), "--no-imports"])
    assert "your own code" not in quiet.output + repr(quiet.exception)


def test_every_kind_of_code_is_named(tmp_path: Path) -> None:
    (tmp_path / "kit").mkdir()
    (tmp_path / "kit" / "__init__.py").write_text("")
    path = config(
        tmp_path, callbacks=["kit:Stop"], report_to=["elsewhere.log:Log"], eval_metrics=["kit:good"]
    )
    given = json.loads(path.read_text())
    given["data"]["converter"] = "kit:convert"
    path.write_text(json.dumps(given))
    found = own_code(load_config(str(path)).config, tmp_path)
    assert set(found) == {
        "kit/__init__.py (callback kit:Stop)",
        "elsewhere.log (tracker elsewhere.log:Log)",
        "kit/__init__.py (metric of answers kit:good)",
        "kit/__init__.py (row converter kit:convert)",
    }


def test_a_listed_model_that_is_not_here_is_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`plan --hardware` knew its layers; plain `plan` and `train`, which both ask `planned`, did not."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    plan, _ = planned(load_config(str(config(tmp_path))), imports=False)
    assert plan.shape is not None and plan.shape.layers == 24
    assert [d.choice for d in plan.decisions if d.subject == "model.name_or_path"] == [
        "shape of the shipped list"
    ]
