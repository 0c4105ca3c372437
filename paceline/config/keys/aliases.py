"""Alternative spellings of keys, in one table: name as written → canonical key and converted value.

A name is accepted at the top level of a flat file, under ``training:`` and in its own section. The flags
``fp16: true`` and ``bf16: true`` are combined in ``layers.py``, since they are only meaningful together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from pydantic_core import PydanticCustomError

from paceline.config.sections.types import to_bool, to_number, to_text, to_texts
from paceline.core.json_types import Json
from paceline.core.plugins.tables import ALGORITHMS


class NoTranslation(Exception):
    """A value without a translation: ``what`` is wrong, and ``hint`` is what to write instead."""

    def __init__(self, what: str, hint: str) -> None:
        self.what = what
        self.hint = hint
        super().__init__(what)


@dataclass(frozen=True)
class Alias:
    """An alternative spelling of a key.

    - ``to``: the canonical path
    - ``value``: converts the value (None: unchanged; it may return SKIP)
    - ``note``: reported when the alias is used
    - ``of_algorithm``: several algorithms have this option; it belongs to this run's algorithm, or to the one
      in ``to`` if this run's has no such option
    """

    to: str
    value: Callable[[Json], Json | IgnoredKey] | None = None
    note: str = ""
    of_algorithm: bool = False


class AlgorithmAlias(str):
    """A loss in another system's config that is an algorithm of its own here, such as ``pref_loss: orpo``."""


class IgnoredKey(Enum):
    """A known key that sets nothing."""

    SKIP = auto()


SKIP = IgnoredKey.SKIP


def _ratio(value: Json) -> float:
    ratio = _number(value)
    if not 0 <= ratio < 1:
        raise NoTranslation(
            "warmup_ratio is a fraction of all steps, from 0 to below 1",
            "warmup_ratio: 0.1, or warmup_steps: 100 for a number of steps",
        )
    return ratio


def _number(value: Json) -> float:
    try:
        return to_number(value)
    except PydanticCustomError as exc:
        raise NoTranslation(exc.message(), "a number") from None


def _flag(value: Json) -> bool:
    try:
        return to_bool(value)
    except PydanticCustomError as exc:
        raise NoTranslation(exc.message(), "true or false") from None


def _true_sets(result: Json) -> Callable[[Json], Json | IgnoredKey]:
    return lambda value: result if value is not None and _flag(value) else SKIP


def _stage(value: Json) -> str:
    stages = {"rm": "reward", **{name: name for name in ALGORITHMS.names()}}
    name = str(value).lower()
    if name == "pt":
        raise NoTranslation(
            "stage: pt (pre-training) means SFT with the loss on all tokens",
            "set stage: sft, and under data: train_on: all, format: text",
        )
    if name not in stages:
        raise NoTranslation(f"stage is one of {', '.join(stages)}", "stage: sft")
    return stages[name]


#: LLaMA-Factory's ``pref_loss`` with ``stage: dpo``
_OF_THEIR_OWN = ("orpo", "simpo")


def _pref_loss(value: Json) -> Json:
    name = str(value).lower()
    if name in _OF_THEIR_OWN:
        return AlgorithmAlias(name)
    if name in ("kto", "kto_pair"):
        raise NoTranslation(
            f"{name}: KTO trains on answers labelled one by one, not on pairs",
            "set stage: kto, with rows of prompt, completion and label",
        )
    return value


def _finetuning(value: Json) -> Json:
    name = str(value).lower()
    if name == "freeze":
        raise NoTranslation(
            "finetuning_type: freeze (full training of some layers) is not supported",
            "set finetuning_type: lora, or full; lora.modules_to_save trains the named modules in full",
        )
    if name not in ("full", "lora"):
        raise NoTranslation("finetuning_type must be full or lora", "finetuning_type: full")
    return {} if name == "lora" else None


