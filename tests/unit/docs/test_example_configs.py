"""Each file of configs/ is a config that a run could start from: it loads, and no rule finds anything
wrong with it, on one card or on eight.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.config.load import load_config
from paceline.rules import check
from paceline.rules.rule import Facts

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.stem)
@pytest.mark.parametrize("world_size", [1, 8])
def test_an_example_starts(path: Path, world_size: int) -> None:
    loaded = load_config(str(path))
    facts = Facts(device="cuda", bf16=True, world_size=world_size, num_nodes=1)
    assert check(loaded.config, facts, starting=True, provenance=loaded.provenance) == []
