"""``model.vision``: whether a model that also reads images is trained with its tower, or as text alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.config.schema import Config, field_of
from paceline.config.sections.model import AUTO
from paceline.core.diagnostics import Diagnostic
from paceline.core.json_types import Json
from paceline.plan import codes
from paceline.plan.mesh import Mesh
from paceline.plan.plan import Decision

if TYPE_CHECKING:
    from paceline.plan.strategies.spec import Job

KEY, RATES = "model.vision", "training.learning_rates"
#: What acts on images alone.
OF_IMAGES = (
    "model.processor_kwargs",
    "data.media_dir",
    "data.image_min_pixels",
    "data.image_max_pixels",
    "data.image_refuse_pixels",
    "data.image_cache",
    RATES,
)


@dataclass(frozen=True)
class ImageOptions:
    """How images of rows become pixels: ``processor`` are options in place of those in the model's folder."""

    processor: Mapping[str, Json]
    media_dir: str | None
    min_pixels: int | None
    max_pixels: int | None
    refuse_pixels: int
    cached: bool


def image_options(config: Config) -> ImageOptions:
    """Return the options of a config."""
    data = config.data
    return ImageOptions(
        config.model.processor_kwargs,
        data.media_dir,
        data.image_min_pixels,
        data.image_max_pixels,
        data.image_refuse_pixels,
        data.image_cache == "disk",
    )


def choose_vision(job: Job) -> bool:
    """Return whether the whole model is trained, tower and text: by ``model.vision``, or with ``auto`` where
    rows have images and the model is not known to read text alone.
    """
    asked = job.config.model.vision
    if asked != AUTO:
        return bool(asked)
    return job.images and (job.shape is None or bool(job.shape.composite))


def rate_ratios(job: Job) -> dict[str, float]:
    """Return the rates of tower and projector over ``learning_rate``, by path (``OptimizerSpec``)."""
    rates, whole, shape = job.training.learning_rates, job.training.learning_rate, job.shape
    composite = composites().get(shape.composite) if shape is not None else None
    if rates is None or composite is None or not whole:
        return {}
    of_parts = {VISION: rates.vision, PROJECTOR: rates.projector}
    given = {part: rate for part, rate in of_parts.items() if rate is not None}
    return {path: given.get(part, whole) / whole for path, part in composite.parts.items()} if given else {}


def check_vision(job: Job, on: bool, mesh: Mesh | None) -> Iterator[Diagnostic]:
    """Yield what cannot be trained with images."""
    if not on:
        return
    shape = job.shape
    if shape is not None and not shape.composite:
        yield codes.PLAN_VISION_NO_TOWER(KEY, "true", family=shape.model_type)
        return
    if job.training.learning_rates is not None and (shape is None or not job.training.learning_rate):
        why = "the model is not on this machine" if shape is None else "training.learning_rate is 0"
        yield codes.PLAN_VISION_RATES(RATES, why, why=why)
    spec, key = job.algorithm, KEY if job.config.model.vision != AUTO else "data.train"
    if spec.on_policy or not spec.reads_images:
        yield codes.PLAN_VISION_ALGORITHM("training.algorithm", spec.name, algorithm=spec.name)
    for axis, code in (("cp", codes.PLAN_VISION_CONTEXT), ("pp", codes.PLAN_VISION_PIPELINE)):
        if mesh is not None and (size := getattr(mesh, axis)) > 1:
            yield code(f"training.parallelism.{axis}_size", str(size), key=key)


def vision_decisions(job: Job, on: bool) -> Iterator[Decision]:
    """Yield the decision about a model that also reads images, and keys that act on images alone."""
    config, shape = job.config, job.shape
    asked = config.model.vision
    composite = shape.composite if shape is not None else ""
    if on:
        why = "rows have images" if asked == AUTO else "as configured"
        yield Decision(KEY, "on", f"{why}: tower, projector and language model are one trained model")
        return
    if composite:
        why = "no data set has images in its first rows" if asked == AUTO else "as configured"
        yield Decision(KEY, "off", f"{why}: of {composite} the language model alone is trained")
    for path in OF_IMAGES:
        section, _, name = path.partition(".")
        value, info = getattr(getattr(config, section), name), field_of(path)
        if info is not None and value != info.default:
            yield Decision(path, _written(value), "it acts on images, and this run has none", False)


def _written(value: object) -> str:
    return "given" if hasattr(value, "model_dump") else str(value).lower()
