from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.config.load import Loaded, load_config
from paceline.core.errors import ConfigError
from paceline.rules import of_config

Load = Callable[..., Loaded]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Loads a config from YAML text (written to config.yaml), overrides as further arguments."""

    def run(
        text: str,
        *overrides: str,
        environ: dict[str, str] | None = None,
        flags: dict[str, object] | None = None,
    ) -> Loaded:
        path = tmp_path / "config.yaml"
        path.write_text(text, encoding="utf-8")
        return load_config(str(path), overrides, environ or {}, flags or {}, of_config)

    return run


@pytest.fixture
def refuse(load: Load) -> Callable[..., ConfigError]:
    """The ConfigError that loading this text raises."""

    def run(text: str, *overrides: str, **kwargs: object) -> ConfigError:
        with pytest.raises(ConfigError) as caught:
            load(text, *overrides, **kwargs)
        return caught.value

    return run
