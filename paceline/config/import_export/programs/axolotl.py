"""axolotl's config (0.19), and older names that its files still have."""

from __future__ import annotations

import re

from paceline.config.import_export.argument_tables import defaults
from paceline.config.import_export.decide_keys import SENTENCES, decide
from paceline.config.import_export.programs.axolotl_data import datasets, tokens
from paceline.config.import_export.programs.transformers import (
    by_alias,
    project,
    transformers_galore,
    whole_weights_in,
)
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
_ALGORITHMS = {
    "": "sft",
    "dpo": "dpo",
    "ipo": "dpo",
    "kto": "kto",
    "orpo": "orpo",
    "simpo": "simpo",
    "grpo": "grpo",
}
_WATCHDOG = "paceline.extend:LossWatchdog"  # what stops a run there after three steps, too
_PLUGINS_OF_KERNELS = ("CutCrossEntropyPlugin", "LigerPlugin", "KernelsPlugin", "CompilePlugin")
_OTHER_TRACKERS = ("mlflow", "swanlab", "trackio")


def axolotl_defaults() -> dict[str, object]:
    """Return the defaults of its top-level keys that the builder passes on."""
    return defaults("axolotl") | defaults("axolotl", _TOP)


def translate(reading: KeyReader) -> None:
    """Decide every key of an axolotl file."""
    for key in [key for key, value in reading.given.items() if value in (None, "")]:
        reading.nothing(key, "it has no value")
    reading.facts["algorithm"] = (
        "reward" if reading.on("reward_model") else _ALGORITHMS.get(reading.text("rl"), "sft")
    )
    decide(reading, "axolotl", CODE)
    for key in reading.open_keys():
        by_alias(reading, key)


def _beta(reading: KeyReader) -> None:
    """Of several betas axolotl takes the first of these, for every algorithm."""
    path = f"training.{reading.facts['algorithm']}.beta"
    written = [key for key in ("trl.beta", "rl_beta", "orpo_alpha", "dpo_beta") if reading.is_given(key)]
    if written:
        reading.keep(written[0], path, reading.given[written[0]])
    reading.nothing(written[1:], f"{written[0]} wins over it" if written else "")
    reading.nothing(("orpo_alpha",), "beta decides") if "orpo_alpha" not in written else None


def _watchdog(reading: KeyReader) -> None:
    """A threshold of the loss: without one its patience has no effect."""
    threshold, patience = "loss_watchdog_threshold", "loss_watchdog_patience"
    if not reading.on(threshold):
        return
    options: dict[str, Json] = {"threshold": reading.given[threshold]}
    if reading.is_given(patience):
        options["patience"] = reading.given[patience]
    written: list[Json] = [{"name": _WATCHDOG, "options": options}]
    reading.set("training.callbacks", written, threshold)
    reading.mapped((threshold, patience), ("training.callbacks",))


def _precision(reading: KeyReader) -> None:
    bf16 = reading.value("bf16")
    fp16 = reading.on("fp16") or reading.on("float16")
    if fp16 and reading.given.get("bf16") in (None, False, "auto"):
        word, dtype = "fp16", "float16"
    elif bf16 is False and not reading.on("bfloat16"):
        word, dtype = "no", ""
    else:
        word, dtype = "auto" if bf16 == "auto" else "bf16", "bfloat16"
    key = "fp16" if word == "fp16" else "bf16"
    reading.set("training.mixed_precision", word, key)
    keys = ("bf16", "fp16", "bfloat16", "float16", "float32", "torch_dtype")
    if dtype and reading.is_given("adapter"):
        reading.set("model.dtype", dtype, key)
    elif dtype:
        written = [name for name in keys if reading.given.get(name) and (word, name) != ("fp16", "bf16")]
        for name in written or ["bf16"]:
            whole_weights_in(reading, name, dtype, "axolotl")
    reading.mapped([name for name in keys if not reading.decided(name)], ("training.mixed_precision",))


#: Keys of the block that say how a checkpoint is written, and the version, which has a key of its own
_CHECKPOINT_FORM = ("fsdp_final_state_dict_type", "final_state_dict_type", "cpu_offload_pin_memory")


