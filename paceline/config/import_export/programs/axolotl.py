"""axolotl's config (0.19), and older names that its files still have."""

from __future__ import annotations

import re

from paceline.config.import_export.argument_tables import defaults
from paceline.config.import_export.decide_keys import Code
from paceline.config.import_export.programs import transformers
from paceline.config.import_export.programs.axolotl_data import datasets, tokens
from paceline.config.import_export.programs.axolotl_templates import named_template
from paceline.config.import_export.programs.images import reads_images
from paceline.config.import_export.verdicts import KeyReader
from paceline.core.json_types import Json, JsonObject, as_number

_TOP = (
    "AxolotlInputConfig",
    "ModelInputConfig",
    "ModelOutputConfig",
    "LoraConfig",
    "ReLoRAConfig",
    "HyperparametersConfig",
    "WandbConfig",
    "DeprecatedParameters",
    "RemappedParameters",
    "JaggedLRConfig",
)
_OTHER_TRACKERS = ("mlflow", "swanlab", "trackio")


def axolotl_defaults() -> dict[str, object]:
    """Return the defaults of axolotl's top-level keys that its trainer builder passes on."""
    return defaults("axolotl") | defaults("axolotl", _TOP)


def _precision(reader: KeyReader) -> None:
    bf16 = reader.value("bf16")
    fp16 = reader.on("fp16") or reader.on("float16")
    if fp16 and reader.given.get("bf16") in (None, False, "auto"):
        word, dtype = "fp16", "float16"
    elif bf16 is False and not reader.on("bfloat16"):
        word, dtype = "no", ""
    else:
        word, dtype = "auto" if bf16 == "auto" else "bf16", "bfloat16"
    key = "fp16" if word == "fp16" else "bf16"
    reader.set("training.mixed_precision", word, key)
    keys = ("bf16", "fp16", "bfloat16", "float16", "float32", "torch_dtype")
    if dtype and not reader.is_given("adapter"):
        written = [name for name in keys if reader.given.get(name) and (word, name) != ("fp16", "bf16")]
        for name in written or ["bf16"]:
            transformers.whole_weights_in(reader, name, dtype)
    reader.mapped([name for name in keys if not reader.decided(name)], ("training.mixed_precision",))


#: Keys of the block that say how a checkpoint is written, and the version, which has a key of its own
_CHECKPOINT_FORM = ("fsdp_final_state_dict_type", "final_state_dict_type", "cpu_offload_pin_memory")


def _fsdp_config(reader: KeyReader) -> None:
    version, inner = reader.value("fsdp_version"), reader.given.get("fsdp_config")
    if not isinstance(inner, dict):
        return
    if not reader.given.get("fsdp"):
        reader.set("training.fsdp", "full_shard auto_wrap", "fsdp_config")
    block: JsonObject = {k: v for k, v in inner.items() if k not in (*_CHECKPOINT_FORM, "fsdp_version")}
    block |= {"fsdp_version": version} if version else {}
    reader.set("training.fsdp_config", block, "fsdp_config")
    keys = [key for key in reader.given if key.partition(".")[0] == "fsdp_config"]
    reader.mapped([*keys, "fsdp_version"], ("training.fsdp_config",))
    unused = [f"fsdp_config.{key}" for key in inner if key in _CHECKPOINT_FORM]
    reader.nothing(unused, "a checkpoint is written once, in one form")


def _trackers(reader: KeyReader) -> None:
    """Decide which trackers the run reports to."""
    used = [
        name
        for name, on in (
            ("wandb", reader.given.get("use_wandb", reader.is_given("wandb_project"))),
            ("tensorboard", reader.on("use_tensorboard")),
            *(
                (name, reader.is_given(f"use_{name}") and reader.on(f"use_{name}"))
                for name in _OTHER_TRACKERS
            ),
        )
        if on
    ]
    reader.set(
        "training.report_to",
        used or "none",
        "wandb_project" if "wandb" in used else f"use_{[*used, 'tensorboard'][0]}",
    )
    if "wandb" in used and reader.is_given("wandb_name"):
        reader.keep("wandb_name", "training.run_name", reader.given["wandb_name"])
    transformers.project(reader, [*used])


def schedule(reader: KeyReader) -> None:
    """Decide the warm-up, and when the run evaluates and saves."""
    _warmup(reader)
    _evaluation(reader)
    # Saves: so often an epoch, or every so many steps
    part, word = _part(reader, "saves_per_epoch"), reader.given.get("save_strategy")
    steps: Json = part if part is not None and part < 1 else reader.given.get("save_steps")
    key = ("saves_per_epoch" if part else "save_steps") if steps else "save_strategy"
    otherwise = "no" if word is False else word or "epoch"
    reader.set("training.save_strategy", "steps" if steps else otherwise, key)
    if steps:
        reader.set("training.save_steps", steps, key)
    keys = ("saves_per_epoch", "save_steps", "save_strategy")
    reader.mapped(keys, ("training.save_strategy", "training.save_steps"))


def _warmup(reader: KeyReader) -> None:
    """Decide the warm-up. axolotl rounds a ratio down, makes 1 step 2, and defaults to 3 % of the steps, at
    most 100."""
    path, limit = "training.warmup_steps", reader.given.get("max_steps")
    steps, ratio = reader.given.get("warmup_steps"), reader.given.get("warmup_ratio")
    counted = isinstance(limit, int) and limit > 0
    if isinstance(steps, (int, float)):
        reader.keep("warmup_steps", path, _two_for_one(steps))
        reader.nothing("warmup_ratio", "warmup_steps wins over it")
    elif isinstance(ratio, (int, float)) and counted:
        reader.keep("warmup_ratio", path, _two_for_one(int(ratio * as_number(limit))))
    elif ratio:
        reader.differs(
            "warmup_ratio",
            path,
            ratio,
            "axolotl rounds the steps of the warm-up down, here they are rounded up",
        )
    elif ratio is not None:
        reader.keep("warmup_ratio", path, ratio)
    else:
        value = _two_for_one(min(int(0.03 * as_number(limit)), 100)) if counted else 0.03
        reader.set(path, value, "warmup_ratio", "axolotl takes 3 % of the steps, at most 100")


