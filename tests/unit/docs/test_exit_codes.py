"""The tables of exit codes in the guide and its Chinese twin name every code that a program of ours
answers, and no other.
"""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from paceline.core.errors import ExitCode
from paceline.launch.supervision.exit_codes import AFTER, After, Failure

ROOT = Path(__file__).resolve().parents[3]
CHINESE = {
    After.DONE: "不做什么",
    After.FAIL: "失败：同样的启动会再次失败",
    After.RESUME: "再次启动，不计数",
    After.COUNT: "再次启动，计数",
}
GUIDES = ("docs/reference/exit-codes.md", "docs/reference/exit-codes.zh-CN.md")


def table(guide: str, column: int = 0) -> dict[str, str]:
    """code → meaning, or what a scheduler does (1), from the only table that begins with exit codes."""
    text = (ROOT / guide).read_text(encoding="utf-8")
    section = re.split(r"^## ", text, flags=re.MULTILINE)
    (found,) = [part for part in section if part.startswith(("Exit codes", "退出码"))]
    rows = re.findall(r"^\| ([0-9]+(?: \+ N)?) \| (.+) \| (.+) \|$", found, re.MULTILINE)
    return {code: (meaning, follows)[column] for code, meaning, follows in rows}


@pytest.mark.parametrize("guide", GUIDES)
def test_every_code_of_ours_is_in_the_table(guide: str) -> None:
    rows = table(guide)
    assert {int(code) for code in rows if code.isdigit()} == {int(code) for code in ExitCode}
    named = {name: int(number) for number, name in re.findall(r"([0-9]{3}) (SIG[A-Z]+)", rows["128 + N"])}
    assert {"SIGKILL", "SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE"} <= set(named)
    assert named == {name: Failure(0, -signal.Signals[name], 0.0).answer for name in named}
    assert "143" in rows["128 + N"]


@pytest.mark.parametrize("guide", GUIDES)
def test_the_table_says_what_schedulers_do(guide: str) -> None:
    """``launch.supervision.exit_codes`` is the table; scripts and manifests are rendered from it."""
    says = table(guide, column=1)
    follows = {code: AFTER.get(int(code), After.COUNT) for code in says if code.isdigit()}
    follows["128 + N"] = AFTER[137]
    assert AFTER[137] is AFTER[143] and all(
        int(code) in AFTER for code in follows if code.isdigit() and code != "1"
    )
    words = {code: (what.value if guide == GUIDES[0] else CHINESE[what]) for code, what in follows.items()}
    assert says == words


def test_the_guide_names_the_causes_that_the_file_of_exits_holds() -> None:
    source = (ROOT / "paceline/launch/supervision/exit_record.py").read_text(encoding="utf-8")
    for guide in GUIDES:
        text = (ROOT / guide).read_text(encoding="utf-8")
        for cause in (
            "finished",
            "stopped",
            "error",
            "signal",
            "out_of_memory",
            "another_rank",
            "the_launcher",
        ):
            assert f"`{cause}`" in text and cause in source
