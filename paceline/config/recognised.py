"""Keys of Transformers and LLaMA-Factory that are known but set nothing here, each with what happens instead.

``fine``: values that agree with what Paceline does; they pass with a note. Any other value is refused
(``refuse=True``) or gets a warning.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.core.json_types import Json


@dataclass(frozen=True)
class Recognised:
    """The message for a key, and the ``fine`` values, which agree with what happens anyway."""

    says: str
    fine: tuple[Json, ...] = ()
    refuse: bool = False
    known: tuple[str, ...] = ()  # these values get a warning; any other is invalid and refused
    any_value: bool = False

    def accepts(self, value: Json) -> bool:
        """Whether this value agrees with what Paceline does."""
        if self.any_value or value is None or value in ({}, [], ""):
            return True
        word = value.strip().lower() if isinstance(value, str) else value
        word = (
            {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}.get(word, word)
            if isinstance(word, str)
            else word
        )
        return any(word == good and isinstance(word, bool) == isinstance(good, bool) for good in self.fine)

    def refuses(self, value: Json) -> bool:
        """Whether this value is an error."""
        return self.refuse or bool(self.known and str(value).strip().lower() not in self.known)


def _note(says: str) -> Recognised:
    return Recognised(says, any_value=True)


def _warn(says: str, *fine: Json) -> Recognised:
    return Recognised(says, fine)


def _refuse(says: str, *fine: Json) -> Recognised:
    return Recognised(says, fine, refuse=True)


_HUB = (
    "a run uploads nothing to the hub; afterwards `paceline push RUN --to hf://owner/name` does, with a model"
    " card"
)
_TRACKIO = "trackio reads its own variable: TRACKIO_SPACE_ID"
_TEMPLATE = "the tokenizer's own chat template is used; model.chat_template replaces it"

#: Its level O0 switches `fp16: true` off
APEX_LEVEL = "training.fp16_opt_level"
RECOGNISED: dict[str, Recognised] = {
    # Transformers 5.23
    "average_tokens_across_devices": _refuse(
        "the loss is always averaged over the tokens of all processes", True
    ),
    "label_smoothing_factor": _refuse("label smoothing is not supported", 0, 0.0),
    "fp16_opt_level": Recognised(
        "Apex levels no longer exist: fp16 is torch's autocast with float32 master weights and a"
        " gradient scaler (the meaning of O1); O0 computes in float32, as in Apex",
        fine=("o1",),
        known=("o0", "o2", "o3"),
    ),
    "fp16_backend": _note("fp16 always uses torch's own autocast"),
    "half_precision_backend": _note("half precision always uses torch's own autocast"),
    "tf32": _warn("float32 matrix products keep their full precision: TF32 is not switched on", False),
    "use_liger_kernel": _note(
        "the fused linear cross entropy is always on; Liger's other kernels are not used"
    ),
    "liger_kernel_config": _note("Liger's kernels are not used"),
    "use_cache": _warn("training keeps no key-value cache; generation uses one automatically", False),
    "neftune_noise_alpha": _refuse("NEFTune noise is not supported", 0),
    "torch_empty_cache_steps": _warn("the allocator's cache is not emptied during training"),
    "auto_find_batch_size": _refuse(
        "the batch size is the one in the config; reducing it after an out-of-memory error would"
        " change the run",
        False,
    ),
    "logging_strategy": _warn("console and trackers get one line every logging_steps steps", "steps"),
    "log_on_each_node": _note("every rank writes its own log file under logs/"),
    "logging_nan_inf_filter": _warn("losses are logged unfiltered, NaN included", False),
    "include_num_input_tokens_seen": _note("tokens are always counted"),
    "include_tokens_per_second": _note("tokens per second are always shown"),
    "log_level_replica": _note("every rank writes its own log file at training.log_level"),
    "disable_tqdm": _note("the console line adapts to the terminal automatically"),
    "trackio_space_id": _warn(_TRACKIO),
    "trackio_bucket_id": _warn(_TRACKIO),
    "trackio_static_space_id": _warn(_TRACKIO),
    "eval_delay": _refuse("evaluation starts after the first interval", 0, 0.0),
    "prediction_loss_only": _note("evaluation computes sums on the devices; predictions are not gathered"),
    "eval_do_concat_batches": _note("evaluation does not gather predictions"),
    "eval_use_gather_object": _refuse("object collectives use pickle, so they are not used", False),
    "eval_accumulation_steps": _note("evaluation does not gather predictions"),
    "include_for_metrics": _warn("the algorithm determines the metrics"),
    "include_inputs_for_metrics": _warn("the algorithm determines the metrics", False),
    "batch_eval_metrics": _note("evaluation adds exact sums batch by batch"),
    "save_only_model": _warn(
        "checkpoints contain optimizer and data position, so that each can be resumed; `paceline"
        " export` writes weights only",
        False,
    ),
    "save_safetensors": _refuse("checkpoints are safetensors only", True),
    "save_on_each_node": _refuse(
        "a checkpoint is written once; nodes without a shared disk each keep their own part of it", False
    ),
    "enable_jit_checkpoint": _note("SIGTERM always saves a checkpoint after the current step"),
    "push_to_hub": _refuse(_HUB, False),
    "hub_token": _note(_HUB),
    "hub_private_repo": _note(_HUB),
    "hub_model_id": _note(_HUB),
    "hub_strategy": _note(_HUB),
    "hub_always_push": _refuse(_HUB, False),
    "hub_revision": _note(_HUB),
    "push_to_hub_model_id": _note(_HUB),
    "push_to_hub_token": _note(_HUB),
    "push_to_hub_organization": _note(_HUB),
    "ignore_data_skip": _refuse("a resumed run continues at its exact position in the data", False),
    "restore_callback_states_from_checkpoint": _note("a resumed run restores all of its state"),
    "accelerator_config": _refuse(
        "the data order is computed; Accelerate's options to dispatch and split batches do not apply"
    ),
    "split_batches": _refuse("per_device_train_batch_size counts rows per process", False),
    "dispatch_batches": _refuse("every process reads its own rows", False),
    "dataloader_persistent_workers": _note("data-loading processes always live as long as the run"),
    "dataloader_multiprocessing_context": _note(
        "data-loading processes use the platform's default start method"
    ),
    "dataloader_in_order": _refuse("batches always arrive in order", True),
    "remove_unused_columns": _note("prepared data contain only tokens"),
    "label_names": _note("data.train_on determines the labels"),
    "train_sampling_strategy": _warn(
        "rows are permuted by seed; with packing there is no padding to save", "random"
    ),
    "group_by_length": _warn("rows are permuted by seed; with packing there is no padding to save", False),
    "length_column_name": _note("lengths are measured, not read from a column"),
    "debug": _warn(
        "steps that overflow are skipped, counted and logged; TORCH_DISTRIBUTED_DEBUG=DETAIL makes"
        " torch check collectives"
    ),
    "skip_memory_metrics": _note("memory is always shown"),
    "do_train": _refuse("`paceline train` trains", True, 1),
    "do_eval": _note("eval_strategy decides when to evaluate"),
    "do_predict": _refuse("use `paceline chat RUN` to get answers; there is no prediction stage", False, 0),
    "local_rank": _note("the launcher sets the rank"),
    # older Transformers
    "logging_dir": _note("logs are written to the run directory: logs/ and tensorboard/"),
    "use_mps_device": _note(
        "each process uses the accelerator that torch sees; training.use_cpu selects the CPU"
    ),
    "use_ipex": _refuse("Intel's extension is not used", False),
    "jit_mode_eval": _refuse("torch.jit is not used", False),
    "tpu_num_cores": _refuse("TPUs are not supported"),
    "tpu_metrics_debug": _refuse("TPUs are not supported", False),
    "past_index": _refuse("recurrent state is not passed between batches", -1),
    "ray_scope": _note("hyper-parameter search with Ray is not supported"),
    "sharded_ddp": _refuse(
        "Fairscale's sharding is no longer available; use distributed_strategy: fsdp or zero2", False, ""
    ),
    "fsdp_min_num_params": _refuse("put min_num_params under fsdp_config", 0),
    "fsdp_transformer_layer_cls_to_wrap": _refuse("put transformer_layer_cls_to_wrap under fsdp_config"),
    "include_for_metrics_inputs": _note("the algorithm determines the metrics"),
    "mp_parameters": _refuse("SageMaker's model parallelism is not supported"),
    # LLaMA-Factory and the guide
    "device_ids": _warn(
        "each process uses the device of its local rank; CUDA_VISIBLE_DEVICES chooses devices"
    ),
    "template": _warn(_TEMPLATE),
    "plot_loss": _note("a plot is drawn at the end unless report_to is none, and with `paceline plot RUN`"),
    "overwrite_cache": _note(
        "prepared data are cached by fingerprint: a change of data, tokenizer or template prepares them again"
    ),
    "preprocessing_batch_size": _note("tokenisation chooses its own batch size"),
    "dataset_dir": _warn(
        "data sets are named by path or hub name under data.train; dataset_info.json is not read"
    ),
    "predict_with_generate": _warn(
        "`eval_generate: true` answers the evaluation rows and measures the answers by eval_metrics", False
    ),
    "tokenized_path": _warn(
        "data are tokenised from data.train and cached in data.cache_dir; other tokenised data sets"
        " are not read"
    ),
    "buffer_size": _note("streaming data sets are not supported"),
    "streaming": _refuse("data are prepared once and memory-mapped, not streamed", False),
    "mix_strategy": _warn("data sets are mixed by the weights in data.train", "concat"),
    "ignore_pad_token_for_loss": _refuse("padding never contributes to the loss", True),
    "adapter_folder": _refuse("adapters are local folders: set adapter_name_or_path"),
    "use_dora": _refuse("DoRA is not supported; plain LoRA and rsLoRA are", False),
    "pissa_init": _refuse("set lora.init_lora_weights: pissa, which is exact (pissa_iter: -1)", False),
    "pissa_convert": _refuse("a PiSSA adapter is exported as one; --merge exports a whole model", False),
    "loraplus_lr_ratio": _refuse("LoRA+ is not supported: both factors use one learning rate"),
    "loraplus_lr_embedding": _note("it belongs to LoRA+ and has no effect without loraplus_lr_ratio"),
    "freeze_trainable_layers": _note("it belongs to finetuning_type: freeze"),
    "freeze_trainable_modules": _note("it belongs to finetuning_type: freeze"),
    "freeze_extra_modules": _note("it belongs to finetuning_type: freeze"),
    "quantization_device_map": _refuse("each process holds its own model, so there is no device map", ""),
    "use_fast_tokenizer": _warn("fast tokenizers are always used", True),
    "use_unsloth": _refuse("Unsloth is not used", False),
    "enable_liger_kernel": _note(
        "the fused linear cross entropy is always on; Liger's other kernels are not used"
    ),
    "use_galore": _refuse("set optim: galore_adamw, and its rank in optim_args", False),
    "use_badam": _refuse("BAdam is not supported", False),
    "upcast_layernorm": _note("norms are computed in float32 where precision matters"),
    "dataloader.shuffle": _warn("rows are always permuted by seed and epoch", True),
    "dataloader.persistent_workers": _note("data-loading processes always live as long as the run"),
    "trainer_backend": _note("distributed_strategy sets how training is distributed"),
}
