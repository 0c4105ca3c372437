"""Diagnostic codes of the rules: unsupported combinations, settings without effect, what a start needs."""

from __future__ import annotations

from paceline.core.diagnostics import Code

MODEL_OFFLINE = Code(
    "model.offline",
    "The model is on the hub, its files are not in this machine's cache, and HF_HUB_OFFLINE forbids"
    " downloading them. A start is refused; `paceline plan` still works.",
)
HUB_UNREACHABLE = Code(
    "hub.unreachable",
    "A model, tokenizer or data set is on the hub, not in this machine's cache, and the hub"
    " (HF_ENDPOINT), or the proxy to it, does not answer. A start is refused; `paceline plan` still"
    " works. Check the network, download it elsewhere first, or name a folder.",
)
MODEL_MISSING = Code(
    "model.missing",
    "model.name_or_path (pretrained weights) or model.config (from scratch) defines the model to train.",
)
MODEL_TWO = Code(
    "model.two",
    "name_or_path loads weights with their own configuration; config creates a new model. Give one of them.",
)
MODEL_ADDED_TOKENS = Code(
    "model.added_tokens",
    "A token added to the tokenizer is a non-empty text, and is listed once in model.add_tokens or"
    " model.add_special_tokens.",
)
MODEL_TOKENIZER = Code(
    "model.tokenizer", "A model created from scratch has no tokenizer of its own. Set model.tokenizer."
)
MODEL_TYPE = Code(
    "model.type", "model.config needs model_type, the architecture's name in Transformers (llama, qwen3, …)."
)
MODEL_CONFIG_KEY = Code(
    "model.config_key",
    "The key resembles one that the family's config class in Transformers declares, but the"
    " family's code never reads it as written: it would silently have no effect.",
)
MODEL_CONFIG_UNREAD = Code(
    "model.config_unread",
    "The family's code in Transformers never reads these keys of model.config, or another key here"
    " sets them.",
)
MODEL_DTYPE = Code(
    "model.dtype",
    "Master weights stay float32 for exact updates; mixed_precision sets the compute precision.",
)
MODEL_ATTENTION_CPU = Code("model.attention_cpu", "Flash attention kernels run on CUDA devices only.")

BATCH_POSITIVE = Code(
    "batch.positive", "Batch sizes and accumulation count rows and micro-batches, and must be at least 1."
)

