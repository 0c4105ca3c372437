"""``paceline report``: the page of one run as one HTML file, with everything it needs inside."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from paceline.core.errors import ConfigError
from paceline.core.json_types import JsonObject
from paceline.core.security.file_permissions import written_into
from paceline.watch import codes
from paceline.watch.page.documents import config_of, log_names, log_page, plan_of, samples_of
from paceline.watch.page.view import RunView

STATIC = Path(__file__).with_name("static")
_BUCKETS = 1000  # points of a curve: a file cannot ask for more
_LOG_LINES = 2000  # of the log's end that are in the file
_READ_SECONDS = 1.0  # between two lines of progress
_SCRIPT = re.compile(r'<script src="/static/([a-z]+\.js)"></script>')
_SHEET = '<link rel="stylesheet" href="/static/page.css">'


def write_report(view: RunView, to: Path, progress: Callable[[str], None]) -> str:
    """Write the report of a run, replacing the file atomically; return a line about it.

    ``progress`` gets a line a second while a long history is read. Raises ConfigError when the file cannot be
    written.
    """
    while (share := view.advance(_READ_SECONDS)) < 1:
        progress(f"reading the history: {share:.0%}")
    text = page_of(report_data(view))
    staged = to.with_name(f".{to.name}.{os.getpid()}")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        # As private as the run: it holds its prompts and its config
        with written_into(view.run.root):
            staged.write_text(text, encoding="utf-8", errors="replace")
        os.replace(staged, to)
    except OSError as error:
        with contextlib.suppress(OSError):
            staged.unlink()
        raise ConfigError(codes.REPORT_WRITE(str(to), str(error))) from error
    return f"{to} ({len(text.encode('utf-8', 'replace')) / 1e6:.1f} MB)"


def report_data(view: RunView) -> JsonObject:
    """Return everything that the page shows of a run: curves reduced, the last samples, the log's end."""
    summary = view.summary()
    names = [str(name) for name in series] if isinstance(series := summary["series"], list) else []
    curves = {x: view.series(names, x, _BUCKETS, None, None) for x in ("step", "elapsed")}
    return {
        "written": time.time(),
        "summary": summary,
        "series": json.loads(json.dumps(curves)),
        "findings": view.findings(),
        "checkpoints": view.checkpoints(),
        "plan": plan_of(view.run),
        "config": config_of(view.run),
        "samples": samples_of(view, None, 20),
        "logs": log_names(view.run)[:1],
        "log": log_page(view.run, "training.log", "", None, _LOG_LINES)["lines"],
    }


def page_of(data: JsonObject) -> str:
    """Return the page with style, scripts and ``data`` inside, and a policy that allows only those."""
    style = (STATIC / "page.css").read_text(encoding="utf-8")
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    scripts = "\n".join((STATIC / name).read_text(encoding="utf-8") for name in _SCRIPT.findall(page))
    # Inside a script element only "<" could end it; as an escape it is the same JSON
    inside = json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":")).replace(
        "<", "\\u003c"
    )
    policy = (
        f"default-src 'none'; script-src '{_digest(scripts)}'; style-src '{_digest(style)}'; img-src data:;"
        " base-uri 'none'; form-action 'none'"
    )
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    page = _SCRIPT.sub("", page).replace('<meta charset="utf-8">', f'<meta charset="utf-8">\n{meta}')
    page = page.replace(_SHEET, f"<style>{style}</style>")
    body = f'<script type="application/json" id="report-data">{inside}</script>\n<script>{scripts}</script>'
    return page.replace("</body>", f"{body}\n</body>")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
