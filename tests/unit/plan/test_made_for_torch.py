"""A package that was compiled for another torch is named before a start: Transformers would hide it behind
"Could not import module 'LlamaConfig'", as it did on the first card that was lent.
"""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

import pytest

from paceline.config.schema import Config
from paceline.plan.packages import check_packages, made_for_another_torch

RELEASE = ".".join(metadata.version("torch").split("+")[0].split(".")[:2])


def install(folder: Path, requires: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A torchvision of metadata alone."""
    info = folder / "torchvision-0.26.0.dist-info"
    info.mkdir()
    line = f"Requires-Dist: {requires}\n" if requires else ""
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torchvision\nVersion: 0.26.0\n{line}")
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])


@pytest.mark.parametrize(
    "requires", ["torch (==2.11.0)", "torch==2.11.0", "torch==2.11.0+cu130 ; extra == 'x'"]
)
def test_another_release_is_named_with_both_versions(
    requires: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, requires, monkeypatch)
    [found] = made_for_another_torch()
    said = found.finding()
    assert said.code == "plan.other_torch" and "torchvision 0.26.0 was compiled for torch 2.11.0" in said.what
    assert RELEASE in said.found and "pip uninstall torchvision" in said.hint
    config = Config.model_validate({"model": {"name_or_path": "org/model"}, "data": {"train": "rows.json"}})
    assert [d.code for d in check_packages(config, {}, {}, "cpu")] == ["plan.other_torch"]


@pytest.mark.parametrize("requires", ["", "torch", "torch (>=2)", f"torch (=={RELEASE}.7)", "numpy"])
def test_a_patch_or_no_pin_is_no_fault(
    requires: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, requires, monkeypatch)
    assert list(made_for_another_torch()) == []
