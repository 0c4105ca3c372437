"""``trust_remote_code: true`` where no code is needed or none is pinned: other programs' files carry it for every model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from paceline.config import codes
from paceline.config.schema import Config
from paceline.config.source import Source
from paceline.core.diagnostics import Diagnostic, Severity

_KEY = "model.trust_remote_code"


def without_code(config: Config, provenance: Mapping[str, Source]) -> tuple[Config, list[Diagnostic]]:
    """The config with the switch off, and a warning, where a model is made from scratch or a hub name has no revision at all.

    Nothing runs then: a model that needs its code is refused when its config is read. A folder, and a revision that is no
    pin, are ruled by ``sec.trust_remote_code``.
    """
    model = config.model
    if not model.trust_remote_code or model.revision is not None:
        return config, []
    if model.name_or_path is None and model.config:
        why, hint = "a model made from scratch brings no code", "trust_remote_code: false, or remove the line"
    elif model.name_or_path and not Path(model.name_or_path).expanduser().exists():
        why = "code of the hub runs from a pinned commit alone, and most models need none"
        hint = "remove the line; a model that needs its code: revision, with the 40-digit commit you have read"
    else:
        return config, []
    where = provenance[_KEY].place() if _KEY in provenance else _KEY
    what = f"trust_remote_code: true is read as false: {why}"
    off = config.model_copy(update={"model": model.model_copy(update={"trust_remote_code": False})})
    return off, [codes.SEC_NO_REMOTE_CODE(what, where, "trust_remote_code: true", hint, Severity.WARNING)]
