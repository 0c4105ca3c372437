"""axolotl's schedule, and when it evaluates and saves."""

from __future__ import annotations

from paceline.config.import_export.key_reader import KeyReader
from paceline.core.json_types import Json


def schedule(reading: KeyReader) -> None:
    """Decide the warm-up, and when the run evaluates and saves."""
    _warmup(reading)
    _evaluation(reading)
    _saves(reading)


def _warmup(reading: KeyReader) -> None:
    """A ratio is rounded down there, and 1 step becomes 2; without either 3 % of the steps, at most 100."""
    steps, ratio = reading.given.get("warmup_steps"), reading.given.get("warmup_ratio")
    limit = reading.given.get("max_steps")
    if isinstance(steps, (int, float)):
        reading.keep("warmup_steps", "training.warmup_steps", _two_for_one(steps))
        reading.nothing("warmup_ratio", "warmup_steps wins over it")
    elif isinstance(ratio, (int, float)) and isinstance(limit, int) and limit > 0:
        reading.keep("warmup_ratio", "training.warmup_steps", _two_for_one(int(ratio * limit)))
    elif ratio:
        reading.differs(
            "warmup_ratio",
            "training.warmup_steps",
            ratio,
            "axolotl rounds the steps of the warm-up down, here they are rounded up",
        )
    elif ratio is not None:
        reading.keep("warmup_ratio", "training.warmup_steps", ratio)
    else:
        value: Json = (
            _two_for_one(min(int(0.03 * limit), 100)) if isinstance(limit, int) and limit > 0 else 0.03
        )
        reading.set(
            "training.warmup_steps", value, "warmup_ratio", "axolotl takes 3 % of the steps, at most 100"
        )


def _two_for_one(steps: float) -> float:
    return 2 if steps == 1 else steps


def _part(reading: KeyReader, key: str) -> float | None:
    """Return a number of times per epoch as a fraction of all steps, as axolotl computes it."""
    times, epochs = reading.given.get(key), reading.value("num_epochs")
    if not isinstance(times, (int, float)) or not isinstance(epochs, (int, float)) or not times * epochs:
        return None
    return 1.0 / (times * epochs)


def _evaluation(reading: KeyReader) -> None:
    held = reading.given.get("val_set_size")
    some = reading.is_given("test_datasets") or bool(held)
    keys = ("evals_per_epoch", "eval_steps", "eval_strategy", "evaluation_strategy")
    if not some:
        reading.set("training.eval_strategy", "no", "val_set_size")
        reading.nothing(keys, "nothing is evaluated: val_set_size is 0")
        reading.nothing("val_set_size", "no rows are held out")
        return
    if held:
        reading.keep("val_set_size", "data.validation_split", held)
    steps: Json = reading.given.get("eval_steps")
    part = _part(reading, "evals_per_epoch")
    steps = part if part is not None and part < 1 else steps
    word = reading.given.get("eval_strategy") or reading.given.get("evaluation_strategy")
    if steps:
        reading.set("training.eval_strategy", "steps", "evals_per_epoch" if part else "eval_steps")
        reading.set("training.eval_steps", steps, "evals_per_epoch" if part else "eval_steps")
        reading.set(
            "training.eval_on_start", True, "eval_steps", "axolotl evaluates before the first step, too"
        )
    elif word is not None:
        reading.set("training.eval_strategy", "no" if word is False else word, "eval_strategy")
        reading.set("training.eval_on_start", word not in (False, "no"), "eval_strategy")
    else:
        reading.set(
            "training.eval_strategy",
            "no",
            "evals_per_epoch",
            "axolotl never evaluates where the whole run has one evaluation",
        )
    reading.mapped(keys, ("training.eval_strategy", "training.eval_steps"))


def best_weights(reading: KeyReader) -> None:
    """axolotl loads the best weights unless told not to, if a save always falls on an evaluation."""
    key, path = "load_best_model_at_end", "training.load_best_model_at_end"
    rows = reading.is_given("test_datasets") != bool(reading.given.get("val_set_size"))
    settings = reading.result.settings
    save, evaluate = (settings.get(f"training.{name}_steps") for name in ("save", "eval"))
    a, b = (setting.value if setting else None for setting in (save, evaluate))
    on = reading.given.get(key) is not False or reading.is_given("early_stopping_patience")
    fits = isinstance(a, (int, float)) and isinstance(b, (int, float)) and b > 0 and a % b == 0
    of_sft = not reading.is_given("rl")
    reading.set(path, on and rows and fits and of_sft, key)
    if reading.on(key) and not (rows and fits and of_sft):
        says = "axolotl loads the last weights: it loads the best ones of a supervised run whose save_steps"
        reading.nothing(key, f"{says} are a multiple of eval_steps")
    else:
        reading.mapped(key, (path,))


def _saves(reading: KeyReader) -> None:
    part = _part(reading, "saves_per_epoch")
    steps: Json = part if part is not None and part < 1 else reading.given.get("save_steps")
    word = reading.given.get("save_strategy")
    if steps:
        reading.set("training.save_strategy", "steps", "saves_per_epoch" if part else "save_steps")
        reading.set("training.save_steps", steps, "saves_per_epoch" if part else "save_steps")
    else:
        reading.set("training.save_strategy", "no" if word is False else word or "epoch", "save_strategy")
    reading.mapped(
        ("saves_per_epoch", "save_steps", "save_strategy"), ("training.save_strategy", "training.save_steps")
    )
