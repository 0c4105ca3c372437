"""TRL's arguments: SFT, DPO, KTO, reward, GRPO and RLOO trainers, their model and script arguments."""

from __future__ import annotations

from paceline.config import codes
from paceline.config.import_export.argument_tables import NO_TRACKERS, defaults, table
from paceline.config.import_export.decide_keys import SENTENCES, decide
from paceline.config.import_export.local_files import config_of
from paceline.config.import_export.programs.transformers import transformers_keys, whole_weights_in
from paceline.config.import_export.programs.trl_data import datasets
from paceline.config.import_export.verdicts import KeyReader
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json, JsonObject, as_object

#: algorithm here → the config class of the trainer
TRAINERS = {
    "sft": "SFTConfig",
    "dpo": "DPOConfig",
    "kto": "KTOConfig",
    "reward": "RewardConfig",
    "grpo": "GRPOConfig",
    "rloo": "RLOOConfig",
}
_COMMON = ("_BaseConfig", "ModelConfig", "ScriptArguments")
_DPO_LOSSES = {"sigmoid", "hinge", "ipo", "robust"}


def trl_defaults(algorithm: str) -> dict[str, object]:
    """Return the defaults of one of TRL's trainers, Transformers' below them."""
    values = defaults("transformers") | defaults("trl", _COMMON) | defaults("trl", [TRAINERS[algorithm]])
    return {**values, **NO_TRACKERS, "bf16": True}  # bf16: TRL's, unless fp16 is set


def trainer_of(data: JsonObject, algorithm: str | None) -> str:
    """Return the trainer that a file is for: the one that is named, or by its keys. Raises ConfigError."""
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


def translate(reader: KeyReader) -> None:
    """Decide every key of a TRL file."""
    algorithm = reader.facts["algorithm"] = reader.facts["job"]
    reader.set("training.algorithm", algorithm)
    preset = reader.text("accelerate_config")
    if preset.startswith(("zero", "fsdp")):
        reader.facts["engine"] = f"accelerate_config: {preset}"
    decide(reader, "trl", CODE)
    transformers_keys(reader)


def _dtype(reader: KeyReader) -> None:
    """Decide the dtype in which the weights are loaded, and trained without adapters."""
    key = next((key for key in ("dtype", "torch_dtype") if reader.is_given(key)), None)
    if key is None:
        return
    word = reader.text(key)
    if reader.on("use_peft"):
        reader.keep(key, "model.dtype", word, "of the frozen weights; adapters are float32")
    else:
        whole_weights_in(reader, key, word, "TRL")


def _template_path(reader: KeyReader) -> None:
    """A file of Jinja is its text; of anything else TRL clones a tokenizer's template and special tokens."""
    path = str(reader.given.get("chat_template_path") or "")
    if path and not path.endswith((".jinja", ".j2")):
        reader.lose(
            "chat_template_path",
            f"TRL takes the template and the special tokens of {path}: set model.chat_template to its file",
        )


def _dataset_kwargs(reader: KeyReader) -> None:
    kwargs = reader.given.get("dataset_kwargs")
    harmless = {"add_special_tokens", "append_concat_token", "skip_prepare_dataset"}
    if isinstance(kwargs, dict) and set(kwargs) <= harmless and not kwargs.get("skip_prepare_dataset"):
        inner = [f"dataset_kwargs.{key}" for key in kwargs]
        reader.nothing(("dataset_kwargs", *inner), "the chat template writes the special tokens")


def _dpo_losses(reader: KeyReader) -> None:
    losses = reader.value("loss_type")
    listed = [str(item) for item in losses] if isinstance(losses, list) else [str(losses)]
    if len(listed) == 1 and listed[0] in _DPO_LOSSES:
        reader.keep("loss_type", "training.dpo.loss_type", listed[0])
    elif listed == ["dpo_norm"] or listed == ["sigmoid_norm"]:
        reader.set("training.dpo.loss_type", "sigmoid", "loss_type")
        reader.set("training.dpo.length_normalized", True, "loss_type")
        reader.mapped("loss_type", ("training.dpo.loss_type", "training.dpo.length_normalized"))
    elif listed == ["sigmoid", "sft"]:
        weights = reader.value("loss_weights")
        pair = weights if isinstance(weights, list) and len(weights) == 2 else [1.0, 1.0]
        if pair[0] == 1:
            reader.mapped("loss_weights", ("training.dpo.rpo_alpha",))
            (reader.keep if reader.value("gradient_accumulation_steps") == 1 else reader.differs)(
                "loss_type",
                "training.dpo.rpo_alpha",
                pair[1],
                "TRL averages the sft term over the tokens of each micro-batch, here over those of the step",
            )
        else:
            reader.lose("loss_weights", "the first weight must be 1")
    else:
        reader.lose(
            "loss_type",
            f"the loss {', '.join(listed)} is not supported; {', '.join(sorted(_DPO_LOSSES))} are",
        )
    if listed == ["ipo"]:
        reader.set(
            "training.dpo.length_normalized",
            True,
            "loss_type",
            "TRL's ipo takes means over an answer's tokens",
        )
    reader.nothing("loss_weights", "there is one loss") if len(listed) == 1 else None
    if "robust" in listed:
        reader.keep("label_smoothing", "training.dpo.label_smoothing", reader.value("label_smoothing"))
    else:  # TRL 1.16's sigmoid has no smoothing
        reader.nothing("label_smoothing", SENTENCES["SMOOTHED"])
    reader.nothing("discopop_tau", "it belongs to loss_type: discopop") if "discopop" not in listed else None


