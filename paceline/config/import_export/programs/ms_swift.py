"""ms-swift's arguments (4.6): its YAML and JSON files, and the commands `swift sft`, `pt` and `rlhf`."""

from __future__ import annotations

import math
import re

from paceline.config.import_export.argument_tables import NO_TRACKERS, defaults
from paceline.config.import_export.commands.launcher_options import VARIABLES
from paceline.config.import_export.decide_keys import Code
from paceline.config.import_export.local_files import config_of
from paceline.config.import_export.programs import transformers
from paceline.config.import_export.programs.ms_swift_data import completion_length, data, length, loss_scale
from paceline.config.import_export.verdicts import KeyReader
from paceline.config.yaml_text.scalars import resolve_plain
from paceline.core.json_types import Json, JsonObject, as_list, as_number, as_object

#: What each command's argument class inherits, later ones over earlier ones (its method resolution, reversed)
_SFT = (
    *("TrainArgumentsMixin", "ModelArguments", "TemplateArguments", "DataArguments", "QuantizeArguments"),
    *("GenerationArguments", "BaseArguments", "TunerArguments", "SwanlabArguments", "SftArguments"),
)
_RLHF = (
    *("RewardModelArguments", "PPOArguments", "VllmArguments", "RolloutTrainerArgumentsMixin"),
    *("GRPOArgumentsMixin", "GRPOArguments", "TeacherModelArguments", "RLHFArguments"),
)
COMMANDS = {"sft": _SFT, "pt": (*_SFT, "PretrainArguments"), "rlhf": (*_SFT, *_RLHF)}


def command_of(arguments: JsonObject, word: str | None) -> str:
    """Return which command a file is for: ``word`` (a command, or an algorithm), else by its own keys."""
    if word in COMMANDS:
        return word
    alone = set(defaults("swift", COMMANDS["rlhf"])) - set(defaults("swift", COMMANDS["sft"]))
    return "rlhf" if word not in (None, "sft") or alone & set(arguments) else "sft"


def swift_defaults(command: str) -> dict[str, object]:
    """Return the defaults of a command's arguments, Transformers' below them."""
    changed = {"report_to": "tensorboard", "ddp_timeout": 18000000}
    return {**defaults("transformers"), **defaults("swift", COMMANDS[command]), **NO_TRACKERS, **changed}


#: The block of a YAML, here of a command line as well, that holds variables of the process
ENVIRONMENT = "ENV"
_PROCESSES = ("NPROC_PER_NODE", "NNODES")
_ROWS = 16  # of a step, where gradient_accumulation_steps is not given


def processes(reader: KeyReader) -> int:
    """Return how many processes ``swift`` starts in all: one, without NPROC_PER_NODE."""
    variables = as_object(reader.given.get(ENVIRONMENT))
    # auto and gpu are no numbers: one process is assumed
    counts = [str(variables.get(name, 1)) for name in _PROCESSES]
    return math.prod(int(count) for count in counts if count.isdecimal())


def precision(reader: KeyReader) -> None:
    """The weights' dtype decides the precision: bfloat16 is bf16, float16 and float32 are fp16."""
    word = reader.text("torch_dtype")
    model_config = config_of(reader)
    note = "" if word else "of the model's config.json"
    stored = (
        model_config.get("dtype")
        or model_config.get("torch_dtype")
        or as_object(model_config.get("text_config")).get("dtype")
    )
    word = word or str(stored or "bfloat16")
    written = [key for key in ("bf16", "fp16") if reader.given.get(key) is not None]
    own_precision = "bf16" if word == "bfloat16" else "fp16"
    on = [key for key in written if reader.on(key)]
    off = [key for key in written if not reader.on(key)]
    chosen = on[0] if on else "no" if own_precision in off else own_precision
    reader.set("training.mixed_precision", chosen, written[0] if written else "torch_dtype", note)
    reader.mapped(written, ("training.mixed_precision",))
    if reader.facts["tuner_type"] != "full":
        reader.keep("torch_dtype", "model.dtype", word, note or "of the frozen weights; adapters are float32")
    else:
        transformers.whole_weights_in(reader, "torch_dtype", word)
    if not stored and not reader.given.get("torch_dtype") and "model" in reader.given:
        reader.differs(
            "torch_dtype",
            "model.dtype",
            word,
            "ms-swift trains in the dtype of the model's config.json, which is not here: bfloat16 is assumed",
        )


