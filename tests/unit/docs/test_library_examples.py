"""The examples beside TRL's and Transformers': no more statements, whole configs, and (slow) each runs
and has the losses of the table.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import paceline

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "dev" / "research"))
import documented  # noqa: E402
import documented_examples as compared  # noqa: E402

TABLE: dict[str, dict[str, Any]] = json.loads(documented.TABLE.read_text(encoding="utf-8"))
BOUND = 1e-5


def test_ten_examples_stand_in_the_table_with_no_more_statements_and_the_same_losses() -> None:
    assert sorted(TABLE) == documented.names() and len(TABLE) >= 10
    for name, one in TABLE.items():
        source = (documented.EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
        assert documented.statements(source) == one["our_statements"] <= one["their_statements"], name
        assert one["gap"] <= BOUND and len(one["losses"]) == documented.STEPS, name
        assert one["losses"][-1] < one["losses"][0], "the steps did something"


def test_the_page_and_its_twin_hold_the_table() -> None:
    for page in ("library.md", "library.zh-CN.md"):
        text = (documented.ROOT / "docs/reference" / page).read_text(encoding="utf-8")
        inside = text.split("<!-- library-examples -->")[1].split("<!-- /library-examples -->")[0]
        assert inside.strip().splitlines()[2:] == compared.table(TABLE)


@pytest.mark.parametrize("name", documented.names())
def test_an_example_is_a_whole_config(name: str) -> None:
    found: list[Any] = []
    source = (documented.EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    with mock.patch.object(paceline, "train", found.append):
        exec(compile(source, name, "exec"), {})  # noqa: S102 - our own example
    (config,) = found
    assert paceline.load_config(config).config.data.packing is False
    small = paceline.load_config(config, documented.local(config, Path("elsewhere"))).config
    assert small.training.max_steps == documented.STEPS and "elsewhere" in small.data.train[0].path


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_example_runs_with_the_losses_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in {"CACHE": str(tmp_path / "cache"), "LEDGER": "off"}.items():
        monkeypatch.setenv(f"PACELINE_{key}", value)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    documented.prepare(tmp_path)
    for name, one in TABLE.items():
        assert documented.run_ours(name, tmp_path) == pytest.approx(one["losses"], abs=BOUND), name
