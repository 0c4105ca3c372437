"""Diagnostic codes of the rules: unsupported combinations, settings without effect, what a start needs."""

from __future__ import annotations

from paceline.core.diagnostics import Code

MODEL_OFFLINE = Code(
    "model.offline",
    "The model is on the hub, its files are not in this machine's cache, and HF_HUB_OFFLINE forbids to fetch"
    " them. A start is refused; a plan can be looked at.",
)
MODEL_MISSING = Code(
    "model.missing", "model.name_or_path (weights) or model.config (from scratch) says what is trained."
)
MODEL_TWO = Code("model.two", "name_or_path loads weights with their own shape; config makes a fresh model.")
MODEL_ADDED_TOKENS = Code(
    "model.added_tokens",
    "A token that is added to the tokenizer is a text, and stands once in model.add_tokens or"
    " model.add_special_tokens.",
)
MODEL_TOKENIZER = Code("model.tokenizer", "A model from scratch brings no tokenizer.")
MODEL_TYPE = Code(
    "model.type", "model.config needs model_type, the architecture's name in Transformers (llama, qwen3, …)."
)
MODEL_CONFIG_KEY = Code(
    "model.config_key",
    "The key is close to one that the family's config class in Transformers declares, and no line of the"
    " family's code reads it as written: it would set nothing, without a word.",
)
MODEL_CONFIG_UNREAD = Code(
    "model.config_unread",
    "No line of the family's code in Transformers reads these keys of model.config, or they are set by"
    " another key here.",
)
MODEL_DTYPE = Code(
    "model.dtype", "Masters stay float32 for exact updates; mixed_precision sets the compute precision."
)
MODEL_ATTENTION_CPU = Code("model.attention_cpu", "Flash attention kernels are for CUDA devices.")

BATCH_POSITIVE = Code(
    "batch.positive", "Batch sizes and accumulation count rows and micro-batches: at least 1."
)

TRAIN_MAX_STEPS = Code(
    "train.max_steps", "max_steps is above 0, or -1 to train by epochs. 0 would train nothing."
)
TRAIN_WARMUP = Code(
    "train.warmup",
    "warmup_steps: whole steps from 1 on, a share of all steps below 1; and not longer than the run.",
)
TRAIN_WARMUP_CONSTANT = Code(
    "train.warmup_constant", "The schedule `constant` ignores warm-up; `constant_with_warmup` has it."
)
TRAIN_LOGGING_STEPS = Code(
    "train.logging_steps", "logging_steps: whole steps from 1 on, a share of all steps below 1."
)
TRAIN_REPORT_TO = Code("train.report_to", "Trackers are tensorboard and wandb (or none, or all).")
TRAIN_OPTIMIZER = Code(
    "train.optimizer",
    "Transformers knows the optimizer, and it is not built here. The message says why and what to write"
    " instead; the reference lists those that are built.",
)
TRAIN_LEARNING_RATE = Code(
    "train.learning_rate",
    "A rate far outside of what anybody trains with: above it the weights are ruined within a few steps,"
    " below it they stay as they are.",
)
TRAIN_MAX_GRAD_NORM = Code(
    "train.max_grad_norm",
    "Gradients are clipped to next to nothing. max_grad_norm: 0 does not clip, 1.0 is usual.",
)
TRAIN_WEIGHT_DECAY = Code(
    "train.weight_decay",
    "Weight decay times learning rate is 1 or more: each step would take away all of every weight, or turn it"
    " round. weight_decay: 0.01 or 0.1 are usual.",
)
TRAIN_ADAM_EPSILON = Code(
    "train.adam_epsilon",
    "Adam divides by the root of the second moment plus this number; one so large leaves the weights about as"
    " they are. adam_epsilon: 1e-8 is usual.",
)
TRAIN_SCHEDULE = Code(
    "train.schedule",
    "The learning rate is a function of the step, so that a resumed run repeats it; schedules that follow"
    " measured losses are not.",
)
TRAIN_SCHEDULE_OPTIONS = Code(
    "train.schedule_options",
    "lr_scheduler_kwargs hands options to the schedule: each has its own, some need one.",
)
TRAIN_BEST_METRIC = Code(
    "train.best_metric",
    "metric_for_best_model names what an evaluation of this algorithm yields, with or without the prefix"
    " eval_.",
)
TRAIN_REENTRANT = Code(
    "train.reentrant",
    "Reentrant checkpointing loses gradients when a block's inputs need none (adapters, frozen embeddings)."
    " Only the other kind is built.",
)
TRAIN_RECOMPUTE_OFF = Code(
    "train.recompute_off", "gradient_checkpointing_kwargs without gradient_checkpointing: true sets nothing."
)
TRAIN_COMPILE_OFF = Code(
    "train.compile_off", "Options of torch.compile without torch_compile: true set nothing."
)
TRAIN_ALGORITHM_SECTION = Code(
    "train.algorithm_section",
    "A section of options for another algorithm than the one that runs has no effect.",
)

