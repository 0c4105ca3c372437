"""TRL's GRPO and RLOO: sampling, rewards and the loss."""

from __future__ import annotations

from paceline.config.exchange.reading import KeyReader
from paceline.core.json_types import Json, JsonObject

_LOSS = {
    "grpo": (
        "beta",
        "epsilon",
        "epsilon_high",
        "delta",
        "loss_type",
        "importance_sampling_level",
        "num_iterations",
    ),
    "rloo": (
        "beta",
        "epsilon",
        "epsilon_high",
        "normalize_advantages",
        "reward_clip_range",
        "num_iterations",
    ),
}
_LOSSES = ("grpo", "dapo", "bnpo", "dr_grpo", "cispo")
_OTHER_LOSSES = ("sapo_", "vespo_")
#: Features with a switch: their other keys matter only with it
_BELONGS = {
    "use_adaptive_entropy": ("entropy_coef_min", "entropy_coef_max", "entropy_coef_delta", "entropy_target"),
    "sync_ref_model": ("ref_model_mixup_alpha", "ref_model_sync_steps"),
    "use_transformers_continuous_batching": ("transformers_continuous_batching_config",),
}
_OFF: dict[str, tuple[tuple[Json, ...], str]] = {
    "min_p": ((0, 0.0), "min-p sampling is not supported"),
    "repetition_penalty": ((1, 1.0), "a repetition penalty is not supported"),
    "top_entropy_quantile": ((1, 1.0), "training on the tokens of highest entropy is not supported"),
    "entropy_coef": ((0, 0.0), "an entropy bonus is not supported"),
    "off_policy_mask_threshold": ((), "the off-policy mask is not supported"),
    "generation_kwargs": (({},), "other arguments of generate are not supported"),
    "vllm_structured_outputs_regex": ((), "structured output is not supported"),
    "multi_objective_aggregation": (("sum_then_normalize",), "rewards are summed before they are normalised"),
    "max_tool_calling_iterations": ((), "tool calls in rollouts are not supported"),
    "reward_model_name_or_path": ((), ""),
}
#: TRL's and Open-R1's reward functions that one of ours computes alike: theirs → ours
REWARDS: dict[str, JsonObject] = {
    "trl.rewards.think_format_reward": {"name": "format", "options": {"names": ["think"]}},
}


def rollouts(reading: KeyReader, algorithm: str) -> None:
    """Decide the keys of an on-policy trainer."""
    for key in ("num_generations", "max_completion_length", "temperature", "top_p", "top_k"):
        reading.keep(key, f"training.rollout.{key}", reading.value(key))
    for key in _LOSS[algorithm]:
        value = reading.value(key)
        if value is not None and not (key == "loss_type" and value not in _LOSSES):
            reading.keep(key, f"training.{algorithm}.{key}", value)
    if algorithm == "grpo":
        _grpo(reading)
    _length(reading)
    _generation(reading)
    _rewards(reading)
    if reading.is_given("mask_truncated_completions"):
        reading.keep(
            "mask_truncated_completions",
            f"training.{algorithm}.mask_truncated_completions",
            reading.on("mask_truncated_completions"),
        )
    for key, (fine, why) in _OFF.items():
        if reading.given.get(key) in fine:
            reading.nothing(key, "off, as here")
        elif reading.is_given(key) and why:
            reading.lose(key, why)
    for switch, keys in _BELONGS.items():
        if not reading.on(switch):
            reading.nothing((switch, *keys), f"{switch} is off")
    reading.nothing(
        [k for k in reading.given if k.startswith(_OTHER_LOSSES)], "it belongs to another loss_type"
    )
    reading.nothing("shuffle_dataset", "rows are permuted by seed") if reading.on("shuffle_dataset") else None
    reading.nothing("cast_lm_head_to_fp32", "log-probabilities are computed in float32")
    reading.nothing("remove_unused_columns", "columns that rewards read are kept")


