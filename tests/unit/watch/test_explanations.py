"""What the page says of a code in each of its languages."""

from __future__ import annotations

import pytest

from paceline.core.diagnostics import all_codes
from paceline.watch.page.view import explanation


@pytest.mark.parametrize("code", ["data.format", "device.arch", "checkpoint.shape"])
def test_a_code_is_explained_in_both_languages(code: str) -> None:
    found = explanation(code)
    assert found["en"] == all_codes()[code].explanation
    assert any("一" <= letter <= "鿿" for letter in str(found["zh"]))


def test_a_code_of_another_release_has_no_explanation() -> None:
    assert explanation("no.such_code") == {}
