"""TRL's arguments: SFT, DPO, KTO, reward, GRPO and RLOO trainers, their model and script arguments."""

from __future__ import annotations

from paceline.config.exchange.common import CHUNKED, SMOOTHED, transformers_keys, whole_weights_in
from paceline.config.exchange.reading import KeyReader
from paceline.config.exchange.tables import NO_TRACKERS, defaults
from paceline.config.exchange.trl_data import datasets
from paceline.config.exchange.trl_rollouts import rollouts
from paceline.core.json_types import Json

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
_ROLLOUTS = ("grpo", "rloo")
_DPO_LOSSES = {"sigmoid", "hinge", "ipo", "robust"}


def trl_defaults(algorithm: str) -> dict[str, object]:
    """Return the defaults of one of TRL's trainers, Transformers' below them."""
    found = defaults("transformers") | defaults("trl", _COMMON) | defaults("trl", [TRAINERS[algorithm]])
    return {**found, **NO_TRACKERS, "bf16": True}  # bf16: TRL's, unless fp16 is set


def algorithm_of(given: dict[str, Json]) -> str:
    """Return the trainer that a file is for, by its keys; files of TRL do not name it."""
    keys = set(given)
    if keys & {"num_generations", "reward_funcs", "max_completion_length", "use_vllm", "scale_rewards"}:
        return "rloo" if keys & {"normalize_advantages", "reward_clip_range"} else "grpo"
    if keys & {"desirable_weight", "undesirable_weight"}:
        return "kto"
    if keys & {"beta", "precompute_ref_log_probs", "loss_weights", "label_smoothing", "f_divergence_type"}:
        return "dpo"
    return "reward" if "center_rewards_coefficient" in keys else "sft"


def translate(reading: KeyReader, algorithm: str) -> None:
    """Decide every key of a TRL file for ``algorithm``."""
    reading.set("training.algorithm", algorithm)
    _model(reading, algorithm)
    _adapter(reading)
    _length(reading, algorithm)
    datasets(reading, algorithm)
    if algorithm != "sft":
        reading.set("data.packing", False, "packing", "this trainer of TRL packs nothing")
    if algorithm == "sft":
        _sft(reading)
    elif algorithm == "dpo":
        _dpo(reading)
    elif algorithm == "kto":
        _kto(reading)
    elif algorithm in _ROLLOUTS:
        rollouts(reading, algorithm)
    _open_instruct(reading)
    memory = (
        "activation_offloading",
        "dataset_num_proc_eval",
        "pad_to_multiple_of",
        "pad_token",
        "use_transformers_paged",
    )
    reading.nothing(memory, CHUNKED)
    transformers_keys(reading)


def _open_instruct(reading: KeyReader) -> None:
    """Open-Instruct's own names, in files that are otherwise TRL's."""
    steps = reading.given.get("checkpointing_steps")
    if steps == "epoch":
        reading.keep("checkpointing_steps", "training.save_strategy", "epoch")
    elif steps is not None:
        reading.keep("checkpointing_steps", "training.save_steps", steps)
    reading.nothing("use_slow_tokenizer", "slow and fast tokenizers write the same tokens")
    if reading.text("loss_type") in ("dpo_norm", "dpo"):
        reading.nothing("mask_prompt", "prompts never have loss")


def _model(reading: KeyReader, algorithm: str) -> None:
    if reading.is_given("dtype") or reading.is_given("torch_dtype"):
        key = "dtype" if reading.is_given("dtype") else "torch_dtype"
        dtype_of_weights(reading, key, reading.on("use_peft"))
    if reading.text("model_revision") == "main":
        reading.nothing("model_revision", "main is what is read without it")
    reading.nothing("lora_task_type", "the task follows from the algorithm")
    reading.nothing("ignore_bias_buffers", "buffers are not sent between processes")
    dropout = "adapters' dropout is lora.dropout; published language models have none of their own"
    reading.nothing("disable_dropout", dropout)
    if isinstance(kwargs := reading.given.get("model_init_kwargs"), dict):
        reading.lose("model_init_kwargs", f"arguments of from_pretrained: {', '.join(kwargs)}")
    if reading.is_given("chat_template") or reading.is_given("chat_template_path"):
        key = "chat_template" if reading.is_given("chat_template") else "chat_template_path"
        reading.keep(key, "model.chat_template", reading.given[key])
    if reading.is_given("eos_token"):
        if reading.is_given("chat_template") or reading.is_given("chat_template_path"):
            reading.nothing("eos_token", "the token that ends a turn is read off the chat template")
        else:
            reading.lose(
                "eos_token", "the tokenizer's own end of text is used; model.chat_template may write another"
            )
    if reading.is_given("sync_ref_model") and not reading.on("sync_ref_model"):
        reading.nothing("sync_ref_model", "off, as here")
    if not reading.on("sync_ref_model"):
        reading.nothing(("ref_model_mixup_alpha", "ref_model_sync_steps"), "sync_ref_model is off")


