"""Models of which the language model alone is trained: what else they have (a vision tower) is carried.

No torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from paceline.core.json_types import Json, JsonObject
from paceline.plan.model.families.family import Composite, composites

_BESIDE = (
    *("vision", "visual", "audio", "speech", "image", "mm_projector", "multi_modal_projector"),
    *("multimodal_projector", "embed_vision", "mtp"),
)


def composite_of(config: Mapping[str, Json]) -> Composite | None:
    """Return how a ``config.json`` is read of which the language model alone is trained; else None."""
    inner = config.get("text_config")
    found = composites().get(str(config.get("model_type")))
    flat = found is not None and bool(found.text) and "vision_config" in config  # as Qwen2-VL's was released
    return found if flat or (isinstance(inner, Mapping) and inner) else None


def text_part(config: Mapping[str, Json]) -> Mapping[str, Json]:
    """Return the language model's part of a ``config.json``, as the config of a causal class."""
    inner = config.get("text_config")
    part = inner if isinstance(inner, Mapping) and inner else config
    found = composite_of(config)
    if found is None:
        return part
    own: JsonObject = {**found.values, "tie_word_embeddings": config.get("tie_word_embeddings", found.tied)}
    return {**part, **own, **({"model_type": found.text} if found.text else {})}


def text_name(name: str) -> str:
    """Return the language model's own name of a layer (or of a pattern of layers) that is named within the
    class with all parts, as an adapter's files do there.
    """
    return re.sub(r"\blanguage_model\\?\.", "", name)


def beside_text(name: str, layers: int) -> bool:
    """Whether a tensor's name says that it belongs to a tower or a further prediction head, not to the
    ``layers`` of the language model.
    """
    parts = name.split(".")
    if any(word in part for part in parts[:-1] for word in _BESIDE):
        return True
    numbers = [int(b) for a, b in zip(parts, parts[1:], strict=False) if a == "layers" and b.isdigit()]
    return bool(numbers) and numbers[0] >= layers
