"""The tables of docs/how-to/hardware.md and its Chinese twin are what the planner says now."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from support import load_script

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    return load_script("hardware_tables")


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_page_has_the_tables_of_the_planner(language: str, tables: ModuleType) -> None:
    page = (ROOT / tables.PAGES[language]).read_text(encoding="utf-8")
    hint = "python scripts/hardware_tables.py writes them"
    assert tables.written(page, language) == page, hint
    assert tables.written(page.replace("| fsdp |", "| fsdq |"), language) == page, "what drifts is seen"
    assert all(page.count(f"<!-- planner: {name} -->\n\n| ") == 1 for name in tables.TABLES)


def test_what_the_text_says_of_the_tables_holds(tables: ModuleType) -> None:
    """Bytes of offloaded states a parameter, and that DDP's memory does not fall with the number of cards."""
    count = tables.model_shape(tables.MODEL, {}).num_parameters
    found = {c.strategy: c for c in tables.best_of_each([*tables.candidates(1, tables.NETWORKS[-1])])}
    each = {name: tables.host_bytes(found[name].work) / count for name in ("zero2 + cpu", "zero3 + cpu")}
    assert {name: round(size) for name, size in each.items()} == {"zero2 + cpu": 12, "zero3 + cpu": 18}
    more = {c.strategy: c for c in tables.best_of_each([*tables.candidates(4, tables.NETWORKS[-1])])}
    ddp, wide = found["ddp"].peak, more["ddp"].peak
    assert ddp.optimizer == wide.optimizer and ddp.parameters == wide.parameters
    assert more["fsdp"].peak.optimizer < 0.3 * found["fsdp"].peak.optimizer
