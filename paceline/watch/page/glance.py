"""A run in one row of the list: from its small files and the end of its events, without an index."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, BinaryIO

from paceline.core.files import open_run_file
from paceline.core.json_types import Json, JsonObject, as_object
from paceline.core.rundir import RunDir
from paceline.watch.page.folder import changed_at, read_beat, read_json, read_start, run_id
from paceline.watch.page.state import LIVE, state_of_run

_TAIL_BYTES = 64 << 10
_MOST_BYTES = 32 << 20


def glance(run: RunDir) -> JsonObject:
    """Return the run's name, state, step, loss and description; state ``gone`` once it is deleted."""
    row: JsonObject = {"id": run_id(run), "name": run.root.name, "path": str(run.root)}
    if not run.root.is_dir():
        return {**row, "state": {"name": "gone", "seconds": 0.0, "phase": "", "process": ""}, "live": False}
    events = _last_events(run)
    step, begun = events.get("step", {}), events.get("run_started", {})
    beat, result = read_beat(run, 0), read_json(run.result_json)
    last = _whole(step.get("step")) or _whole(result.get("step")) or 0
    state = state_of_run(
        beat,
        result,
        changed_at(run.result_json),
        events.get("finished", {}),
        has_errors="error" in events,
        last_step=last,
        step_seconds=_float(step.get("step_seconds")),
        now=time.time(),
        start=read_start(run),
    )
    return {
        **row,
        "state": state.to_json(),
        "live": state.name in LIVE,
        "step": last or (beat.step if beat else 0),
        "total_steps": _whole(begun.get("total_steps")),
        "loss": step.get("loss"),
        "tokens_per_second": step.get("tokens_per_second"),
        "changed": max(changed_at(run.events(0)), changed_at(run.plan_json)),
        **described(read_json(run.plan_json)),
    }


def described(plan: Mapping[str, Json]) -> JsonObject:
    """Return what a plan says in a row: algorithm, strategy, ranks, parameters, precision and model."""
    shape, config = as_object(plan.get("shape")), as_object(plan.get("config"))
    named = as_object(config.get("model")).get("name_or_path")
    return {
        "algorithm": str(plan.get("algorithm", "")),
        "strategy": str(plan.get("strategy", "")),
        "world_size": _whole(plan.get("world_size")),
        "device": str(plan.get("device", "")),
        "parameters": _whole(shape.get("num_parameters")),
        "model": str(named or shape.get("model_type") or ""),
        "precision": str(as_object(plan.get("precision")).get("compute") or ""),
    }


def _last_events(run: RunDir) -> dict[str, dict[str, Any]]:
    """Return the last event of each kind near the end of rank 0's file, none older than the last attempt."""
    try:
        with open_run_file(run.events(0)) as file:
            size = file.seek(0, 2)
            file.seek(0)
            begun = [line for line in file.read(_TAIL_BYTES).split(b"\n")[:-1] if b'"run_started"' in line]
            length = _TAIL_BYTES
            last = _end_of(file, size, length)
            # Answers after the last step may be long
            while b'"kind":"step"' not in last and length < min(size, _MOST_BYTES):
                length *= 8
                last = _end_of(file, size, length)
    except OSError:
        return {}
    found: dict[str, dict[str, Any]] = {}
    for line in [*begun[-1:], *last.split(b"\n")[:-1]]:
        try:
            data = json.loads(line, parse_constant=str)
        except (ValueError, RecursionError):
            continue  # cut at the front, or half a line
        if not isinstance(data, dict):
            continue
        if data.get("kind") == "run_started":
            found = {}
        found[str(data.get("kind"))] = data
    return found


def _end_of(file: BinaryIO, size: int, length: int) -> bytes:
    file.seek(max(0, size - length))
    return file.read(length)


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _float(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
