"""ms-swift's arguments (4.6): its YAML and JSON files, and the commands `swift sft`, `pt` and `rlhf`."""

from __future__ import annotations

from paceline.config.import_export.argument_tables import NO_TRACKERS, defaults
from paceline.config.import_export.decide_keys import decide
from paceline.config.import_export.key_reader import KeyReader
from paceline.config.import_export.ms_swift.data import data, length, scale_of
from paceline.config.import_export.ms_swift.machine import (
    adapters,
    batch,
    new_tokens,
    precision,
    targets,
    whole_modules,
)
from paceline.config.import_export.ms_swift.rlhf import (
    ALGORITHMS,
    completion,
    generations,
    loss,
    rewards,
    supervised_weight,
)
from paceline.config.import_export.transformers_keys import transformers_keys
from paceline.core.json_types import JsonObject

#: What each command's argument class inherits, later ones over earlier ones (its method resolution, reversed)
_SFT = (
    *("TrainArgumentsMixin", "ModelArguments", "TemplateArguments", "DataArguments", "QuantizeArguments"),
    *("GenerationArguments", "BaseArguments", "TunerArguments", "SwanlabArguments", "SftArguments"),
)
_RLHF = (
    *("RewardModelArguments", "PPOArguments", "VllmArguments", "RolloutTrainerArgumentsMixin"),
    *("GRPOArgumentsMixin", "GRPOArguments", "TeacherModelArguments", "RLHFArguments"),
)
#: names of earlier versions → today's
_OLDER = {"train_type": "tuner_type", "sft_type": "tuner_type", "model_id_or_path": "model"}
COMMANDS = {"sft": _SFT, "pt": (*_SFT, "PretrainArguments"), "rlhf": (*_SFT, *_RLHF)}


def command_of(given: JsonObject, word: str | None) -> str:
    """Return which command a file is for: ``word`` (a command, or an algorithm), else by its own keys."""
    if word in COMMANDS:
        return word
    alone = set(defaults("swift", COMMANDS["rlhf"])) - set(defaults("swift", COMMANDS["sft"]))
    return "rlhf" if word not in (None, "sft") or alone & set(given) else "sft"


def swift_defaults(command: str) -> dict[str, object]:
    """Return the defaults of a command's arguments, Transformers' below them."""
    own = {"report_to": "tensorboard", "ddp_timeout": 18000000}
    return {**defaults("transformers"), **defaults("swift", COMMANDS[command]), **NO_TRACKERS, **own}


def translate(reading: KeyReader) -> None:
    """Decide every key of an ms-swift file or command line."""
    older, command = _older(reading), str(reading.facts["job"])
    word = _algorithm(reading, command)
    tuner = reading.text("tuner_type") or "lora"
    facts = {
        "command": command,
        "word": word,
        "algorithm": ALGORITHMS.get(word, ""),
        "tuner_type": tuner,
        "adapters_trained": "no" if tuner == "full" else "yes",
        "loss_scale": scale_of(reading),
        "truncation_strategy": reading.text("truncation_strategy")
        or ("left" if word == "grpo" else "delete"),
        "evaluated": "yes" if _strategy(reading) else "no",
    }
    reading.facts.update(facts)
    decide(reading, "swift", CODE)
    transformers_keys(reading)
    for key, name in older:
        reading.older_done(key, name)


def _older(reading: KeyReader) -> list[tuple[str, str]]:
    """Take today's name for keys that earlier versions had, and return both."""
    found = []
    for older, name in _OLDER.items():
        if reading.is_given(older) and name not in reading.given:
            reading.older(older, name)
            found.append((older, name))
    return found


def _algorithm(reading: KeyReader, command: str) -> str:
    """Set the algorithm and return ms-swift's word for it: its ``rlhf_type``, or the command."""
    if command != "rlhf":
        note = "`swift pt` is SFT with loss on every token" if command == "pt" else f"`swift {command}`"
        reading.set("training.algorithm", "sft", "rlhf_type", note)
        if reading.text("task_type") == "seq_cls":
            reading.keep("task_type", "training.algorithm", "classification")
        elif reading.is_given("task_type") and reading.text("task_type") != "causal_lm":
            reading.lose("task_type", f"the task {reading.text('task_type')} is not supported")
        return command
    word = (
        reading.text("rlhf_type")
        if reading.is_given("rlhf_type")
        else {ours: word for word, ours in ALGORITHMS.items()}.get(str(reading.facts["named"]), "dpo")
    )
    ours = ALGORITHMS.get(word)
    if ours is None:
        reading.lose("rlhf_type", f"{word} is not supported; {', '.join(ALGORITHMS)} are")
    else:
        reading.keep("rlhf_type", "training.algorithm", ours)
    return word


def _strategy(reading: KeyReader) -> str:
    """Return when the run evaluates; empty where no rows are held out, or eval_strategy is no."""
    rows = reading.is_given("val_dataset") or reading.on("split_dataset_ratio")
    strategy = reading.text("eval_strategy") or reading.text("save_strategy") or "steps"
    return strategy if rows and strategy != "no" else ""


def _evaluation(reading: KeyReader) -> None:
    """Evaluation follows saving where nothing else is said."""
    strategy = _strategy(reading)
    note = "" if reading.is_given("eval_strategy") else "as save_strategy"
    reading.keep("eval_strategy", "training.eval_strategy", strategy, note)
    if strategy == "steps":
        steps = reading.value("eval_steps") or reading.value("save_steps")
        reading.keep("eval_steps", "training.eval_steps", steps)


CODE = {
    "targets": targets,
    "whole_modules": whole_modules,
    "adapters": adapters,
    "precision": precision,
    "new_tokens": new_tokens,
    "batch": batch,
    "data": data,
    "length": length,
    "loss": loss,
    "supervised": supervised_weight,
    "completion": completion,
    "rewards": rewards,
    "generations": generations,
    "evaluation": _evaluation,
}
