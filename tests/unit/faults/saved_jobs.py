"""A checkpoint of a sound job, as its run would have saved it, without a run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fault_jobs import Job, write_safetensors

from paceline.checkpoint.format.manifest import FileEntry, Manifest
from paceline.checkpoint.format.strict_json import dump_object
from paceline.config.schema import Config
from paceline.core.rundir import RunDir
from paceline.data.prepare.fingerprint import definition
from paceline.data.prepare.prepare import train_fingerprint_of
from paceline.data.rows.kinds.base import row_kind
from paceline.launch.preflight import child_checks
from paceline.launch.preflight.load_config import load
from paceline.launch.preflight.plan_job import planned
from paceline.plan.algorithms.spec import algorithm_spec
from paceline.plan.plan import Plan
from paceline.protocols.roles import Role
from paceline.training.checkpointing.contents import run_state
from paceline.training.loop.train_state import TrainState
from paceline.training.preflight.inputs import check_inputs

SHARD = "shard-00000-of-00001.safetensors"
Fault = dict[str, Any]


def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The look without its process, which costs half a second a fault."""

    def asked(job: dict[str, Any]) -> tuple[dict[str, Any], str]:
        plan = Plan.from_json(job["plan"]) if job["plan"] else None
        return {
            "looked": [
                d.to_json() for d in check_inputs(Config.from_json(job["config"]), os.environ, plan).found
            ]
        }, ""

    monkeypatch.setattr(child_checks, "run_child", asked)


def save(job: Job, settings: dict[str, Any] | None = None, step: int = 2, best: int | None = None) -> Path:
    """The folder of a checkpoint of ``job`` under ``settings``; weights of one small tensor. ``best``: the
    step of the best one.
    """
    plan, _ = planned(load(job.yaml(settings or {}), ()), imports=False)
    config = plan.config
    kind = row_kind(algorithm_spec(plan.algorithm).rows)
    cache = Path(os.environ["PACELINE_CACHE"])
    rows = train_fingerprint_of(
        config.data, config.model, config.training.seed, cache, most_bytes=1 << 20, kind=kind
    )
    assert rows is not None
    adapter = None if plan.adapter is None else SimpleNamespace(spec=plan.adapter, base={"fingerprint": "f"})
    role = Role.POLICY
    parts: Any = SimpleNamespace(
        state=TrainState(step=step, best_step=best, best_metric=best and 1.0),
        algorithm=SimpleNamespace(state=dict, trains=(role,)),
        handles={role: SimpleNamespace(root=SimpleNamespace(adapter=adapter))},
        windows=SimpleNamespace(state=dict),
    )
    prepared: Any = SimpleNamespace(fingerprint=rows, train_fingerprint=rows, definition=definition())
    state = run_state(plan, prepared, parts)
    folder = RunDir.at(plan.run_dir).checkpoint(step)
    (folder / "hf").mkdir(parents=True)
    write_safetensors(folder / SHARD)
    (folder / "state.json").write_bytes(dump_object(state, "state.json"))
    (folder / "hf" / "config.json").write_bytes(
        json.dumps(config.model.config).encode()
        if config.model.config
        else (Path(config.model.name_or_path or "") / "config.json").read_bytes()
    )
    write_manifest(folder, step)
    return folder


def write_manifest(folder: Path, step: int, world_size: int = 1) -> None:
    """The manifest of what lies in ``folder``."""
    import hashlib

    names = sorted(
        str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and p.name != "manifest.json"
    )
    files = {}
    for name in names:
        data = (folder / name).read_bytes()
        files[name] = FileEntry(len(data), hashlib.sha256(data).hexdigest())
    (folder / "manifest.json").write_bytes(Manifest(step, step, world_size, 0.0, files).to_bytes())
