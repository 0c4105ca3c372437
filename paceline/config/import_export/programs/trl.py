"""TRL's arguments: SFT, DPO, KTO, reward, GRPO and RLOO trainers, their model and script arguments."""

from __future__ import annotations

from dataclasses import replace

from paceline.config import codes
from paceline.config.import_export.argument_tables import NO_TRACKERS, defaults, table
from paceline.config.import_export.decide_keys import Code
from paceline.config.import_export.local_files import config_of
from paceline.config.import_export.programs import transformers
from paceline.config.import_export.programs.images import trained_whole
from paceline.config.import_export.programs.trl_data import datasets
from paceline.config.import_export.verdicts import KeyReader
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json, JsonObject, as_list, as_object

#: algorithm here → the config class of the trainer
TRAINERS = {
    "sft": "SFTConfig",
    "dpo": "DPOConfig",
    "kto": "KTOConfig",
    "reward": "RewardConfig",
    "grpo": "GRPOConfig",
    "rloo": "RLOOConfig",
}
_COMMON = ("_BaseConfig", "ModelConfig", "ScriptArguments", "DatasetMixtureConfig")
_ROLLOUT = ("GRPOScriptArguments",)


def trl_defaults(algorithm: str) -> dict[str, object]:
    """Return the defaults of one of TRL's trainers, Transformers' below them."""
    more = _ROLLOUT if algorithm in ("grpo", "rloo") else ()
    own = defaults("trl", [*_COMMON, *more, TRAINERS[algorithm]])
    values = defaults("transformers") | own
    return {**values, **NO_TRACKERS, "bf16": True}  # bf16: TRL's, unless fp16 is set


def trainer_of(data: JsonObject, algorithm: str | None) -> str:
    """Return the trainer that a file is for: the user's choice, or the one that its keys show. Raises
    ConfigError.
    """
    if algorithm is not None and algorithm not in TRAINERS:
        raise ConfigError(
            codes.CONFIG_VALUE(
                f"no trainer of TRL for {algorithm} is imported",
                "--algorithm",
                algorithm,
                f"one of {', '.join(TRAINERS)}",
            )
        )
    return algorithm or algorithm_of(data)


def algorithm_of(data: JsonObject) -> str:
    """Return the trainer that a file is for, by its keys; files of TRL do not name it."""
    keys = set(data)
    if keys & {"num_generations", "reward_funcs", "max_completion_length", "use_vllm", "scale_rewards"}:
        return "rloo" if keys & {"normalize_advantages", "reward_clip_range"} else "grpo"
    if keys & {"desirable_weight", "undesirable_weight"}:
        return "kto"
    if keys & {"beta", "precompute_ref_log_probs", "loss_weights", "label_smoothing", "f_divergence_type"}:
        return "dpo"
    return "reward" if "center_rewards_coefficient" in keys else "sft"


#: of TRL's think_format_reward: one thought first, then anything
_THOUGHT = r"^<think>(?!.*<think>)(.*?)</think>.*$"
#: TRL's reward functions that one of ours computes alike: theirs → ours
REWARDS: dict[str, JsonObject] = {
    "think_format_reward": {"name": "regex", "options": {"pattern": _THOUGHT}},
    "accuracy_reward": {"name": "math_verify", "options": {}},
    "reasoning_accuracy_reward": {"name": "math_verify", "options": {"after": "</think>"}},
    # with the lengths that TRL's own script gives it
    "get_soft_overlong_punishment": {"name": "overlong", "options": {"max_length": 1280, "buffer": 256}},
}


#: open-r1's regular expressions and tags, by which its script names rewards
_ANSWERED = r"\A<think>\n.*?\n</think>\n<answer>\n.*?{}\n</answer>(?m:$)"
_TAGS = (r"<think>\n", r"\n</think>\n", r"\n<answer>\n", r"\n</answer>")


def _once(text: str) -> JsonObject:
    return {"name": "regex", "options": {"pattern": rf"\A(?!.*{text}.*{text}).*{text}"}}


def of_open_r1(name: str, language: str = "python") -> list[JsonObject]:
    """Return our rewards whose mean is that of open-r1; empty for one that none of ours computes."""
    rewards_of: dict[str, list[JsonObject]] = {
        "accuracy": [{"name": "math_verify", "options": {}}],
        "format": [{"name": "regex", "options": {"pattern": _ANSWERED.format("")}}],
        "tag_count": [_once(text) for text in _TAGS],
        "code_format": [
            {"name": "regex", "options": {"pattern": _ANSWERED.format(f"```{language}.*?```.*?")}}
        ],
        "code": [{"name": "code", "options": {"tests": "verification_info", "seconds": 5, "partial": True}}],
        "binary_code": [{"name": "code", "options": {"tests": "verification_info", "seconds": 5}}],
    }
    return rewards_of.get(name, [])


