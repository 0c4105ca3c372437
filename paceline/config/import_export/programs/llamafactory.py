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


def translate(reader: KeyReader) -> None:
    """Decide every key of a LLaMA-Factory file."""
    stage = reader.text("stage")
    loss = reader.text("pref_loss") if stage == "dpo" else ""
    reader.facts["algorithm"] = loss if loss in ("orpo", "simpo") else _STAGES.get(stage, stage)
    reader.facts["engine"] = reader.engine()
    # `model` alone is a slip for model_name_or_path; with one of these it is a file of version 1
    reader.facts["version"] = int(reader.is_given("model") and bool(_VERSION_1 & set(reader.given)))
    decide(reader, "llamafactory", CODE)
    transformers_keys(reader)
    if stage == "pt":
        reader.set("data.train_on", "all", "stage", "pre-training: loss on every token")


def _alpha(reader: KeyReader) -> None:
    """Without a value it is twice the rank."""
    rank, alpha = reader.value("lora_rank"), reader.value("lora_alpha")
    twice = rank * 2 if isinstance(rank, int) else None
    reader.keep("lora_alpha", "lora.alpha", twice if alpha is None else alpha)


def _adapters(reader: KeyReader) -> None:
    """Of several adapters LLaMA-Factory merges all, and trains the last."""
    if "," in str(reader.given.get("adapter_name_or_path") or ""):
        reader.lose(
            "adapter_name_or_path",
            "LLaMA-Factory merges all but the last, which it trains: merge them, and name the last",
        )


def _reward_model(reader: KeyReader) -> None:
    if reader.text("reward_model_type") == "full" and reader.is_given("reward_model"):
        model: Json = [{"name": "model", "options": {"model": reader.given["reward_model"]}}]
        reader.keep("reward_model", "training.rollout.rewards", model)
        reader.mapped("reward_model_type", ("training.rollout.rewards",))


def _deepspeed(reader: KeyReader) -> None:
    file = reader.given.get("deepspeed")
    if isinstance(file, str) and not Path(file).exists():
        reader.keep("deepspeed", "training.deepspeed", file, "the file is looked for when a run starts")


def _packing(reader: KeyReader) -> None:
    neat, packing = reader.on("neat_packing"), reader.given.get("packing")
    on = neat or packing is True or (packing is None and reader.text("stage") == "pt")
    key = "neat_packing" if neat else "packing"
    if on and not neat:
        reader.differs(
            "packing",
            "data.packing",
            True,
            "documents in a packed row see each other there (but for neat_packing); here they never do",
        )
    else:
        reader.keep(key, "data.packing", on)
        reader.mapped(("packing", "neat_packing"), ("data.packing",))


def _stable_decay(reader: KeyReader) -> None:
    """Its default of ``warmup_stable_decay``: of the steps after the warm-up a third is stable."""
    if reader.text("lr_scheduler_type") != "warmup_stable_decay":
        return
    kwargs = as_object(reader.given.get("lr_scheduler_kwargs"))
    if "num_stable_steps" in kwargs and "num_decay_steps" in kwargs:
        return
    steps, warmup = reader.given.get("max_steps"), reader.value("warmup_steps") or 0
    ratio = reader.given.get("warmup_ratio") or (warmup if isinstance(warmup, float) and warmup < 1 else 0)
    if not isinstance(steps, int) or steps <= 0 or not isinstance(ratio, (int, float)):
        third = "a third of the steps after the warm-up is stable, the rest decays"
        remedy = "set max_steps, or lr_scheduler_kwargs: {num_stable_steps: N, num_decay_steps: M}"
        reader.lose("lr_scheduler_type", f"{third}, and how many these are is not known: {remedy}")
        return
    rest = steps - (math.ceil(steps * ratio) if ratio else int(warmup) if isinstance(warmup, int) else 0)
    thirds: JsonObject = {"num_stable_steps": rest // 3, "num_decay_steps": rest - rest // 3, **kwargs}
    reader.set("training.lr_scheduler_kwargs", thirds, "lr_scheduler_type", "LLaMA-Factory's own thirds")
    reader.mapped(
        [key for key in reader.given if key.partition(".")[0] == "lr_scheduler_kwargs"],
        ("training.lr_scheduler_kwargs",),
    )
    reader.keep("lr_scheduler_type", "training.lr_scheduler_type", "warmup_stable_decay")


def _swanlab(reader: KeyReader) -> None:
    """SwanLab has a switch of its own beside ``report_to``."""
    if not reader.on("use_swanlab"):
        return
    report_to = reader.value("report_to")
    names = [report_to] if isinstance(report_to, str) else report_to if isinstance(report_to, list) else []
    used: list[Json] = [name for name in names if name not in ("none", "swanlab")]
    reader.set("training.report_to", [*used, "swanlab"], "use_swanlab")
    reader.mapped(("use_swanlab", "report_to"), ("training.report_to",))
    project(reader, [*used, "swanlab"])


def _images(reader: KeyReader) -> None:
    """Images and video are not read: with rows of text alone these keys have no effect."""
    rows = reader.text("dataset")
    seen = "mllm" in rows or "video" in rows or reader.on("visual_inputs")
    for key in [key for key in reader.given if key.startswith(_IMAGES) or key in _TOWERS]:
        if key in _TOWERS and reader.on(key):
            reader.nothing(key, "what is beside the language model is never trained here, and kept as it is")
        elif seen:
            reader.lose(key, "images, video and sound are not read")
        else:
            reader.nothing(key, "the rows have no images, video or sound")


def _data_of_version_1(reader: KeyReader) -> None:
    if reader.is_given("train_dataset"):
        _listed(reader, str(reader.given["train_dataset"]))
    size = reader.given.get("train_size")
    if isinstance(size, float) and 0 < size < 1:
        reader.keep("train_size", "data.validation_split", round(1 - size, 6))


def _listed(reader: KeyReader, name: str) -> None:
    """Data sets are listed in a YAML of their own: name → path, source, split."""
    file = next((f for f in (Path(name), Path(reader.result.file).parent / name) if f.is_file()), None)
    if file is None or file.suffix not in (".yaml", ".yml"):
        reader.keep(
            "train_dataset",
            "data.train",
            [name],
            "" if file else "the file that lists the data sets is not here",
        )
        return
    tree = parse_yaml(read_text(str(file)), str(file))
    listed = as_object(tree.data() if tree else None)
    sets: list[Json] = [{"path": as_object(item).get("path")} for item in listed.values()]
    reader.keep("train_dataset", "data.train", sets)


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
