"""The calibrated coefficients: fitted by ``research/planner_accuracy.py`` on published measurements, shipped as data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

#: The rows that fix what a system does in its own way; "default" is everything else, and what Paceline itself is predicted with.
DEFAULT = "default"


@cache
def _data() -> Mapping[str, Any]:
    text = resources.files("paceline.plan").joinpath("data/coefficients.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


@cache
def memory_coefficients(system: str = DEFAULT) -> Mapping[str, float]:
    """For ``predict.peak``."""
    return _of("memory", system)


@cache
def speed_coefficients(system: str = DEFAULT) -> Mapping[str, float]:
    """For ``predict.speed``."""
    return _of("speed", system)


def _of(kind: str, system: str) -> Mapping[str, float]:
    sets = _data()[kind]
    return MappingProxyType({**sets[DEFAULT], **sets.get(system, {})})


def spread(kind: str) -> tuple[float, float]:
    """Measured over predicted at the 10th and at the 90th percentile of the cross-validated rows: ``memory``, ``speed`` or ``adapter``."""
    low, high = _data()["spread"][kind]
    return float(low), float(high)