TRAIN_MAX_STEPS = Code(
    "train.max_steps", "max_steps must be above 0, or -1 to train by epochs. 0 would train nothing."
)
TRAIN_WARMUP = Code(
    "train.warmup",
    "warmup_steps is a whole number of steps from 1, or a fraction of all steps below 1; it must"
    " not be longer than the run.",
)
TRAIN_WARMUP_CONSTANT = Code(
    "train.warmup_constant", "The schedule `constant` ignores warm-up; use `constant_with_warmup`."
)
TRAIN_LOGGING_STEPS = Code(
    "train.logging_steps",
    "logging_steps is a whole number of steps from 1, or a fraction of all steps below 1.",
)
TRAIN_PROFILE = Code(
    "train.profile",
    "training.profile counts steps from 1, and ranks from 0 up to one less than the number of processes.",
)
TRAIN_REPORT_TO = Code(
    "train.report_to",
    "report_to accepts tensorboard, wandb, mlflow, swanlab, trackio and module:Class (or none, or all).",
)
TRAIN_CALLBACK = Code(
    "train.callback",
    "A callback is named as module:Class or module:function, or by the name that an installed package"
    " registers in the entry-point group paceline.callbacks.",
)
TRAIN_OPTIMIZER = Code(
    "train.optimizer",
    "Transformers has this optimizer, but it is not supported here. The message gives the reason"
    " and an alternative; the reference lists the supported optimizers.",
)
TRAIN_OPTIMIZER_DEVICE = Code(
    "train.optimizer_device",
    "The optimizer does not run on this type of device: bitsandbytes pages moments between a GPU and its"
    " host. The optimizers without paged_ in their name also run on a CPU.",
)
TRAIN_OPTIMIZER_FLOAT64 = Code(
    "train.optimizer_float64",
    "The optimizer computes in float32 and would round float64 weights in every step. Set model.dtype:"
    " float32 or another training.optim.",
)
TRAIN_SCHEDULE_FREE = Code(
    "train.schedule_free",
    "A schedule-free optimizer averages the weights instead of following a schedule, and needs a constant"
    " learning rate: set lr_scheduler_type: constant, warmup_steps as a number of steps, and adam_beta1 above"
    " 0.",
)
TRAIN_OPTIM_TARGET_MODULES = Code(
    "train.optim_target_modules",
    "optim_target_modules names the matrices whose gradients GaLore projects; other optimizers have no use"
    " for it. GaLore trains weights in full, without adapters.",
)
TRAIN_LEARNING_RATE = Code(
    "train.learning_rate",
    "The learning rate is far outside the usual range: above it the weights diverge within a few"
    " steps, below it they hardly change.",
)
TRAIN_MAX_GRAD_NORM = Code(
    "train.max_grad_norm",
    "Gradients are clipped to almost nothing. max_grad_norm: 0 switches clipping off, 1.0 is usual.",
)
TRAIN_WEIGHT_DECAY = Code(
    "train.weight_decay",
    "Weight decay times learning rate is 1 or more: each step would set every weight to zero or"
    " flip its sign. weight_decay: 0.01 or 0.1 are usual.",
)
TRAIN_ADAM_EPSILON = Code(
    "train.adam_epsilon",
    "Adam divides by the root of the second moment plus this number; such a large value leaves the"
    " weights almost unchanged. adam_epsilon: 1e-8 is usual.",
)
TRAIN_SCHEDULE = Code(
    "train.schedule",
    "The learning rate must be a function of the step, so that a resumed run repeats it; schedules"
    " that follow measured losses are not.",
)
TRAIN_SCHEDULE_OPTIONS = Code(
    "train.schedule_options",
    "lr_scheduler_kwargs passes options to the schedule: each schedule has its own, and some are required.",
)
TRAIN_BEST_METRIC = Code(
    "train.best_metric",
    "metric_for_best_model names a metric that this algorithm's evaluation produces, with or"
    " without the prefix eval_.",
)
TRAIN_EVAL_GENERATE = Code(
    "train.eval_generate",
    "training.eval_generate answers the rows of evaluations and compares the answers with the rows' own. It"
    " needs evaluations (eval_strategy) and an algorithm that trains a language model on rows with answers;"
    " eval_metrics and eval_generate_rows act with it only.",
)
TRAIN_EVAL_METRICS = Code(
    "train.eval_metrics",
    "training.eval_metrics names metrics of one answer to a row: built-in ones, or your own as"
    " module:function of (answer, expected).",
)
STRATEGY_EVAL_GENERATE = Code(
    "strategy.eval_generate",
    "Answers at evaluations are generated token by token with the complete model on every rank (under tensor"
    " parallelism: on the ranks of a group together). Use ddp, fsdp or zero1 to zero3, or measure checkpoints"
    " afterwards by paceline evaluate.",
)
TRAIN_REENTRANT = Code(
    "train.reentrant",
    "Reentrant checkpointing loses gradients when a block's inputs do not require any (adapters,"
    " frozen embeddings). Only the non-reentrant implementation is supported.",
)
TRAIN_RECOMPUTE_OFF = Code(
    "train.recompute_off", "gradient_checkpointing_kwargs has no effect without gradient_checkpointing: true."
)
TRAIN_RECOMPUTE_COMPILED = Code(
    "train.recompute_compiled",
    "Selective recomputation keeps what single operators return. torch.compile fuses the operators of a"
    " layer:"
    " then a layer is recomputed as a whole.",
)
TRAIN_COMPILE_OFF = Code(
    "train.compile_off", "Options of torch.compile have no effect without torch_compile: true."
)
TRAIN_ROUTER_SCOPE = Code(
    "train.router_scope",
    "The scope of the experts' balance loss has no effect where there is no such loss. Set"
    " router_aux_loss_coef.",
)
TRAIN_ALGORITHM_SECTION = Code(
    "train.algorithm_section",
    "A section of options for an algorithm other than the one that runs has no effect.",
)