PREC_FP16_BF16_EVAL = Code("prec.fp16_bf16_eval", "fp16_full_eval and bf16_full_eval exclude each other.")
PREC_BF16_HW = Code(
    "prec.bf16_hw", "The device has no bf16 arithmetic (CUDA: compute capability 8.0 and above)."
)
PREC_FP16_HW = Code("prec.fp16_hw", "The device has no fp16 arithmetic.")
PREC_BF16_PRETRAINED_FP16 = Code(
    "prec.bf16_pretrained_fp16",
    "Models pretrained in bf16 have activations beyond fp16's largest number, 65,504; losses turn to NaN.",
)
PREC_MIN_LOSS_SCALE = Code("prec.min_loss_scale", "DeepSpeed's dynamic loss scale must not fall to 0.")

ALGORITHM_OPTIONS = Code(
    "algorithm.options",
    "algorithm_options are handed to an algorithm of your own (module:SPEC): each is one that its spec names,"
    " with a value of the default's type. Built-in algorithms have sections of their own.",
)

STRATEGY_OPTIONS = Code(
    "strategy.options",
    "strategy_options are handed to a strategy of your own: each is one that its spec (module:SPEC) names,"
    " with a value of the default's type; a class without a spec takes any. Built-in ones have keys of their"
    " own.",
)
STRATEGY_FLOAT64 = Code(
    "strategy.float64", "float64 is for comparing native strategies; DeepSpeed's buffers are float32."
)
STRATEGY_FP16_OFFLOAD = Code(
    "strategy.fp16_offload",
    "A loss scale needs gradients on the device, offloading takes them away. bf16 needs no scale.",
)
STRATEGY_FP16_PIPELINE = Code(
    "strategy.fp16_pipeline",
    "Pipeline schedules run backwards on their own, without a loss scale. bf16 needs none.",
)
STRATEGY_PIPELINE_RECOMPUTE = Code(
    "strategy.pipeline_recompute",
    "A schedule that splits the backward cannot be combined with computing activations again.",
)
STRATEGY_PAIRS = Code(
    "strategy.pairs",
    "Reward models, DPO and others score answers as wholes, each on one rank: no pipeline, no context"
    " parallelism, no nn.DataParallel; tensor parallelism under fsdp alone, and not for reward models.",
)
STRATEGY_ROLLOUTS = Code(
    "strategy.rollouts",
    "Algorithms that learn from the model's own answers write them token by token, for which every rank needs"
    " the whole model for a while: single, ddp, zero_redundancy, fsdp (with tensor parallelism) and ZeRO can"
    " give it.",
)
STRATEGY_DATA_PARALLEL = Code(
    "strategy.data_parallel", "nn.DataParallel works, and costs a copy of the model in every step."
)

BACK_FSDP_DS = Code("back.fsdp_ds", "FSDP and DeepSpeed both shard the model; one run uses one of them.")
BACK_STRATEGY_VS_FILE = Code(
    "back.strategy_vs_file", "distributed_strategy contradicts the DeepSpeed or FSDP settings that are given."
)
BACK_DISTRIBUTED_FLAG = Code(
    "back.distributed_flag", "distributed: true or false contradicts distributed_strategy."
)
BACK_DISTRIBUTED_ALONE = Code(
    "back.distributed_alone",
    "distributed: true expects several processes, and one is started: nothing is shared out.",
)
BACK_ONE_PROCESS = Code(
    "back.one_process",
    "The config asks for one process, and the launcher starts several: each would train alone on the same"
    " data.",
)
BACK_FSDP_SINGLE = Code("back.fsdp_single", "FSDP shards over processes; with one there is nothing to shard.")
BACK_NCCL_CPU = Code(
    "back.nccl_cpu", "NCCL moves data between CUDA devices. On a CPU the backend is gloo; `auto` chooses."
)
BACK_NOT_BUILT = Code("back.not_built", "This build of torch does not have the backend.")
BACK_MASTER_PORT_RANGE = Code("back.master_port_range", "TCP ports are 0 to 65535.")
BACK_NODE_RANK = Code("back.node_rank", "Nodes are counted from 0.")
BACK_MULTI_NODE_PORT = Code(
    "back.multi_node_port", "With several nodes the port of node 0 must be known to all of them."
)