def dtype_of_weights(reading: KeyReader, key: str, adapters: bool) -> None:
    """Decide the dtype in which the weights are loaded, and trained without adapters."""
    word = reading.text(key)
    if adapters and word not in ("float32", "auto"):
        reading.keep(key, "model.dtype", word, "of the frozen weights; adapters are float32")
    else:
        whole_weights_in(reading, key, word, "TRL")


def _adapter(reading: KeyReader) -> None:
    keys = [key for key in (*reading.given, *reading.defaults) if key.startswith("lora_")]
    quantised = (
        "load_in_4bit",
        "load_in_8bit",
        "bnb_4bit_quant_type",
        "use_bnb_nested_quant",
        "bnb_4bit_quant_storage",
    )
    if not reading.on("use_peft"):
        reading.nothing(
            [*keys, "use_rslora", "use_dora", "use_peft", "use_lora"],
            "use_peft is off: all weights are trained",
        )
        if not reading.on("load_in_4bit") and not reading.on("load_in_8bit"):
            reading.nothing(quantised, "the weights are not quantised")
        return
    for key, ours in (("lora_r", "r"), ("lora_alpha", "alpha"), ("lora_dropout", "dropout")):
        reading.keep(key, f"lora.{ours}", reading.value(key))
    targets = reading.value("lora_target_modules")
    if targets:
        reading.keep(
            "lora_target_modules",
            "lora.target_modules",
            "all-linear" if targets in ("all-linear", ["all-linear"]) else targets,
        )
    else:
        note = "peft's choice for Llama, Mistral and Qwen2 where lora_target_modules is empty"
        reading.set("lora.target_modules", ["q_proj", "v_proj"], "lora_target_modules", note)
    for key, ours in (
        ("lora_modules_to_save", "modules_to_save"),
        ("lora_target_parameters", "target_parameters"),
    ):
        if reading.is_given(key):
            reading.keep(key, f"lora.{ours}", reading.given[key])
    reading.mapped("use_peft", ("lora",))
    bits = 4 if reading.on("load_in_4bit") else 8 if reading.on("load_in_8bit") else None
    if bits:
        reading.set("lora.quantization_bit", bits, f"load_in_{bits}bit")
        reading.mapped(("load_in_4bit", "load_in_8bit"), ("lora.quantization_bit",))
        reading.keep("bnb_4bit_quant_type", "lora.quantization_type", reading.value("bnb_4bit_quant_type"))
        reading.keep("use_bnb_nested_quant", "lora.double_quant", reading.on("use_bnb_nested_quant"))
        reading.nothing("bnb_4bit_quant_storage", CHUNKED)
    else:
        reading.nothing(quantised, "the weights are not quantised")


def _length(reading: KeyReader, algorithm: str) -> None:
    """``max_seq_length`` is an older name of ``max_length``; prompts had a limit of their own."""
    old = next((key for key in ("max_seq_length", "max_seq_len") if reading.is_given(key)), None)
    if old:
        reading.keep(old, "data.max_length", reading.given[old])
    elif algorithm not in _ROLLOUTS:
        limit = reading.value("max_length")
        if limit is not None:
            reading.keep("max_length", "data.max_length", limit)
        else:
            reading.lose("max_length", "rows have a limit here: data.max_length")
    if reading.text("truncation_mode") == "keep_start":
        reading.nothing("truncation_mode", "the start is kept, as here")
    if algorithm not in _ROLLOUTS and reading.is_given("max_prompt_length"):
        reading.nothing("max_prompt_length", "TRL 1.16 no longer has it: max_length alone limits a row")


