"""``model.vision``: whether a model that also reads images is trained with its tower, or as text alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from paceline.config.schema import Config, field_of
from paceline.config.sections.model import AUTO
from paceline.config.sections.training import TrainingSection
from paceline.core.diagnostics import Diagnostic
from paceline.core.json_types import Json
from paceline.core.units import human_bytes, human_count
from paceline.plan import codes
from paceline.plan.features.freezing import UNFREEZE, Freezing
from paceline.plan.mesh import Mesh
from paceline.plan.model.family import PROJECTOR, VISION, composites, in_part, parts_of
from paceline.plan.model.parameter_list import ALL_LINEAR, with_tower
from paceline.plan.model.shape import ModelShape
from paceline.plan.plan import Decision, Plan
from paceline.plan.strategy_options import EngineOptions

if TYPE_CHECKING:
    from paceline.plan.strategies.spec import Job, StrategySpec

KEY, RATES = "model.vision", "training.learning_rates"
_TRAINED_BY_ADAPTER = "lora.target_modules or lora.modules_to_save with names of that part"
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
class VisionChoice:
    """Whether the whole model is trained, tower and text (``on``).

    ``configured``: by ``model.vision``, else by the rows. ``idle``: keys that then do nothing, with their
    values; ``ready``: rows whose pixels a rank holds ahead.
    """

    on: bool
    configured: bool
    shape: ModelShape | None
    idle: Mapping[str, str]
    ready: int = 1

    @classmethod
    def of(cls, job: Job) -> VisionChoice:
        """Return the choice; with ``auto`` a model sees images if rows have them and it has a tower."""
        requested, shape = job.config.model.vision, job.shape
        configured = requested != AUTO
        has_tower = shape is None or bool(shape.composite)
        on = bool(requested) if configured else job.images and has_tower
        idle = {} if on else dict(_keys_of_images(job.config))
        return cls(on, configured, shape, idle, _ready(job.training))

    @property
    def composite(self) -> str:
        """The type of the model with a tower; empty for others, and if it is not known."""
        return self.shape.composite if self.shape is not None else ""

    @property
    def key(self) -> str:
        """The key that turns images on: the rows', unless it is configured."""
        return KEY if self.configured else "data.train"

    def whole(self, job: Job) -> Job:
        """Return the job with the shape of the whole model, if that is trained."""
        return replace(job, shape=with_tower(job.shape)) if self.on and job.shape is not None else job

    def check(self, job: Job, mesh: Mesh | None) -> Iterator[Diagnostic]:
        """Yield what cannot be trained with images."""
        if not self.on:
            return
        if self.shape is not None and not self.composite:
            yield codes.PLAN_VISION_NO_TOWER(KEY, "true", family=self.shape.model_type)
            return
        composite = composites().get(self.composite)
        if composite is not None and not composite.pixels:
            why = composite.no_images
            yield codes.PLAN_VISION_FAMILY(self.key, self.composite, family=self.composite, why=why)
        training, spec = job.training, job.algorithm
        if training.learning_rates is not None and (self.shape is None or not training.learning_rate):
            why = "the model is not on this machine" if self.shape is None else "training.learning_rate is 0"
            yield codes.PLAN_VISION_RATES(RATES, why, why=why)
        if spec.on_policy or not spec.reads_images:
            yield codes.PLAN_VISION_ALGORITHM("training.algorithm", spec.name, algorithm=spec.name)
        if training.eval_generate:
            yield codes.PLAN_VISION_ANSWERS("training.eval_generate", "true")
        for axis, code in (("cp", codes.PLAN_VISION_CONTEXT), ("pp", codes.PLAN_VISION_PIPELINE)):
            if mesh is not None and (size := getattr(mesh, axis)) > 1:
                yield code(f"training.parallelism.{axis}_size", str(size), key=self.key)
        if mesh is not None and mesh.tp > 1:
            yield from self._shared(job)

    def check_order(self, spec: StrategySpec, options: EngineOptions) -> Iterator[Diagnostic]:
        """Yield why the strategy's order of gradients does not go with images in some ranks' rows only."""
        composite = composites().get(self.composite)
        in_layers = self.on and composite is not None and composite.in_layers
        if in_layers and spec.sums_as_they_come(options):
            yield codes.PLAN_VISION_ORDER("training.distributed_strategy", spec.label(options))

    def check_rates(self, job: Job, freezing: Freezing) -> Iterator[Diagnostic]:
        """Yield rates of parts of which nothing is trained."""
        rates, lora = job.training.learning_rates, job.lora
        if rates is None or not self.on:
            return
        in_text = lora is not None and lora.target_modules == (ALL_LINEAR,) and not lora.modules_to_save
        frozen = {VISION: bool(freezing.parts) and not freezing.unfreeze, PROJECTOR: False}
        for part, rate in ((VISION, rates.vision), (PROJECTOR, rates.projector)):
            if rate is not None and (in_text or frozen[part]):
                hint = (
                    _TRAINED_BY_ADAPTER
                    if lora is not None
                    else f"{UNFREEZE}: ['^'], which trains the tower too"
                )
                yield codes.PLAN_FREEZE_RATE(f"{RATES}.{part}", f"{rate:g}", part=part, hint=hint)

    def _shared(self, job: Job) -> Iterator[Diagnostic]:
        """Yield options of tensor parallelism that do not go with images."""
        composite, layers = composites().get(self.composite), job.parallelism
        reads = composite is not None and composite.reads_embedding
        obstacles = {
            "sequence_parallel": (layers.sequence_parallel, "features of images enter whole rows"),
            "loss_parallel": (layers.loss_parallel and reads, "its class reads rows of the embedding"),
        }
        for option, (is_set, why) in obstacles.items():
            if is_set:
                yield codes.PLAN_VISION_TENSOR(
                    f"training.parallelism.{option}", "true", option=option, why=why
                )

    def rate_ratios(self, job: Job) -> dict[str, float]:
        """Return the rates of tower and projector over ``learning_rate``, by path (``OptimizerSpec``)."""
        rates, whole = job.training.learning_rates, job.training.learning_rate
        if not self.on or rates is None or not self.composite or not whole:
            return {}
        given = {VISION: rates.vision, PROJECTOR: rates.projector}
        by_part = {part: whole if rate is None else rate for part, rate in given.items()}
        return {path: by_part[part] / whole for path, part in composites()[self.composite].parts.items()}

    def _sizes(self) -> str:
        """Return the parameters of the parts, and what a picture costs."""
        if self.shape is None or self.shape.tower is None:
            return "; the parameters of its tower are not counted: their layout is not known"
        tower, count = self.shape.tower, Counter[str]()
        parts = composites()[self.composite].parts
        for name, size in tower.tensors():
            count[parts[in_part(name, parts)]] += math.prod(size)
        side = tower.pixels
        return (
            f" ({human_count(count[VISION])} parameters, {human_count(count[PROJECTOR])} and"
            f" {human_count(self.shape.num_parameters - count.total())}); a picture of {side} × {side} is"
            f" {tower.patches:,} patches, {tower.flops() / 1e12:.3g} TFLOP forward; with one in each row a"
            f" rank holds {human_bytes(4 * tower.pixel_values * self.ready)} of pixels in host memory"
        )

    def decisions(self) -> Iterator[Decision]:
        """Yield the decision about a model that also reads images, and keys that act on images alone."""
        if self.on:
            why = "as configured" if self.configured else "rows have images"
            yield Decision(
                KEY, "on", f"{why}: tower, projector and language model are one model{self._sizes()}"
            )
        elif self.composite:
            why = "as configured" if self.configured else "no data set has images in its first rows"
            yield Decision(KEY, "off", f"{why}: of {self.composite} the language model alone is trained")
        for path, value in self.idle.items():
            yield Decision(path, value, "it acts on images, and this run has none", False)


def _ready(training: TrainingSection) -> int:
    """Return the rows whose batches a rank holds: of the micro-batch that runs, and those made ahead."""
    steps = training.dataloader_num_workers * (training.dataloader_prefetch_factor or 2)
    return training.per_device_train_batch_size * (1 + steps * training.gradient_accumulation_steps)


def rates_of_parts(plan: Plan) -> dict[str, float]:
    """Return by part (``vision``, ``projector``) its learning rate over the run's, where it has its own."""
    parts = parts_of(plan.shape.composite) if plan.shape is not None else {}
    return {parts[path]: ratio for path, ratio in plan.optimizer.rate_ratios.items()}


def _keys_of_images(config: Config) -> Iterator[tuple[str, str]]:
    """Yield the keys that act on images alone and have another value than their default."""
    for path in OF_IMAGES:
        section, _, name = path.partition(".")
        value: Json = getattr(getattr(config, section), name)
        info = field_of(path)
        if info is not None and value != info.default:
            yield path, "given" if path == RATES else str(value).lower()
