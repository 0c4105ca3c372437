"""LLaMA-Factory's arguments (0.9), and the newer files of its version 1."""

from __future__ import annotations

import math
from pathlib import Path

from paceline.config.import_export.argument_tables import NO_TRACKERS, defaults
from paceline.config.import_export.decide_keys import decide
from paceline.config.import_export.programs.llamafactory_data import datasets
from paceline.config.import_export.programs.llamafactory_templates import template
from paceline.config.import_export.programs.transformers import (
    llamafactory_galore,
    project,
    transformers_keys,
)
from paceline.config.import_export.verdicts import KeyReader
from paceline.config.yaml_text.read_file import read_text
from paceline.config.yaml_text.tree import parse_yaml
from paceline.core.json_types import Json, JsonObject, as_object

_STAGES = {"sft": "sft", "pt": "sft", "rm": "reward", "dpo": "dpo", "kto": "kto", "ppo": "ppo"}
_IMAGES = (
    "image_",
    "video_",
    "audio_",
    "crop_to_patches",
    "use_audio_in_video",
    "visual_inputs",
    "media_dir",
)
_TOWERS = ("freeze_vision_tower", "freeze_multi_modal_projector")
#: Of a file of version 1, beside `model`
_VERSION_1 = {"model_class", "dist_config", "train_dataset", "peft_config"}


def llamafactory_defaults() -> dict[str, object]:
    """Return the defaults of its arguments, Transformers' below them."""
    values = defaults("transformers") | defaults("llamafactory")
    # of generation, which is no part of training, and read by code of their own
    for key in ("max_length", "add_tokens", "add_special_tokens"):
        values.pop(key, None)
    return {**values, **NO_TRACKERS}


def translate(reading: KeyReader) -> None:
    """Decide every key of a LLaMA-Factory file."""
    stage = reading.text("stage")
    loss = reading.text("pref_loss") if stage == "dpo" else ""
    reading.facts["algorithm"] = loss if loss in ("orpo", "simpo") else _STAGES.get(stage, stage)
    reading.facts["engine"] = reading.engine()
    reading.facts["version"] = int(reading.is_given("model") and bool(_VERSION_1 & set(reading.given)))
    decide(reading, "llamafactory", CODE)
    transformers_keys(reading)
    if stage == "pt":
        reading.set("data.train_on", "all", "stage", "pre-training: loss on every token")


def _alpha(reading: KeyReader) -> None:
    """Without a value it is twice the rank."""
    rank, alpha = reading.value("lora_rank"), reading.value("lora_alpha")
    twice = rank * 2 if isinstance(rank, int) else None
    reading.keep("lora_alpha", "lora.alpha", twice if alpha is None else alpha)


def _adapters(reading: KeyReader) -> None:
    """Of several adapters LLaMA-Factory merges all, and trains the last."""
    if "," in str(reading.given.get("adapter_name_or_path") or ""):
        reading.lose(
            "adapter_name_or_path",
            "LLaMA-Factory merges all but the last, which it trains: merge them, and name the last",
        )


def _reward_model(reading: KeyReader) -> None:
    if reading.text("reward_model_type") == "full" and reading.is_given("reward_model"):
        model: Json = [{"name": "model", "options": {"model": reading.given["reward_model"]}}]
        reading.keep("reward_model", "training.rollout.rewards", model)
        reading.mapped("reward_model_type", ("training.rollout.rewards",))


def _deepspeed(reading: KeyReader) -> None:
    file = reading.given.get("deepspeed")
    if isinstance(file, str) and not Path(file).exists():
        reading.keep("deepspeed", "training.deepspeed", file, "the file is looked for when a run starts")


def _packing(reading: KeyReader) -> None:
    neat, packing = reading.on("neat_packing"), reading.given.get("packing")
    on = neat or packing is True or (packing is None and reading.text("stage") == "pt")
    key = "neat_packing" if neat else "packing"
    if on and not neat:
        reading.differs(
            "packing",
            "data.packing",
            True,
            "documents in a packed row see each other there (but for neat_packing); here they never do",
        )
    else:
        reading.keep(key, "data.packing", on)
        reading.mapped(("packing", "neat_packing"), ("data.packing",))