# axolotl 0.19 makes a warm-up of one step two
def _two_for_one(steps: float) -> float:
    return 2 if steps == 1 else steps


def _part(reader: KeyReader, key: str) -> float | None:
    """Return a number of times per epoch as a fraction of all steps, as axolotl computes it."""
    times, epochs = reader.given.get(key), reader.value("num_epochs")
    if not isinstance(times, (int, float)) or not isinstance(epochs, (int, float)) or not times * epochs:
        return None
    return 1.0 / (times * epochs)


def _evaluation(reader: KeyReader) -> None:
    strategy, held = "training.eval_strategy", reader.given.get("val_set_size")
    keys = ("evals_per_epoch", "eval_steps", "eval_strategy", "evaluation_strategy")
    if not reader.is_given("test_datasets") and not held:
        reader.set(strategy, "no", "val_set_size")
        reader.nothing(keys, "nothing is evaluated: val_set_size is 0")
        reader.nothing("val_set_size", "no rows are held out")
        return
    if held:
        reader.keep("val_set_size", "data.validation_split", held)
    part = _part(reader, "evals_per_epoch")
    steps: Json = part if part is not None and part < 1 else reader.given.get("eval_steps")
    word = reader.given.get("eval_strategy") or reader.given.get("evaluation_strategy")
    if steps:
        key = "evals_per_epoch" if part else "eval_steps"
        reader.set(strategy, "steps", key)
        reader.set("training.eval_steps", steps, key)
        reader.set(
            "training.eval_on_start", True, "eval_steps", "axolotl evaluates before the first step, too"
        )
    elif word is not None:
        reader.set(strategy, "no" if word is False else word, "eval_strategy")
        reader.set("training.eval_on_start", word not in (False, "no"), "eval_strategy")
    else:
        reader.set(
            strategy,
            "no",
            "evals_per_epoch",
            "axolotl never evaluates where the whole run has one evaluation",
        )
    reader.mapped(keys, (strategy, "training.eval_steps"))


def best_weights(reader: KeyReader) -> None:
    """Decide ``load_best_model_at_end``, which axolotl turns on by default if each save follows an
    evaluation."""
    key, path = "load_best_model_at_end", "training.load_best_model_at_end"
    settings = reader.result.settings
    save, evaluate = (
        settings[name].value if (name := f"training.{event}_steps") in settings else None
        for event in ("save", "eval")
    )
    fits = isinstance(save, (int, float)) and isinstance(evaluate, (int, float)) and evaluate > 0
    fits = fits and as_number(save) % as_number(evaluate) == 0
    held_out = reader.is_given("test_datasets") != bool(reader.given.get("val_set_size"))
    possible = held_out and fits and not reader.is_given("rl")
    on = reader.given.get(key) is not False or reader.is_given("early_stopping_patience")
    reader.set(path, on and possible, key)
    if reader.on(key) and not possible:
        says = "axolotl loads the last weights: it loads the best ones of a supervised run whose save_steps"
        reader.nothing(key, f"{says} are a multiple of eval_steps")
    else:
        reader.mapped(key, (path,))


_ROWS = re.compile(r"(.+)\[(\d*)(?::(\d*))?\]")


def _unfrozen(reader: KeyReader) -> None:
    """Decide ``unfrozen_parameters``: regular expressions that match from a name's start, with literal dots
    (``axolotl.utils.freeze.LayerNamePattern``). One may end with the rows of a tensor.
    """
    key = "unfrozen_parameters"
    value = reader.value(key)
    names = [str(name) for name in (value if isinstance(value, list) else [value])]
    if any(_ROWS.fullmatch(name) for name in names):
        reader.lose(key, "a parameter is trained whole or not at all: leave the range of rows out")
        return
    dotted = [re.sub(r"\.(?!\+)", r"\\.", name.removeprefix("^")) for name in names]
    reader.keep(key, "training.unfreeze", [f"^{name}" for name in dotted])


def _images(reader: KeyReader) -> None:
    """Decide what is trained of a model that reads images: all of it, unless ``freeze_mm_modules`` is on."""
    if not reads_images(reader.value("base_model"), reader.value("chat_template")):
        if reader.is_given("processor_type"):
            reader.lose("processor_type", "images, video and sound of this model are not read")
        return
    if not reader.is_given("processor_type"):
        return
    frozen, key = reader.on("freeze_mm_modules"), "freeze_mm_modules"
    if reader.is_given("adapter"):
        reader.nothing(key, "the base is frozen under adapters")
        if reader.on("lora_target_linear"):
            reader.departs("lora_target_linear", "adapters reach the text alone; there the tower as well")
        return
    if reader.result.settings.get("training.unfreeze") is None:
        reader.set("training.freeze", ["projector"] if frozen else ["vision"], key)
        if not frozen:
            reader.set("training.unfreeze", ["vision"], key, "axolotl trains the tower, too")
    reader.mapped(key, ("training.freeze",))


CODE: Code = {
    "images": _images,
    **transformers.CODE,
    "schedule": schedule,
    "best_weights": best_weights,
    "precision": _precision,
    "datasets": datasets,
    "tokens": tokens,
    "fsdp_config": _fsdp_config,
    "trackers": _trackers,
    "unfrozen": _unfrozen,
    "named_template": named_template,
}
