"""ms-swift's `rlhf`: the options of each algorithm, with the defaults that it resolves when it starts."""

from __future__ import annotations

from paceline.config.exchange.reading import KeyReader
from paceline.config.exchange.swift_data import completion_length
from paceline.config.exchange.swift_machine import processes
from paceline.core.json_types import Json

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
_BETA = {"grpo": 0.04, "simpo": 2.0, "gkd": 0.5}
_LOSS = {"dpo": "sigmoid", "cpo": "sigmoid", "kto": "kto", "grpo": "grpo"}
_LOSSES = {
    "dpo": ("sigmoid", "hinge", "ipo", "robust"),
    "cpo": ("sigmoid", "hinge", "ipo"),
    "kto": ("kto", "apo_zero_unpaired"),
    "grpo": ("grpo", "bnpo", "dr_grpo", "dapo", "cispo"),
    "simpo": ("simpo",),
}
_OPTIONS = {
    "dpo": ("beta", "loss_type"),
    "kto": ("beta", "loss_type", "desirable_weight", "undesirable_weight"),
    "cpo": ("beta", "loss_type", "cpo_alpha"),
    "simpo": ("beta", "loss_type", "simpo_gamma", "cpo_alpha"),
    "orpo": ("beta",),
    "rm": ("center_rewards_coefficient",),
    "grpo": (
        *("beta", "loss_type", "epsilon", "epsilon_high", "delta", "num_iterations", "scale_rewards"),
        "importance_sampling_level",
    ),
    "ppo": (
        *("num_ppo_epochs", "whiten_rewards", "kl_coef", "cliprange", "vf_coef", "cliprange_value", "gamma"),
        *("lam", "missing_eos_penalty"),
    ),
}
_EVERY = {option for listed in _OPTIONS.values() for option in listed} | {"label_smoothing", "rpo_alpha"}
#: Of an algorithm that this run is not: nothing reads them
_OTHERS = (
    *("ld_alpha", "discopop_tau", "loss_weights", "sft_alpha", "lmbda", "seq_kd", "gkd_logits_topk"),
    *("max_completion_length", "num_generations", "num_generations_eval", "reward_funcs", "reward_weights"),
    *("reward_model", "reward_adapters", "response_length", "num_mini_batches", "num_sample_generations"),
    *("local_rollout_forward_batch_size", "top_p", "top_k", "temperature", "steps_per_generation"),
    *("generation_batch_size", "dynamic_sample", "max_resample_times", "overlong_filter", "min_p"),
    *("advantage_estimator", "kl_in_reward", "sync_ref_model", "ref_model_sync_steps", "stop_words"),
    *("ref_model_mixup_alpha", "top_entropy_quantile", "repetition_penalty", "max_new_tokens", "num_beams"),
)
_NOT_BUILT = {
    "multi_turn_scheduler": "rollouts of several turns of ms-swift's",
    "use_gym_env": "gym environments",
    "gym_env": "gym environments",
    "teacher_model": "a teacher: set algorithm: distillation",
    "teacher_model_server": "a teacher: set algorithm: distillation",
    "chord_sft_dataset": "CHORD's data",
    "rollout_importance_sampling_mode": "set training.grpo.rollout_correction: it",
    "off_policy_sequence_mask_delta": "the off-policy mask",
    "advantage_reweight": "RLSD",
    "sdar_loss_coef": "SDAR",
    "sync_ref_model": "TR-DPO's moving reference",
    "kl_in_reward": "the KL in the reward",
    "structured_outputs_regex": "structured output",
    "async_generate": "generating with older weights",
    "reward_model_plugin": "ms-swift's plugins",
    "reward_adapters": "reward adapters: merge them",
    "min_p": "min-p sampling",
    "stop_words": "stop words in rollouts",
}


def options(reading: KeyReader, word: str, adapters: bool) -> None:
    """Write the algorithm's options, those at their defaults as well."""
    ours = ALGORITHMS.get(word)
    if ours is None or word in ("sft", "pt"):
        _of_others(reading, word)
        return
    for option in _OPTIONS[word]:
        value = _resolved(reading, word, option)
        if option == "loss_type":
            _loss(reading, word, ours, value)
        elif value is not None:
            reading.keep(option, f"training.{ours}.{option}", value)
    if word in ("dpo", "cpo", "simpo") and reading.text("loss_type") not in ("hinge", "ipo"):
        reading.keep("label_smoothing", f"training.{ours}.label_smoothing", reading.value("label_smoothing"))
    if word == "dpo":
        _dpo(reading)
    if word in ("grpo", "ppo"):
        _rollouts(reading, word)
    _reference(reading, word, ours, adapters)
    _of_others(reading, word)


