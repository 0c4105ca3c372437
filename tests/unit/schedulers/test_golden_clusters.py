"""The files for clusters are those that kubernetes-validate, kubeflow-trainer-api, SkyPilot and dstack took.

``tests/peers`` asks them anew, and records what they took; after a change of a file: ``python
tests/peers/clusters.py``, then ``scripts/test --peers tests/peers/test_clusters_asked_anew.py``.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "peers"))

import clusters  # noqa: E402


def test_the_files_are_the_golden_ones(tmp_path: Path) -> None:
    kept = {path.name: path.read_text(encoding="utf-8") for path in clusters.GOLDEN.iterdir()}
    assert clusters.examples(tmp_path) == kept


def test_their_programs_took_the_golden_files() -> None:
    kept = {path.name: path.read_text(encoding="utf-8") for path in clusters.GOLDEN.iterdir()}
    assert clusters.digests(kept) == clusters.recorded(), "ask them anew, as the top of this file says"