def _fsdp_config(reading: KeyReader) -> None:
    version, inner = reading.value("fsdp_version"), reading.given.get("fsdp_config")
    if not isinstance(inner, dict):
        return
    if not reading.given.get("fsdp"):
        reading.set("training.fsdp", "full_shard auto_wrap", "fsdp_config")
    block: JsonObject = {k: v for k, v in inner.items() if k not in (*_CHECKPOINT_FORM, "fsdp_version")}
    block |= {"fsdp_version": version} if version else {}
    reading.set("training.fsdp_config", block, "fsdp_config")
    keys = [key for key in reading.given if key.partition(".")[0] == "fsdp_config"]
    reading.mapped([*keys, "fsdp_version"], ("training.fsdp_config",))
    unused = [f"fsdp_config.{key}" for key in inner if key in _CHECKPOINT_FORM]
    reading.nothing(unused, "a checkpoint is written once, in one form")


def _beside_linear(reading: KeyReader) -> None:
    """Modules beside all linear ones: others than linear ones, and the head, get an adapter there."""
    listed = reading.given.get("lora_target_modules")
    more = [
        name
        for name in [str(name) for name in (listed if isinstance(listed, list) else [listed])]
        if not re.search(r"(proj|fc\d?|dense|linear|gate|up|down|w\d|c_attn)$", name)
    ]
    if more:
        reading.lose(
            "lora_target_modules",
            f"beside all linear modules axolotl adapts {', '.join(more)}: name every module",
        )


def _trackers(reading: KeyReader) -> None:
    """Decide which trackers get what is logged."""
    used = [
        name
        for name, on in (
            ("wandb", reading.given.get("use_wandb", reading.is_given("wandb_project"))),
            ("tensorboard", reading.on("use_tensorboard")),
            *(
                (name, reading.is_given(f"use_{name}") and reading.on(f"use_{name}"))
                for name in _OTHER_TRACKERS
            ),
        )
        if on
    ]
    reading.set(
        "training.report_to",
        used or "none",
        "wandb_project" if "wandb" in used else f"use_{[*used, 'tensorboard'][0]}",
    )
    if "wandb" in used and reading.is_given("wandb_name"):
        reading.keep("wandb_name", "training.run_name", reading.given["wandb_name"])
    project(reading, [*used])


def _plugins(reading: KeyReader) -> None:
    plugins = reading.given.get("plugins")
    names = [str(name).rpartition(".")[2] for name in plugins] if isinstance(plugins, list) else []
    others = [name for name in names if name not in _PLUGINS_OF_KERNELS]
    if others:
        reading.lose("plugins", f"axolotl's plugins: {', '.join(others)}")
    else:
        reading.nothing("plugins", SENTENCES["KERNEL"])


def schedule(reading: KeyReader) -> None:
    """Decide the warm-up, and when the run evaluates and saves."""
    _warmup(reading)
    _evaluation(reading)
    # Saves: so often an epoch, or every so many steps
    part, word = _part(reading, "saves_per_epoch"), reading.given.get("save_strategy")
    steps: Json = part if part is not None and part < 1 else reading.given.get("save_steps")
    key = ("saves_per_epoch" if part else "save_steps") if steps else "save_strategy"
    otherwise = "no" if word is False else word or "epoch"
    reading.set("training.save_strategy", "steps" if steps else otherwise, key)
    if steps:
        reading.set("training.save_steps", steps, key)
    keys = ("saves_per_epoch", "save_steps", "save_strategy")
    reading.mapped(keys, ("training.save_strategy", "training.save_steps"))


