"""Keys of other programs with the key to write here, or a sentence where there is none.

Spellings that are accepted are in ``aliases.py``; these are refused, because their meaning or unit may
differ.
"""

from __future__ import annotations

_BATCH = (
    "per_device_train_batch_size counts rows per process; multiplied by gradient_accumulation_steps"
    " and the number of processes it gives the rows per step"
)
_ADAPTERS = "a lora: section at the left margin switches adapters on, for example lora: {r: 16}"
_SHARE = "warmup_steps also accepts a fraction: a number below 1 is a fraction of all steps"
_RESTARTS = (
    "torchrun --max-restarts N restarts after a failure, and training.resume_from_checkpoint: auto"
    " resumes from the last checkpoint"
)
_EXPERTS = (
    "expert parallelism is not supported as an axis of its own: parallelism.tp_size gives each process whole"
    " experts, and otherwise they are sharded like all other weights"
)
_ZERO = "distributed_strategy: zero1, zero2 or zero3"
_DEVICE = "set training.use_cpu: true, or CUDA_VISIBLE_DEVICES in the environment"

#: Name as written → the key meant (section.key), or a sentence
SYNONYMS: dict[str, str] = {
    **dict.fromkeys(
        (
            "per_device_batch_size",
            "micro_batch",
            "mbs",
            "train_micro_batch_size",
            "per_device_bs",
            "batch_size_per_device",
            "batch_size_per_gpu",
            "micro_train_batch_size",
        ),
        "training.per_device_train_batch_size",
    ),
    **dict.fromkeys(
        (
            "train_batch_size",
            "global_batch_size",
            "total_batch_size",
            "effective_batch_size",
            "global_train_batch_size",
        ),
        _BATCH,
    ),
    **dict.fromkeys(
        (
            "val_batch_size",
            "test_batch_size",
            "valid_batch_size",
            "validation_batch_size",
            "micro_eval_batch_size",
        ),
        "training.per_device_eval_batch_size",
    ),
    **dict.fromkeys(
        (
            "use_lora",
            "use_peft",
            "peft",
            "enable_lora",
            "lora_enable",
            "peft_config",
            "lora_config",
            "adapter",
            "use_qlora",
            "qlora",
        ),
        _ADAPTERS,
    ),
    **dict.fromkeys(
        (
            "eval_every",
            "eval_freq",
            "eval_frequency",
            "eval_interval",
            "evaluation_steps",
            "evaluation_interval",
            "eval_every_n_steps",
            "eval_every_steps",
            "test_freq",
            "val_check_interval",
            "validate_every",
            "val_freq",
            "evals_per_epoch",
            "evaluate_every",
        ),
        "training.eval_steps",
    ),
    **dict.fromkeys(
        (
            "save_every",
            "save_freq",
            "save_frequency",
            "save_interval",
            "save_every_n_steps",
            "save_every_steps",
            "checkpoint_every",
            "checkpoint_interval",
            "checkpointing_steps",
            "checkpoint_steps",
            "ckpt_interval",
            "saves_per_epoch",
            "checkpoint_freq",
        ),
        "training.save_steps",
    ),
    **dict.fromkeys(
        (
            "log_every",
            "log_freq",
            "log_interval",
            "logging_interval",
            "log_every_n_steps",
            "log_steps",
            "print_every",
            "print_freq",
            "logging_freq",
            "log_frequency",
            "report_every",
        ),
        "training.logging_steps",
    ),
    **dict.fromkeys(("max_restarts", "restarts", "num_restarts", "max_retries"), _RESTARTS),
    **dict.fromkeys(("ep_size", "expert_parallel_size", "expert_model_parallel_size", "ep"), _EXPERTS),
    **dict.fromkeys(
        (
            "epochs",
            "n_epochs",
            "num_epoch",
            "max_epochs",
            "total_epochs",
            "epoch",
            "train_epochs",
            "max_epoch",
        ),
        "training.num_train_epochs",
    ),
    **dict.fromkeys(
        (
            "steps",
            "num_steps",
            "total_steps",
            "train_steps",
            "max_train_steps",
            "num_train_steps",
            "num_training_steps",
            "total_training_steps",
            "iterations",
            "max_iters",
            "train_iters",
            "num_iters",
        ),
        "training.max_steps",
    ),
    **dict.fromkeys(
        ("init_lr", "max_lr", "base_lr", "peak_lr", "initial_lr", "step_size"), "training.learning_rate"
    ),
    **dict.fromkeys(
        (
            "grad_clip",
            "clip_grad",
            "clip_grad_norm",
            "gradient_clip_val",
            "max_norm",
            "grad_clip_norm",
            "clip_norm",
            "gradient_clip",
            "clip_gradients",
        ),
        "training.max_grad_norm",
    ),
    **dict.fromkeys(
        (
            "grad_accum",
            "accumulation_steps",
            "grad_acc_steps",
            "accumulate_grad_batches",
            "gradient_accumulation",
            "accum_steps",
            "accum_iter",
            "grad_accum_steps",
        ),
        "training.gradient_accumulation_steps",
    ),
    **dict.fromkeys(
        ("warmup", "num_warmup_steps", "warmup_iters", "lr_warmup_steps", "lr_warmup_iters", "warm_up_steps"),
        "training.warmup_steps",
    ),
    **dict.fromkeys(
        ("warmup_proportion", "warmup_fraction", "lr_warmup_ratio", "warmup_percent", "warmup_steps_ratio"),
        _SHARE,
    ),
    **dict.fromkeys(
        ("scheduler", "scheduler_type", "lr_schedule", "lr_decay_style", "schedule", "lr_scheduler_name"),
        "training.lr_scheduler_type",
    ),
    **dict.fromkeys(("optimizer_type", "optimizer_name", "optim_type", "optim_name"), "training.optim"),
    **dict.fromkeys(("beta1", "adam_b1"), "training.adam_beta1"),
    **dict.fromkeys(("beta2", "adam_b2"), "training.adam_beta2"),
    **dict.fromkeys(("eps", "adam_eps"), "training.adam_epsilon"),
    **dict.fromkeys(("l2", "l2_reg", "decay"), "training.weight_decay"),
    **dict.fromkeys(
        ("amp", "precision", "half_precision", "mixed_precision_training", "use_amp", "use_bf16", "use_fp16"),
        "training.mixed_precision",
    ),
    **dict.fromkeys(("device", "accelerator", "use_gpu"), _DEVICE),
    **dict.fromkeys(
        (
            "strategy",
            "parallel_strategy",
            "dist_strategy",
            "distributed_type",
            "distributed_mode",
            "training_strategy",
        ),
        "training.distributed_strategy",
    ),
    **dict.fromkeys(("zero", "zero_stage", "deepspeed_stage", "ds_stage"), _ZERO),
    **dict.fromkeys(
        ("tensor_parallel_size", "tensor_model_parallel_size", "tensor_parallel", "tp_degree", "tp"),
        "training.parallelism.tp_size",
    ),
    **dict.fromkeys(
        ("pipeline_parallel_size", "pipeline_model_parallel_size", "pipeline_parallel", "pp_degree", "pp"),
        "training.parallelism.pp_size",
    ),
    **dict.fromkeys(
        (
            "context_parallel_size",
            "context_parallel",
            "sequence_parallel_size",
            "ulysses_sequence_parallel_size",
            "ring_attn_size",
            "cp_degree",
            "cp",
            "sp_size",
        ),
        "training.parallelism.cp_size",
    ),
    **dict.fromkeys(
        (
            "num_gpus",
            "n_gpus",
            "gpus",
            "n_gpu",
            "num_devices",
            "devices",
            "world_size",
            "n_gpus_per_node",
            "gpus_per_node",
            "num_gpus_per_node",
            "nprocs",
        ),
        "launch.nproc",
    ),
    **dict.fromkeys(("num_nodes", "nodes", "n_nodes", "num_machines", "machines"), "launch.nnodes"),
    **dict.fromkeys(("main_process_ip", "master_ip", "master_host"), "launch.master_addr"),
    **dict.fromkeys(
        (
            "max_len",
            "context_length",
            "ctx_len",
            "block_size",
            "seq_length",
            "sequence_length",
            "max_sequence_length",
            "max_tokens_per_sample",
            "context_size",
            "max_input_length",
        ),
        "data.max_length",
    ),
    **dict.fromkeys(
        (
            "data_path",
            "train_data",
            "training_data",
            "dataset_path",
            "train_dataset_path",
            "train_data_path",
            "training_file",
            "data_files",
            "train_path",
            "datasets",
        ),
        "data.train",
    ),
    **dict.fromkeys(
        (
            "val_data",
            "eval_data",
            "valid_data",
            "validation_data",
            "test_data",
            "eval_path",
            "val_path",
            "val_file",
            "eval_file",
            "test_file",
            "eval_dataset_path",
            "val_dataset",
        ),
        "data.eval",
    ),
    **dict.fromkeys(("sample_packing", "pack", "pack_sequences", "packed"), "data.packing"),
    **dict.fromkeys(
        (
            "model_path",
            "base_model",
            "pretrained_model",
            "pretrained_model_name_or_path",
            "model_id",
            "pretrained",
            "model_dir",
            "pretrain",
        ),
        "model.name_or_path",
    ),
    **dict.fromkeys(("tokenizer_path", "tokenizer_dir"), "model.tokenizer"),
    **dict.fromkeys(
        ("attention", "attn", "attention_implementation", "attn_impl", "flash_attention_2"),
        "model.attn_implementation",
    ),
    **dict.fromkeys(
        (
            "out_dir",
            "output",
            "save_dir",
            "output_path",
            "save_path",
            "checkpoint_dir",
            "ckpt_dir",
            "ckpt_path",
            "logdir",
            "log_dir",
            "output_folder",
        ),
        "training.output_dir",
    ),
    **dict.fromkeys(
        (
            "keep_last",
            "max_checkpoints",
            "keep_checkpoints",
            "save_last_n",
            "checkpoint_limit",
            "max_ckpts_to_keep",
            "keep_last_n_checkpoints",
            "max_to_keep",
        ),
        "training.save_total_limit",
    ),
    **dict.fromkeys(
        (
            "resume_from",
            "resume_path",
            "resume_checkpoint",
            "load_checkpoint",
            "resume_training",
            "auto_resume",
            "resume_mode",
        ),
        "training.resume_from_checkpoint",
    ),
    **dict.fromkeys(
        ("compile", "use_compile", "compile_model", "use_torch_compile"), "training.torch_compile"
    ),
    **dict.fromkeys(
        (
            "recompute",
            "recompute_activations",
            "checkpoint_activations",
            "use_gradient_checkpointing",
            "grad_checkpoint",
            "enable_gradient_checkpointing",
            "activation_recompute",
            "use_checkpointing",
        ),
        "training.gradient_checkpointing",
    ),
    **dict.fromkeys(
        ("workers", "n_workers", "num_dataloader_workers", "data_workers"), "training.dataloader_num_workers"
    ),
    **dict.fromkeys(
        (
            "logger",
            "loggers",
            "log_to",
            "tracker",
            "trackers",
            "wandb",
            "use_wandb",
            "tensorboard",
            "log_with",
            "use_tensorboard",
        ),
        "training.report_to",
    ),
    **dict.fromkeys(("wandb_name", "wandb_run_name", "experiment", "exp_name"), "training.run_name"),
    **dict.fromkeys(
        ("early_stopping", "patience", "early_stop_patience", "early_stop"),
        "training.early_stopping_patience",
    ),
    **dict.fromkeys(
        ("timeout", "dist_timeout", "process_group_timeout", "collective_timeout"), "training.ddp_timeout"
    ),
    **dict.fromkeys(("random_seed", "manual_seed", "rng_seed", "global_seed"), "training.seed"),
    **dict.fromkeys(
        ("algo", "method", "training_type", "train_type", "trainer", "task"), "training.algorithm"
    ),
    **dict.fromkeys(("target_layers", "lora_modules", "lora_target_layers"), "lora.target_modules"),
    **dict.fromkeys(
        ("num_return_sequences", "group_size", "n_samples", "n_samples_per_prompt", "rollout_n"),
        "training.rollout.num_generations",
    ),
    **dict.fromkeys(
        ("max_response_length", "response_length", "max_output_length", "max_gen_len"),
        "training.rollout.max_completion_length",
    ),
    **dict.fromkeys(
        ("max_prompt_length", "max_prompt_len", "prompt_length"),
        "write data.max_length, the most tokens of prompt and answer together; a longer row is truncated,"
        " skipped or refused by data.on_too_long",
    ),
    **dict.fromkeys(
        ("reward_fn", "reward_function", "reward_funcs", "reward_functions", "reward_model"),
        "training.rollout.rewards",
    ),
}

