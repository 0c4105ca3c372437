"""Variables of Paceline's own are no misspelt keys of the config: the launcher's would be warned of by
each of its workers.
"""

from __future__ import annotations

import re

from support import ROOT

from paceline.config.schema import SECTIONS


def test_no_variable_of_ours_begins_like_a_key() -> None:
    literals = (
        name
        for path in (ROOT / "paceline").rglob("*.py")
        for name in re.findall(r'= "(PACELINE_[A-Z_]+)"', path.read_text(encoding="utf-8"))
    )
    own = {name for name in literals if "__" not in name}
    assert {"PACELINE_STORE_SECRET", "PACELINE_START_ID", "PACELINE_START_LINE"} <= own
    assert [name for name in own if name.split("_")[1].lower() in SECTIONS] == []
