"""Ranks that were started differently learn which key differs, with both values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.config.load import load_config
from paceline.core.errors import PacelineError
from paceline.training.rank_checks import check_same, identity

Tiny = Callable[..., dict[str, Any]]


def test_the_key_and_both_values_are_named(tiny: Tiny, tmp_path: Path) -> None:
    from support import write_yaml

    ours = load_config(str(write_yaml(tmp_path / "a.yaml", tiny()))).config
    changed = tiny(learning_rate=0.25, output_dir="/elsewhere")
    theirs = load_config(str(write_yaml(tmp_path / "b.yaml", changed))).config

    def check(mine: Any, data: str) -> list[tuple[str, str]]:
        answers = iter(
            [
                [identity(ours, "a" * 64), identity(mine, data)],
                *[[flat(ours), flat(mine)]] * (mine is not ours or data[0] != "a"),
            ]
        )
        world: Any = SimpleNamespace(all_gather_json=lambda value, limit_bytes=0: next(answers))
        with pytest.raises(PacelineError) as caught:
            check_same(world, ours, "a" * 64)
        return [(d.what, d.found) for d in caught.value.diagnostics]

    found = check(theirs, "a" * 64)
    assert (
        "rank 1 differs from rank 0 in training.learning_rate",
        f"training.learning_rate: 0.25 on rank 1, {ours.training.learning_rate} on rank 0",
    ) in found
    assert not any(len(word) == 64 for _, text in found for word in text.split()), "a digest says nothing"
    assert not any("output_dir" in what for what, _ in found)
    ((what, text),) = check(ours, "b" * 64)
    assert what == "rank 1 reads other data than rank 0 from the paths of the config" and "bbbb" in text


def flat(config: Any) -> dict[str, Any]:
    from paceline.training.rank_checks import flat_keys

    return dict(flat_keys(config.deciding()))
