"""The page in Chromium: what a run's text can do there, keys, widths, and what axe finds.

Needs Debian's chromium, which ``.ci/run`` installs where it can; without it the tests are skipped.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from page_runs import HOSTILE, begin, notice, samples, step, view_of, write_run

from paceline.watch.page.report import write_report

playwright = pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright")
axe = pytest.importorskip("axe_playwright_python", reason="the browser tests need axe-playwright-python")
CHROMIUM = shutil.which("chromium") or ""
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="there is no chromium")
PHASES = {"time/sync": 0.5, "time/generate": 2.0, "time/wait": 0.25, "time/train": 1.0, "time/rollout": 2.75}
SLOW = pytest.mark.slow
TABS = ("overview", "curves", "samples", "findings", "plan", "config", "checkpoints", "logs")


@contextmanager
def browsing(width: int, theme: str) -> Iterator[Any]:
    """A page of Chromium whose errors fail the test."""
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM)
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=theme)
        page, errors = context.new_page(), []
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("request", lambda asked: errors.append(asked.url) if is_elsewhere(asked.url) else None)
        yield page
        browser.close()
        assert errors == []


def is_elsewhere(address: str) -> bool:
    return not address.startswith(("http://127.0.0.1:", "file:", "data:"))


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    lines = [
        begin(),
        *(step(n, reward=n / 10, **PHASES) for n in range(1, 9)),
        samples(8, HOSTILE),
        notice(HOSTILE),
    ]
    run = write_run(tmp_path / "runs" / "a", lines)
    run.logs.mkdir()
    run.training_log.write_text(f"line {HOSTILE}\n")
    command = [sys.executable, "-m", "paceline", "watch", str(tmp_path / "runs")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        yield next(found[0] for line in server.stdout if (found := re.search(r"http://\S+", line)))
        server.send_signal(signal.SIGINT)


def look(page: Any, tab: str) -> None:
    """Check a part: no text acts, nothing is wider than the window, axe finds nothing serious."""
    page.wait_for_function(
        "(tab) => document.querySelector('.tabs [aria-selected=true]')?.hash.endsWith('/' + tab)"
        " && !document.querySelector('#part > .note:only-child')",
        arg=tab,
    )
    assert "owned" not in page.title() and page.locator("main img, main script").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), tab
    page.evaluate(Path(axe.__file__).with_name("axe.min.js").read_text(encoding="utf-8"))
    found = page.evaluate("async () => (await axe.run()).violations")
    assert [v["id"] for v in found if v["impact"] in ("serious", "critical")] == [], tab


@pytest.mark.parametrize(
    ("width", "theme"),
    [(360, "dark"), pytest.param(800, "dark", marks=SLOW), pytest.param(1600, "light", marks=SLOW)],
)
def test_every_part_in_a_browser(address: str, width: int, theme: str) -> None:
    with browsing(width, theme) as page:
        page.goto(address)
        page.wait_for_selector(".tabs")  # the only run opens by itself
        run = page.evaluate("location.hash.split('/')[1]")
        for tab in TABS:
            page.evaluate("(to) => { location.hash = to; }", f"#/{run}/{tab}")
            look(page, tab)
        page.evaluate("(to) => { location.hash = to; }", f"#/{run}/samples")
        page.wait_for_selector(".sample")
        assert HOSTILE in page.inner_text(".sample")
        # Keys: the arrows open the tabs in turn
        page.focus(".tabs [aria-selected=true]")
        page.keyboard.press("ArrowLeft")
        look(page, "curves")
        roles = "(role) => document.querySelectorAll(`[role=${role}]`).length"
        assert [page.evaluate(roles, role) for role in ("tablist", "tab", "tabpanel")] == [1, len(TABS), 1]
        assert page.evaluate("document.activeElement.getAttribute('aria-selected')") == "true"
        page.keyboard.press("End")
        look(page, TABS[-1])
        # The loss tile shows what the chart draws
        page.evaluate("(to) => { location.hash = to; }", f"#/{run}/overview")
        page.wait_for_selector(".tile >> text=smoothed")
        assert page.inner_text(".tile:nth-of-type(2) dd").split("\n")[0] == page.evaluate(
            "number(open.board.value('steps/loss'))"
        )
        # Keys: a chart reads its values aloud
        page.evaluate("(to) => { location.hash = to; }", f"#/{run}/curves")
        look(page, "curves")  # the part before has charts, too
        assert page.locator(".chart rect title").count() == 8 * 4  # a rollout's phases, a row a step
        page.focus(".chart svg")
        page.keyboard.press("ArrowLeft")
        assert page.inner_text("#live") == "Step 7: 3"
        page.select_option("select >> nth=0", "zh")
        page.wait_for_selector("html[lang=zh-CN] .tabs >> text=曲线")


@pytest.mark.slow
def test_a_report_opens_from_a_file(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [begin(), *(step(n) for n in range(1, 9)), samples(8, HOSTILE)])
    write_report(view_of(run, tmp_path / "cache"), tmp_path / "report.html", print)
    with browsing(800, "dark") as page:
        page.goto((tmp_path / "report.html").as_uri())
        page.wait_for_selector(".tabs")
        for tab in TABS:
            page.click(f".tabs a[href$='/{tab}']")
            look(page, tab)


def test_what_the_time_of_an_ended_run_went_to(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [begin(), *(step(n) for n in range(1, 9))])
    loss = {"step": 8, "back_to": 4, "steps": 4, "seconds": 2.0, "cause": HOSTILE}
    used = {"share": 0.4, "seconds": 20.0, "useful_seconds": 8.0, "startup_seconds": 12.0, "losses": [loss]}
    bands = {"seconds": 10.0, "compute": 5.0, "wait": 4.0, "data": 1.0}
    bands |= {"stragglers": [{"rank": 1, "seconds": 4.0, "percent": 40.0}]}
    facts = {"outcome": "completed", "effective_time": used, "time_bands": bands, "diagnostics": []}
    run.result_json.write_text(json.dumps(facts))
    write_report(view_of(run, tmp_path / "cache"), tmp_path / "report.html", print)
    with browsing(360, "dark") as page:
        page.goto((tmp_path / "report.html").as_uri())
        page.wait_for_selector("#use h2")
        look(page, "overview")
        text = page.inner_text("#use")
        assert "40%" in text and "rank 1: 40 %" in text and f"steps 4 to 8 ({HOSTILE})" in text
