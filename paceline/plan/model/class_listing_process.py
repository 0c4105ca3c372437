"""Ask the installed Transformers' own class for a model's parameters, in a process of its own.

Used where the closed formulas of ``parameters`` are not known to be exact for a family. The child imports
torch and builds the class on the meta device; the answer is kept under everything that it depends on: the
config and the versions of Transformers, torch and this code. Code that comes with a model runs only where
``trust_remote_code`` allows it, and what it answers is not kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib import util
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from paceline.core.json_types import Json, JsonObject
from paceline.core.package import ROOT, cache_folder
from paceline.plan.model.class_listing import Listing
from paceline.plan.model.parameter_list import with_counts
from paceline.plan.model.shape import ModelShape
from paceline.plan.plan_json import from_json, to_json

SECONDS = 180.0  # a slow disk takes a minute to import both
MODULE = "paceline.models.loading.list_parameters"
_FORMAT = 1


def counted(
    shape: ModelShape, config: Mapping[str, Json], environ: Mapping[str, str], code: JsonObject | None = None
) -> ModelShape:
    """Return ``shape`` with the parameters that Transformers' class lists, unless the formula is exact.

    ``config``: the model's ``config.json``. ``code``: ``name_or_path`` and ``revision`` of a model whose own
    Python code may run. Where the class cannot be asked the formula's counts stay; ``why_about`` says why.
    """
    if shape.exact:
        return shape
    inner = config.get("text_config")  # a tower beside it is not trained
    found, why = listing_of(inner if isinstance(inner, Mapping) and inner else config, environ, code)
    if found is None:
        return replace(shape, why_about=why)
    return with_counts(replace(shape, listing=found, tied=found.tied, exact=True))


def listing_of(
    config: Mapping[str, Json], environ: Mapping[str, str], code: JsonObject | None = None
) -> tuple[Listing | None, str]:
    """Return (the listing, why there is none). Takes at most ``SECONDS``."""
    missing = [name for name in ("torch", "transformers") if util.find_spec(name) is None]
    if missing:
        return None, f"{' and '.join(missing)}: not installed here"
    request: JsonObject = {**code, "trust_remote_code": True} if code else {"config": dict(config)}
    record = None if code else cache_folder(environ) / "parameters" / f"{_key(request)}.json"
    if record is not None and (kept := _kept(record)) is not None:
        return kept, ""
    found, why = ask_child(request, environ)
    if found is not None and record is not None:
        with contextlib.suppress(OSError):  # a cache that cannot be written costs seconds, nothing else
            record.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            partial = record.with_name(f"{record.name}.{os.getpid()}")
            partial.write_text(json.dumps(to_json(found)), encoding="utf-8")
            os.replace(partial, record)
    return found, why


def ask_child(request: JsonObject, environ: Mapping[str, str]) -> tuple[Listing | None, str]:
    path = os.pathsep.join(filter(None, (str(ROOT), environ.get("PYTHONPATH", ""))))
    try:
        done = subprocess.run(
            [sys.executable, "-m", MODULE],
            env={**environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""},
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, f"its class was not built within {SECONDS:.0f} s"
    except OSError as exc:
        return None, f"its class could not be asked: {exc.strerror or exc}"
    last = done.stdout.strip().splitlines()[-1:] or [""]
    try:
        answer = json.loads(last[0])
    except ValueError:
        ended = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        return None, f"its class could not be asked: {ended[0][:300]}"
    if not isinstance(answer, dict) or "why" in answer:
        return None, f"its class could not be built: {answer.get('why') if isinstance(answer, dict) else ''}"
    found = _parsed(answer.get("listing"))
    return found, "" if found is not None else "its class gave no list"


def _kept(record: Path) -> Listing | None:
    """Return the kept answer; None if there is none of this user's, or a damaged one, which is replaced."""
    try:
        with record.open(encoding="utf-8") as file:
            if os.fstat(file.fileno()).st_uid != os.getuid():
                return None
            return _parsed(json.loads(file.read()))
    except (OSError, ValueError):
        return None


def _parsed(data: Json) -> Listing | None:
    if not isinstance(data, dict):
        return None
    try:
        found = from_json(Listing, data)
        return found if found.sound else None
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _key(request: JsonObject) -> str:
    known = {
        "format": _FORMAT,
        "request": request,
        "versions": {name: _version(name) for name in ("transformers", "torch")},
    }
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:32]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
