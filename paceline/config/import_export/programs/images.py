"""Models that also read images, in other programs: what is frozen, and rates by part."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from paceline.config.import_export.local_files import config_of, first_row
from paceline.config.import_export.verdicts import KeyReader
from paceline.core.json_types import Json, as_list, as_object

FREEZE, UNFREEZE, TARGETS = "training.freeze", "training.unfreeze", "lora.target_modules"
#: Names of models whose images are read here
_READ = re.compile(
    r"qwen-?(2|2\.5|3)[-_]?vl|qwen(2_5|3_5)|qwen3\.[56]|gemma-?3(?!n|-1b|-270m)|gemma-?4(?!n|.?unified|-e)"
    r"|internvl|intern_vl|llava(?!.*video)|pixtral|mistral-small-3|mistral_small|ministral-?3|smolvlm"
    r"|idefics-?3|glm-?4[._]?[156]?v|glm4v|glm4_5v"
)
#: Names of further models that read images, video or sound
_OTHERS = re.compile(
    r"vl[-_/.\d]|[-_/.\d]vl\b|vision|omni|voxtral|audio|mllama|minicpm-?[vo]|ovis|gemma-?[34]n|unified"
    r"|llama-?4|paligemma|multimodal|ocr|video|mistral-?4|kimi_vl|molmo"
)


def reads_images(*names: Json) -> bool:
    """Whether a model's names (or its template's) say that its images are read here."""
    return not _OTHERS.search(_without_known(names)) and bool(_READ.search(_text(names)))


def reads_others(*names: Json) -> bool:
    """Whether its names say that it reads images, video or sound that are not read here."""
    return _OTHERS.search(_without_known(names)) is not None


def _text(names: Iterable[Json]) -> str:
    return " ".join(str(name or "").lower() for name in names)


def _without_known(names: Iterable[Json]) -> str:
    return _READ.sub("", _text(names))


def trained_whole(reader: KeyReader) -> None:
    """Decide what Transformers' Trainer and TRL's train of a model that reads images: all of it, tower too.

    The model's name, its config and the rows say whether it reads images. Where its folder is not here and
    they say nothing, the note of its key does.
    """
    key, path = "model_name_or_path", "model.name_or_path"
    model, config, system = reader.text(key), config_of(reader), reader.result.system
    known = reads_images(model) or "vision_config" in config or _rows_have_images(reader)
    if known and reader.on("use_peft"):
        targets = reader.result.settings.get(TARGETS)
        if targets is not None:  # peft matches them anywhere in the model
            says = "adapters reach the text alone; there also layers of the tower that have such names"
            reader.differs("lora_target_modules", TARGETS, targets.value, says)
    elif known:
        says = f"{system} trains the tower, too"
        reader.set(FREEZE, ["vision"], key)  # named by unfreeze alone, the tower would be all that is trained
        reader.set(UNFREEZE, ["vision"], key, says)
    elif model and not config and Path(model).is_absolute() and path in reader.result.settings:
        says = f"not here; if it reads images, {system} trains its tower, too: training.unfreeze: ['^']"
        reader.keep(key, path, reader.value(key), says)


def _rows_have_images(reader: KeyReader) -> bool:
    """Whether the first row of a data set that is here has a column of images."""
    sets = reader.result.settings.get("data.train")
    paths = [as_object(item).get("path") for item in as_list(sets.value)] if sets is not None else []
    folder = Path(reader.result.file).parent
    return any(first_row(str(path), folder).keys() & {"image", "images"} for path in paths)


def frozen_parts(reader: KeyReader, keys: Mapping[str, str], trains_all: bool) -> None:
    """Decide which parts of a model with a tower are trained: ``keys`` name their switches by part
    (``vision``, ``projector``, ``text``). ``trains_all``: without adapters, whose base is frozen anyway.
    """
    frozen = {part: reader.on(key) for part, key in keys.items()}
    if not trains_all:
        _under_adapters(reader, keys, frozen)
        return
    freeze: list[Json] = [part for part in ("projector", "text") if frozen[part]]
    unfreeze: list[Json] = [] if frozen["vision"] else ["vision"]
    if unfreeze and not freeze:
        freeze = ["vision"]  # named by unfreeze alone, the tower would be all that is trained
    for path, parts in ((FREEZE, freeze), (UNFREEZE, unfreeze)):
        if parts and reader.result.settings.get(path) is None:
            reader.set(path, parts, keys[str(parts[0])], f"{' and '.join(map(str, parts))} of its model")
    reader.mapped([key for key in keys.values() if not reader.decided(key)], (FREEZE, UNFREEZE))


def _under_adapters(reader: KeyReader, keys: Mapping[str, str], frozen: Mapping[str, bool]) -> None:
    """Adapters reach the text alone, as is the default of both programs."""
    for part, key in keys.items():
        if frozen[part] is (part != "text"):
            reader.nothing(key, "adapters reach the text alone, there and here; the base is frozen")
        else:
            says = f"adapters reach the text: name layers of the {part} in lora.target_modules"
            reader.lose(
                key, says if part != "text" else "adapters reach the text; leave none there, or train"
            )


def processor_options(reader: KeyReader, keys: Mapping[str, str]) -> None:
    """Decide switches that are options of the image processor: key → option."""
    given = {option: reader.value(key) for key, option in keys.items() if reader.on(key)}
    if given:
        path = "model.processor_kwargs"
        first = next(key for key in keys if reader.on(key))
        reader.set(path, {str(option): value for option, value in given.items()}, first)
        reader.mapped([key for key in keys if reader.on(key)], (path,))