def _warmup(reading: KeyReader) -> None:
    """A ratio is rounded down there, and 1 step becomes 2; without either 3 % of the steps, at most 100."""
    path, limit = "training.warmup_steps", reading.given.get("max_steps")
    steps, ratio = reading.given.get("warmup_steps"), reading.given.get("warmup_ratio")
    counted = isinstance(limit, int) and limit > 0
    if isinstance(steps, (int, float)):
        reading.keep("warmup_steps", path, _two_for_one(steps))
        reading.nothing("warmup_ratio", "warmup_steps wins over it")
    elif isinstance(ratio, (int, float)) and counted:
        reading.keep("warmup_ratio", path, _two_for_one(int(ratio * as_number(limit))))
    elif ratio:
        reading.differs(
            "warmup_ratio",
            path,
            ratio,
            "axolotl rounds the steps of the warm-up down, here they are rounded up",
        )
    elif ratio is not None:
        reading.keep("warmup_ratio", path, ratio)
    else:
        value = _two_for_one(min(int(0.03 * as_number(limit)), 100)) if counted else 0.03
        reading.set(path, value, "warmup_ratio", "axolotl takes 3 % of the steps, at most 100")


def _two_for_one(steps: float) -> float:
    return 2 if steps == 1 else steps


def _part(reading: KeyReader, key: str) -> float | None:
    """Return a number of times per epoch as a fraction of all steps, as axolotl computes it."""
    times, epochs = reading.given.get(key), reading.value("num_epochs")
    if not isinstance(times, (int, float)) or not isinstance(epochs, (int, float)) or not times * epochs:
        return None
    return 1.0 / (times * epochs)


def _evaluation(reading: KeyReader) -> None:
    strategy, held = "training.eval_strategy", reading.given.get("val_set_size")
    keys = ("evals_per_epoch", "eval_steps", "eval_strategy", "evaluation_strategy")
    if not reading.is_given("test_datasets") and not held:
        reading.set(strategy, "no", "val_set_size")
        reading.nothing(keys, "nothing is evaluated: val_set_size is 0")
        reading.nothing("val_set_size", "no rows are held out")
        return
    if held:
        reading.keep("val_set_size", "data.validation_split", held)
    part = _part(reading, "evals_per_epoch")
    steps: Json = part if part is not None and part < 1 else reading.given.get("eval_steps")
    word = reading.given.get("eval_strategy") or reading.given.get("evaluation_strategy")
    if steps:
        key = "evals_per_epoch" if part else "eval_steps"
        reading.set(strategy, "steps", key)
        reading.set("training.eval_steps", steps, key)
        reading.set(
            "training.eval_on_start", True, "eval_steps", "axolotl evaluates before the first step, too"
        )
    elif word is not None:
        reading.set(strategy, "no" if word is False else word, "eval_strategy")
        reading.set("training.eval_on_start", word not in (False, "no"), "eval_strategy")
    else:
        reading.set(
            strategy,
            "no",
            "evals_per_epoch",
            "axolotl never evaluates where the whole run has one evaluation",
        )
    reading.mapped(keys, (strategy, "training.eval_steps"))


def best_weights(reading: KeyReader) -> None:
    """axolotl loads the best weights unless told not to, if a save always falls on an evaluation."""
    key, path = "load_best_model_at_end", "training.load_best_model_at_end"
    settings = reading.result.settings
    save, evaluate = (
        settings[name].value if (name := f"training.{event}_steps") in settings else None
        for event in ("save", "eval")
    )
    fits = isinstance(save, (int, float)) and isinstance(evaluate, (int, float)) and evaluate > 0
    fits = fits and as_number(save) % as_number(evaluate) == 0
    held_out = reading.is_given("test_datasets") != bool(reading.given.get("val_set_size"))
    possible = held_out and fits and not reading.is_given("rl")
    on = reading.given.get(key) is not False or reading.is_given("early_stopping_patience")
    reading.set(path, on and possible, key)
    if reading.on(key) and not possible:
        says = "axolotl loads the last weights: it loads the best ones of a supervised run whose save_steps"
        reading.nothing(key, f"{says} are a multiple of eval_steps")
    else:
        reading.mapped(key, (path,))


CODE = {
    "beta": _beta,
    "galore": lambda reading: transformers_galore(reading, "optimizer"),
    "schedule": schedule,
    "best_weights": best_weights,
    "precision": _precision,
    "datasets": datasets,
    "tokens": tokens,
    "fsdp_config": _fsdp_config,
    "beside_linear": _beside_linear,
    "trackers": _trackers,
    "watchdog": _watchdog,
    "plugins": _plugins,
}