XLA_NOT_RUN = Code(
    "xla.not_run",
    "TPUs and other XLA devices are driven by torch_xla, for which there is no strategy here. The keys are"
    " known, and `paceline plan` says what they would do.",
)

PAR_SIZES_GE1 = Code("par.sizes_ge1", "Mesh sizes are at least 1; 1 means the axis is not used.")
PAR_TP_PURE_DP = Code(
    "par.tp_pure_dp",
    "Tensor or context parallel combines with sharded data parallel, not with pure replicas.",
)
PAR_STRATEGY = Code(
    "par.strategy",
    "Each strategy has its own mesh axes: ddp replicates, zero_redundancy shares optimizer states, fsdp"
    " shards and has tp and cp, pipeline has pp too.",
)
PAR_PP_CP = Code(
    "par.pp_cp", "Pipeline stages pass whole rows on, so context parallel does not go with them."
)
PAR_CP_ATTENTION = Code(
    "par.cp_attention",
    "Context parallel exchanges heads or keys inside Paceline's own attention (auto, paceline); Transformers'"
    " functions compute whole rows.",
)

ROLLOUT_NO_REWARDS = Code(
    "rollout.no_rewards",
    "Algorithms that learn from the model's own answers need to be told which are good:"
    " `training.rollout.rewards`, built-in names or a function of your own.",
)
ROLLOUT_LENGTH = Code(
    "rollout.length",
    "`data.max_length` is prompt and answer together; `max_completion_length` has to leave room for a"
    " prompt.",
)
ROLLOUT_ONE_ANSWER = Code(
    "rollout.one_answer",
    "GRPO, RLOO and REINFORCE++ with group_baseline compare the answers to one prompt with each other. With"
    " one answer there is nothing to compare: every advantage is 0.",
)
ROLLOUT_FILTER_GROUPS = Code(
    "rollout.filter_groups",
    "filter_groups leaves out prompts whose answers score the same, because nothing is learnt of them where"
    " answers to one prompt are compared. PPO, and REINFORCE++ without group_baseline, value each answer by"
    " itself.",
)
ROLLOUT_MAX_REDRAWS = Code(
    "rollout.max_redraws",
    "max_redraws says how often prompts whose answers score the same are replaced by others; without"
    " filter_groups they are kept and trained on.",
)
ROLLOUT_GREEDY = Code(
    "rollout.greedy", "At temperature 0 every answer to a prompt is the same one, and every advantage is 0."
)
ROLLOUT_CORRECTION = Code(
    "rollout.correction",
    "rollout_correction compares the log-probabilities of sampling with those of training; old_logprobs:"
    " sampling says that they are the same.",
)
ROLLOUT_SERVER_URL = Code(
    "rollout.server_url",
    "`training.rollout.server.url` is scheme, host and port of a server with vLLM's OpenAI-style interface.",
)
ROLLOUT_SERVER_KEY = Code(
    "rollout.server_key", "A key sent over plain http to another machine can be read on the way."
)
ROLLOUT_SERVER_CUT = Code(
    "rollout.server_cut",
    "A server is given the policy's whole weights in the dtype that is computed in; tensor parallelism and"
    " 4-bit weights do not have them.",
)

GRPO_CISPO_BOUND = Code(
    "grpo.cispo_bound",
    "CISPO multiplies each token's log-probability by min(ratio, epsilon_high): the bound is compared with"
    " the ratio itself, which is 1 for a policy that has not moved. TRL reads the key so, too; its default"
    " (epsilon, 0.2) would scale every update down to a fifth.",
)
GRPO_CISPO_UNUSED = Code(
    "grpo.cispo_unused",
    "The losses of GRPO clip the ratio to 1 - epsilon … 1 + epsilon_high and may bound it by delta; CISPO has"
    " one bound, epsilon_high, on the weight.",
)

