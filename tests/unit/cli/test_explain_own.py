"""``paceline explain module:CODE`` prints what a code of the user's own spec means."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.cli.planning import explained
from paceline.core.errors import ConfigError


def test_a_code_of_the_users_own_module_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = (
        "from paceline.core.diagnostics import Code\nCHUNK = Code('mine.chunk', 'Small chunks.')\nNONE = 1\n"
    )
    (tmp_path / "codes_of_mine.py").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert explained("codes_of_mine:CHUNK") == "mine.chunk\n  Small chunks."
    with pytest.raises(ConfigError, match="no diagnostic"):
        explained("codes_of_mine:NONE")
