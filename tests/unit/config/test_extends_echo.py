"""``extends:`` shows nothing of a file that is no YAML."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.config.load import load_config
from paceline.core.errors import ConfigError

SECRET = "Zq9hidden"
TEXTS = [
    "root: x: {0}", "{{{0}: [}}", "\t{0}: x", "@{0}", "*{0}", "root:*:{0}\nfoo: y\n bar", "!{0} x",
    'a: "{0}', "user: y\npassword = {0}", "{0}", "- {0}", "a: 1\na: {0}", "%{0}", "--- {0}\n--- {0}",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_no_line_of_another_file_is_shown(text: str, tmp_path: Path) -> None:
    (tmp_path / "shadow").write_text(text.format(SECRET) + "\n")
    (tmp_path / "c.yaml").write_text("extends: shadow\nmodel: {name_or_path: x}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(str(tmp_path / "c.yaml"))
    assert SECRET not in "".join(finding.render() for finding in caught.value.diagnostics)
