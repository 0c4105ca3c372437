"""Every key of the config, and what a changed value of it changes: a probe's answer, or a refusal by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import key_probes as p
from pydantic import ValidationError

from paceline.config.sections.types import Section
from paceline.core.plugins.tables import ALGORITHMS


@dataclass(frozen=True)
class Key:
    """``probe`` answers otherwise with ``value`` than without; ``base`` are other keys that both have.
    ``refused``: the changed value is refused by this code.
    """

    probe: Callable[[p.Tree], Any]
    value: Any
    base: Mapping[str, Any] = field(default_factory=dict)
    refused: str = ""


@dataclass(frozen=True)
class Read:
    """What only a whole run shows: ``function`` of ``file`` reads the key, and the test ``shown`` sees
    what comes of it.
    """

    file: str
    function: str
    shown: str


def under(
    section: str, probe: Callable[[p.Tree], Any], base: Mapping[str, Any], **values: Any
) -> dict[str, Key]:
    return {f"{section}.{name}": Key(probe, value, base) for name, value in values.items()}


T = "training"
OWN = {"training.algorithm": "custom_algorithm_spec:SPEC"}
DPO = {"training.algorithm": "dpo"}
ANSWERS = "tests/unit/training/test_eval_generate.py"
PROFILE = "tests/unit/training/test_profiles.py"
CALLBACKS = "tests/unit/training/test_callbacks.py"
GRPO: dict[str, Any] = {"training.algorithm": "grpo", "training.rollout.rewards": [{"name": "ended"}]}
PPO = {**GRPO, "training.algorithm": "ppo"}
TAUGHT = {"training.algorithm": "distillation", "training.distillation.teacher_model": "org/teacher"}
SERVER = {
    **GRPO,
    "training.rollout.server.url": "http://127.0.0.1:1",
    "training.rollout.verify_weights": False,
}
TEXT = {**p.MODEL, "model_type": "qwen2_5_vl_text"}
TOWER = {"depth": 2, "hidden_size": 32, "out_hidden_size": 32}
SEES = {"model.config": {"model_type": "qwen2_5_vl", "text_config": TEXT, "vision_config": TOWER}}
IMAGES = {
    "model.processor_kwargs": {"do_resize": False},
    "data.media_dir": "/pictures",
    "data.image_min_pixels": 100,
    "data.image_max_pixels": 10_000,
    "data.image_refuse_pixels": 1_000_000,
    "data.image_cache": "disk",
}
SERVERS = "tests/unit/generation/test_rollout_servers.py"
WAYS = "tests/unit/generation/test_weight_ways.py"
NODES = "tests/integration/test_elastic_nodes.py"
STARTED = "tests/unit/launch/test_generation_servers.py"
KUBERNETES = p.on("kubernetes")
SERVED_MODEL = {**GRPO, "model.config": None, "model.name_or_path": "org/model"}
PODS = "tests/unit/schedulers/test_kubernetes_rules.py"
PYXIS = {"launch.container": "pyxis", "launch.image": "train.sqsh"}
EVALUATED = {"training.eval_strategy": "steps", "data.eval": [{"path": "e.jsonl"}]}
LORA = {"lora.r": 4}
QLORA = {**LORA, "lora.quantization_bit": 4}
FSDP = {"training.distributed_strategy": "fsdp"}
PIPELINE = {
    "training.distributed_strategy": "pipeline",
    "training.parallelism.pp_size": 2,
    "training.gradient_accumulation_steps": 4,
}
TP = {**FSDP, "training.parallelism.tp_size": 2}
DDP = {"training.distributed_strategy": "ddp"}
COMPILED = {"training.torch_compile": True}


def other_value(section: type[Section], name: str) -> Any:
    """A value of an option that is not its default: another word or switch, or the first number that is
    allowed. None: TABLE has to say it.
    """
    default = section.model_fields[name].get_default()
    words = [
        w
        for m in section.model_fields[name].metadata
        for w in getattr(getattr(m, "func", None), "choices", ())
    ]
    tries = words or ([not default] if isinstance(default, bool) else [0.4, 0.15, 2.5, 3, "org/other"])
    for value in tries:
        try:
            if getattr(section(**{name: value}), name) != default:
                return value
        except ValidationError:
            continue
    return None


def options_of(name: str, section: type[Section]) -> dict[str, Key]:
    """A line for each option of a built-in algorithm: the names of models change the plan, all else the
    algorithm's arithmetic.
    """
    spec = ALGORITHMS.spec(name)
    base = {**(GRPO if spec.on_policy else {}), "training.algorithm": name}
    base |= {f"{T}.{name}.{spec.named[role]}": "org/teacher" for role in spec.lends_head}
    models = set(spec.named.values())
    values = {key: other_value(section, key) for key in section.model_fields}
    return {
        f"{T}.{name}.{key}": Key(p.plan() if key in models else p.algorithm, value, base)
        for key, value in values.items()
        if value is not None
    }


#: Options of algorithms that act only beside others, or elsewhere than in the algorithm's arithmetic, stand
#: in it again.
TABLE: dict[str, Key | Read] = {
    **{
        path: key
        for name, section in ALGORITHMS.sections().items()
        for path, key in options_of(name, section).items()
    },
    # --- model
    "model.config": Key(p.factory_source, {**p.MODEL, "hidden_size": 16}),
    "model.name_or_path": Key(
        p.factory_source, "org/model", {"model.config": None, "model.name_or_path": "org/other"}
    ),
    "model.revision": Key(p.factory_source, "v2", {"model.config": None, "model.name_or_path": "org/model"}),
    "model.trust_remote_code": Key(
        p.factory_source,
        True,
        {"model.config": None, "model.name_or_path": "org/model", "model.revision": "0123456789" * 4},
    ),
    "model.resize_embeddings": Key(p.factory_source, "never", refused="models.vocab_too_large"),
    "model.embedding_multiple": Key(p.factory_source, 64),
    "model.attn_implementation": Key(p.plan(), "sdpa"),
    "model.dtype": Key(p.plan(), "float64"),
    "model.vision": Key(p.plan(), True, refused="plan.vision_no_tower"),
    **under(
        "model",
        p.tokenizer,
        {},
        tokenizer="other",
        chat_template="chatml",
        chat_template_kwargs={"enable_thinking": False},
        add_tokens=["<x>"],
        add_special_tokens=["<y>"],
        special_tokens={"eos_token": "<z>"},
    ),
    # --- data; what becomes of rows is in test_keys_act.DATA
    "data.max_length": Key(p.plan(), 64),
    "data.packing": Key(p.plan(), False),
    "data.cache_dir": Key(p.preparation, "/elsewhere"),
    "data.seed": Key(p.preparation, 7),
    # --- what is learnt
    "training.algorithm": Key(p.plan(), "dpo"),
    "training.algorithm_options": Key(p.algorithm, {"gamma": 1.0}, OWN),
    "training.rloo.reward_clip_range": Key(p.algorithm, [-1.0, 1.0], {**GRPO, "training.algorithm": "rloo"}),
    "training.cpo.simpo_gamma": Key(
        p.algorithm, 0.7, {"training.algorithm": "cpo", "training.cpo.loss_type": "simpo"}
    ),
    "training.dpo.loss_weights": Key(
        p.algorithm, [1.0, 0.3], {**DPO, "training.dpo.loss_type": ["sigmoid", "sft"]}
    ),
    "training.dpo.precompute_ref_log_probs": Key(p.plan(), True, DPO),
    "training.dpo.precompute_ref_batch_size": Key(
        p.reference, 3, {**DPO, "training.dpo.precompute_ref_log_probs": True}
    ),
    **under(
        f"{T}.grpo",
        p.algorithm,
        {**GRPO, "training.grpo.rollout_correction": "mask"},
        rollout_correction_level="sequence",
        rollout_correction_cap=3.0,
    ),
    "training.grpo.ref_model": Key(p.plan(), "org/reference", {**GRPO, "training.grpo.beta": 0.1}),
    "training.reinforce_plus_plus.kl_in": Key(
        p.algorithm,
        "loss",
        {
            **GRPO,
            "training.algorithm": "reinforce_plus_plus",
            "training.reinforce_plus_plus.kl_estimator": "k3",
        },
    ),
    "training.reinforce_plus_plus.group_baseline": Key(
        p.algorithm,
        True,
        {**GRPO, "training.algorithm": "reinforce_plus_plus", "training.rollout.num_generations": 4},
    ),
    "training.ppo.kl_in": Key(p.algorithm, "loss", {**PPO, "training.ppo.kl_estimator": "k3"}),
    **under(f"{T}.ppo", p.algorithm, {**PPO, "training.ppo.adap_kl_ctrl": True}, target=3.0, horizon=99),
    "training.sft.loss_type": Key(p.algorithm, "dft", {}),
    "training.sft.eaft_alpha": Key(p.algorithm, 2.0, {"training.sft.loss_type": "eaft"}),
    "training.distillation.loss_type": Key(p.algorithm, "asft", TAUGHT),
    "training.classification.labels": Read(
        "training/preflight/class_counts.py", "class_numbers", "tests/unit/data/test_classified.py"
    ),
    "training.classification.num_labels": Read(
        "training/preflight/class_counts.py", "class_numbers", "tests/unit/data/test_classified.py"
    ),
    "training.classification.problem_type": Read(
        "training/run/class_labels.py", "read_classes", "tests/unit/data/test_classified.py"
    ),
    **under(
        f"{T}.embedding",
        p.algorithm,
        {"training.algorithm": "embedding"},
        loss_type="cosine_similarity",
        pooling="mean",
        normalize=False,
        temperature=0.1,
        in_batch_negatives=False,
        symmetric=True,
    ),
    **under(
        f"{T}.reranker",
        p.algorithm,
        {"training.algorithm": "reranker"},
        loss_type="listwise",
        temperature=0.5,
    ),
    "data.query_prompt": Read("data/rows/examples.py", "of", "tests/unit/strategies/test_retrieval.py"),
    "data.document_prompt": Read("data/rows/examples.py", "of", "tests/unit/strategies/test_retrieval.py"),
    **under(
        f"{T}.distillation",
        p.own_answers,
        TAUGHT | {"training.distillation.lmbda": 0.5},
        lmbda=0.7,
        max_completion_length=9,
        sampling_temperature=0.2,
    ),
    # --- rollouts
    "training.rollout.rewards": Key(p.rollout, [{"name": "length"}], GRPO),
    **under(
        f"{T}.rollout",
        p.rollout,
        GRPO,
        on_reward_error="zero",
        reward_timeout=5.0,
        allow_code_execution=True,
        allow_unsandboxed_code=True,
        num_generations=4,
        max_completion_length=99,
        temperature=0.5,
        top_p=0.5,
        top_k=3,
        steps_per_generation=2,
        generation_rows=8,
        old_logprobs="recompute",
        filter_groups=True,
        num_samples_shown=5,
    ),
    "training.rollout.max_redraws": Key(p.rollout, 3, {**GRPO, "training.rollout.filter_groups": True}),
    "training.rollout.rewards[].name": Key(p.rollout_item, "length", GRPO),
    "training.rollout.rewards[].weight": Key(p.rollout_item, 2.0, GRPO),
    "training.rollout.rewards[].options": Key(p.rollout_item, {"a": 1}, GRPO),
    "training.rollout.gather_for_generation": Key(p.plan(2), False, {**GRPO, **FSDP}),
    **under(
        f"{T}.rollout.server",
        p.rollout,
        SERVER,
        url="http://127.0.0.1:2",
        model="m",
        timeout=1.0,
        sync_timeout=2.0,
        weights_dir="/elsewhere",
        api_key_env="K",
        concurrency=3,
    ),
    "training.rollout.max_sampling_gap": Read("training/rollout/build.py", "largest_gap", SERVERS),
    "training.rollout.weights": Read("training/rollout/build.py", "_server", WAYS),
    "training.rollout.verify_weights": Read("training/rollout/build.py", "_server", SERVERS),
    "training.rollout.servers": Read("config/sections/rollout.py", "all_servers", SERVERS),
    "training.rollout.servers[].weights_dir": Read("training/rollout/server.py", "_folder", SERVERS),
    "training.rollout.servers[].sync_timeout": Read("training/rollout/server.py", "_sender", SERVERS),
    **{
        f"training.rollout.servers[].{name}": Read("training/rollout/server.py", "_engine", SERVERS)
        for name in ("url", "model", "timeout", "api_key_env", "concurrency")
    },
    **{
        f"training.rollout.start.{name}": Read("launch/supervision/generation_servers.py", function, STARTED)
        for function, names in {
            "server_specs": (
                "gpu_memory_utilization",
                "port",
                "interpreter",
                "arguments",
                "tensor_parallel_size",
            ),
            "serving": ("timeout",),
        }.items()
        for name in names
    },
    **{
        f"training.rollout.start.{name}": Read("plan/algorithms/rollout.py", "server_cards", STARTED)
        for name in ("count", "sleep")
    },
    # --- where
    "training.distributed": Key(p.launch, False),
    "training.distributed_strategy": Key(p.plan(2), "fsdp"),
    "training.strategy_options": Key(p.options_of_own_strategy, {"a": 1}),
    **under(f"{T}.parallelism", p.plan(4), FSDP, dp_replicate_size=2, cp_size=2, tp_size=2),
    "training.parallelism.dp_shard_size": Key(
        p.plan(4), 2, {"training.fsdp": "hybrid_shard", "training.parallelism.cp_size": 1}
    ),
    "training.parallelism.pp_size": Key(p.plan(4), 4, PIPELINE),
    "training.parallelism.sequence_parallel": Key(p.plan(2), True, TP),
    "training.parallelism.loss_parallel": Key(p.plan(2), False, TP),
    "training.parallelism.cp_method": Key(
        p.plan(2), "allgather", {**FSDP, "training.parallelism.cp_size": 2}
    ),
    "training.parallelism.pp_schedule": Key(p.plan(2), "gpipe", PIPELINE),
    "training.parallelism.pp_stages_per_rank": Key(
        p.plan(2),
        4,
        {
            **PIPELINE,
            "training.parallelism.pp_schedule": "interleaved",
            "model.config": {**p.MODEL, "num_hidden_layers": 8},
        },
    ),
    "training.ddp_backend": Key(p.plan(2, p.A100), "gloo"),
    "training.ddp_timeout": Key(p.plan(), 60),
    **under(T, p.limits, {}, start_timeout=60, step_timeout=60),
    **under(
        T,
        p.ddp,
        DDP,
        ddp_find_unused_parameters=True,
        ddp_bucket_cap_mb=3,
        ddp_broadcast_buffers=False,
        gradient_as_bucket_view=False,
        ddp_static_graph=True,
    ),
    "training.parameters_as_bucket_view": Key(
        p.zero_redundancy, True, {"training.distributed_strategy": "zero_redundancy"}
    ),
    "training.use_cpu": Key(p.device, True),
    "training.deepspeed": Key(p.loaded(), {"zero_optimization": {"stage": 1}}),
    "training.fsdp": Key(p.loaded(), "shard_grad_op"),
    "training.fsdp_config": Key(p.loaded(), {"cpu_offload": True}, {"training.fsdp": "full_shard"}),
    "training.accelerate_config": Key(p.loaded(), "accelerate.yaml"),
    # --- batch, precision, optimizer
    **under(
        T,
        p.plan(),
        {},
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        mixed_precision="bf16",
        gradient_checkpointing=True,
        torch_compile=True,
        weight_decay=0.1,
        adam_beta1=0.8,
        adam_beta2=0.9,
        adam_epsilon=1e-6,
        optim="sgd",
    ),
    "training.per_device_eval_batch_size": Key(p.trainer, 3, EVALUATED),
    "training.optim_target_modules": Key(
        p.plan(), ["mlp"], {"training.optim": "galore_adamw", "training.optim_args": "rank=8"}
    ),
    "training.pure_bf16": Key(p.plan(), True),
    "training.fp8": Key(p.plan(), True, refused="prec.fp8"),
    "training.bf16_full_eval": Key(p.plan(), True, refused="prec.full_eval"),
    "training.fp16_full_eval": Key(p.plan(), True, refused="prec.full_eval"),
    "training.gradient_checkpointing_kwargs": Key(
        p.plan(), {"use_reentrant": True}, {"training.gradient_checkpointing": True}, "train.reentrant"
    ),
    **under(
        T,
        p.router_loss,
        {
            "model.config": {**p.MODEL, "model_type": "mixtral", "num_local_experts": 2},
            "training.router_aux_loss_coef": 0.1,
        },
        router_aux_loss_coef=0.2,
        router_aux_loss_scope="micro_batch",
    ),
    "training.freeze_router": Key(
        p.factory,
        True,
        {"model.config": {**p.MODEL, "model_type": "mixtral", "num_local_experts": 2}},
    ),
    "training.freeze": Key(p.factory, ["embed_tokens"], {}),
    "training.unfreeze": Key(p.factory, ["embed_tokens"], {}),
    **under(
        "training.learning_rates",
        p.plan(),
        {**SEES, "model.vision": True, "training.freeze": ["vision"], "training.unfreeze": ["vision"]},
        vision=1e-6,
        projector=1e-5,
    ),
    **{path: Key(p.said_idle(path), value) for path, value in IMAGES.items()},
    "training.disable_dropout": Key(p.factory, True, {}),
    "training.torch_compile_backend": Key(p.factory, "eager", COMPILED),
    "training.torch_compile_mode": Key(p.factory, "max-autotune", COMPILED),
    "training.optim_args": Key(p.plan(), "momentum=0.9", {"training.optim": "sgd"}),
    # --- steps
    **under(
        T, p.epochs, {"training.max_steps": -1}, num_train_epochs=1.5, max_steps=3, dataloader_drop_last=True
    ),
    **under(
        T,
        p.trainer,
        {},
        learning_rate=1e-3,
        max_grad_norm=0.5,
        on_spike="skip",
        spike_window=16,
        spike_sigma_factor=3,
        lr_scheduler_type="cosine",
        warmup_steps=5,
        seed=3,
    ),
    "training.lr_scheduler_kwargs": Key(
        p.trainer, {"num_cycles": 3}, {"training.lr_scheduler_type": "cosine_with_restarts"}
    ),
    "training.data_seed": Key(p.order, 5),
    **under(
        T, p.loading, {}, dataloader_num_workers=2, dataloader_pin_memory=False, dataloader_prefetch_factor=7
    ),
    # --- evaluation and saving
    "training.eval_strategy": Key(p.trainer, "epoch", {"data.eval": [{"path": "e.jsonl"}]}),
    **under(
        T,
        p.trainer,
        EVALUATED,
        eval_steps=7,
        metric_for_best_model="token_accuracy",
        greater_is_better=True,
        early_stopping_patience=3,
        early_stopping_threshold=0.5,
    ),
    "training.eval_generate": Read("plan/algorithms/rollout.py", "answers_at_evaluation", ANSWERS),
    "training.eval_metrics": Read("training/evaluation.py", "answers_measured", ANSWERS),
    "training.eval_generate_rows": Read("training/evaluation.py", "answers_measured", ANSWERS),
    "training.eval_on_start": Key(p.trainer, True, {"data.eval": [{"path": "e.jsonl"}]}),
    "training.load_best_model_at_end": Key(
        p.saver, True, {**EVALUATED, "training.save_strategy": "steps", "training.eval_steps": 500}
    ),
    **under(T, p.trainer, {}, save_strategy="epoch", save_steps=7),
    "training.save_total_limit": Key(p.saver, 2),
    "training.save_keep_every": Key(p.saver, 2, {"training.save_total_limit": 1}),
    "training.save_async": Key(p.plan(), True),
    "training.checkpoint_url": Key(p.saver, "s3://bucket/run"),
    "training.upload_timeout": Read(
        "training/worker.py", "train", "tests/integration/test_object_storage.py"
    ),
    "training.full_determinism": Read(
        "training/worker.py", "prepare_run", "tests/unit/runtime/test_determinism.py"
    ),
    "training.resume_from_checkpoint": Read("training/worker.py", "train", "tests/integration/test_train.py"),
    "training.output_dir": Key(p.run_directory, "/elsewhere"),
    "training.experiment_name": Key(p.run_directory, "other"),
    "training.output_access": Key(p.preparation, "group"),
    "training.overwrite_output_dir": Key(p.claim, True),
    # --- what one sees
    **under(
        T,
        p.observers,
        {},
        logging_steps=3,
        logging_first_step=True,
        report_to=["wandb"],
        project="other",
        run_name="other",
        log_level="debug",
    ),
    "training.profile.steps": Read("training/profiling/recorder.py", "profile_of", PROFILE),
    "training.profile.ranks": Read("training/profiling/recorder.py", "profile_of", PROFILE),
    "training.profile.memory": Read("training/profiling/recorder.py", "profile_of", PROFILE),
    "training.exporters": Read(
        "plan/needs_trial.py", "things_to_try", "tests/unit/checkpoint/test_exporters.py"
    ),
    "training.callbacks": Read("training/reporting/observers.py", "begin", CALLBACKS),
    "training.callbacks[].name": Read("training/reporting/observers.py", "begin", CALLBACKS),
    "training.callbacks[].options": Read("training/reporting/observers.py", "begin", CALLBACKS),
    # --- the small sections
    **under(
        "lora",
        p.plan(),
        LORA,
        r=2,
        alpha=3,
        dropout=0.1,
        target_modules=["q_proj"],
        modules_to_save=["lm_head"],
        bias="all",
        use_rslora=True,
        use_dora=True,
        loraplus_lr_ratio=4.0,
        init_lora_weights="pissa",
        quantization_bit=4,
    ),
    "lora.oft_block_size": Key(p.plan(), 8, {"lora.bias": "none"}),
    "lora.target_parameters": Key(
        p.plan(),
        ["mlp.experts.down_proj"],
        {**LORA, "model.config": {**p.MODEL, "model_type": "mixtral", "num_local_experts": 2}},
    ),
    **under("lora", p.plan(), QLORA, quantization_type="fp4", double_quant=False),
    "lora.adapter_name_or_path": Key(p.plan(), "/nowhere/adapter", LORA, "plan.adapter_folder"),
    **under("generation", p.chat, {}, max_new_tokens=3, temperature=0.5, top_p=0.5, top_k=3),
    **under("launch", p.launch, {}, nproc=3, node_rank=1, master_addr="10.0.0.1", master_port=29511),
    "launch.nnodes": Key(p.launch, 2),
    "launch.nodes": Read("launch/start_run.py", "start", NODES),
    "launch.rejoin_timeout": Read("launch/elastic_start.py", "run", NODES),
    **under("launch", p.slurm, {}, gpus_per_node=4, cpus_per_node=32, memory="256G", time_limit="90m"),
    **under("launch", p.slurm, {}, save_seconds=300, max_restarts=9, env={"A": "b"}, secrets={"A": "/f"}),
    **under("launch", p.slurm, {}, modules=["cuda/13"], interface="ib0", partition="gpu", account="lab"),
    **under("launch", p.slurm, {}, qos="long", constraint="h100", reservation="mine", exclusive=True),
    **under("launch.kubernetes", KUBERNETES, {}, kind="job", namespace="ml", queue="q", service_account="s"),
    **under("launch.kubernetes", KUBERNETES, {}, image_pull_secrets=["r"], node_selector={"a": "b"}),
    **under("launch.kubernetes", KUBERNETES, {}, rdma={"rdma/hca": 8}, shm_size="64Gi"),
    "launch.kubernetes.gpu_resource": Key(KUBERNETES, "amd.com/gpu", {"launch.gpus_per_node": 8}),
    "launch.kubernetes.tolerations": Key(KUBERNETES, [{"key": "a"}]),
    **{
        f"launch.kubernetes.tolerations[].{name}": Read("schedulers/kubernetes/pods.py", "placement", PODS)
        for name in ("key", "operator", "value", "effect")
    },
    **under(
        "launch.kubernetes.servers",
        KUBERNETES,
        {"launch.kubernetes.servers.image": "vllm", **SERVED_MODEL},
        image="other",
        count=2,
        gpus=4,
        arguments=["--enable-lora"],
    ),
    **under("launch.ray", p.on("ray"), {}, address="http://head:8265", placement_timeout=60),
    **under(
        "launch.skypilot",
        p.on("skypilot"),
        {"launch.gpu": "H100"},
        infra="k8s",
        use_spot=True,
        setup=["true"],
    ),
    **under("launch.dstack", p.on("dstack"), {}, backends=["aws"], spot=True, fleets=["f"]),
    "launch.sbatch_options": Key(p.slurm, ["--mail-type=FAIL"]),
    "launch.array_limit": Key(p.array, 2),
    "launch.mpi": Key(p.mpi, "mpich"),
    "launch.hostfile": Key(p.mpi, "/nowhere/hosts", refused="schedulers.hostfile"),
    "launch.gpu": Key(p.gpu, "H100", {"launch.gpus_per_node": 8}),
    "launch.container": Key(p.slurm, "apptainer", PYXIS),
    "launch.image": Key(p.slurm, "other.sqsh", PYXIS),
    "launch.mounts": Key(p.slurm, ["/data:/data"], PYXIS),
    "launch.allow_unsigned_store": Key(p.store, True, {"launch.nnodes": 2}),
}
