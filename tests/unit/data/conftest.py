from __future__ import annotations

from pathlib import Path

import pytest
from data_fixtures import make_tokenizer


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer without a chat template."""
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))