PREC_FP16_BF16_EVAL = Code("prec.fp16_bf16_eval", "fp16_full_eval and bf16_full_eval exclude each other.")
PREC_BF16_HW = Code(
    "prec.bf16_hw",
    "The device does not support bf16 arithmetic (CUDA: compute capability 8.0 and above does).",
)
PREC_FP16_HW = Code("prec.fp16_hw", "The device does not support fp16 arithmetic.")
PREC_BF16_PRETRAINED_FP16 = Code(
    "prec.bf16_pretrained_fp16",
    "Models pretrained in bf16 have activations above fp16's largest number, 65,504; losses become NaN.",
)
PREC_MIN_LOSS_SCALE = Code(
    "prec.min_loss_scale", "The minimum of DeepSpeed's dynamic loss scale must be above 0."
)

ALGORITHM_OPTIONS = Code(
    "algorithm.options",
    "algorithm_options are passed to your own algorithm (module:SPEC): each must be declared in its"
    " spec, with a value of the default's type. Built-in algorithms have sections of their own.",
)

STRATEGY_OPTIONS = Code(
    "strategy.options",
    "strategy_options are passed to your own strategy: each must be declared in its spec"
    " (module:SPEC), with a value of the default's type; a class without a spec accepts any."
    " Built-in strategies have keys of their own.",
)
STRATEGY_FLOAT64 = Code(
    "strategy.float64", "float64 is for comparing native strategies; DeepSpeed's buffers are float32."
)
STRATEGY_FP16_PIPELINE = Code(
    "strategy.fp16_pipeline",
    "Pipeline schedules run the backward passes themselves, without a loss scale. bf16 needs none.",
)
STRATEGY_PIPELINE_RECOMPUTE = Code(
    "strategy.pipeline_recompute",
    "A schedule that splits the backward cannot be combined with gradient checkpointing.",
)
STRATEGY_PAIRS = Code(
    "strategy.pairs",
    "Reward models, DPO and similar algorithms score complete answers, each on one rank, so"
    " pipeline parallelism, context parallelism and nn.DataParallel are not supported; tensor"
    " parallelism is supported under fsdp only, and not for reward models.",
)
STRATEGY_ROLLOUTS = Code(
    "strategy.rollouts",
    "Algorithms that train on the model's own answers generate them token by token, for which every"
    " rank temporarily needs all weights: single, ddp, zero_redundancy, fsdp (with tensor"
    " parallelism) and ZeRO support this.",
)
STRATEGY_DATA_PARALLEL = Code(
    "strategy.data_parallel", "nn.DataParallel works, but copies the model in every step."
)

BACK_FSDP_DS = Code(
    "back.fsdp_ds", "FSDP and DeepSpeed both shard the model; a run can use only one of them."
)
BACK_STRATEGY_VS_FILE = Code(
    "back.strategy_vs_file", "distributed_strategy contradicts the DeepSpeed or FSDP settings that are given."
)
BACK_DISTRIBUTED_FLAG = Code(
    "back.distributed_flag", "distributed: true or false contradicts distributed_strategy."
)
BACK_DISTRIBUTED_ALONE = Code(
    "back.distributed_alone",
    "distributed: true expects several processes, but only one is started, so nothing is distributed.",
)
BACK_ONE_PROCESS = Code(
    "back.one_process",
    "The config requests one process, but the launcher starts several: each would train alone on"
    " the same data.",
)
BACK_FSDP_SINGLE = Code(
    "back.fsdp_single", "FSDP shards over processes; with one process there is nothing to shard."
)
BACK_NCCL_CPU = Code(
    "back.nccl_cpu",
    "NCCL transfers data between CUDA devices. On a CPU the backend is gloo; `auto` chooses it.",
)
BACK_NOT_BUILT = Code("back.not_built", "This build of torch does not include the backend.")
DEVICE_FLOAT64 = Code(
    "device.float64",
    "The device, or the backend that sums over its processes, has no float64: MPS has none at all, Ascend's"
    " hccl transfers none. Losses and norms are then summed in float32, or over gloo.",
)
DEVICE_ALONE = Code(
    "device.alone",
    "torch has no process-group backend for tensors of this device (MPS), so one process trains on it,"
    " without an engine that needs a process group.",
)
DEVICE_GLOO = Code(
    "device.gloo", "gloo transfers tensors of the CPU and of CUDA devices; other devices have a backend."
)
DEVICE_DETERMINISM = Code(
    "device.determinism",
    "full_determinism needs deterministic kernels of every library that computes; torch tells of CUDA's and"
    " of the CPU's. On other devices sums may come in another order in each run.",
)
DEVICE_QUANTISED = Code(
    "device.quantised", "bitsandbytes quantises weights to 4 bits on CPUs, CUDA and Intel devices only."
)
BACK_MASTER_PORT_RANGE = Code("back.master_port_range", "A TCP port is a number from 0 to 65535.")
BACK_NODE_RANK = Code("back.node_rank", "Node ranks start at 0.")
BACK_MULTI_NODE_PORT = Code(
    "back.multi_node_port", "With several nodes, all of them must know the port of node 0."
)

