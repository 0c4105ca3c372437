"""The settings of a model's image processor: the family's, those of its folder's files, the config's."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from paceline.core.errors import ConfigError
from paceline.core.files import MAX_CONFIG_BYTES, open_file
from paceline.core.json_types import Json, JsonObject, as_object
from paceline.plan import codes
from paceline.plan.model.family import ImageFamily, image_family

#: Settings of every image processor, beside those that a family has of its own.
_COMMON = frozenset(
    {
        *("do_resize", "size", "resample", "do_rescale", "rescale_factor", "do_normalize", "image_mean"),
        *("image_std", "do_convert_rgb", "do_center_crop", "crop_size", "do_pad"),
    }
)
_EDGES = {"min_pixels": "shortest_edge", "max_pixels": "longest_edge"}


@dataclass(frozen=True)
class ImageSettings:
    """What decides how a picture becomes tokens and pixels.

    ``images``: the image processor's own settings; ``processor``: those of the whole processor, which writes
    the tokens. ``min_pixels``, ``max_pixels``: bounds that a picture is resized to before (``data.*``).
    """

    family: ImageFamily
    images: Mapping[str, Json] = field(default_factory=dict)
    processor: Mapping[str, Json] = field(default_factory=dict)
    min_pixels: int | None = None
    max_pixels: int | None = None

    def __hash__(self) -> int:
        return hash(json.dumps(self.identity(), sort_keys=True))

    def number(self, name: str) -> int:
        """Return a whole number of the image processor's settings."""
        return _whole(self.images.get(name), name)

    def whole(self, name: str) -> int:
        """Return a whole number of the whole processor's settings."""
        return _whole(self.processor.get(name), name)

    def edge(self, name: str, within: str = "size") -> int | None:
        """Return an edge (``height``, ``longest_edge``, …) of a size; None if the size lacks it."""
        size = self.images.get(within)
        if isinstance(size, int) and not isinstance(size, bool):
            return size if name in ("height", "width") else None
        value = as_object(size).get(name) if isinstance(size, dict) else None
        return None if value is None else _whole(value, f"{within}.{name}")

    def identity(self) -> JsonObject:
        """Return all settings as JSON, for the fingerprint of prepared data. ``backend``: who resizes."""
        return {
            "class": self.family.processor,
            "backend": "pil" if self.family.pil else "torchvision",
            "images": dict(self.images),
            "processor": dict(self.processor),
            "pixels": [self.min_pixels, self.max_pixels],
        }


def image_settings(
    config: Mapping[str, Json],
    folder: Path,
    *,
    options: Mapping[str, Json] | None = None,
    min_pixels: int | None = None,
    max_pixels: int | None = None,
) -> ImageSettings | None:
    """Return the settings for the model whose ``config.json`` is ``config``; None if no images are known of
    its family. ``folder``: where ``processor_config.json`` or ``preprocessor_config.json`` lie;
    ``options``: ``model.processor_kwargs``. Raises ConfigError for unknown options and unreadable files.
    """
    family = image_family(str(config.get("model_type")))
    if family is None:
        return None
    images, processor = _files(folder)
    beside = {name: _at(config, path) for name, path in family.beside.items()}
    own = {**family.processor_settings, **_given(beside), **_given(processor)}
    wanted = dict(options or {})
    known = {*_COMMON, *family.settings, *own, *family.forced, *family.options}
    if unknown := sorted(wanted.keys() - known - _EDGES.keys()):
        raise ConfigError(
            codes.PLAN_PROCESSOR_OPTION(
                "model.processor_kwargs", ", ".join(unknown), options=", ".join(sorted(known))
            )
        )
    for name in own.keys() & wanted.keys():
        own[name] = wanted.pop(name)
    merged = {**family.settings, **_given(images), **family.forced, **wanted}
    return ImageSettings(family, _sized(merged, family), own, min_pixels, max_pixels)


def _at(config: Mapping[str, Json], path: str) -> Json:
    """Return a value of a config by the names that lead to it, as ``vision_config.patch_size``."""
    value: Json = dict(config)
    for name in path.split("."):
        value = as_object(value).get(name)
    return value


def _given(values: Mapping[str, Json]) -> JsonObject:
    return {name: value for name, value in values.items() if value is not None}


def _sized(settings: Mapping[str, Json], family: ImageFamily) -> JsonObject:
    """Return settings with ``min_pixels`` and ``max_pixels``, as older files have them, as edges of size."""
    merged, size = dict(settings), settings.get("size")
    if isinstance(family.settings.get("size"), dict) and isinstance(size, dict):
        edges = {edge: merged.pop(name) for name, edge in _EDGES.items() if name in merged}
        merged["size"] = {**size, **edges}
    return merged


def _files(folder: Path) -> tuple[JsonObject, JsonObject]:
    """Return (the image processor's settings, the whole processor's) of a model's folder."""
    whole, images = _read(folder / "processor_config.json"), _read(folder / "preprocessor_config.json")
    nested = whole.pop("image_processor", None)
    # Transformers 5 writes one file with all parts
    return (nested if isinstance(nested, dict) else images), whole


def _read(file: Path) -> JsonObject:
    try:
        with open_file(file) as stream:
            return as_object(json.loads(stream.read(MAX_CONFIG_BYTES).decode("utf-8")))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError, TypeError) as error:
        raise ConfigError(codes.PLAN_PROCESSOR_FILE(str(file), str(error)[:200])) from error


def _whole(value: Json, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != int(value):
        raise ConfigError(codes.PLAN_PROCESSOR_SETTING("model.processor_kwargs", f"{name}: {value!r}"[:99]))
    return int(value)


def resolutions(value: Json) -> tuple[tuple[int, int], ...]:
    """Return a list of (height, width) from JSON."""
    items: Iterable[Json] = value if isinstance(value, list) else ()
    pairs = [item for item in items if isinstance(item, list) and len(item) == 2]
    return tuple(
        (_whole(pair[0], "image_grid_pinpoints"), _whole(pair[1], "image_grid_pinpoints")) for pair in pairs
    )