def batch(reader: KeyReader) -> None:
    """Without gradient_accumulation_steps a step has 16 rows over all processes; GRPO accumulates nothing."""
    count, rows = processes(reader), reader.value("per_device_train_batch_size")
    if not reader.is_given("gradient_accumulation_steps"):
        steps, note = 1, ""
        if reader.facts["word"] != "grpo" and isinstance(rows, int) and rows > 0:
            steps = max(1, math.ceil(_ROWS / rows / count))
            note = f"16 rows a step over {count} process{'es' * (count > 1)}, as ms-swift starts it"
        reader.set("training.gradient_accumulation_steps", steps, "gradient_accumulation_steps", note)
    variables = as_object(reader.given.get(ENVIRONMENT))
    reader.set("launch.nproc", 1, "NPROC_PER_NODE", "ms-swift starts one process without it")
    for name, path in VARIABLES.items():
        value = resolve_plain(str(variables.get(name, "")))
        if value is not None and (path == "launch.master_addr" or isinstance(value, int)):
            reader.set(path, value, f"{ENVIRONMENT}.{name}")
            reader.mapped(f"{ENVIRONMENT}.{name}", (path,))
    others = [f"{ENVIRONMENT}.{name}" for name in variables]
    says = "of the process: set it for this run as well, if it should hold"
    reader.nothing([key for key in others if not reader.decided(key)], says)
    reader.nothing(ENVIRONMENT, says)


def generations(reader: KeyReader) -> None:
    """``generation_batch_size`` counts answers over all processes, ``steps_per_generation`` micro-batches."""
    rows, answers = reader.value("per_device_train_batch_size"), reader.given.get("generation_batch_size")
    if reader.is_given("steps_per_generation"):
        steps = reader.given["steps_per_generation"]
        reader.keep("steps_per_generation", "training.rollout.steps_per_generation", steps)
        reader.mapped("generation_batch_size", ("training.rollout.steps_per_generation",))
    elif (
        isinstance(answers, int)
        and isinstance(rows, int)
        and rows > 0
        and answers % (rows * processes(reader)) == 0
    ):
        steps = answers // (rows * processes(reader))
        reader.keep("generation_batch_size", "training.rollout.steps_per_generation", steps)
    elif answers:
        reader.lose("generation_batch_size", "it is no multiple of the rows of all processes")


def rewards(reader: KeyReader) -> None:
    """Decide reward functions and models."""
    names, models = reader.given.get("reward_funcs"), reader.given.get("reward_model")
    if names:
        says = "reward functions are written as training.rollout.rewards (docs/how-to/rollouts.md)"
        reader.lose("reward_funcs", says)
        reader.lose("reward_weights", says) if reader.is_given("reward_weights") else None
    listed = models if isinstance(models, list) else [models] if models else []
    if listed:
        weights = reader.given.get("reward_weights")
        shares = weights if isinstance(weights, list) else [1.0] * len(listed)
        items: list[Json] = [
            {"name": "model", "options": {"model": name}, "weight": share}
            for name, share in zip(listed, shares[-len(listed) :], strict=False)
        ]
        reader.keep("reward_model", "training.rollout.rewards", items)
        if not names:
            reader.mapped("reward_weights", ("training.rollout.rewards",))


def freezing(reader: KeyReader) -> None:
    """Names that are frozen, then names that are trained again: by their beginning, or by a regular
    expression that is searched (``swift.utils.freeze_parameters`` and ``activate_parameters``).
    """
    named: dict[str, list[Json]] = {}
    for kind in ("freeze", "trainable"):
        regex = reader.value(f"{kind}_parameters_regex")
        begins = [f"^{re.escape(str(name))}" for name in as_list(reader.value(f"{kind}_parameters"))]
        named[kind] = [*begins, *([f"^.*(?:{regex})"] if regex else [])]
    ratio = as_number(reader.value("freeze_parameters_ratio")) or 0.0
    if 0 < ratio < 1:
        reader.lose("freeze_parameters_ratio", "how far it reaches depends on the model: name the layers")
    keys = [key for key in reader.given if key.startswith(("freeze_parameters", "trainable_parameters"))]
    left = [key for key in keys if not reader.decided(key)]
    if not named["freeze"] and ratio != 1:
        reader.nothing(left, "nothing is frozen")
        return
    if ratio != 1:  # else all is frozen, which unfreeze alone says
        reader.set("training.freeze", named["freeze"], "freeze_parameters")
    if named["trainable"]:
        reader.set("training.unfreeze", named["trainable"], "trainable_parameters")
    reader.mapped(left, ("training.freeze", "training.unfreeze"))


CODE: Code = {
    **transformers.CODE,
    "loss_scale": loss_scale,
    "precision": precision,
    "batch": batch,
    "data": data,
    "length": length,
    "completion": lambda reader: reader.set(
        "training.rollout.max_completion_length", completion_length(reader), "max_completion_length"
    ),
    "rewards": rewards,
    "generations": generations,
    "freezing": freezing,
}