XLA_NOT_RUN = Code(
    "xla.not_run",
    "TPUs and other XLA devices need torch_xla, for which there is no strategy. The keys are known,"
    " and `paceline plan` says what they would do.",
)

PAR_SIZES_GE1 = Code("par.sizes_ge1", "Mesh sizes are at least 1; 1 means the axis is not used.")
PAR_TP_PURE_DP = Code(
    "par.tp_pure_dp",
    "Tensor or context parallelism works with sharded data parallelism, not with pure replication.",
)
PAR_STRATEGY = Code(
    "par.strategy",
    "Each strategy has its own mesh axes: ddp replicates, zero_redundancy shards optimizer states,"
    " fsdp shards and has tp and cp, pipeline also has pp.",
)
PAR_PP_CP = Code(
    "par.pp_cp", "Pipeline stages pass on complete rows, so they cannot be combined with context parallelism."
)
PAR_CP_ATTENTION = Code(
    "par.cp_attention",
    "Context parallelism exchanges heads or keys inside Paceline's own attention (auto, paceline);"
    " Transformers' functions compute complete rows.",
)

ROLLOUT_NO_REWARDS = Code(
    "rollout.no_rewards",
    "Algorithms that train on the model's own answers need rewards: set `training.rollout.rewards`"
    " to built-in names or your own function.",
)
ROLLOUT_LENGTH = Code(
    "rollout.length",
    "`data.max_length` covers prompt and answer together; `max_completion_length` must leave room"
    " for a prompt.",
)
ROLLOUT_ONE_ANSWER = Code(
    "rollout.one_answer",
    "GRPO, RLOO and REINFORCE++ with group_baseline compare the answers to one prompt. With one"
    " answer per prompt there is nothing to compare: every advantage is 0.",
)
ROLLOUT_FILTER_GROUPS = Code(
    "rollout.filter_groups",
    "filter_groups drops prompts whose answers all have the same score, because they have no"
    " gradient where answers to one prompt are compared. PPO, and REINFORCE++ without"
    " group_baseline, score each answer by itself.",
)
ROLLOUT_MAX_REDRAWS = Code(
    "rollout.max_redraws",
    "max_redraws limits how often prompts whose answers all have the same score are replaced by"
    " others; without filter_groups these prompts are kept and trained on.",
)
ROLLOUT_GREEDY = Code(
    "rollout.greedy", "At temperature 0 all answers to a prompt are identical, so every advantage is 0."
)
ROLLOUT_SERVER_URL = Code(
    "rollout.server_url",
    "`training.rollout.server.url` is scheme, host and port of a server with vLLM's OpenAI-compatible API.",
)
ROLLOUT_SERVER_KEY = Code(
    "rollout.server_key",
    "A key sent over plain http to another machine can be read by others on the network.",
)
ROLLOUT_SERVER_CUT = Code(
    "rollout.server_cut",
    "A server needs the policy's complete weights in the compute dtype; tensor parallelism and"
    " 4-bit weights do not have them.",
)
ROLLOUT_SERVER_TOWER = Code(
    "rollout.server_tower",
    "A server runs the model with all its parts; the weights that a run sends are the language"
    " model's alone.",
)

