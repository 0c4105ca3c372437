"""axolotl's algorithms (``rl``, ``reward_model``) and their options."""

from __future__ import annotations

from paceline.config.exchange.common import KERNEL, LOGGED, SMOOTHED
from paceline.config.exchange.reading import KeyReader

_ALGORITHMS = {
    "": "sft",
    "dpo": "dpo",
    "ipo": "dpo",
    "kto": "kto",
    "orpo": "orpo",
    "simpo": "simpo",
    "grpo": "grpo",
}


def algorithm_of(reading: KeyReader) -> str:
    """Decide the keys of the algorithm, and return ours."""
    rl = reading.text("rl")
    algorithm = "reward" if reading.on("reward_model") else _ALGORITHMS.get(rl, "sft")
    if rl in _ALGORITHMS:
        reading.set("training.algorithm", algorithm, "reward_model" if algorithm == "reward" else "rl")
        reading.mapped(("rl", "reward_model"), ("training.algorithm",))
        reading.nothing("num_labels", "a reward is one number") if reading.value("num_labels") == 1 else None
    else:
        reading.lose("rl", f"rl: {rl} is not supported")
    if rl == "ipo":
        reading.set("training.dpo.loss_type", "ipo", "rl")
        reading.set("training.dpo.length_normalized", True, "rl")
    _options(reading, algorithm)
    return algorithm


def _options(reading: KeyReader, algorithm: str) -> None:
    own: dict[str, str] = {}
    if algorithm in ("dpo", "kto", "simpo", "orpo", "grpo"):
        _beta(reading, f"training.{algorithm}.beta")
    if algorithm == "dpo":
        own |= {
            "rpo_alpha": "training.dpo.rpo_alpha",
            "precompute_ref_log_probs": "training.dpo.precompute_ref_log_probs",
            "dpo_loss_type": "training.dpo.loss_type",
        }
        if reading.value("dpo_loss_type") in ("robust", ["robust"]):
            own["dpo_label_smoothing"] = "training.dpo.label_smoothing"
        else:  # axolotl 0.19 trains with TRL 1.9
            reading.nothing("dpo_label_smoothing", SMOOTHED)
    if algorithm == "simpo":
        reading.set("training.simpo.cpo_alpha", 1.0, "cpo_alpha", "TRL's default")
        own |= {"simpo_gamma": "training.simpo.simpo_gamma", "cpo_alpha": "training.simpo.cpo_alpha"}
    if algorithm == "kto":
        own |= {
            "kto_desirable_weight": "training.kto.desirable_weight",
            "kto_undesirable_weight": "training.kto.undesirable_weight",
        }
    if algorithm == "reward":
        own["center_rewards_coefficient"] = "training.reward.center_rewards_coefficient"
    for key, path in own.items():
        if reading.is_given(key):
            value = reading.given[key]
            reading.keep(key, path, value[0] if isinstance(value, list) and len(value) == 1 else value)
    reading.nothing(("dpo_use_liger_kernel", "dpo_padding_free", "dpo_use_logits_to_keep"), KERNEL)
    if algorithm != "grpo":
        reading.nothing(
            [k for k in reading.given if k.partition(".")[0] in ("trl", "vllm") and k != "trl.beta"],
            f"it does not act with {algorithm}",
        )
    else:
        _grpo(reading)


def _beta(reading: KeyReader, path: str) -> None:
    """Of several betas axolotl takes the first of these, for every algorithm."""
    given = [key for key in ("trl.beta", "rl_beta", "orpo_alpha", "dpo_beta") if reading.is_given(key)]
    if given:
        reading.keep(given[0], path, reading.given[given[0]])
    reading.nothing(given[1:], f"{given[0]} wins over it" if given else "")
    reading.nothing(("orpo_alpha",), "beta decides") if "orpo_alpha" not in given else None


def _grpo(reading: KeyReader) -> None:
    inner = ("num_generations", "max_completion_length", "temperature", "top_p", "top_k")
    loss = (
        "epsilon",
        "epsilon_high",
        "loss_type",
        "num_iterations",
        "importance_sampling_level",
        "mask_truncated_completions",
    )
    for names, path in ((inner, "training.rollout"), (loss, "training.grpo")):
        for name in names:
            if reading.is_given(f"trl.{name}"):
                reading.keep(f"trl.{name}", f"{path}.{name}", reading.given[f"trl.{name}"])
    name = "trl.use_bias_correction_kl"  # axolotl 0.19 trains with TRL 1.9
    if not reading.is_given("trl.num_generations"):
        reading.set("training.rollout.num_generations", 8, "trl.num_generations", "TRL's default")
    if reading.is_given("trl") and not reading.is_given("trl.max_completion_length"):
        says = "axolotl hands on no limit (the model's generation config decides); here it is 256 tokens"
        reading.differs("trl.max_completion_length", "training.rollout.max_completion_length", 256, says)
    reading.set("training.grpo.use_bias_correction_kl", reading.on(name), name, "off by default in TRL 1.9")
    reading.mapped(name, ("training.grpo.use_bias_correction_kl",))
    if "trl.scale_rewards" in reading.given:
        given = reading.given["trl.scale_rewards"]
        word = given if isinstance(given, str) else "group" if given else "none"
        reading.keep("trl.scale_rewards", "training.grpo.scale_rewards", word)
    says = "the training processes generate the answers themselves, from the same distribution"
    reading.nothing([k for k in reading.given if k.startswith(("trl.vllm", "trl.use_vllm", "vllm"))], says)
    reading.nothing([k for k in reading.given if k.startswith(("trl.log_", "trl.num_completions"))], LOGGED)
    for key in [k for k in reading.given if k.startswith(("trl.reward_", "trl.rollout_func"))]:
        reading.lose(
            key,
            "reward functions are written as training.rollout.rewards (module:function, docs/rollouts.md)",
        )
    reading.nothing("trl.use_liger_loss", KERNEL)
    for key in [k for k in reading.open_keys() if k.startswith("trl.")]:
        if not reading.on(key) or (key, reading.given[key]) == ("trl.repetition_penalty", 1.0):
            reading.nothing(key, "off, as here")
        else:
            reading.lose(key, f"what TRL does with {key.partition('.')[2]} is not supported")
    reading.mapped("trl", ("training.grpo", "training.rollout"))
