"""LLaMA-Factory's arguments (0.9), and the newer files of its version 1."""

from __future__ import annotations

import math
from pathlib import Path

from paceline.config.exchange.common import CHUNKED, HUB, transformers_keys
from paceline.config.exchange.llamafactory_data import datasets
from paceline.config.exchange.llamafactory_off import switched
from paceline.config.exchange.llamafactory_template import template
from paceline.config.exchange.llamafactory_v1 import ktransformers, megatron, version_1
from paceline.config.exchange.low_rank import llamafactory_galore
from paceline.config.exchange.reading import KeyReader
from paceline.config.exchange.tables import NO_TRACKERS, defaults
from paceline.core.json_types import Json, JsonObject, as_object

_STAGES = {"sft": "sft", "pt": "sft", "rm": "reward", "dpo": "dpo", "kto": "kto", "ppo": "ppo"}
_OWN = ("FreezeArguments", "LoraArguments", "RLHFArguments")
_EXPORT = (
    "export_dir",
    "export_size",
    "export_device",
    "export_quantization_bit",
    "export_quantization_dataset",
    "export_quantization_nsamples",
    "export_quantization_maxlen",
    "export_legacy_format",
    "export_hub_model_id",
)
_GENERATION = (
    "do_sample",
    "top_p",
    "top_k",
    "num_beams",
    "max_new_tokens",
    "repetition_penalty",
    "length_penalty",
    "skip_special_tokens",
    "infer_dtype",
    "infer_backend",
    "use_kv_cache",
    "sample_backend",
)


def llamafactory_defaults() -> dict[str, object]:
    """Return the defaults of its arguments, Transformers' below them."""
    found = defaults("transformers") | defaults("llamafactory")
    # of generation, which is no part of training, and read by code of their own
    for key in ("max_length", "add_tokens", "add_special_tokens"):
        found.pop(key, None)
    return {**found, **NO_TRACKERS}


def translate(reading: KeyReader) -> None:
    """Decide every key of a LLaMA-Factory file."""
    stage = reading.text("stage")
    algorithm = _algorithm(reading, stage)
    _tuning(reading, stage)
    _preferences(reading, algorithm)
    template(reading, stage)
    datasets(reading, stage)
    _packing(reading, stage)
    _model(reading)
    if reading.on("use_kt"):
        ktransformers(reading)
    megatron(reading)
    version_1(reading)
    llamafactory_galore(reading)
    switched(reading, algorithm)
    _not_training(reading)
    if reading.is_given("warmup_ratio") and reading.is_given("warmup_steps"):
        says = "warmup_ratio wins over it, with the Transformers 5.6 of LLaMA-Factory 0.9.5"
        reading.keep("warmup_ratio", "training.warmup_steps", reading.given["warmup_ratio"])
        reading.nothing("warmup_steps", says)
    _stable_decay(reading)
    transformers_keys(reading)
    if stage == "pt":
        reading.set("data.train_on", "all", "stage", "pre-training: loss on every token")


def _algorithm(reading: KeyReader, stage: str) -> str:
    loss = reading.text("pref_loss") if stage == "dpo" else ""
    algorithm = loss if loss in ("orpo", "simpo") else _STAGES.get(stage, stage)
    reading.keep("stage", "training.algorithm", algorithm)
    return algorithm