def _resolved(reading: KeyReader, word: str, option: str) -> Json:
    """Return what ms-swift sets where an option has no value."""
    value = reading.value(option)
    if value is not None:
        return value[0] if isinstance(value, list) and len(value) == 1 else value
    if option == "beta":
        return _BETA.get(word, 0.1)
    return {"loss_type": _LOSS.get(word), "scale_rewards": "group"}.get(option)


def _loss(reading: KeyReader, word: str, ours: str, value: Json) -> None:
    if word == "simpo":
        known = value in (None, "simpo")
        reading.mapped("loss_type", ("training.algorithm",)) if known else reading.lose(
            "loss_type", f"{value} under simpo is CPO: set rlhf_type: cpo"
        )
    elif value in _LOSSES[word]:
        reading.keep("loss_type", f"training.{ours}.loss_type", value)
        if (word, value) == ("dpo", "ipo"):
            says = "means over an answer's tokens"
            reading.set("training.dpo.length_normalized", True, "loss_type", says)
    elif word == "dpo" and value == ["sigmoid", "sft"]:
        weights = reading.given.get("loss_weights") or [1.0, 1.0]
        if isinstance(weights, list) and len(weights) == 2 and weights[0] == 1:
            _supervised(reading, "loss_type", weights[1])
            reading.mapped("loss_weights", ("training.dpo.rpo_alpha",))
        else:
            reading.lose("loss_weights", "the first weight must be 1")
    else:
        reading.lose("loss_type", f"the loss {value} is not supported; {', '.join(_LOSSES[word])} are")


def _supervised(reading: KeyReader, key: str, weight: Json) -> None:
    """The loss of the chosen answers: a mean over a micro-batch's tokens there, over a step's here."""
    found = reading.result.settings.get("training.gradient_accumulation_steps")
    steps = reading.given.get("gradient_accumulation_steps", found.value if found else None)
    says = "ms-swift averages it over the tokens of each micro-batch, here over those of the step"
    (reading.keep if steps == 1 else reading.differs)(key, "training.dpo.rpo_alpha", weight, says)


def _dpo(reading: KeyReader) -> None:
    if reading.is_given("rpo_alpha"):
        _supervised(reading, "rpo_alpha", reading.given["rpo_alpha"])
    for key in ("ld_alpha",):
        if reading.is_given(key):
            reading.lose(key, "LD-DPO is not supported")
    if reading.is_given("loss_weights") and not reading.decided("loss_weights"):
        reading.lose("loss_weights", "only sigmoid with sft is supported beside a weight")


def _rollouts(reading: KeyReader, word: str) -> None:
    reading.set("training.rollout.max_completion_length", completion_length(reading), "max_completion_length")
    lengths = ("max_completion_length", "max_new_tokens", "response_length")
    reading.mapped(lengths, ("training.rollout.max_completion_length",))
    for key in ("temperature", "top_p"):
        reading.keep(key, f"training.rollout.{key}", reading.value(key))
    top = reading.value("top_k")
    reading.keep("top_k", "training.rollout.top_k", max(top, 0) if isinstance(top, int) else 0)
    if reading.on("repetition_penalty") and reading.value("repetition_penalty") != 1:
        reading.lose("repetition_penalty", "a repetition penalty is not supported")
    _rewards(reading)
    if word == "ppo":
        for key in ("num_mini_batches", "local_rollout_forward_batch_size"):
            if reading.is_given(key) and reading.given[key] != reading.defaults.get(key):
                reading.lose(key, "one rollout is one step's rows")
        reading.nothing("num_sample_generations", "it changes what is logged, not the training")
        return
    reading.keep("num_generations", "training.rollout.num_generations", reading.value("num_generations"))
    if reading.on("overlong_filter"):
        reading.keep("overlong_filter", "training.grpo.mask_truncated_completions", True)
    if reading.on("dynamic_sample"):
        reading.keep("dynamic_sample", "training.rollout.filter_groups", True)
        redraws = reading.value("max_resample_times")
        reading.keep("max_resample_times", "training.rollout.max_redraws", redraws)
    _generations(reading)
    scale = reading.value("scale_rewards")
    if isinstance(scale, bool):
        reading.keep("scale_rewards", "training.grpo.scale_rewards", "group" if scale else "none")
    elif scale == "gdpo":
        reading.lose("scale_rewards", "GDPO is not supported: group, batch or none")
    if reading.text("importance_sampling_level") == "sequence_token":
        reading.lose("importance_sampling_level", "sequence_token is not supported: token or sequence")
    if reading.value("top_entropy_quantile") not in (None, 1, 1.0):
        reading.lose("top_entropy_quantile", "training on the tokens of highest entropy is not supported")
    if reading.text("advantage_estimator") not in ("", "grpo"):
        says = (
            f"{reading.text('advantage_estimator')}'s advantages: set algorithm: rloo or reinforce_plus_plus"
        )
        reading.lose("advantage_estimator", says)