REWARDS_MODEL_OPTIONS = Code(
    "rewards.model_options", "The reward `model` has one option, `model`: a folder or a hub name."
)
REWARDS_TWO_MODELS = Code(
    "rewards.two_models",
    "A run supports one reward model; its score is added to those of functions by weight.",
)
REWARDS_CODE_OFF = Code(
    "rewards.code_off",
    "The reward `code` runs programs that the model writes; it is disabled unless"
    " `training.rollout.allow_code_execution` is true.",
)
REWARDS_NO_ISOLATION = Code(
    "rewards.no_isolation",
    "The reward `code` runs programs in their own user, process, mount and network namespaces, with"
    " a read-only root, Landlock and seccomp (Linux 5.12 and newer, x86_64 and aarch64). This"
    " machine does not let this user create them: set `sysctl user.max_user_namespaces` above 0, on"
    " Ubuntu `kernel.apparmor_restrict_unprivileged_userns` to 0, for a container use"
    " `--security-opt seccomp=unconfined`.",
)
REWARDS_UNSANDBOXED = Code(
    "rewards.unsandboxed",
    "`training.rollout.allow_unsandboxed_code` is set and this machine has no sandbox: only"
    " resource limits, and Landlock and seccomp if the kernel has them, protect this user's files"
    " from the model's programs.",
)
REWARDS_NO_CODE = Code(
    "rewards.no_code", "`training.rollout.allow_unsandboxed_code` applies to the reward `code` only."
)

PPO_NO_KL = Code(
    "ppo.no_kl",
    "A reference is used only for the KL; if its weight (kl_coef, beta) is 0, no reference is loaded.",
)

STRATEGY_DIVERGENCE = Code(
    "strategy.divergence",
    "Distillation compares distributions over the whole vocabulary, for which every rank needs both"
    " heads complete: tensor parallelism and pipeline parallelism are not supported. Sequences may"
    " be sharded (context parallelism).",
)
DPO_LM_HEAD_ADAPTER = Code(
    "dpo.lm_head_adapter",
    "The fused loss reads the head's own weight, so an adapter on lm_head would get no gradient.",
)

ZERO_STAGE = Code(
    "zero.stage",
    "ZeRO's stages: 0 shards nothing, 1 the optimizer states, 2 also the gradients, 3 also the weights.",
)

FSDP_ACT_CKPT_TWICE = Code(
    "fsdp.act_ckpt_twice",
    "fsdp_config.activation_checkpointing and gradient_checkpointing would recompute twice.",
)

SAVE_BEST_STRATEGY = Code(
    "save.best_strategy",
    "load_best_model_at_end chooses among checkpoints by their evaluation: saving and evaluation"
    " must happen at the same steps, or set save_strategy: best.",
)
SAVE_BEST_STEPS = Code(
    "save.best_steps",
    "With strategies `steps`, save_steps must be a multiple of eval_steps, so that every checkpoint has been"
    " evaluated.",
)
SAVE_BEST_NEEDS_EVAL = Code(
    "save.best_needs_eval", "save_strategy: best saves after an evaluation that was the best so far."
)
SAVE_STEPS_FRACTION = Code(
    "save.steps_fraction", "save_steps is a whole number of steps from 1, or a fraction of all steps below 1."
)
SAVE_TOTAL_LIMIT = Code(
    "save.total_limit", "save_total_limit is the number of checkpoints to keep, and must be at least 1."
)
SAVE_KEEP_EVERY = Code(
    "save.keep_every",
    "save_keep_every keeps each checkpoint whose step is a multiple of it from being removed by"
    " save_total_limit, without which nothing is removed.",
)
SAVE_UPLOAD_TIMEOUT = Code(
    "save.upload_timeout",
    "upload_timeout is how long a stopped run waits for its upload to checkpoint_url, without which there is"
    " none.",
)
SAVE_DISK = Code("save.disk", "The disk has no room for the checkpoints to keep plus one being written.")

SAVE_CHECKPOINT_URL = Code(
    "save.checkpoint_url",
    "The URL of object storage cannot be used. A checkpoint is committed there by an object that is created"
    " only if it does not exist, which not every kind of storage has; credentials never stand in a URL.",
)
SAVE_OBJECTS_PACKAGE = Code(
    "save.objects_package",
    "Checkpoints in object storage need a package that is not installed: pip install 'paceline[objects]'.",
)