REWARDS_MODEL_OPTIONS = Code(
    "rewards.model_options", "The reward `model` has one option, `model`: a folder or a hub name."
)
REWARDS_TWO_MODELS = Code(
    "rewards.two_models", "One reward model judges a run; its score is added to those of functions by weight."
)
REWARDS_CODE_OFF = Code(
    "rewards.code_off",
    "The reward `code` runs programs that the model wrote; that is off unless"
    " `training.rollout.allow_code_execution` is true.",
)
REWARDS_NO_ISOLATION = Code(
    "rewards.no_isolation",
    "The reward `code` runs programs in user, process, mount and network namespaces of their own, with a"
    " read-only root, Landlock and seccomp (Linux 5.12 and newer, x86_64 and aarch64). This machine does not"
    " let this user make them: `sysctl user.max_user_namespaces` above 0, on Ubuntu"
    " `kernel.apparmor_restrict_unprivileged_userns` 0, for a container `--security-opt seccomp=unconfined`.",
)
REWARDS_UNSANDBOXED = Code(
    "rewards.unsandboxed",
    "`training.rollout.allow_unsandboxed_code` was set and this machine gives no sandbox: limits, and"
    " Landlock and seccomp where the kernel has them, are all that is between a program of the model and the"
    " files of this user.",
)
REWARDS_NO_CODE = Code(
    "rewards.no_code", "`training.rollout.allow_unsandboxed_code` is about the reward `code` alone."
)

PPO_KL_ESTIMATOR = Code(
    "ppo.kl_estimator",
    "The gradient of k1 = log π - log π_ref is that of log π, whose mean under π is 0. In the loss k2 and k3"
    " stand for the KL; in the reward each of the three does.",
)
PPO_ADAPTIVE_KL = Code(
    "ppo.adaptive_kl", "The adaptive controller multiplies kl_coef; one of 0 would stay 0."
)
PPO_NO_KL = Code(
    "ppo.no_kl", "A reference is only asked for the KL; where its weight (kl_coef, beta) is 0 there is none."
)

STRATEGY_DIVERGENCE = Code(
    "strategy.divergence",
    "Distillation compares distributions over the whole vocabulary, for which every rank has both heads"
    " whole: no tensor parallelism and no pipeline. Rows may be cut (context parallelism).",
)
DPO_REFERENCE = Code(
    "dpo.reference",
    "reference_free leaves the reference out, so that nothing can be asked of it or computed of it"
    " beforehand.",
)
DPO_LABEL_SMOOTHING = Code(
    "dpo.label_smoothing",
    "Only the sigmoid and the robust loss know labels that are flipped with some probability.",
)
DPO_LM_HEAD_ADAPTER = Code(
    "dpo.lm_head_adapter",
    "The fused loss reads the head's own weight, so an adapter on lm_head would get no gradient.",
)

ZERO_STAGE = Code("zero.stage", "ZeRO's stages: 0 none, 1 optimizer states, 2 gradients too, 3 weights too.")

FSDP_ACT_CKPT_TWICE = Code(
    "fsdp.act_ckpt_twice",
    "fsdp_config.activation_checkpointing and gradient_checkpointing would recompute twice.",
)

SAVE_BEST_STRATEGY = Code(
    "save.best_strategy",
    "load_best_model_at_end picks among checkpoints by their evaluation: both must happen at the same times,"
    " or save_strategy: best.",
)
SAVE_BEST_STEPS = Code(
    "save.best_steps",
    "With strategies `steps`, save_steps must be a multiple of eval_steps, so that every checkpoint has been"
    " evaluated.",
)
SAVE_BEST_NEEDS_EVAL = Code(
    "save.best_needs_eval", "save_strategy: best saves when an evaluation was the best so far."
)
SAVE_STEPS_FRACTION = Code(
    "save.steps_fraction", "save_steps: whole steps from 1 on, a share of all steps below 1."
)
SAVE_TOTAL_LIMIT = Code("save.total_limit", "save_total_limit counts the checkpoints to keep, at least 1.")
SAVE_DISK = Code("save.disk", "The checkpoints to keep, and one being written, do not fit on the disk.")