def _attention(value: Json) -> Json:
    names = {
        "fa2": "flash_attention_2",
        "fa3": "flash_attention_3",
        "auto": "auto",
        "sdpa": "sdpa",
        "disabled": "eager",
        "eager": "eager",
    }
    return names.get(str(value).lower(), value)


def _lora_target(value: Json) -> Json:
    return ("all-linear",) if value == "all" else value


def _quantization_method(value: Json) -> IgnoredKey:
    if str(value).lower() in ("bnb", "bitsandbytes"):
        return SKIP
    raise NoTranslation("weights are quantised with bitsandbytes only", "quantization_method: bnb")


def _new_adapter(value: Json) -> IgnoredKey:
    if _flag(value):
        raise NoTranslation(
            "create_new_adapter would merge an adapter into the base model and start a new one;"
            " here these are two steps",
            "run `paceline export RUN --merge --to DIR`, then set model.name_or_path: DIR",
        )
    return SKIP


def _backend(value: Json) -> Json:
    return value.lower() if isinstance(value, str) else value


def _token_list(value: Json) -> tuple[str, ...]:
    return tuple(to_text(part) for part in to_texts(value))


def _optimizer(value: Json) -> Json:
    name = str(value).strip().lower()
    if name == "adamw_hf":
        raise NoTranslation(
            "Transformers has removed its own AdamW, which applied epsilon in another place than"
            " torch's AdamW",
            "optimizer: adamw_torch",
        )
    return "adamw_torch" if name == "adamw" else value


