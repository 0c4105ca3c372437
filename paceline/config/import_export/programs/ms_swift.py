"""ms-swift's arguments (4.6): its YAML and JSON files, and the commands `swift sft`, `pt` and `rlhf`."""

from __future__ import annotations

import math
from dataclasses import replace

from paceline.config.import_export.argument_tables import NO_TRACKERS, defaults
from paceline.config.import_export.commands.launcher_options import VARIABLES
from paceline.config.import_export.decide_keys import decide
from paceline.config.import_export.local_files import config_of
from paceline.config.import_export.programs.ms_swift_data import completion_length, data, length, scale_of
from paceline.config.import_export.programs.transformers import transformers_keys, whole_weights_in
from paceline.config.import_export.verdicts import KeyReader
from paceline.config.yaml_text.scalars import resolve_plain
from paceline.core.json_types import Json, JsonObject, as_object

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


def translate(reader: KeyReader) -> None:
    """Decide every key of an ms-swift file or command line."""
    older, command = _older(reader), str(reader.facts["job"])
    word = _algorithm(reader, command)
    tuner = reader.text("tuner_type") or "lora"
    facts = {
        "command": command,
        "word": word,
        "algorithm": ALGORITHMS.get(word, ""),
        "tuner_type": tuner,
        "adapters_trained": "no" if tuner == "full" else "yes",
        "loss_scale": scale_of(reader),
        "truncation_strategy": reader.text("truncation_strategy") or ("left" if word == "grpo" else "delete"),
        "evaluated": "yes" if _strategy(reader) else "no",
    }
    reader.facts.update(facts)
    decide(reader, "swift", CODE)
    transformers_keys(reader)
    for key, name in older:
        findings = reader.result.findings
        findings[key] = replace(findings.pop(name), key=key)


def _older(reader: KeyReader) -> list[tuple[str, str]]:
    """Take today's name for keys that earlier versions had, and return both."""
    renamed = []
    for older, name in _OLDER.items():
        if reader.is_given(older) and name not in reader.given:
            reader.older(older, name)
            renamed.append((older, name))
    return renamed


def _algorithm(reader: KeyReader, command: str) -> str:
    """Set the algorithm and return ms-swift's word for it: its ``rlhf_type``, or the command."""
    if command != "rlhf":
        note = "`swift pt` is SFT with loss on every token" if command == "pt" else f"`swift {command}`"
        reader.set("training.algorithm", "sft", "rlhf_type", note)
        if reader.text("task_type") == "seq_cls":
            reader.keep("task_type", "training.algorithm", "classification")
        elif reader.is_given("task_type") and reader.text("task_type") != "causal_lm":
            reader.lose("task_type", f"the task {reader.text('task_type')} is not supported")
        return command
    word = (
        reader.text("rlhf_type")
        if reader.is_given("rlhf_type")
        else {ours: word for word, ours in ALGORITHMS.items()}.get(str(reader.facts["named"]), "dpo")
    )
    ours = ALGORITHMS.get(word)
    if ours is None:
        reader.lose("rlhf_type", f"{word} is not supported; {', '.join(ALGORITHMS)} are")
    else:
        reader.keep("rlhf_type", "training.algorithm", ours)
    return word


def _strategy(reader: KeyReader) -> str:
    """Return when the run evaluates; empty where no rows are held out, or eval_strategy is no."""
    rows = reader.is_given("val_dataset") or reader.on("split_dataset_ratio")
    strategy = reader.text("eval_strategy") or reader.text("save_strategy") or "steps"
    return strategy if rows and strategy != "no" else ""


def _evaluation(reader: KeyReader) -> None:
    """Evaluation follows saving where nothing else is said."""
    strategy = _strategy(reader)
    note = "" if reader.is_given("eval_strategy") else "as save_strategy"
    reader.keep("eval_strategy", "training.eval_strategy", strategy, note)
    if strategy == "steps":
        steps = reader.value("eval_steps") or reader.value("save_steps")
        reader.keep("eval_steps", "training.eval_steps", steps)


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


def new_tokens(reader: KeyReader) -> None:
    """Decide the tokens that the tokenizer gets."""
    tokens = reader.given.get("new_special_tokens")
    listed = tokens if isinstance(tokens, list) else [tokens] if tokens else []
    if any(str(token).endswith(".txt") for token in listed):
        reader.lose("new_special_tokens", "write the tokens themselves, not a file of them")
    elif listed:
        reader.keep("new_special_tokens", "model.add_special_tokens", listed)


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
    if reader.facts["adapters_trained"] == "yes":
        reader.keep("torch_dtype", "model.dtype", word, note or "of the frozen weights; adapters are float32")
    else:
        whole_weights_in(reader, "torch_dtype", word, "ms-swift")
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


