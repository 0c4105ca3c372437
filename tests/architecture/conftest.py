"""The syntax trees are given back when the tests of this folder are over."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="package", autouse=True)
def trees_given_back() -> Iterator[None]:
    """Millions of nodes: a later test that collects garbage would look through all of them each time."""
    yield
    here = Path(__file__).parent
    for module in [*sys.modules.values()]:
        if Path(getattr(module, "__file__", None) or "").parent == here:
            for value in vars(module).values():
                getattr(value, "cache_clear", lambda: None)()
    gc.collect()
