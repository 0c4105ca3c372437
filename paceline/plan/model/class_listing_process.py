"""Ask the installed Transformers' own class for a model's parameters, in a process of its own.

Used where the closed formulas of ``parameter_list`` are not known to be exact for a family. The child imports
torch and builds the class on the meta device; the answer is kept under everything that it depends on: the
config and the versions of Transformers, torch and this code. Code that comes with a model runs only where
``trust_remote_code`` allows it, and what it answers is not kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from importlib import util
from importlib.metadata import PackageNotFoundError, version

from paceline.core.json_types import Json, JsonObject
from paceline.core.package import cache_folder
from paceline.plan.child_answer import child_reply, keep_answer, kept_answer
from paceline.plan.model.parameter_list import with_counts
from paceline.plan.model.shape import Listing, ModelShape
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
    listing, why = listing_of(inner if isinstance(inner, Mapping) and inner else config, environ, code)
    if listing is None:
        return replace(shape, why_about=why)
    return with_counts(replace(shape, listing=listing, tied=listing.tied, exact=True))


def listing_of(
    config: Mapping[str, Json], environ: Mapping[str, str], code: JsonObject | None = None
) -> tuple[Listing | None, str]:
    """Return (the listing, why there is none). Takes at most ``SECONDS``."""
    missing = [name for name in ("torch", "transformers") if util.find_spec(name) is None]
    if missing:
        return None, f"{' and '.join(missing)}: not installed here"
    request: JsonObject = {**code, "trust_remote_code": True} if code else {"config": dict(config)}
    record = None if code else cache_folder(environ) / "parameters" / f"{_key(request)}.json"
    if record is not None and (listing := _parsed(kept_answer(record))) is not None:
        return listing, ""
    listing, why = query_class(request, environ)
    if listing is not None and record is not None:
        keep_answer(record, json.dumps(to_json(listing)))
    return listing, why


def query_class(request: JsonObject, environ: Mapping[str, str]) -> tuple[Listing | None, str]:
    offline = {**environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    child = child_reply(MODULE, offline, SECONDS, json.dumps(request))
    if child.late:
        return None, f"its class was not built within {SECONDS:.0f} s"
    try:
        answer = json.loads(child.line)
    except ValueError:
        return None, f"its class could not be asked: {child.end}"
    if not isinstance(answer, dict) or "why" in answer:
        return None, f"its class could not be built: {answer.get('why') if isinstance(answer, dict) else ''}"
    listing = _parsed(json.dumps(answer.get("listing")))
    return listing, "" if listing is not None else "its class gave no list"


def _parsed(text: str) -> Listing | None:
    """Return the listing of its JSON; None for a damaged one."""
    try:
        listing = from_json(Listing, json.loads(text))
        return listing if listing.sound else None
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _key(request: JsonObject) -> str:
    facts = {
        "format": _FORMAT,
        "request": request,
        "versions": {name: _version(name) for name in ("transformers", "torch")},
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