RUN_REMOTE_FOLDER = Code(
    "run.remote_folder",
    "An address such as s3://bucket/run would become a local folder of that name (s3:). Mount the storage, or"
    " copy the run's folder there.",
)
RUN_NAME_LEAVES_OUTPUTS = Code(
    "run.name_leaves_outputs",
    "experiment_name is a name: with .. or a leading / its folder would lie outside of outputs/. output_dir"
    " says where a run lies.",
)

EVAL_DATASET = Code(
    "eval.dataset",
    "eval_strategy asks for evaluation: give data.eval, or split rows off by data.validation_split.",
)
EVAL_EARLY_STOPPING = Code(
    "eval.early_stopping", "Early stopping counts evaluations without improvement; there are none."
)
EVAL_STEPS = Code("eval.steps", "eval_steps: whole steps from 1 on, a share of all steps below 1.")

RESUME_NO_CHECKPOINT = Code(
    "resume.no_checkpoint",
    "resume_from_checkpoint: latest found nothing; a run is never started anew silently. `auto` goes on if"
    " there is something.",
)
RESUME_ONLY_INCOMPLETE = Code(
    "resume.only_incomplete",
    "Checkpoints were begun and never finished. Starting at step 0 silently would repeat forever; nothing is"
    " deleted.",
)
RESUME_OVERWRITE = Code(
    "resume.overwrite",
    "overwrite_output_dir and resume_from_checkpoint contradict each other; going on wins.",
)

DATA_MISSING = Code(
    "data.missing",
    "data.train names what is trained on, and nothing is named or nothing lies there. Give the path of a file"
    " or folder, or a name on the hub (owner/name).",
)
DATA_PREFETCH = Code(
    "data.prefetch", "dataloader_prefetch_factor is for loading threads; dataloader_num_workers is 0."
)
DATA_MAX_POS = Code("data.max_pos", "Sequences are longer than the positions that the model knows.")
DATA_PACKING_EVAL = Code(
    "data.packing_eval",
    "Packed rows are for data sets; algorithms that learn from the model's own answers make their rows from"
    " rollouts. Preference pairs are packed with both halves in one row.",
)
DATA_VALIDATION_SPLIT = Code(
    "data.validation_split", "validation_split is a share between 0 and 1, or a number of rows."
)
DATA_TWO_EVALS = Code("data.two_evals", "data.eval and data.validation_split both name evaluation data.")
DATA_ONE_WEIGHT = Code("data.one_weight", "Weights mix several data sets; there is one.")

PEFT_BITS = Code(
    "peft.bits", "The frozen weights under adapters are quantised to 4 bits by bitsandbytes, or not at all."
)
PEFT_PATTERN = Code(
    "peft.pattern",
    "target_modules is a list of ends of names, or one regular expression that must match a whole name; peft"
    " knows no mixture.",
)
PEFT_QUANT_BIAS = Code(
    "peft.quant_bias",
    "bitsandbytes casts the bias of a 4-bit layer to the compute type in place: it has no float32 master that"
    " could be trained.",
)
PEFT_RESIZE_QUANT = Code(
    "peft.resize_quant", "Added tokens need new embedding rows, which a quantised embedding cannot get."
)

SEC_ATTENTION_KERNEL = Code(
    "sec.attention_kernel",
    "Transformers downloads an attention that is named `org/repository` from the hub and runs it. It has to"
    " be pinned by a commit, like any code; a model's own config.json cannot ask for one.",
)

HOST_MEMLOCK = Code(
    "host.memlock",
    "NCCL registers memory with InfiniBand devices, which fails under a limit of locked memory: `ulimit -l"
    " unlimited`.",
)
HOST_NOFILE = Code(
    "host.nofile",
    "Every process of the run keeps connections open to the store on node 0; that node's limit of open files"
    " is lower.",
)
HOST_IFNAME = Code(
    "host.ifname", "NCCL_SOCKET_IFNAME is a list of prefixes (= for exact names); none matches."
)
HOST_SLURM_TASKS = Code(
    "host.slurm_tasks", "torchrun starts the processes of a node itself; Slurm must start one task a node."
)