def _sft(reading: KeyReader) -> None:
    packing = reading.on("packing")
    reading.keep("packing", "data.packing", packing)
    strategy = reading.text("packing_strategy")
    if not packing or strategy in ("bfd", "ffd", "bfd_split"):
        why = (
            "documents do not see each other in a packed row; only the bins differ"
            if packing
            else "packing is off"
        )
        reading.nothing("packing_strategy", why)
    else:
        reading.lose("packing_strategy", "documents in a packed row see each other; here they never do")
    reading.nothing("padding_free", "padding never weighs anything")
    reading.nothing("eval_packing", "evaluation is a mean over tokens, packed or not")
    if reading.text("loss_type") in ("nll", "chunked_nll"):
        reading.nothing("loss_type", "the mean negative log-likelihood of the tokens, as here")
    elif reading.is_given("loss_type"):
        reading.lose("loss_type", f"the loss {reading.text('loss_type')} is not supported for SFT")
    if not reading.on("shuffle_dataset"):
        reading.nothing("shuffle_dataset", "rows are permuted by seed either way")
    kwargs = reading.given.get("dataset_kwargs")
    known = {"add_special_tokens", "append_concat_token", "skip_prepare_dataset"}
    if isinstance(kwargs, dict) and set(kwargs) <= known and not kwargs.get("skip_prepare_dataset"):
        inner = [f"dataset_kwargs.{key}" for key in kwargs]
        reading.nothing(("dataset_kwargs", *inner), "the chat template writes the special tokens")


def _dpo(reading: KeyReader) -> None:
    reading.keep("beta", "training.dpo.beta", reading.value("beta"))
    losses = reading.value("loss_type")
    listed = [str(item) for item in losses] if isinstance(losses, list) else [str(losses)]
    if len(listed) == 1 and listed[0] in _DPO_LOSSES:
        reading.keep("loss_type", "training.dpo.loss_type", listed[0])
    elif listed == ["dpo_norm"] or listed == ["sigmoid_norm"]:
        reading.set("training.dpo.loss_type", "sigmoid", "loss_type")
        reading.set("training.dpo.length_normalized", True, "loss_type")
        reading.mapped("loss_type", ("training.dpo.loss_type", "training.dpo.length_normalized"))
    elif listed == ["sigmoid", "sft"]:
        weights = reading.value("loss_weights")
        pair = weights if isinstance(weights, list) and len(weights) == 2 else [1.0, 1.0]
        if pair[0] == 1:
            reading.mapped("loss_weights", ("training.dpo.rpo_alpha",))
            one = reading.value("gradient_accumulation_steps") == 1
            (reading.keep if one else reading.differs)(
                "loss_type",
                "training.dpo.rpo_alpha",
                pair[1],
                "TRL averages the sft term over the tokens of each micro-batch, here over those of the step",
            )
        else:
            reading.lose("loss_weights", "the first weight must be 1")
    else:
        reading.lose(
            "loss_type",
            f"the loss {', '.join(listed)} is not supported; {', '.join(sorted(_DPO_LOSSES))} are",
        )
    if listed == ["ipo"]:
        reading.set(
            "training.dpo.length_normalized",
            True,
            "loss_type",
            "TRL's ipo takes means over an answer's tokens",
        )
    reading.nothing("loss_weights", "there is one loss") if len(listed) == 1 else None
    if "robust" in listed:
        reading.keep("label_smoothing", "training.dpo.label_smoothing", reading.value("label_smoothing"))
    else:  # TRL 1.16's sigmoid has no smoothing
        reading.nothing("label_smoothing", SMOOTHED)
    if reading.text("f_divergence_type") == "reverse_kl":
        reading.nothing(("f_divergence_type", "f_alpha_divergence_coef"), "reverse KL, as here")
    reading.nothing("discopop_tau", "it belongs to loss_type: discopop") if "discopop" not in listed else None
    reading.nothing("padding_free", "padding never weighs anything")
    if not reading.on("use_weighting"):
        reading.nothing("use_weighting", "off, as here")
    for key, why in (
        ("use_weighting", "WPO's weights"),
        ("ld_alpha", "LD-DPO"),
        ("sync_ref_model", "TR-DPO"),
    ):
        if reading.is_given(key) and reading.on(key):
            reading.lose(key, f"{why} are not supported")


def _kto(reading: KeyReader) -> None:
    for key in ("beta", "loss_type", "desirable_weight", "undesirable_weight"):
        reading.keep(key, f"training.kto.{key}", reading.value(key))
    if not reading.on("precompute_ref_log_probs"):
        reading.nothing("precompute_ref_log_probs", "the reference is computed beside the policy")
    reading.nothing(
        ("precompute_ref_log_probs", "precompute_ref_batch_size"),
        "the same log-probabilities, computed when needed",
    )
    if reading.text("train_sampling_strategy") == "sequential":
        says = "TRL keeps the rows' order for its KL estimate; here the estimate is over the global batch"
        reading.nothing("train_sampling_strategy", says)