RUN_REMOTE_FOLDER = Code(
    "run.remote_folder",
    "An address such as s3://bucket/run would become a local folder of that name (s3:). The run directory is"
    " a local folder; training.checkpoint_url: s3://bucket/run puts each checkpoint there too.",
)
RUN_NAME_LEAVES_OUTPUTS = Code(
    "run.name_leaves_outputs",
    "experiment_name must be a plain name: with .. or a leading / its folder would be outside of"
    " outputs/. output_dir sets where a run is written.",
)

EVAL_DATASET = Code(
    "eval.dataset",
    "eval_strategy requests evaluation: set data.eval, or split off rows with data.validation_split.",
)
EVAL_EARLY_STOPPING = Code(
    "eval.early_stopping",
    "Early stopping counts evaluations without improvement, but the run has no evaluations.",
)
EVAL_STEPS = Code(
    "eval.steps", "eval_steps is a whole number of steps from 1, or a fraction of all steps below 1."
)

RESUME_NO_CHECKPOINT = Code(
    "resume.no_checkpoint",
    "resume_from_checkpoint: latest found no checkpoint; a run never silently starts from step 0."
    " `auto` resumes if there is a checkpoint.",
)
RESUME_ONLY_INCOMPLETE = Code(
    "resume.only_incomplete",
    "There are only checkpoints that were never completed. Silently starting at step 0 could repeat"
    " forever; nothing is deleted.",
)
RESUME_OVERWRITE = Code(
    "resume.overwrite",
    "overwrite_output_dir and resume_from_checkpoint contradict each other; resuming takes precedence.",
)

DATA_MISSING = Code(
    "data.missing",
    "data.train names the training data, but it is missing or the path does not exist. Give the"
    " path of a file or folder, or a name on the hub (owner/name).",
)
DATA_PREFETCH = Code(
    "data.prefetch", "dataloader_prefetch_factor applies to loading threads, but dataloader_num_workers is 0."
)
DATA_MAX_POS = Code(
    "data.max_pos", "Sequences are longer than the number of positions that the model supports."
)
DATA_PACKING_EVAL = Code(
    "data.packing_eval",
    "Packed rows are for data sets; algorithms that train on the model's own answers build their"
    " rows from rollouts. Preference pairs are packed with both answers in one row.",
)
DATA_VALIDATION_SPLIT = Code(
    "data.validation_split", "validation_split is a fraction between 0 and 1, or a number of rows."
)
DATA_TWO_EVALS = Code("data.two_evals", "data.eval and data.validation_split both name evaluation data.")
DATA_ONE_WEIGHT = Code("data.one_weight", "Weights mix several data sets, but there is only one.")

PEFT_BITS = Code(
    "peft.bits", "The frozen weights under adapters are quantised to 4 bits by bitsandbytes, or not at all."
)
PEFT_PATTERN = Code(
    "peft.pattern",
    "target_modules is a list of name endings, or one regular expression that must match complete"
    " names; peft cannot mix the two.",
)
PEFT_QUANT_BIAS = Code(
    "peft.quant_bias",
    "bitsandbytes casts the bias of a 4-bit layer to the compute dtype in place, so it has no"
    " float32 master weight to train.",
)
PEFT_RESIZE_QUANT = Code(
    "peft.resize_quant", "Added tokens need new embedding rows, which a quantised embedding cannot have."
)

SEC_ATTENTION_KERNEL = Code(
    "sec.attention_kernel",
    "Transformers downloads an attention implementation named `org/repository` from the hub and"
    " runs it. Pin it by a commit, like any code; a model's own config.json cannot request one.",
)

HOST_MEMLOCK = Code(
    "host.memlock",
    "NCCL registers memory with InfiniBand devices, which fails if locked memory is limited: set"
    " `ulimit -l unlimited`.",
)
HOST_NOFILE = Code(
    "host.nofile",
    "Every process of the run keeps connections open to the store on node 0, but that node's limit"
    " of open files is lower.",
)
HOST_IFNAME = Code(
    "host.ifname", "NCCL_SOCKET_IFNAME is a list of interface prefixes (= for exact names), but none matches."
)
HOST_SLURM_TASKS = Code(
    "host.slurm_tasks",
    "torchrun starts the processes of a node itself, so Slurm must start one task per node.",
)