#: Section → names that mean something else inside it than outside
INSIDE: dict[str, dict[str, str]] = {
    "training.rollout": (
        {
            "max_new_tokens": "training.rollout.max_completion_length",
            "max_tokens": "training.rollout.max_completion_length",
            "n": "training.rollout.num_generations",
        }
        | dict.fromkeys(
            ("reward", "reward_func", "reward_funcs", "reward_function", "reward_functions", "reward_fn"),
            "training.rollout.rewards",
        )
    ),
    "training.grpo": (
        dict.fromkeys(("kl_coef", "init_kl_coef", "kl_beta", "kl_loss_coef"), "training.grpo.beta")
        | dict.fromkeys(
            ("clip_eps", "clip_range", "cliprange", "eps_clip", "clip_ratio"), "training.grpo.epsilon"
        )
    ),
    "training.ppo": (
        dict.fromkeys(("init_kl_coef", "kl_beta", "beta"), "training.ppo.kl_coef")
        | dict.fromkeys(("epsilon", "clip_eps", "eps_clip", "clip_ratio"), "training.ppo.cliprange")
        | {
            "lambda": "training.ppo.lam",
            "gae_lambda": "training.ppo.lam",
            "ppo_epochs": "training.ppo.num_ppo_epochs",
        }
    ),
    "training.dpo": {"dpo_beta": "training.dpo.beta", "pref_beta": "training.dpo.beta"},
    "lora": {
        "lora_r": "lora.r",
        "rank": "lora.r",
        "quantization": "lora.quantization_bit",
        "bits": "lora.quantization_bit",
    },
}