ALIASES: dict[str, Alias] = {
    # precision flags: combined in layers.py
    "fp16": Alias("training.fp16"),
    "bf16": Alias("training.bf16"),
    # distribution
    "distributed_backend": Alias("training.ddp_backend", _backend),
    "backend": Alias("training.ddp_backend", _backend),
    "xpu_backend": Alias("training.ddp_backend", _backend),
    "find_unused_parameters": Alias("training.ddp_find_unused_parameters"),
    "bucket_cap_mb": Alias("training.ddp_bucket_cap_mb"),
    "broadcast_buffers": Alias("training.ddp_broadcast_buffers"),
    "static_graph": Alias("training.ddp_static_graph"),
    "parallelism_config": Alias("training.parallelism"),
    # preferences, by the names of TRL, LLaMA-Factory (pref_, dpo_) and axolotl
    "center_rewards_coefficient": Alias("training.reward.center_rewards_coefficient"),
    "pref_beta": Alias("training.dpo.beta", of_algorithm=True),
    "dpo_beta": Alias("training.dpo.beta"),
    "rl_beta": Alias("training.dpo.beta", of_algorithm=True),
    "pref_loss": Alias("training.dpo.loss_type", _pref_loss),
    "dpo_loss": Alias("training.dpo.loss_type", _pref_loss),
    "pref_ftx": Alias("training.dpo.rpo_alpha", lambda value: _number(value) or SKIP, of_algorithm=True),
    "dpo_ftx": Alias("training.dpo.rpo_alpha", lambda value: _number(value) or SKIP, of_algorithm=True),
    "rpo_alpha": Alias("training.dpo.rpo_alpha"),
    "kto_chosen_weight": Alias("training.kto.desirable_weight"),
    "kto_rejected_weight": Alias("training.kto.undesirable_weight"),
    "kto_desirable_weight": Alias("training.kto.desirable_weight"),
    "kto_undesirable_weight": Alias("training.kto.undesirable_weight"),
    "desirable_weight": Alias("training.kto.desirable_weight"),
    "undesirable_weight": Alias("training.kto.undesirable_weight"),
    "cpo_alpha": Alias("training.cpo.cpo_alpha", of_algorithm=True),
    "simpo_gamma": Alias("training.cpo.simpo_gamma", of_algorithm=True),
    "ds3_gather_for_generation": Alias("training.rollout.gather_for_generation"),
    "dpo_label_smoothing": Alias("training.dpo.label_smoothing"),
    "reference_free": Alias("training.dpo.reference_free"),
    "ref_model": Alias("training.dpo.ref_model", of_algorithm=True),
    "ref_model_name_or_path": Alias("training.dpo.ref_model", of_algorithm=True),
    "precompute_ref_log_probs": Alias("training.dpo.precompute_ref_log_probs"),
    "precompute_ref_batch_size": Alias("training.dpo.precompute_ref_batch_size"),
    "deepspeed_config": Alias("training.deepspeed"),
    "deepspeed.config_path": Alias("training.deepspeed"),
    "nccl_timeout": Alias("training.ddp_timeout"),
    "no_cuda": Alias("training.use_cpu"),
    # batch and loading
    "dataloader.batch_size": Alias("training.per_device_train_batch_size"),
    "dataloader.num_workers": Alias("training.dataloader_num_workers"),
    "dataloader.pin_memory": Alias("training.dataloader_pin_memory"),
    "dataloader.drop_last": Alias("training.dataloader_drop_last"),
    "dataloader.prefetch_factor": Alias("training.dataloader_prefetch_factor"),
    "batch_size": Alias("training.per_device_train_batch_size"),
    "eval_batch_size": Alias("training.per_device_eval_batch_size"),
    "micro_batch_size": Alias("training.per_device_train_batch_size"),
    "per_gpu_train_batch_size": Alias("training.per_device_train_batch_size"),
    "per_gpu_eval_batch_size": Alias("training.per_device_eval_batch_size"),
    # optimisation
    "warmup_ratio": Alias(
        "training.warmup_steps",
        _ratio,
        "Transformers 5 writes a fraction of all steps as warmup_steps below 1",
    ),
    "lr": Alias("training.learning_rate"),
    "lr_scheduler": Alias("training.lr_scheduler_type"),
    "num_epochs": Alias("training.num_train_epochs"),
    "gradient_clipping": Alias("training.max_grad_norm"),
    "optimizer": Alias("training.optim", _optimizer),
    "adafactor": Alias("training.optim", _true_sets("adafactor")),
    "disable_gradient_checkpointing": Alias(
        "training.gradient_checkpointing", lambda value: not _flag(value)
    ),
    "activation_checkpointing": Alias("training.gradient_checkpointing"),
    "activation_checkpointing_kwargs": Alias("training.gradient_checkpointing_kwargs"),
    "torchdynamo": Alias("training.torch_compile_backend"),
    # evaluation, saving, logging
    "evaluation_strategy": Alias("training.eval_strategy", note="Transformers 5 names it eval_strategy"),
    "resume": Alias("training.resume_from_checkpoint"),
    # names of LLaMA-Factory and of the Hugging Face example scripts
    "stage": Alias("training.algorithm", _stage),
    "finetuning_type": Alias("lora", _finetuning),
    "model_name_or_path": Alias("model.name_or_path"),
    "model_name": Alias("model.name_or_path"),
    "model_revision": Alias("model.revision"),
    "tokenizer_name": Alias("model.tokenizer"),
    "tokenizer_name_or_path": Alias("model.tokenizer"),
    "torch_dtype": Alias(
        "model.dtype", note="weights are loaded in this dtype; trained weights are kept in float32"
    ),
    "flash_attn": Alias("model.attn_implementation", _attention),
    "flash_attention": Alias("model.attn_implementation", _true_sets("flash_attention_2")),
    "use_flash_attention_2": Alias("model.attn_implementation", _true_sets("flash_attention_2")),
    "new_special_tokens": Alias("model.add_special_tokens", _token_list),
    "add_special_tokens": Alias("model.add_special_tokens", _token_list),
    "add_tokens": Alias("model.add_tokens", _token_list),
    "chat_template_kwargs": Alias("model.chat_template_kwargs"),
    "enable_thinking": Alias("model.chat_template_kwargs", lambda value: {"enable_thinking": _flag(value)}),
    "resize_vocab": Alias("model.resize_embeddings", _true_sets("auto")),
    "low_cpu_mem_usage": Alias("model.low_cpu_mem"),
    "dataset": Alias("data.train"),
    "dataset_name": Alias("data.train"),
    "train_file": Alias("data.train"),
    "train_dataset": Alias("data.train"),
    "eval_dataset": Alias("data.eval"),
    "validation_file": Alias("data.eval"),
    "val_size": Alias("data.validation_split", lambda value: value if _number(value) else SKIP),
    "cutoff_len": Alias("data.max_length"),
    "max_length": Alias("data.max_length"),
    "max_seq_length": Alias("data.max_length"),
    "max_seq_len": Alias("data.max_length"),
    "model_max_length": Alias("data.max_length"),
    "seq_len": Alias("data.max_length"),
    "sequence_len": Alias("data.max_length"),
    "neat_packing": Alias("data.packing", _true_sets(True)),
    "train_on_prompt": Alias("data.train_on", lambda value: "all" if _flag(value) else "assistant"),
    "assistant_only_loss": Alias("data.train_on", lambda value: "assistant" if _flag(value) else "all"),
    "preprocessing_num_workers": Alias("data.num_proc"),
    "dataset_num_proc": Alias("data.num_proc"),
    "cache_path": Alias("data.cache_dir"),
    "max_samples": Alias("data.max_rows"),
    "lora_rank": Alias("lora.r"),
    "lora_r": Alias("lora.r"),
    "lora_alpha": Alias("lora.alpha"),
    "lora_dropout": Alias("lora.dropout"),
    "lora_target": Alias("lora.target_modules", _lora_target),
    "lora_target_modules": Alias("lora.target_modules", _lora_target),
    "additional_target": Alias("lora.modules_to_save"),
    "use_rslora": Alias("lora.use_rslora", _true_sets(True)),
    "use_dora": Alias("lora.use_dora", _true_sets(True)),
    "loraplus_lr_ratio": Alias("lora.loraplus_lr_ratio"),
    "adapter_name_or_path": Alias("lora.adapter_name_or_path"),
    "quantization_type": Alias("lora.quantization_type"),
    "quantization_bit": Alias("lora.quantization_bit"),
    "quantization_method": Alias("lora.quantization_bit", _quantization_method),
    "double_quantization": Alias("lora.double_quant"),
    "bnb_4bit_use_double_quant": Alias("lora.double_quant"),
    "bnb_4bit_quant_type": Alias("lora.quantization_type"),
    "create_new_adapter": Alias("lora", _new_adapter),
    "load_in_4bit": Alias("lora.quantization_bit", _true_sets(4)),
    "load_in_8bit": Alias("lora.quantization_bit", _true_sets(8)),
    "nproc_per_node": Alias("launch.nproc"),
    "num_processes": Alias("launch.nproc"),
}

SECTION_ALIASES: dict[str, Alias] = {
    # aliases that are valid only in their own section
    "model.path": Alias("model.name_or_path"),
    "model.name": Alias("model.name_or_path"),
    "data.path": Alias("data.train"),
    "data.train_path": Alias("data.train"),
    "data.eval_path": Alias("data.eval"),
    "data.validation": Alias("data.eval"),
    "data.num_workers": Alias("data.num_proc"),
    "lora.rank": Alias("lora.r"),
    "lora.lora_r": Alias("lora.r"),
    "lora.target": Alias("lora.target_modules", _lora_target),
    "parallelism.dp_replicate": Alias("training.parallelism.dp_replicate_size"),
    "parallelism.dp_shard": Alias("training.parallelism.dp_shard_size"),
    "parallelism.cp": Alias("training.parallelism.cp_size"),
    "parallelism.tp": Alias("training.parallelism.tp_size"),
    "parallelism.pp": Alias("training.parallelism.pp_size"),
}
