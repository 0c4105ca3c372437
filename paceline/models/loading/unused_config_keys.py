"""The keys of a folder's ``config.json``: those left at a class's defaults, and those that nothing reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from paceline.core.json_types import Json
from paceline.plan.model.source_keys import family_words

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

SHOWN = 8  # names in the message


def config_keys(raw: Mapping[str, Json], config: PreTrainedConfig) -> str:
    """Return one line for the log: how many keys ``raw``, a language model's part of ``config.json``, has;
    which of ``config``'s class it leaves out; and which are unknown to the family's code.
    """
    from transformers import PreTrainedConfig

    general, own = _fields(PreTrainedConfig), _fields(type(config))
    names = dict(getattr(config, "attribute_map", None) or {})
    given = {names.get(key, key) for key in raw if not key.startswith("_")}
    given |= {"rope_parameters"} if given & {"rope_theta", "rope_scaling"} else set()
    words = family_words(str(config.model_type))
    known = (words.words if words else frozenset()) | own | {"torch_dtype", "auto_map"}
    out, unread = sorted(own - general - given), sorted(given - known)
    parts = [f"{len(raw)} keys"]
    if out:
        parts.append(f"{len(out)} left out, at the defaults of {type(config).__name__}: {_listed(out)}")
    if unread:
        parts.append(f"{len(unread)} that nothing in its code reads: {_listed(unread)}")
    return "; ".join(parts)


def _fields(kind: type) -> frozenset[str]:
    """Return the names of a config class's fields; none if it is not a dataclass."""
    found = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    return frozenset(field.name for field in found)


def _listed(names: Collection[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(list(names)[:SHOWN]) + (f" and {more} more" if more > 0 else "")