#: of TRL's think_format_reward: one thought first, then anything
_THOUGHT = r"^<think>(?!.*<think>)(.*?)</think>.*$"
#: TRL's reward functions that one of ours computes alike: theirs → ours
REWARDS: dict[str, JsonObject] = {
    "think_format_reward": {"name": "regex", "options": {"pattern": _THOUGHT}},
}


def lengths(reader: KeyReader) -> None:
    """Ours limits prompt and answer together; TRL limits answers, and prompts no longer."""
    answer, prompt = reader.value("max_completion_length"), reader.given.get("max_prompt_length")
    total = (answer if isinstance(answer, int) else 512) + (prompt if isinstance(prompt, int) else 2048)
    reader.set(
        "data.max_length",
        total,
        "max_completion_length",
        "prompt and answer together; TRL does not limit prompts",
    )
    reader.mapped(("max_prompt_length",), ("data.max_length",), "longer prompts are cut")


def server(reader: KeyReader) -> None:
    """Take over a server of vLLM that generates the answers."""
    host, port = reader.text("vllm_server_host"), reader.value("vllm_server_port")
    url = str(
        reader.given.get("vllm_server_base_url")
        or f"http://{'127.0.0.1' if host in ('', '0.0.0.0') else host}:{port}"
    )
    reader.set("training.rollout.server", {"url": url}, "vllm_server_base_url")
    if reader.facts["algorithm"] == "grpo":
        _correction(reader)
    options = [key for key in reader.given if key.startswith("vllm_") and not reader.decided(key)]
    reader.mapped(("use_vllm", *options), ("training.rollout.server",))


def _correction(reader: KeyReader) -> None:
    """Set the weight that corrects for the server's probabilities, which TRL has by default."""
    key = "vllm_importance_sampling_correction"
    level, _, kind = reader.text("vllm_importance_sampling_mode").partition("_")
    cap = next(
        (
            c
            for c in map(reader.value, ("vllm_importance_sampling_cap", "vllm_importance_sampling_clip_max"))
            if c
        ),
        None,
    )
    if not reader.on(key):
        reader.keep(key, "training.grpo.rollout_correction", "none")
        return
    path = "training.grpo.rollout_correction"
    for option, value in (("", kind), ("_level", level), ("_cap", cap)):
        reader.set(f"{path}{option}", value, key) if value is not None else None
    reader.mapped([k for k in reader.given if k.startswith("vllm_importance_")], (path,))
    if reader.is_given("vllm_importance_sampling_clip_min"):
        reader.lose("vllm_importance_sampling_clip_min", "the weight has an upper bound alone")


def rewards(reader: KeyReader) -> None:
    """Decide the reward functions, their weights, and a reward model."""
    functions, weights = reader.given.get("reward_funcs"), reader.given.get("reward_weights")
    model = reader.given.get("reward_model_name_or_path")
    names = [
        str(name) for name in (functions if isinstance(functions, list) else [functions] if functions else [])
    ]
    items: list[JsonObject | None] = [REWARDS.get(name.removeprefix("trl.rewards.")) for name in names]
    if isinstance(model, str) and model:
        reader.mapped("reward_model_name_or_path", ("training.rollout.rewards",))
        items.insert(0, {"name": "model", "options": {"model": model}})
    listed = weights if isinstance(weights, list) else [weights] if weights is not None else []
    shares = listed or [1.0] * len(items)
    weighted: list[Json] = [
        {**item, "weight": share} for item, share in zip(items, shares, strict=False) if item is not None
    ]
    if weighted:
        reader.set("training.rollout.rewards", weighted, "reward_funcs")
    lost = [name for name, item in zip(reversed(names), reversed(items), strict=False) if item is None]
    if len(shares) != len(items):
        reader.lose("reward_weights", f"{len(shares)} weights for {len(items)} rewards, which TRL refuses")
    if lost:
        says = f"reward functions of that system: {', '.join(reversed(lost))}; write them as"
        says += " training.rollout.rewards (module:function; they get texts: docs/how-to/rollouts.md)"
        reader.lose("reward_funcs", says)
        if listed and not reader.decided("reward_weights"):
            reader.lose("reward_weights", "the weights of rewards that are not known here")
    elif weighted and not reader.decided("reward_weights"):
        reader.mapped(("reward_funcs", "reward_weights"), ("training.rollout.rewards",))


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


CODE = {
    "dtype": _dtype,
    "template_path": _template_path,
    "peft_targets": _peft_targets,
    "datasets": datasets,
    "dataset_kwargs": _dataset_kwargs,
    "dpo_losses": _dpo_losses,
    "lengths": lengths,
    "server": server,
    "rewards": rewards,
}
