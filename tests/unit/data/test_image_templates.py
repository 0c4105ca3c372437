"""Rows with pictures under LLaMA-Factory's templates: ids and labels, replayed from its own answers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

PEERS = Path(__file__).parents[2] / "peers"
sys.path.append(str(PEERS))

import image_templates  # noqa: E402
from templates import digests  # noqa: E402

RECORDED = json.loads(image_templates.RECORDED.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", RECORDED)
def test_ids_and_labels_are_llama_factorys(name: str, tmp_path: Path) -> None:
    kind = image_templates.PAIRS[name]
    keys = {**image_templates.write_inputs(tmp_path, kind), "template": name}
    assert digests(image_templates.of_ours(keys, tmp_path)[0]) == RECORDED[name]["digests"]


def test_all_templates_that_a_family_shares_were_asked() -> None:
    assert set(RECORDED) == set(image_templates.PAIRS)
    assert all(len(row["digests"]) == 20 for row in RECORDED.values())
