"""Every snippet of docs/reference/library.md runs, one after the other, and its Chinese twin has the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
_SNIPPET = re.compile(r"```python\n(.*?)```", re.DOTALL)


def _snippets(page: str) -> list[str]:
    return _SNIPPET.findall((ROOT / "docs/reference" / page).read_text(encoding="utf-8"))


def test_the_snippets_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    for name, value in {"CACHE": str(tmp_path / "cache"), "LEDGER": "off"}.items():
        monkeypatch.setenv(f"PACELINE_{name}", value)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    names: dict[str, object] = {}
    for snippet in _snippets("library.md"):
        exec(compile(snippet, "docs/reference/library.md", "exec"), names)  # noqa: S102 - the page's own text
    out = capfd.readouterr().out
    assert "completed [" in out and names["steps"] and "eval_loss" in out
    assert "('config.type', 'argument training.max_steps'" in out


def test_the_twin_has_the_same_snippets() -> None:
    assert _snippets("library.md") == _snippets("library.zh-CN.md") and len(_snippets("library.md")) == 6
