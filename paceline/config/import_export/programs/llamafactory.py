"""LLaMA-Factory's arguments (0.9), and the newer files of its version 1."""

from __future__ import annotations

import math
from pathlib import Path

from paceline.config.import_export.argument_tables import NO_TRACKERS, defaults
from paceline.config.import_export.decide_keys import Code
from paceline.config.import_export.programs import transformers
from paceline.config.import_export.programs.images import (
    frozen_parts,
    processor_options,
    reads_images,
)
from paceline.config.import_export.programs.llamafactory_data import datasets
from paceline.config.import_export.programs.llamafactory_templates import template
from paceline.config.import_export.verdicts import KeyReader
from paceline.config.yaml_text.read_file import read_text
from paceline.config.yaml_text.tree import parse_yaml
from paceline.core.json_types import Json, JsonObject, as_list, as_object


def version_of(data: JsonObject, named: str | None) -> str:
    """Return ``lora`` or ``full`` for a file of version 1, else empty. ``named``: what the user calls it."""
    blocks = ("model_class", "dist_config", "train_dataset", "peft_config")
    if not (data.get("model") and any(data.get(key) for key in blocks)):
        return ""
    return "lora" if data.get("peft_config") else "full"


#: of version 1, where they are not those of version 0
_VERSION_1: JsonObject = {
    "bf16": True,
    "template": "qwen3_nothink",
    "learning_rate": 1e-4,
    "weight_decay": 0.01,
    "lr_scheduler_type": "constant",
    "logging_steps": 1,
    "save_strategy": "no",
    "lora_alpha": 16,
    "lora_dropout": 0.05,
}


def llamafactory_defaults(job: str = "") -> dict[str, object]:
    """Return the defaults of its arguments, Transformers' below them. ``job``: by ``version_of``."""
    values = defaults("transformers") | defaults("llamafactory")
    if job in ("lora", "full"):
        values |= _VERSION_1 | {"finetuning_type": job}
    # of generation, which is no part of training, and read by code of their own
    for key in ("max_length", "add_tokens", "add_special_tokens"):
        values.pop(key, None)
    return {**values, **NO_TRACKERS}


def _stable_decay(reader: KeyReader) -> None:
    """Set LLaMA-Factory's default of ``warmup_stable_decay``: a third of the steps after the warm-up is
    stable."""
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
    """Decide SwanLab's switch, which is separate from ``report_to``."""
    if not reader.on("use_swanlab"):
        return
    report_to = reader.value("report_to")
    names = [report_to] if isinstance(report_to, str) else report_to if isinstance(report_to, list) else []
    used: list[Json] = [name for name in names if name not in ("none", "swanlab")]
    reader.set("training.report_to", [*used, "swanlab"], "use_swanlab")
    reader.mapped(("use_swanlab", "report_to"), ("training.report_to",))
    transformers.project(reader, [*used, "swanlab"])


def _listed(reader: KeyReader) -> None:
    """Return the data sets of version 1, listed in a separate YAML: name → path, source, split."""
    name = str(reader.given["train_dataset"])
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


def _freezing(reader: KeyReader) -> None:
    """Decide ``finetuning_type: freeze`` (``model.adapter._setup_freeze_tuning``). It trains the last N
    layers, or modules of them, and modules outside of the layers. It trains the first ones if N is negative,
    and the last of each Nth with LLaMA-Pro.
    """
    count = reader.value("freeze_trainable_layers")
    if not isinstance(count, int):
        reader.lose("finetuning_type", "which layers it trains is not known: name them in training.unfreeze")
        return
    layers = f"layers[-{count}:]" if count > 0 else f"layers[:{-count}]"
    if reader.on("use_llama_pro"):  # the blocks that were added, each after as many of the model's own
        layers = f"layers[/{count}]"
        reader.mapped(["use_llama_pro"], ("training.unfreeze",))
    modules = _words(reader.value("freeze_trainable_modules"))
    trained: list[Json] = [layers if name == "all" else f"{layers}.{name}*" for name in modules]
    # it looks for these texts anywhere in a name: norm trains the layers' norms, too
    extra: list[Json] = [f"*{name}*" for name in _words(reader.value("freeze_extra_modules"))]
    keys = ("finetuning_type", "freeze_trainable_layers", "freeze_trainable_modules", "freeze_extra_modules")
    reader.set("training.unfreeze", [*trained, *extra], "finetuning_type", "all else is frozen")
    reader.mapped(keys, ("training.unfreeze",))


def _muon_block(reader: KeyReader) -> None:
    """``optim_config`` of version 1 (later than 0.9.5): Muon's decay; its rate is ``learning_rate``."""
    otherwise: JsonObject = {"wd": 0.1, "adamw_eps": 1e-8}
    otherwise |= {"momentum": 0.95, "nesterov": True, "ns_steps": 5, "adamw_betas": [0.9, 0.95]}
    block = {**otherwise, **as_object(reader.given.get("optim_config"))}
    betas = as_list(block["adamw_betas"])
    made: JsonObject = {
        "optim": "muon",
        "optim_args": ",".join(f"{key}={block[key]}" for key in ("momentum", "nesterov", "ns_steps")),
        "weight_decay": block["wd"],
        "adam_beta1": betas[0],
        "adam_beta2": betas[1],
        "adam_epsilon": block["adamw_eps"],
    }
    for name, value in made.items():
        reader.set(f"training.{name}", value, "optim_config")
    known = [f"optim_config.{key}" for key in ("name", *otherwise)]
    reader.mapped(["optim_config", *(key for key in known if key in reader.given)], ("training.optim",))
    reader.differs(
        "optim_config.wd", "training.weight_decay", block["wd"], "norms and biases decay there, too"
    )
    reader.nothing("optim_config.lr", "learning_rate takes its place")


def _images(reader: KeyReader) -> None:
    """Decide what is frozen of a model that reads images (``freeze_vision_tower`` and others)."""
    names = reader.value("model_name_or_path"), reader.value("template")
    sees = reads_images(*names)
    reader.facts["sees_images"] = sees
    if reader.facts.get("image_sets") and not sees:
        reader.lose("dataset", f"images of this model are not read: {reader.facts['image_sets']}")
    if sees:
        keys = {
            "vision": "freeze_vision_tower",
            "projector": "freeze_multi_modal_projector",
            "text": "freeze_language_model",
        }
        frozen_parts(reader, keys, reader.text("finetuning_type") == "full")
        processor_options(
            reader, {"image_do_pan_and_scan": "do_pan_and_scan", "crop_to_patches": "crop_to_patches"}
        )


def _words(value: Json) -> list[str]:
    return [word.strip() for word in str(value or "").split(",") if word.strip()]


CODE: Code = {
    **transformers.CODE,
    "template": template,
    "datasets": datasets,
    "listed_data": _listed,
    "swanlab": _swanlab,
    "stable_decay": _stable_decay,
    "freezing": _freezing,
    "muon_block": _muon_block,
    "images": _images,
}
