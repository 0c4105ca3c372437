"""Screenshots of the page, and what axe finds on it: of every run in a folder, by Chromium.

    pip install 'paceline[browser]'                    # and Debian's chromium, or --chromium PATH
    python scripts/page_screenshots.py RUNS --to DIR   # all: 360, 800, 1600 px, light and dark, en and zh
    python scripts/page_screenshots.py RUNS --docs     # those of the docs, into docs/images

``--make`` first trains three runs into RUNS: one that finishes, one whose second process is killed, and one
that still trains while the pictures are made. Exits with 1 if axe finds something serious.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from paceline.core.rundir import RunDir

ROOT = Path(__file__).resolve().parents[1]
PACELINE = [sys.executable, "-m", "paceline"]
PLAIN = argparse.RawDescriptionHelpFormatter
WIDTHS, THEMES, LANGUAGES = (360, 800, 1600), ("light", "dark"), ("en", "zh")
MOST = 2200  # pixels of height
TABS = ("overview", "curves", "samples", "findings", "plan", "config", "checkpoints", "logs")
SERIOUS = ("serious", "critical")
# Pictures of the docs: name, run, tab, width, theme, language
DOCS = (
    ("page-live", "live", "overview", 1280, "light", "en"),
    ("page-samples", "live", "samples", 1280, "dark", "en"),
    ("page-finished", "finished", "curves", 1280, "light", "en"),
    ("page-crashed", "crashed", "findings", 800, "light", "en"),
    ("page-phone", "live", "overview", 360, "dark", "zh"),
    ("page-live-zh", "live", "overview", 1280, "light", "zh"),
)


def main() -> int:
    options = _parser().parse_args()
    with contextlib.ExitStack() as stack:
        if options.make:
            stack.enter_context(three_runs(options.runs))
        address = stack.enter_context(watching(options.runs))
        browser = stack.enter_context(sync_playwright()).chromium.launch(executable_path=options.chromium)
        shots = Shots(browser, address, options.to, not options.no_axe)
        runs = shots.runs()
        if options.docs:
            for name, run, tab, width, theme, language in DOCS:
                shots.take(name, runs[run], tab, width, theme, language, 1040)
        else:
            for width, theme, language in product(options.widths, options.themes, options.languages):
                ending = f"{width}-{theme}-{language}"
                shots.take(f"runs-{ending}", "", "", width, theme, language)
                for (run, number), tab in product(runs.items(), options.tabs):
                    shots.take(f"{run}-{tab}-{ending}", number, tab, width, theme, language)
        browser.close()
    for found in shots.found:
        print(found)
    print(f"{shots.count} pictures in {options.to}, {len(shots.found)} serious findings of axe")
    return 1 if shots.found else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path)
    parser.add_argument("--to", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("--docs", action="store_true")
    parser.add_argument("--make", action="store_true")
    parser.add_argument("--tabs", nargs="*", default=TABS)
    parser.add_argument("--widths", nargs="*", type=int, default=WIDTHS)
    parser.add_argument("--themes", nargs="*", default=THEMES)
    parser.add_argument("--languages", nargs="*", default=LANGUAGES)
    parser.add_argument("--no-axe", action="store_true")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    return parser


@contextlib.contextmanager
def three_runs(runs: Path) -> Iterator[None]:
    """Train a run that finishes and one that crashes, and one that goes on until the end of the block."""
    finished, crashed, live = runs / "spelling", runs / "spelling-crashed", runs / "rewards"
    if not finished.exists():
        subprocess.run([*PACELINE, "demo", "--to", str(finished)], check=True)
    if not crashed.exists():
        yaml = finished / "material" / "demo.yaml"
        train = [*PACELINE, "train", str(yaml), "--nproc", "2", f"output_dir={crashed}"]
        with subprocess.Popen(train, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as training:
            wait_for(lambda: beat_of(crashed, 1).get("step", 0) >= 60, training)
            os.kill(beat_of(crashed, 1)["pid"], signal.SIGKILL)
    demo = [*PACELINE, "demo", "--algorithm", "grpo", "--to", str(live), "--steps", "400"]
    with subprocess.Popen(demo, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as training:
        try:
            wait_for(lambda: beat_of(live / "grpo", 0).get("step", 0) >= 25, training)
            yield
        finally:
            training.send_signal(signal.SIGTERM)


def beat_of(run: Path, rank: int) -> dict[str, Any]:
    """Return a rank's last heartbeat; empty before the first."""
    with contextlib.suppress(OSError, ValueError):
        return dict(json.loads(RunDir.at(run).heartbeat(rank).read_text()))
    return {}