def _stable_decay(reading: KeyReader) -> None:
    """Its default of ``warmup_stable_decay``: of the steps after the warm-up a third is stable."""
    if reading.text("lr_scheduler_type") != "warmup_stable_decay":
        return
    given = as_object(reading.given.get("lr_scheduler_kwargs"))
    if "num_stable_steps" in given and "num_decay_steps" in given:
        return
    steps, warmup = reading.given.get("max_steps"), reading.value("warmup_steps") or 0
    ratio = reading.given.get("warmup_ratio") or (warmup if isinstance(warmup, float) and warmup < 1 else 0)
    if not isinstance(steps, int) or steps <= 0 or not isinstance(ratio, (int, float)):
        third = "a third of the steps after the warm-up is stable, the rest decays"
        hint = "set max_steps, or lr_scheduler_kwargs: {num_stable_steps: N, num_decay_steps: M}"
        reading.lose("lr_scheduler_type", f"{third}, and how many these are is not known: {hint}")
        return
    rest = steps - (math.ceil(steps * ratio) if ratio else int(warmup) if isinstance(warmup, int) else 0)
    whole: JsonObject = {"num_stable_steps": rest // 3, "num_decay_steps": rest - rest // 3, **given}
    reading.set("training.lr_scheduler_kwargs", whole, "lr_scheduler_type", "LLaMA-Factory's own thirds")
    reading.mapped(
        [key for key in reading.given if key.partition(".")[0] == "lr_scheduler_kwargs"],
        ("training.lr_scheduler_kwargs",),
    )
    reading.keep("lr_scheduler_type", "training.lr_scheduler_type", "warmup_stable_decay")


def _tuning(reading: KeyReader, stage: str) -> None:
    kind = reading.text("finetuning_type")
    bf16 = reading.on("bf16") or reading.on("pure_bf16")
    word = "bfloat16" if bf16 else "float16" if reading.on("fp16") else "float32"
    pure = reading.on("pure_bf16") and kind == "full" and not reading.engine()
    if word != "float32":
        says = "weights are loaded so" + ("" if pure else ", and trained as float32")
        reading.set("model.dtype", word, "bf16" if bf16 else "fp16", says)
    if pure:
        reading.keep("pure_bf16", "training.pure_bf16", True)
    elif reading.on("pure_bf16"):
        says = "trained weights and their moments are bfloat16 there; here they are float32"
        reading.differs("pure_bf16", "training.mixed_precision", "bf16", says)
        reading.mapped(("bf16",), ("training.mixed_precision",))
    else:
        reading.nothing("pure_bf16", "off, as here")
    adapter = [
        key for key in reading.given if key.startswith("lora_") or key in ("use_rslora", "additional_target")
    ]
    if kind != "lora":
        if kind == "full":
            reading.nothing("finetuning_type", "all weights are trained where there is no lora section")
        else:
            reading.lose("finetuning_type", f"{kind} is not supported: lora or full")
        reading.nothing(adapter, f"it belongs to finetuning_type: lora, and this is {kind}")
        return
    rank, alpha = reading.value("lora_rank"), reading.value("lora_alpha")
    twice = rank * 2 if isinstance(rank, int) else None
    reading.mapped("finetuning_type", ("lora",))
    reading.keep("lora_rank", "lora.r", rank)
    reading.keep("lora_alpha", "lora.alpha", twice if alpha is None else alpha)
    reading.keep("lora_dropout", "lora.dropout", reading.value("lora_dropout"))
    targets = reading.value("lora_target")
    listed: Json = [part.strip() for part in str(targets).split(",")] if isinstance(targets, str) else targets
    reading.keep("lora_target", "lora.target_modules", "all-linear" if listed == ["all"] else listed)
    if reading.is_given("additional_target"):
        extra = str(reading.given["additional_target"]).split(",")
        reading.keep("additional_target", "lora.modules_to_save", [part.strip() for part in extra])
    if reading.on("use_rslora"):
        reading.keep("use_rslora", "lora.use_rslora", True)
    if reading.on("pissa_init") and reading.value("pissa_iter") == -1:
        reading.keep("pissa_init", "lora.init_lora_weights", "pissa")
        reading.mapped("pissa_iter", ("lora.init_lora_weights",))
    if reading.is_given("quantization_bit"):
        reading.keep("quantization_bit", "lora.quantization_bit", reading.given["quantization_bit"])
        reading.keep("quantization_type", "lora.quantization_type", reading.value("quantization_type"))
        reading.keep("double_quantization", "lora.double_quant", reading.on("double_quantization"))
        if reading.text("quantization_method") in ("bnb", "bitsandbytes"):
            reading.mapped("quantization_method", ("lora.quantization_bit",))


def _preferences(reading: KeyReader, algorithm: str) -> None:
    """Options of preference losses, in the section of the algorithm that the loss is here."""
    keys = (
        "pref_beta",
        "pref_loss",
        "pref_ftx",
        "pref_bco_weight",
        "dpo_label_smoothing",
        "simpo_gamma",
        "ld_alpha",
    )
    beta, loss = reading.value("pref_beta"), reading.text("pref_loss")
    if algorithm in ("dpo", "orpo", "simpo", "kto"):
        reading.keep("pref_beta", f"training.{algorithm}.beta", beta)
    if algorithm == "dpo":
        known = loss in ("sigmoid", "hinge", "ipo")
        reading.keep("pref_loss", "training.dpo.loss_type", loss) if known else reading.lose(
            "pref_loss", f"the loss {loss} is not supported with pairs"
        )
        if loss == "ipo":
            reading.set("training.dpo.length_normalized", True, "pref_loss", "means over an answer's tokens")
        if reading.on("pref_ftx") or reading.on("dpo_ftx"):
            key = "pref_ftx" if reading.on("pref_ftx") else "dpo_ftx"
            says = "there a mean over each answer's tokens and then over answers; here over all tokens"
            reading.differs(key, "training.dpo.rpo_alpha", reading.value(key), says)
        reading.keep(
            "dpo_label_smoothing", "training.dpo.label_smoothing", reading.value("dpo_label_smoothing")
        )
        for key in ("pref_bco_weight", "ld_alpha"):
            if reading.on(key):
                reading.lose(key, "this part of the loss is not supported")
    elif algorithm == "simpo":
        reading.keep("simpo_gamma", "training.simpo.simpo_gamma", reading.value("simpo_gamma"))
        reading.mapped("pref_loss", ("training.algorithm",))
    elif algorithm == "orpo":
        says = "its SFT term is a mean of each answer's mean; here over all tokens"
        reading.differs("pref_loss", "training.algorithm", "orpo", says)
    elif algorithm == "kto":
        reading.keep("kto_chosen_weight", "training.kto.desirable_weight", reading.value("kto_chosen_weight"))
        reading.keep(
            "kto_rejected_weight", "training.kto.undesirable_weight", reading.value("kto_rejected_weight")
        )
    elif algorithm == "ppo":
        _ppo(reading)
    if algorithm in ("dpo", "kto", "ppo"):
        _reference(reading, f"training.{algorithm}.ref_model")
    reading.nothing([key for key in keys if not reading.decided(key)], f"it does not act with {algorithm}")
    reading.nothing(
        [
            k
            for k in ("ref_model", "ref_model_adapters", "ref_model_quantization_bit")
            if not reading.decided(k)
        ],
        f"it does not act with {algorithm}",
    ) if algorithm in ("sft", "reward") else None


def _reference(reading: KeyReader, path: str) -> None:
    """The reference: one that is named, or below adapters the base without them, also below trained ones."""
    if reading.is_given("ref_model"):
        reading.keep("ref_model", path, reading.given["ref_model"])
    elif reading.text("finetuning_type") == "lora" and reading.is_given("adapter_name_or_path"):
        says = "LLaMA-Factory's reference is the base without its adapter"
        reading.set(path, reading.given.get("model_name_or_path"), "adapter_name_or_path", says)


def _ppo(reading: KeyReader) -> None:
    reading.keep("ppo_epochs", "training.ppo.num_ppo_epochs", reading.value("ppo_epochs"))
    reading.keep("ppo_target", "training.ppo.target", reading.value("ppo_target"))
    reading.set("training.ppo.adap_kl_ctrl", True, "ppo_target", "LLaMA-Factory's PPO adapts the KL's weight")
    reading.set("training.ppo.kl_coef", 0.2, "ppo_target", "where the adapted weight starts")
    reading.keep("ppo_whiten_rewards", "training.ppo.whiten_rewards", reading.on("ppo_whiten_rewards"))
    if reading.text("reward_model_type") == "full" and reading.is_given("reward_model"):
        model: Json = [{"name": "model", "options": {"model": reading.given["reward_model"]}}]
        reading.keep("reward_model", "training.rollout.rewards", model)
        reading.mapped("reward_model_type", ("training.rollout.rewards",))
    elif reading.is_given("reward_model"):
        reading.lose(
            "reward_model", "a reward adapter needs its base: merge it, and name it as a reward `model`"
        )
    for key, ours in (
        ("max_new_tokens", "max_completion_length"),
        ("top_p", "top_p"),
        ("top_k", "top_k"),
        ("temperature", "temperature"),
    ):
        if reading.value(key) is not None:
            reading.keep(key, f"training.rollout.{ours}", reading.value(key))
    reading.nothing("ppo_buffer_size", "one rollout is one step's rows") if reading.value(
        "ppo_buffer_size"
    ) == 1 else None


def _packing(reading: KeyReader, stage: str) -> None:
    neat, packing = reading.on("neat_packing"), reading.given.get("packing")
    on = neat or packing is True or (packing is None and stage == "pt")
    key = "neat_packing" if neat else "packing"
    if on and not neat:
        says = "documents in a packed row see each other there (but for neat_packing); here they never do"
        reading.differs("packing", "data.packing", True, says)
    else:
        reading.keep(key, "data.packing", on)
        reading.mapped(("packing", "neat_packing"), ("data.packing",))


def _model(reading: KeyReader) -> None:
    if reading.text("model_revision") == "main":
        reading.nothing("model_revision", "main is what is read without it")
    reading.nothing(
        ("use_reentrant_gc", "use_unsloth_gc", "upcast_layernorm", "low_cpu_mem_usage", "use_fast_tokenizer"),
        CHUNKED,
    )
    reading.nothing("cache_dir", "hub files are cached where HF_HOME says")
    reading.nothing(
        ("hf_hub_token", "ms_hub_token", "om_hub_token"),
        "tokens are read from the environment, never from files",
    )
    if not reading.is_given("disable_gradient_checkpointing") and not reading.is_given(
        "gradient_checkpointing"
    ):
        reading.set("training.gradient_checkpointing", True, "disable_gradient_checkpointing")
    if reading.is_given("gradient_checkpointing") and not reading.on("disable_gradient_checkpointing"):
        reading.keep(
            "gradient_checkpointing",
            "training.gradient_checkpointing",
            True,
            "disable_gradient_checkpointing is off",
        )
    if reading.is_given("resume_from_checkpoint") is False:
        reading.nothing("resume_from_checkpoint", "it has no value")
    if reading.on("train_from_scratch"):
        reading.lose("train_from_scratch", "set model.config for a model trained from scratch")
    if reading.is_given("moe_aux_loss_coef"):
        reading.keep("moe_aux_loss_coef", "training.router_aux_loss_coef", reading.given["moe_aux_loss_coef"])
    if reading.is_given("fsdp_transformer_layer_cls_to_wrap"):
        classes = reading.given["fsdp_transformer_layer_cls_to_wrap"]
        reading.keep(
            "fsdp_transformer_layer_cls_to_wrap",
            "training.fsdp_config",
            {"transformer_layer_cls_to_wrap": classes},
        )
    deepspeed = reading.given.get("deepspeed")
    if isinstance(deepspeed, str) and not Path(deepspeed).exists():
        reading.keep("deepspeed", "training.deepspeed", deepspeed, "the file is looked for when a run starts")


def _not_training(reading: KeyReader) -> None:
    """Keys of inference, merging and evaluation that stand in the same file."""
    says = "it belongs to inference, merging or evaluation, which are verbs of their own (chat, export)"
    reading.nothing([key for key in (*_EXPORT, *_GENERATION) if not reading.decided(key)], says)
    if not reading.on("do_train") or not reading.is_given("dataset"):
        reading.nothing("do_train", "`paceline train` trains")
        reading.nothing(("task", "n_shot", "lang", "split", "save_dir", "batch_size", "task_dir"), says)
        reading.nothing([k for k in reading.given if k.startswith(("vllm_", "sglang_"))], says)
    reading.nothing([key for key in reading.given if key.startswith(("vllm_", "sglang_"))], says)
    reading.nothing("predict_with_generate", "the training is the same; eval_generate answers at evaluations")
    reading.nothing(("save_hf_model", "hub_private"), HUB)
