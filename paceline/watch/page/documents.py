"""The texts of a run: its plan with reasons, its config with sources, its samples and its logs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from paceline.config.load import NotLoaded, load_config
from paceline.config.source import DEFAULTS, Source, shown
from paceline.core.errors import ConfigError
from paceline.core.files import listed, open_run_file
from paceline.core.json_types import Json, JsonObject, as_object
from paceline.core.rundir import RunDir
from paceline.watch.page.glance import read_json
from paceline.watch.page.sample_pictures import SamplePictures
from paceline.watch.page.view import RunView

LOG_NAME = re.compile(r"(training|rank-\d{1,6})\.log")  # a name from a URL: nothing else is ever opened
MAX_SAMPLE_TEXT = 20_000  # characters of each text of a sample that are sent
_MOST_ROWS = 200  # of one event that are sent
_BLOCK = 256 << 10  # bytes that are read at once, from the end
_MOST_BYTES = 64 << 20  # of a log that one search reads
_MAX_LINE = 4000  # characters of a line that are sent
_LONGEST = 8 << 20  # bytes of a line that is read at all
ABOVE = "command line or environment"


def plan_of(run: RunDir) -> JsonObject:
    """Return the plan: its decisions, and what else it holds by part, without the config."""
    plan = read_json(run.plan_json)
    parts = {k: v for k, v in plan.items() if k not in ("config", "decisions", "run_dir")}
    decisions = plan.get("decisions")
    rows = [d for d in decisions if isinstance(d, dict)] if isinstance(decisions, list) else []
    return {"decisions": rows, "parts": parts}


def config_of(run: RunDir) -> list[Json]:
    """Return every effective value with the layer and the line that set it.

    The lines are those of the run's copy of the YAML. What differs from it was set above it: on the command
    line or by the environment. Without a readable copy, layers are empty.
    """
    effective = _flat(as_object(read_json(run.plan_json).get("config")) or read_json(run.config_json))
    copied, sources = _yaml(run)
    rows: list[Json] = []
    for key, value in effective:
        source = _source(sources, key)
        if copied and copied.get(key) != value:
            # A default that comes of the file's name is another for the copy
            layer, line = ABOVE, source.text if source.layer == DEFAULTS else ""
        else:
            layer = source.layer if copied else ""
            line = Path(source.file).name + (f":{source.line}" if source.line else "") if source.file else ""
        text = shown(key, value, 2000)
        rows.append({"key": key, "value": text, "layer": layer, "place": line, "default": layer == DEFAULTS})
    return rows


def _yaml(run: RunDir) -> tuple[dict[str, Json], Mapping[str, Source]]:
    if not run.config_yaml.is_file():
        return {}, {}
    try:
        loaded = load_config(str(run.config_yaml))
    except NotLoaded as error:
        loaded = error.partial
    except ConfigError:
        return {}, {}
    return dict(_flat(loaded.config.to_json())), loaded.provenance


def _source(sources: Mapping[str, Source], key: str) -> Source:
    """Return the source of ``key`` or of what holds it."""
    while key:
        if key in sources:
            return sources[key]
        key = key.rpartition(".")[0]
    return Source(DEFAULTS)


def _flat(data: JsonObject, prefix: str = "") -> list[tuple[str, Json]]:
    rows: list[tuple[str, Json]] = []
    for name, value in data.items():
        key = f"{prefix}{name}"
        rows += _flat(value, f"{key}.") if isinstance(value, dict) and value else [(key, value)]
    return rows


def samples_of(view: RunView, before: int | None, limit: int) -> JsonObject:
    """Return the newest samples and answers before a row of the index, newest first."""
    first, places = view.sample_places(before, max(1, min(limit, 50)))
    groups: list[Json] = []
    pictures = SamplePictures(view.run)
    for step, are_answers, begin, length in reversed(places):
        try:
            with open_run_file(view.run.events(0)) as file:
                file.seek(begin)
                data = json.loads(file.read(length), parse_constant=str)
        except (OSError, ValueError, RecursionError):
            continue  # the file was replaced since
        written = data.get("rows") if isinstance(data, dict) else None
        rows = [row for row in written if isinstance(row, dict)] if isinstance(written, list) else []
        counts = {"count": len(rows), "right": sum(bool(row.get("correct")) for row in rows)}
        shown: list[Json] = [
            {k: v[:MAX_SAMPLE_TEXT] if isinstance(v, str) else v for k, v in row.items()}
            for row in map(pictures.shown, rows[:_MOST_ROWS])
        ]
        groups.append({"step": step, "answers": are_answers, "rows": shown, **counts})
    return {"groups": groups, "before": first}


def log_names(run: RunDir) -> list[Json]:
    """Return the logs with their sizes, the whole run's first."""
    rows: list[JsonObject] = []
    for path in listed(run.logs)[:2000]:
        with suppress(FileNotFoundError):  # deleted meanwhile
            if LOG_NAME.fullmatch(path.name) and path.is_file() and not path.is_symlink():
                rows.append({"name": path.name, "bytes": path.stat().st_size})
    return [*sorted(rows, key=lambda row: (row["name"] != "training.log", str(row["name"])))]


def log_page(run: RunDir, name: str, search: str, before: int | None, limit: int) -> JsonObject:
    """Return the last ``limit`` lines that end before a byte and hold ``search`` (case-insensitive).

    ``before`` of the answer continues towards the beginning (0: reached); 64 MiB are read at most.
    """
    if not LOG_NAME.fullmatch(name):
        return {"lines": [], "before": 0}
    wanted = search.lower()
    lines: list[Json] = []
    path = run.logs / name
    try:
        size = path.stat().st_size
        end = size if before is None else min(before, size)
        reached = max(0, end - _MOST_BYTES)
        for begin, line in _backwards(path, reached, end):
            if wanted in line.lower():
                lines.append(line[:_MAX_LINE])
                if len(lines) >= limit:
                    reached = begin
                    break
    except OSError:  # deleted meanwhile
        reached = 0
    return {"lines": lines[::-1], "before": reached}


def _backwards(path: Path, stop: int, end: int) -> Iterator[tuple[int, str]]:
    """Yield (byte at which it begins, line) of the bytes from ``stop`` to ``end``, the last line first."""
    with open_run_file(path) as file:
        rest = b""
        while end > stop:
            begin = max(stop, end - _BLOCK)
            file.seek(begin)
            data = file.read(end - begin) + rest
            first, *others = data.split(b"\n")
            position = begin + len(data)
            for line in reversed(others):
                position -= len(line)
                if line:
                    yield position, line.decode("utf-8", "replace")
                position -= 1
            # The first line may begin in the block before; one that never ends is passed over
            rest, end = (first if len(first) < _LONGEST else b""), begin
        if rest:
            yield stop, rest.decode("utf-8", "replace")