def lengths(reader: KeyReader) -> None:
    """Decide the length limits: ours covers prompt and answer together, TRL's only answers."""
    answer, prompt = reader.value("max_completion_length"), reader.given.get("max_prompt_length")
    total = (answer if isinstance(answer, int) else 512) + (prompt if isinstance(prompt, int) else 2048)
    reader.set(
        "data.max_length",
        total,
        "max_completion_length",
        "prompt and answer together; TRL does not limit prompts",
    )
    reader.mapped(("max_prompt_length",), ("data.max_length",), "longer prompts are cut")


def judged_by(reader: KeyReader, column: str) -> None:
    """Answers are compared with this column of the rows, whatever else they have."""
    for path in ("data.train", "data.eval"):
        if (setting := reader.result.settings.get(path)) is not None:
            sets = [as_object(item) for item in as_list(setting.value)]
            named = [one | {"columns": {**as_object(one.get("columns")), "answer": column}} for one in sets]
            reader.result.settings[path] = replace(setting, value=list[Json](named))


def rewards(reader: KeyReader) -> None:
    """Decide the reward functions, their weights, and a reward model."""
    functions, weights = reader.given.get("reward_funcs"), reader.given.get("reward_weights")
    model = reader.given.get("reward_model_name_or_path")
    names = [
        str(name) for name in (functions if isinstance(functions, list) else [functions] if functions else [])
    ]
    parts = {name: of_open_r1(name, reader.text("code_language") or "python") for name in names}
    parts |= {
        name: [REWARDS[known]] for name in names if (known := name.removeprefix("trl.rewards.")) in REWARDS
    }
    items = [parts[name] for name in names]
    if isinstance(model, str) and model:
        reader.mapped("reward_model_name_or_path", ("training.rollout.rewards",))
        items.insert(0, [{"name": "model", "options": {"model": model}}])
    listed = weights if isinstance(weights, list) else [weights] if weights is not None else []
    shares = listed or [1.0] * len(items)
    weighted: list[Json] = [
        {**item, "weight": share / len(several) if isinstance(share, (int, float)) else share}
        for several, share in zip(items, shares, strict=False)
        for item in several
    ]
    if weighted:
        reader.set("training.rollout.rewards", weighted, "reward_funcs")
    if any(item["name"] == "math_verify" for several in items for item in several):
        judged_by(reader, "solution")
    lost = [name for name in names if not parts[name]]
    if len(shares) != len(items):
        reader.lose("reward_weights", f"{len(shares)} weights for {len(items)} rewards, which TRL refuses")
    if lost:
        says = f"reward functions of that system: {', '.join(lost)}; write them as"
        says += " training.rollout.rewards (module:function; they get texts: docs/how-to/rollouts.md)"
        reader.lose("reward_funcs", says)
        if listed and not reader.decided("reward_weights"):
            reader.lose("reward_weights", "the weights of rewards that are not known here")
    elif weighted and not reader.decided("reward_weights"):
        reader.mapped(("reward_funcs", "reward_weights"), ("training.rollout.rewards",))
        if {"code", "binary_code"} & set(names):
            reader.set("training.rollout.allow_code_execution", True, "reward_funcs")
            says = "programs run in a sandbox of this machine, not at a service, and all they print counts"
            reader.differs("reward_funcs", "training.rollout.rewards", weighted, says)


def _peft_targets(reader: KeyReader) -> None:
    """Set the modules that peft chooses where a file names none."""
    key, kind = "lora_target_modules", str(config_of(reader).get("model_type") or "")
    targets = as_object(table("peft")["targets"])
    if kind in targets:
        reader.set(
            "lora.target_modules",
            targets[kind],
            key,
            f"peft's choice for {kind or 'most models'} where {key} is empty",
        )
    else:
        reader.lose(key, f"peft refuses {kind} without them: name the modules (all-linear: every layer's)")


ADAPTERS: Code = {"peft_targets": _peft_targets}
CODE: Code = {
    **transformers.CODE,
    **ADAPTERS,
    "weights": lambda reader: transformers.whole_weights_in(
        reader, key := str(reader.facts["typed"]), reader.text(key)
    ),
    "datasets": datasets,
    "images": trained_whole,
    "lengths": lengths,
    "rewards": rewards,
}
