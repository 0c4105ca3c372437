"""Ignore ``trust_remote_code: true`` where no code is needed or pinned; many programs always set it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from paceline.config import codes
from paceline.config.schema import Config
from paceline.config.source import Source
from paceline.core.diagnostics import Diagnostic

_KEY = "model.trust_remote_code"


def without_code(config: Config, provenance: Mapping[str, Source]) -> tuple[Config, list[Diagnostic]]:
    """Turn trust_remote_code off, with a warning, if the model is made from scratch or has no revision.

    No remote code runs then: a model that needs its code is refused when its config is read. For a folder, or
    a revision that is not a pin, the rule ``sec.trust_remote_code`` decides.
    """
    model = config.model
    if not model.trust_remote_code or model.revision is not None:
        return config, []
    if model.name_or_path is None and model.config:
        why, hint = (
            "a model created from scratch has no code of its own",
            "trust_remote_code: false, or remove the line",
        )
    elif model.name_or_path and not Path(model.name_or_path).expanduser().exists():
        why = "code from the hub runs only from a pinned commit, and most models need none"
        hint = (
            "remove the line; if the model needs its own code, set revision to the 40-digit commit"
            " that you have reviewed"
        )
    else:
        return config, []
    where = provenance[_KEY].place() if _KEY in provenance else _KEY
    off = config.model_copy(update={"model": model.model_copy(update={"trust_remote_code": False})})
    return off, [codes.SEC_NO_REMOTE_CODE(where, "trust_remote_code: true", why=why, hint=hint)]
