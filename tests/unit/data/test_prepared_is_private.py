"""What preparation leaves is the user's own: prompts and answers stand in it."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support import write_yaml

from paceline.config.load import load_config
from paceline.data.prepare.main import main


def test_prepared_data_is_private(tiny: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    config = load_config(str(write_yaml(tmp_path / "c.yaml", tiny()))).config
    (tmp_path / "c.json").write_text(json.dumps(config.to_json()))
    before = os.umask(0o022)
    try:
        assert main(["--config-json", str(tmp_path / "c.json"), "--cache", str(tmp_path / "kept")]) == 0
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(p.lstat().st_mode) for p in (tmp_path / "kept", *(tmp_path / "kept").rglob("*"))}
    assert modes == {0o700, 0o600}