def wait_for(condition: Callable[[], bool], training: subprocess.Popen[bytes]) -> None:
    """Return when ``condition`` holds; raises RuntimeError when the training ends before."""
    while not condition():
        if training.poll() is not None:
            raise RuntimeError(f"the training ended with exit code {training.returncode}")
        time.sleep(0.5)


@contextlib.contextmanager
def watching(runs: Path) -> Iterator[str]:
    """Start `paceline watch` and yield its address."""
    command = [*PACELINE, "watch", str(runs)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            for line in server.stdout:
                if found := re.search(r"http://\S+", line):
                    yield found[0]
                    break
        finally:
            server.send_signal(signal.SIGINT)


@dataclass
class Shots:
    """Takes pictures; ``found``: what axe calls serious."""

    browser: Browser
    address: str
    folder: Path
    asks_axe: bool
    count: int = 0
    found: list[str] = field(default_factory=list)
    _pages: dict[tuple[int, str, str], Page] = field(default_factory=dict)

    def runs(self) -> dict[str, str]:
        """Return the ids of the runs: ``live``, ``finished``, ``crashed``, others by their state."""
        names = {"completed": "finished", "failed": "crashed", "vanished": "crashed", "running": "live"}
        page = self.page(800, "light", "en")
        rows = page.evaluate("async () => (await (await fetch('/api/runs')).json()).runs")
        return {names.get(row["state"]["name"], row["state"]["name"]): row["id"] for row in rows}

    def page(self, width: int, theme: str, language: str) -> Page:
        """Return a page of that kind, let in."""
        key = (width, theme, language)
        if key not in self._pages:
            for page in self._pages.values():
                page.context.close()
            self._pages.clear()
            context = self.browser.new_context(
                viewport={"width": width, "height": 800},
                color_scheme="dark" if theme == "dark" else "light",
                locale="zh-CN" if language == "zh" else "en-US",
            )
            context.set_default_timeout(120_000)
            page = self._pages[key] = context.new_page()
            page.on("pageerror", lambda error: self.found.append(f"error in the page: {error}"))
            page.goto(self.address)
        return self._pages[key]

    def take(
        self, name: str, run: str, tab: str, width: int, theme: str, language: str, most: int = MOST
    ) -> None:
        """Write NAME.png of a part of a run, or of the list of runs, and ask axe about it."""
        page = self.page(width, theme, language)
        page.evaluate("(to) => { location.hash = to; }", f"#/{run}/{tab}" if run else "#/")
        page.wait_for_function(READY, arg=f"#/{run}/{tab}" if run else "")
        page.wait_for_timeout(400)
        self.folder.mkdir(parents=True, exist_ok=True)
        tall = page.evaluate("document.documentElement.scrollHeight")
        part = {"x": 0, "y": 0, "width": width, "height": min(tall, most)}
        page.screenshot(path=self.folder / f"{name}.png", clip=part, full_page=True, timeout=120_000)
        self.count += 1
        wide = page.evaluate("document.documentElement.scrollWidth")
        if wide > width:
            self.found.append(f"{name}: {wide} px wide, the window is {width}")
        for violation in violations(page) if self.asks_axe else ():
            places = ", ".join(str(node["target"]) for node in violation["nodes"][:3])
            self.found.append(f"{name}: {violation['id']}: {violation['help']} ({places})")


# Everything is there: the head, no "Loading", and each chart drawn or said to be empty
READY = """(part) => document.querySelector('main h1') && !document.querySelector('#part > .note:only-child')
    && [...document.querySelectorAll('.chart')].every((c) => c.querySelector('svg, .none'))
    && (document.querySelector('.tabs [aria-selected=true]')?.getAttribute('href') ?? '') === part"""


def violations(page: Page) -> list[dict[str, Any]]:
    """Return what axe finds serious or critical; nothing where axe-playwright-python is not installed."""
    try:
        import axe_playwright_python
    except ModuleNotFoundError:
        return []
    script = Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text(encoding="utf-8")
    # Evaluated, not added as an element: the page's policy would refuse that
    page.evaluate(script)
    result = page.evaluate("async () => await axe.run()")
    return [found for found in result["violations"] if found["impact"] in SERIOUS]


if __name__ == "__main__":
    sys.exit(main())
