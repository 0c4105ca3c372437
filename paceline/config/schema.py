"""The complete ``Config``, its digest, and looking up fields by path."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import get_args, get_origin

from pydantic import BeforeValidator, ValidationError
from pydantic.fields import FieldInfo

from paceline.config import codes
from paceline.config.migrations import KEY as VERSION
from paceline.config.migrations import newest
from paceline.config.sections.data import DataSection
from paceline.config.sections.launch import LaunchSection
from paceline.config.sections.lora import LoraSection
from paceline.config.sections.model import ModelSection
from paceline.config.sections.rollout import GenerationSection
from paceline.config.sections.training import TrainingSection
from paceline.config.sections.training_steps import LoggingFields
from paceline.config.sections.types import OneOf, Section
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json, JsonObject, inner_object

SECTIONS: dict[str, type[Section]] = {
    "model": ModelSection,
    "data": DataSection,
    "training": TrainingSection,
    "lora": LoraSection,
    "generation": GenerationSection,
    "launch": LaunchSection,
}
# Settings that do not change the result: a resumed run may change them
_NOT_IN_DIGEST = frozenset(
    {f"training.{name}" for name in LoggingFields.model_fields}
    | {
        "training.output_dir",
        "training.experiment_name",
        "training.overwrite_output_dir",
        "training.output_access",
        "training.resume_from_checkpoint",
        "training.save_steps",
        "training.save_total_limit",
        "training.save_keep_every",
        "training.save_async",
        "training.checkpoint_url",
        "training.upload_timeout",
        "training.ddp_timeout",
        "training.start_timeout",
        "training.step_timeout",
        "training.dataloader_num_workers",
        "training.dataloader_pin_memory",
        "training.dataloader_prefetch_factor",
        "training.distributed",
        "training.accelerate_config",
        "data.num_proc",
        "data.cache_dir",
        "model.low_cpu_mem",
    }
)


class Config(Section):
    """The user's settings after validation: immutable and complete."""

    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    training: TrainingSection = TrainingSection()
    lora: LoraSection | None = None
    generation: GenerationSection = GenerationSection()
    launch: LaunchSection = LaunchSection()

    def run_directory(self) -> str:
        """Return the run directory: ``output_dir``, else ``outputs/<experiment_name>``.

        ``load_config`` sets the experiment name from the file's name if it is empty.
        """
        return self.training.output_dir or f"outputs/{self.training.experiment_name or 'run'}"

    def to_json(self) -> JsonObject:
        """Return the config as plain JSON types."""
        return self.model_dump(mode="json")

    @staticmethod
    def from_json(data: Mapping[str, Json]) -> Config:
        """The inverse of ``to_json``, with or without a ``schema_version`` beside the sections.

        Raises ConfigError when the data do not fit, e.g. from another version.
        """
        values = dict(data)
        stated = values.pop(VERSION, None)
        if isinstance(stated, int) and stated > newest():
            raise ConfigError(
                codes.CONFIG_SCHEMA_VERSION(
                    f"this config is a newer Paceline's: its schema version is {stated}, ours {newest()}",
                    VERSION,
                    str(stated),
                    "update Paceline",
                )
            )
        try:
            return Config.model_validate(values)
        except ValidationError as exc:
            misfits = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in exc.errors()[:5])
            raise ConfigError(codes.CONFIG_NOT_A_CONFIG(found=misfits)) from exc

    def digest(self) -> str:
        """Return the sha256 (hex) of ``deciding``."""
        return hashlib.sha256(
            json.dumps(self.deciding(), sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
        ).hexdigest()

    def deciding(self) -> JsonObject:
        """Return the settings that affect the result.

        Excludes where the run writes, and how it logs, launches, caches and resumes.
        """
        data = self.to_json()
        # The number of processes is the plan's, which is compared by itself
        data.pop("launch")
        data.pop("generation")
        for path in _NOT_IN_DIGEST:
            section, _, name = path.partition(".")
            inner_object(data, section).pop(name, None)
        return data


def field_of(path: str) -> FieldInfo | None:
    """Return the field at a dotted path (``training.parallelism.tp_size``), or None."""
    section, _, rest = path.partition(".")
    model: type[Section] | None = SECTIONS.get(section)
    info: FieldInfo | None = None
    for name in rest.split(".") if rest else ():
        if model is None or name not in model.model_fields:
            return None
        info = model.model_fields[name]
        model = nested_model(info)
    return info


def words_of(info: FieldInfo) -> tuple[bool | str, ...]:
    """Return the values of a field that takes one of a list of words, or true and false; else none."""
    for reader in info.metadata:
        if isinstance(reader, BeforeValidator) and isinstance(reader.func, OneOf):
            return reader.func.choices
    return (True, False) if bool in (info.annotation, *get_args(info.annotation)) else ()


def nested_model(info: FieldInfo) -> type[Section] | None:
    """Return the section class inside a field (``parallelism``), or None; None also for lists of sections."""
    if get_origin(info.annotation) is tuple:
        return None
    for kind in (info.annotation, *get_args(info.annotation)):
        if isinstance(kind, type) and issubclass(kind, Section):
            return kind
    return None


def item_model(info: FieldInfo) -> type[Section] | None:
    """Return the section class of a list's items (``rewards``), or None."""
    lists = (kind for kind in (info.annotation, *get_args(info.annotation)) if get_origin(kind) is tuple)
    kinds = (kind for items in lists for kind in get_args(items))
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)), None)


def sections() -> Iterator[tuple[str, type[Section]]]:
    """Yield every section by its dotted path, an outer one before those inside (``training.rollout``)."""
    todo = list(SECTIONS.items())
    while todo:
        path, model = todo.pop(0)
        yield path, model
        inner = ((f"{path}.{key}", nested_model(info)) for key, info in model.model_fields.items())
        todo += [(key, section) for key, section in inner if section is not None]


@cache
def _homes() -> dict[str, tuple[str, ...]]:
    """Map each key's name to its sections, once, since a file may have thousands of keys."""
    homes: dict[str, tuple[str, ...]] = {}
    for path, model in sections():
        for name in model.model_fields:
            homes[name] = (*homes.get(name, ()), path)
    return homes


def homes_of(name: str) -> list[str]:
    """Return all sections that have a key of this name; nested ones with dots (``training.rollout``)."""
    return [*_homes().get(name, ())]


def takes_mapping(info: FieldInfo) -> bool:
    """Whether the field is a free-form mapping."""
    kinds = (info.annotation, *get_args(info.annotation))
    return any(kind is dict or getattr(kind, "__origin__", None) is dict for kind in kinds)


def is_text(info: FieldInfo) -> bool:
    """Whether the field is a text, in which a number keeps its spelling (``revision: 0e1``)."""
    return info.annotation is str or set(get_args(info.annotation)) == {str, type(None)}


@cache
def fields() -> Mapping[str, FieldInfo]:
    """Return every field by dotted path, in the order of the reference."""
    by_path: dict[str, FieldInfo] = {}
    for section, model in SECTIONS.items():
        for name, info in model.model_fields.items():
            inner = nested_model(info)
            if inner is None:
                by_path[f"{section}.{name}"] = info
            else:
                by_path.update(
                    {f"{section}.{name}.{leaf}": leaf_info for leaf, leaf_info in inner.model_fields.items()}
                )
    return MappingProxyType(by_path)