def _grpo(reading: KeyReader) -> None:
    scale = reading.value("scale_rewards")
    word = scale if not isinstance(scale, bool) else "group" if scale else "none"
    reading.keep("scale_rewards", "training.grpo.scale_rewards", word)
    reading.keep(
        "use_bias_correction_kl", "training.grpo.use_bias_correction_kl", reading.on("use_bias_correction_kl")
    )
    loss = reading.text("loss_type")
    if loss not in _LOSSES:
        reading.lose("loss_type", f"the loss {loss} is not supported; {', '.join(_LOSSES)} are")


def _length(reading: KeyReader) -> None:
    """Ours limits prompt and answer together; TRL limits answers, and prompts no longer."""
    answer, prompt = reading.value("max_completion_length"), reading.given.get("max_prompt_length")
    whole = (answer if isinstance(answer, int) else 512) + (prompt if isinstance(prompt, int) else 2048)
    reading.set(
        "data.max_length",
        whole,
        "max_completion_length",
        "prompt and answer together; TRL does not limit prompts",
    )
    reading.mapped(("max_prompt_length",), ("data.max_length",), "longer prompts are cut")


def _generation(reading: KeyReader) -> None:
    own = [key for key in reading.given if key.startswith("vllm_")]
    if reading.text("vllm_mode") == "server" and reading.on("use_vllm"):
        host, port = reading.text("vllm_server_host"), reading.value("vllm_server_port")
        url = str(
            reading.given.get("vllm_server_base_url")
            or f"http://{'127.0.0.1' if host in ('', '0.0.0.0') else host}:{port}"
        )
        reading.set("training.rollout.server", {"url": url}, "vllm_server_base_url")
        reading.mapped(("use_vllm", *own), ("training.rollout.server",))
    else:
        says = "the training processes generate the answers themselves, from the same distribution"
        reading.nothing(("use_vllm", "vllm_mode", *own, "cache_implementation"), says)
    if reading.is_given("steps_per_generation"):
        reading.keep(
            "steps_per_generation",
            "training.rollout.steps_per_generation",
            reading.given["steps_per_generation"],
        )
    if reading.is_given("generation_batch_size"):
        reading.lose("generation_batch_size", "set steps_per_generation, which counts micro-batches")
    if reading.is_given("ds3_gather_for_generation"):
        reading.keep(
            "ds3_gather_for_generation",
            "training.rollout.gather_for_generation",
            reading.on("ds3_gather_for_generation"),
        )
    reading.nothing("num_generations_eval", "evaluation has its own metrics")
    if isinstance(kwargs := reading.given.get("chat_template_kwargs"), dict):
        reading.keep("chat_template_kwargs", "model.chat_template_kwargs", kwargs)


def _rewards(reading: KeyReader) -> None:
    names = reading.given.get("reward_funcs")
    weights = reading.given.get("reward_weights")
    model = reading.given.get("reward_model_name_or_path")
    listed = [str(name) for name in names] if isinstance(names, list) else []
    shares = list(weights) if isinstance(weights, list) else [1.0] * (len(listed) + bool(model))
    made: list[Json] = []
    lost: list[str] = []
    if isinstance(model, str) and model:
        reading.mapped("reward_model_name_or_path", ("training.rollout.rewards",))
        made.append({"name": "model", "options": {"model": model}})
    for name in listed:
        known = REWARDS.get(name)
        made.append(dict(known)) if known else lost.append(name)
    if lost:
        says = f"reward functions of that system: {', '.join(lost)}; write them as training.rollout.rewards"
        reading.lose("reward_funcs", f"{says} (module:function, docs/rollouts.md)")
        if "reward_weights" in reading.given:
            reading.lose("reward_weights", "the weights of rewards that are not known here")
    elif made:
        for item, share in zip(made, shares, strict=False):
            if isinstance(item, dict):
                item["weight"] = share
        reading.mapped(("reward_funcs", "reward_weights"), ("training.rollout.rewards",))
    if made:
        reading.set("training.rollout.rewards", made, "reward_funcs")