def targets(reader: KeyReader) -> None:
    """Decide which modules have adapters."""
    key = "target_regex" if reader.is_given("target_regex") else "target_modules"
    names = reader.value(key)
    if names in ("all-linear", ["all-linear"]):
        reader.keep(key, "lora.target_modules", "all-linear")
    elif words := _expanded(names):
        reader.lose(key, f"{', '.join(words)}: only all-linear alone is supported; name the modules")
    else:
        reader.keep(key, "lora.target_modules", names)
    if key == "target_regex":
        reader.nothing("target_modules", "target_regex wins over it")


def whole_modules(reader: KeyReader) -> None:
    """Decide which modules are trained in full."""
    names = reader.value("modules_to_save")
    if words := _expanded(names):
        says = f"ms-swift looks for {', '.join(words)} in the model that it has built"
        reader.lose("modules_to_save", f"{says}: name the modules (embed_tokens, for example)")
    else:
        reader.keep("modules_to_save", "lora.modules_to_save", names)


def _expanded(names: Json) -> list[str]:
    """Return the words (``all-embedding`` …) in whose place swift puts modules of the model it has built."""
    listed = names if isinstance(names, list) else str(names).split()
    return [str(name) for name in listed if str(name).startswith("all-")]


def adapters(reader: KeyReader) -> None:
    """One adapter is trained on; the reference is the base without it, unless ref_adapters names it again."""
    names: dict[str, list[Json]] = {}
    for key in ("adapters", "ref_adapters"):
        value = reader.given.get(key)
        names[key] = list(value) if isinstance(value, list) else [value] if value else []
    if len(names["adapters"]) > 1:
        reader.lose("adapters", "one adapter is trained on")
    elif names["adapters"]:
        reader.keep("adapters", "lora.adapter_name_or_path", names["adapters"][0])
    reader.nothing("adapters", "none") if not names["adapters"] else None
    if names["ref_adapters"] and names["ref_adapters"] != names["adapters"]:
        reader.lose("ref_adapters", "the reference is the model as the run finds it, or a whole model")


#: ``rlhf_type`` → our algorithm
ALGORITHMS = {
    "dpo": "dpo",
    "kto": "kto",
    "rm": "reward",
    "grpo": "grpo",
    "ppo": "ppo",
    "orpo": "orpo",
    "simpo": "simpo",
    "cpo": "cpo",
}
_LOSS = {"dpo": "sigmoid", "cpo": "sigmoid", "kto": "kto", "grpo": "grpo"}
_LOSSES = {
    "dpo": ("sigmoid", "hinge", "ipo", "robust"),
    "cpo": ("sigmoid", "hinge", "ipo"),
    "kto": ("kto", "apo_zero_unpaired"),
    "grpo": ("grpo", "bnpo", "dr_grpo", "dapo", "cispo"),
    "simpo": ("simpo",),
}


def loss(reader: KeyReader) -> None:
    """Decide the loss; without a value the one that ms-swift starts with."""
    word, ours = str(reader.facts["word"]), reader.facts["algorithm"]
    value = reader.value("loss_type")
    value = _LOSS.get(word) if value is None else value
    value = value[0] if isinstance(value, list) and len(value) == 1 else value
    if word == "simpo":
        reader.mapped("loss_type", ("training.algorithm",)) if value in (None, "simpo") else reader.lose(
            "loss_type", f"{value} under simpo is CPO: set rlhf_type: cpo"
        )
    elif value in _LOSSES[word]:
        reader.keep("loss_type", f"training.{ours}.loss_type", value)
        if (word, value) == ("dpo", "ipo"):
            reader.set("training.dpo.length_normalized", True, "loss_type", "means over an answer's tokens")
    elif word == "dpo" and value == ["sigmoid", "sft"]:
        weights = reader.given.get("loss_weights") or [1.0, 1.0]
        if isinstance(weights, list) and len(weights) == 2 and weights[0] == 1:
            _supervised(reader, "loss_type", weights[1])
            reader.mapped("loss_weights", ("training.dpo.rpo_alpha",))
        else:
            reader.lose("loss_weights", "the first weight must be 1")
    else:
        reader.lose("loss_type", f"the loss {value} is not supported; {', '.join(_LOSSES[word])} are")


def _supervised(reader: KeyReader, key: str, weight: Json) -> None:
    """The loss of the chosen answers: a mean over a micro-batch's tokens there, over a step's here."""
    accumulation = reader.result.settings.get("training.gradient_accumulation_steps")
    (
        reader.keep
        if reader.given.get("gradient_accumulation_steps", accumulation.value if accumulation else None) == 1
        else reader.differs
    )(
        key,
        "training.dpo.rpo_alpha",
        weight,
        "ms-swift averages it over the tokens of each micro-batch, here over those of the step",
    )


def completion(reader: KeyReader) -> None:
    """Set the limit of generated answers."""
    reader.set("training.rollout.max_completion_length", completion_length(reader), "max_completion_length")


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
    "supervised": lambda reader: _supervised(reader, "rpo_alpha", reader.given["rpo_alpha"]),
    "completion": completion,
    "rewards": rewards,
    "generations": generations,
    "evaluation": _evaluation,
}
