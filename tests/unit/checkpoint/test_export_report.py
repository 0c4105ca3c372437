"""What an export prints: a merged model says when its base is the one that was quantised in training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from paceline.checkpoint.export import main
from paceline.checkpoint.export.hf_export import ExportReport

REPORT = ExportReport(Path("out"), 4, "float32", 21, 191_000, 764_000, (), True, "merged model")


@pytest.mark.parametrize("bits", [0, 4])
def test_a_merge_into_a_quantised_base_is_printed(capsys: pytest.CaptureFixture[str], bits: int) -> None:
    main._print("step-00000004", replace(REPORT, base_bits=bits), "exported to out")
    assert ("rounded to 4 bits, dequantised" in capsys.readouterr().out) == bool(bits)