def _stable_decay(reading: KeyReader) -> None:
    """Its default of ``warmup_stable_decay``: of the steps after the warm-up a third is stable."""
    if reading.text("lr_scheduler_type") != "warmup_stable_decay":
        return
    kwargs = as_object(reading.given.get("lr_scheduler_kwargs"))
    if "num_stable_steps" in kwargs and "num_decay_steps" in kwargs:
        return
    steps, warmup = reading.given.get("max_steps"), reading.value("warmup_steps") or 0
    ratio = reading.given.get("warmup_ratio") or (warmup if isinstance(warmup, float) and warmup < 1 else 0)
    if not isinstance(steps, int) or steps <= 0 or not isinstance(ratio, (int, float)):
        third = "a third of the steps after the warm-up is stable, the rest decays"
        remedy = "set max_steps, or lr_scheduler_kwargs: {num_stable_steps: N, num_decay_steps: M}"
        reading.lose("lr_scheduler_type", f"{third}, and how many these are is not known: {remedy}")
        return
    rest = steps - (math.ceil(steps * ratio) if ratio else int(warmup) if isinstance(warmup, int) else 0)
    thirds: JsonObject = {"num_stable_steps": rest // 3, "num_decay_steps": rest - rest // 3, **kwargs}
    reading.set("training.lr_scheduler_kwargs", thirds, "lr_scheduler_type", "LLaMA-Factory's own thirds")
    reading.mapped(
        [key for key in reading.given if key.partition(".")[0] == "lr_scheduler_kwargs"],
        ("training.lr_scheduler_kwargs",),
    )
    reading.keep("lr_scheduler_type", "training.lr_scheduler_type", "warmup_stable_decay")


def _swanlab(reading: KeyReader) -> None:
    """SwanLab has a switch of its own beside ``report_to``."""
    if not reading.on("use_swanlab"):
        return
    report_to = reading.value("report_to")
    names = [report_to] if isinstance(report_to, str) else report_to if isinstance(report_to, list) else []
    used: list[Json] = [name for name in names if name not in ("none", "swanlab")]
    reading.set("training.report_to", [*used, "swanlab"], "use_swanlab")
    reading.mapped(("use_swanlab", "report_to"), ("training.report_to",))
    project(reading, [*used, "swanlab"])


def _images(reading: KeyReader) -> None:
    """Images and video are not read: with rows of text alone these keys have no effect."""
    rows = reading.text("dataset")
    seen = "mllm" in rows or "video" in rows or reading.on("visual_inputs")
    for key in [key for key in reading.given if key.startswith(_IMAGES) or key in _TOWERS]:
        if key in _TOWERS and reading.on(key):
            reading.nothing(key, "what is beside the language model is never trained here, and kept as it is")
        elif seen:
            reading.lose(key, "images, video and sound are not read")
        else:
            reading.nothing(key, "the rows have no images, video or sound")


def _data_of_version_1(reading: KeyReader) -> None:
    if reading.is_given("train_dataset"):
        _listed(reading, str(reading.given["train_dataset"]))
    size = reading.given.get("train_size")
    if isinstance(size, float) and 0 < size < 1:
        reading.keep("train_size", "data.validation_split", round(1 - size, 6))


def _listed(reading: KeyReader, name: str) -> None:
    """Data sets are listed in a YAML of their own: name → path, source, split."""
    file = next((f for f in (Path(name), Path(reading.result.file).parent / name) if f.is_file()), None)
    if file is None or file.suffix not in (".yaml", ".yml"):
        reading.keep(
            "train_dataset",
            "data.train",
            [name],
            "" if file else "the file that lists the data sets is not here",
        )
        return
    tree = parse_yaml(read_text(str(file)), str(file))
    listed = as_object(tree.data() if tree else None)
    sets: list[Json] = [{"path": as_object(item).get("path")} for item in listed.values()]
    reading.keep("train_dataset", "data.train", sets)


CODE = {
    "adapters": _adapters,
    "alpha": _alpha,
    "reward_model": _reward_model,
    "template": template,
    "datasets": datasets,
    "packing": _packing,
    "deepspeed": _deepspeed,
    "data_of_version_1": _data_of_version_1,
    "galore": llamafactory_galore,
    "swanlab": _swanlab,
    "images": _images,
    "stable_decay": _stable_decay,
}