def _generations(reading: KeyReader) -> None:
    """``generation_batch_size`` counts answers over all processes, ``steps_per_generation`` micro-batches."""
    rows, whole = reading.value("per_device_train_batch_size"), reading.given.get("generation_batch_size")
    if reading.is_given("steps_per_generation"):
        steps = reading.given["steps_per_generation"]
        reading.keep("steps_per_generation", "training.rollout.steps_per_generation", steps)
        reading.mapped("generation_batch_size", ("training.rollout.steps_per_generation",))
    elif isinstance(whole, int) and isinstance(rows, int) and whole % (rows * processes(reading)) == 0:
        steps = whole // (rows * processes(reading))
        reading.keep("generation_batch_size", "training.rollout.steps_per_generation", steps)
    elif whole:
        reading.lose("generation_batch_size", "it is no multiple of the rows of all processes")
    says = "the training processes generate the answers themselves, from the same distribution"
    if reading.text("vllm_mode") == "server":
        reading.lose("vllm_mode", "set training.rollout.server: {url: …}; without it the processes generate")
    own = [
        k
        for k in reading.given
        if k.startswith(("vllm_", "use_vllm", "sleep_level", "offload_", "move_model"))
    ]
    reading.nothing([key for key in own if not reading.decided(key)], says)


def _rewards(reading: KeyReader) -> None:
    names, models = reading.given.get("reward_funcs"), reading.given.get("reward_model")
    if names:
        says = "reward functions are written as training.rollout.rewards (docs/rollouts.md)"
        reading.lose("reward_funcs", says)
        reading.lose("reward_weights", says) if reading.is_given("reward_weights") else None
    listed = models if isinstance(models, list) else [models] if models else []
    if listed:
        weights = reading.given.get("reward_weights")
        shares = weights if isinstance(weights, list) else [1.0] * len(listed)
        made: list[Json] = [
            {"name": "model", "options": {"model": name}, "weight": share}
            for name, share in zip(listed, shares[-len(listed) :], strict=False)
        ]
        reading.keep("reward_model", "training.rollout.rewards", made)
        if not names:
            reading.mapped("reward_weights", ("training.rollout.rewards",))


def _reference(reading: KeyReader, word: str, ours: str, adapters: bool) -> None:
    """The reference: one that is named; below a trained adapter the base, unless ref_adapters repeats it."""
    if word not in ("dpo", "kto", "grpo", "ppo"):
        return
    path = f"training.{ours}.ref_model"
    if reading.is_given("ref_model"):
        reading.keep("ref_model", path, reading.given["ref_model"])
    elif adapters and reading.is_given("adapters") and not reading.is_given("ref_adapters"):
        says = "ms-swift's reference is the base without its adapter"
        reading.set(path, reading.given.get("model"), "adapters", says)
    elif reading.is_given("ref_adapters") and not reading.decided("ref_adapters"):
        reading.mapped("ref_adapters", (path,), "the adapter as the run finds it")


def _of_others(reading: KeyReader, word: str) -> None:
    """What is not built is lost where it is on; what belongs to another algorithm has no effect."""
    for key, what in _NOT_BUILT.items():
        default = reading.defaults.get(key)
        if key in reading.given and reading.on(key) and reading.given[key] != default:
            if word in ("sft", "pt") or (word not in ("grpo", "ppo", "gkd") and key in _OTHERS):
                reading.nothing(key, f"it does not act with {word}")
            else:
                reading.lose(key, f"{what} is not supported")
    if word in ALGORITHMS or word in ("sft", "pt"):
        left = [key for key in (*_EVERY, *_OTHERS) if key in reading.given and not reading.decided(key)]
        reading.nothing(
            [key for key in left if not (word in ("sft", "pt") and key in ("loss_type", "label_smoothing"))],
            f"it does not act with {word}",
        )
