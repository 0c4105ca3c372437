"""Codes of the plan: what a job needs, what its hardware has, how it is split."""

from __future__ import annotations

from paceline.core.diagnostics import Code

ALGORITHM_NO_SPEC = Code(
    "algorithm.no_spec",
    "training.algorithm: module:SPEC names an object that is not an AlgorithmSpec. Create one with"
    " paceline.extend; it names the class that implements the algorithm.",
)
CLASSIFICATION_LABELS = Code(
    "classification.labels",
    "labels lists each class name once, in the order of class numbers; num_labels is the number of"
    " classes if there are no names.",
)
ALGORITHM_NO_TEACHER = Code(
    "algorithm.no_teacher",
    "Distillation trains on the next-token distributions of a teacher, a larger model with the same"
    " vocabulary: set `training.distillation.teacher_model`.",
)
DISTILLATION_LMBDA_OFF = Code(
    "distillation.lmbda_off",
    "max_completion_length and sampling_temperature configure how the student generates its own"
    " answers, but with training.distillation.lmbda: 0 it generates none. Set lmbda, or remove"
    " them.",
)
ALGORITHM_VOCABULARY = Code(
    "algorithm.vocabulary",
    "Teacher and student are compared token by token, so token i must be the same text for both. If"
    " their embeddings differ only by padding rows, the rows that both have are compared.",
)
ALGORITHM_SPEC_TORCH = Code(
    "algorithm.spec_torch",
    "Planning imports the module of your own spec, and must start quickly, without torch. Put the"
    " class in another module and name it in the spec's implementation.",
)
PLAN_STEP_TIMEOUT = Code(
    "plan.step_timeout",
    "A step is predicted to last longer than training.step_timeout, so ranks that wait for each other's"
    " normal work may end the run. Set a longer limit, or none: training.ddp_timeout then counts.",
)

DEVICE_ARCH = Code(
    "device.arch",
    "torch is compiled for a list of generations of cards, and the one in this machine is not among them: its"
    " first kernel would fail. Use a release of torch, or an index of wheels, that supports"
    " it.",
)
DEVICE_CPU_TORCH = Code(
    "device.cpu_torch",
    "There is an accelerator in this machine, and the installed torch is the build for CPUs, which cannot"
    " use it."
    " Install the build that fits the card and its driver, as shown, or set training.use_cpu: true.",
)
DEVICE_DRIVER_OLD = Code(
    "device.driver_old",
    "The NVIDIA driver is older than the CUDA release that torch was built with needs. A newer driver runs"
    " every"
    " torch; where it cannot be had, a torch built for an older CUDA, as shown.",
)
DEVICE_HIDDEN = Code(
    "device.hidden",
    "A variable of the environment hides every accelerator from this process; Slurm sets it so for a job"
    " that requested"
    " no GPU. Request one, unset the variable, or set training.use_cpu: true.",
)
DEVICE_MEMORY_TAKEN = Code(
    "device.memory_taken",
    "Other processes hold memory of the accelerator. The plan uses what is free at this moment; what"
    " they allocate"
    " later is not available to the run.",
)
DEVICE_MIG_EMPTY = Code(
    "device.mig_empty",
    "An NVIDIA card in MIG mode computes only in instances, and there is none. Create one, or disable the"
    " mode.",
)
DEVICE_MIXED = Code(
    "device.mixed",
    "The machine's cards are unequal, and the weakest of those that train together decides about memory,"
    " precision"
    " and speed of all. The set with the most memory in all is used; the variable that is shown takes"
    " another one.",
)
DEVICE_PACKAGE = Code(
    "device.package",
    "torch supports this accelerator only with a package of its vendor, which is not installed. Install it as"
    " shown, or"
    " set training.use_cpu: true.",
)
DEVICE_SILENT = Code(
    "device.silent",
    "A device file shows an accelerator, but neither torch nor the driver's tool answered in time, so"
    " nothing is"
    " known about it. A driver that hangs shows up in the kernel's log (dmesg).",
)
DEVICE_TORCH_SILENT = Code(
    "device.torch_silent",
    "torch, queried in a separate process, did not report which accelerators it sees. The driver's tool lists"
    " some, and"
    " the plan uses those; the ranks may run into whatever kept torch from answering.",
)
DEVICE_UNDRIVEN = Code(
    "device.undriven",
    "Paceline supports CUDA and ROCm devices, Intel's XPU, Ascend NPUs, and Apple's MPS with one process. It"
    " does not"
    " silently train on the CPU where another accelerator is there: set training.use_cpu: true.",
)
DEVICE_UNUSED = Code(
    "device.unused",
    "There is an accelerator, but torch does not see it: its driver is not loaded, the container was"
    " started without"
    " it, or this user may not open its files. `paceline doctor` shows what torch and the driver's tool see.",
)

TRACKER_NOT_INSTALLED = Code(
    "tracker.not_installed",
    "The package of a tracker listed in training.report_to is not installed. Install it as shown,"
    " or remove the name.",
)
TRACKER_OFFLINE = Code(
    "tracker.offline",
    "The tracker has no key of its server here and writes to a folder of the run only. `wandb sync` or"
    " `swanlab sync` uploads it later.",
)

MODEL_ADAPTER_FOLDER = Code(
    "model.adapter_folder",
    "The folder contains an adapter, not a model. Set model.name_or_path to the base model and"
    " lora.adapter_name_or_path to the folder.",
)
MODEL_DAMAGED_WEIGHTS = Code(
    "model.damaged_weights",
    "A safetensors file is shorter or longer than its own header says, or contains no tensors: a"
    " copy or a download was interrupted. Download it again.",
)
MODEL_MISSING_SHARDS = Code(
    "model.missing_shards",
    "model.safetensors.index.json lists files that are not in the folder. Download them again.",
)
MODEL_NO_WEIGHTS = Code(
    "model.no_weights",
    "The folder has a config.json but no weights that can be read (model.safetensors, or an index"
    " and its files). Download them, or train from scratch with model.config.",
)
MODEL_SPECIAL_FILE = Code(
    "model.special_file",
    "There is a FIFO, a socket or a device among the files of a model, a tokenizer or an adapter:"
    " reading it would block, or never end.",
)
MODEL_NOT_A_FOLDER = Code(
    "model.not_a_folder",
    "model.name_or_path is a file. A model is a folder with config.json, weights and tokenizer, or"
    " a name on the hub.",
)
MODEL_PICKLED = Code(
    "model.pickled",
    "The weights are pickle files (.bin), which can run code when they are read. The message"
    " contains a command that converts them with Transformers, if you trust them.",
)
MODEL_WEIGHTS_INDEX = Code(
    "model.weights_index",
    "model.safetensors.index.json, which says in which file each weight is, cannot be read."
    " Download it again.",
)

PLAN_PACKAGE = Code(
    "plan.package",
    "A package that the config needs is not installed. The message shows how to install it.",
)
PLAN_OTHER_TORCH = Code(
    "plan.other_torch",
    "A package with compiled code was made for another release of torch, and Transformers imports it: no"
    " model class would load. Training does not need it: uninstall it, or install the one for this torch.",
)
PLAN_COMPILER = Code(
    "plan.compiler",
    "torch.compile's inductor generates C++ on a CPU and compiles it; for a device it generates"
    " Triton's kernels,"
    " whose launchers are C programs built against Python.h. Without these it fails in the first step.",
)
PLAN_ROWS_CARDS = Code(
    "plan.rows_cards",
    "No strategy can divide the rows per step (--rows) evenly among the devices. The nearest"
    " numbers that work are listed.",
)
PLAN_MODEL_CONFIG = Code(
    "plan.model_config",
    "The model's config.json is not on this machine or cannot be read, and planning needs it."
    " Download it first, or name a folder that contains one.",
)
PLAN_MODEL_HEADS = Code(
    "plan.model_heads",
    "hidden_size must be a multiple of num_attention_heads (or set head_dim), and"
    " num_attention_heads a multiple of num_key_value_heads. The nearest valid number is shown.",
)
PLAN_MODEL_MISSING = Code(
    "plan.model_missing",
    "model.name_or_path looks like a path, but there is no such folder. Correct it, or give a hub"
    " name such as org/model.",
)
PLAN_MODEL_SIZE = Code("plan.model_size", "Sizes of the model must be whole numbers of 1 or more.")
PLAN_MODEL_SIZES = Code(
    "plan.model_sizes",
    "The model's family is unknown, and its config lacks sizes that a plan needs. Add them, or"
    " correct model_type if it is misspelt.",
)
PLAN_FAMILY = Code(
    "plan.family",
    "Models of this type (model_type in config.json) cannot be trained: an encoder, a family that"
    " lets packed documents influence each other in Transformers, one that cannot be exported, or"
    " one that has not been tested. docs/families.md lists the supported types and the reasons for"
    " the others.",
)
PLAN_FAMILY_STRATEGY = Code(
    "plan.family_strategy",
    "This family cannot be trained this way: context parallelism needs packed rows and rotary"
    " frequencies that do not depend on a document's length, a pipeline needs a model whose only"
    " state is its parameters, ZeRO-3 needs layers that use all their weights on every rank. The hint"
    " names an alternative.",
)
PLAN_TOWER = Code(
    "plan.tower",
    "The model reads images or audio in addition to text. Its vision or audio tower would be lost"
    " in the export, or silently stay untrained. Use the text model of its family as a folder of"
    " its own.",
)
PLAN_ADAPTER_EXPERTS = Code(
    "plan.adapter_experts",
    "Adapters on fused experts (lora.target_parameters) are plain LoRA on tensors of the experts: without"
    " dropout, DoRA, 4-bit weights or compiled layers. Change that, or leave target_parameters out.",
)
PLAN_NO_ROUTER = Code(
    "plan.no_router",
    "training.freeze_router has nothing to freeze: the model is no mixture of experts, or only adapters are"
    " trained. Remove it.",
)
PLAN_BALANCE_LOSS = Code(
    "plan.balance_loss",
    "A load-balancing loss of the experts is requested (router_aux_loss_coef, or output_router_logits: true"
    " in the model's config), but Transformers computes none for this family. Remove it.",
)
PLAN_BALANCE_LOSS_SPLIT = Code(
    "plan.balance_loss_split",
    "The experts' balance loss cannot be computed where a rank has only a part of a document or of the"
    " layers, or where layers are compiled. Change that, or set router_aux_loss_coef: 0.",
)
PLAN_QUANTISED_BASE = Code(
    "plan.quantised_base",
    "The folder's weights are stored quantized in a way that cannot be read as plain weights (fp8, mxfp4,"
    " GPTQ, AWQ and compressed-tensors are). Start from the bfloat16 release of the model.",
)
PLAN_ALIBI_TWICE = Code(
    "plan.alibi_twice",
    "Transformers' eager attention adds Falcon's ALiBi bias twice, its sdpa once, so their losses"
    " differ. Leave attn_implementation at auto.",
)
PLAN_MODEL_FILE = Code(
    "plan.model_file",
    "A file in the model's folder is damaged or is not the type of file that its name suggests: an"
    " invalid header, tensors that overlap, a size that does not match the shape, an index that"
    " lists missing files. Download the model again.",
)
PLAN_WEIGHTS_SIZES = Code(
    "plan.weights_sizes",
    "Tensors of a safetensors file have other sizes than the config.json (or the base model of an"
    " adapter) requires: another vocabulary, width or number of layers. Use the config.json that"
    " belongs to the weights, or an adapter of this model.",
)
PLAN_MODEL_TYPE = Code(
    "plan.model_type", "The model's config has no model_type. Set it, for instance to llama."
)
PLAN_MODEL_UNKNOWN = Code(
    "plan.model_unknown",
    "--model does not match any model of the built-in list. The nearest names are shown; you can"
    " also give a folder with config.json.",
)
PLAN_NOT_INSTALLED = Code(
    "plan.not_installed",
    "The config needs a package that is not installed. The message shows the command that installs it.",
)
PLAN_DEEPSPEED_MISSING = Code(
    "plan.deepspeed_missing",
    "The strategy needs a package that is not installed (ZeRO needs deepspeed). Install it; in place of ZeRO,"
    " fsdp shards the same states.",
)
PLAN_HARDWARE_FILE = Code(
    "plan.hardware_file",
    "The hardware file cannot be read, or is not a single mapping. It must be YAML with the keys"
    " listed in the message.",
)
PLAN_HARDWARE_FORM = Code("plan.hardware_form", "--hardware is a number and a name, such as 16xH100.")
PLAN_HARDWARE_KEY = Code(
    "plan.hardware_key", "The hardware file has unknown keys. The nearest known keys are shown."
)
PLAN_HARDWARE_MISSING = Code(
    "plan.hardware_missing",
    "A hardware file that names no device of the catalogue must give memory and speeds itself; the"
    " missing keys are listed.",
)
PLAN_HARDWARE_NODES = Code(
    "plan.hardware_nodes",
    "The hardware and the requested number of nodes do not match: all nodes must be alike and fully"
    " used. Give --hardware with the total number of devices, or a YAML with cards_per_node.",
)
PLAN_HARDWARE_UNKNOWN = Code(
    "plan.hardware_unknown",
    "The catalogue has no accelerator of this name. The nearest names are shown; you can also give"
    " a YAML with its memory and speeds.",
)
PLAN_HARDWARE_VALUE = Code("plan.hardware_value", "Values in the hardware file must be numbers above 0.")
PLAN_TOO_FEW_DEVICES = Code(
    "plan.too_few_devices",
    "More processes per node were requested than CUDA devices are visible. Start fewer, or train on"
    " the CPU with training.use_cpu=true.",
)
PLAN_WORLD_NODES = Code(
    "plan.world_nodes",
    "The number of processes must be a multiple of the number of nodes; every node starts the same number.",
)
PLAN_WORLD_SIZE = Code("plan.world_size", "The numbers of processes and nodes must be at least 1.")
PLAN_BATCH_WORLD = Code(
    "plan.batch_world",
    "The run's rows per step cannot be divided evenly among this many data-parallel ranks. The"
    " nearest valid numbers of processes are listed.",
)
PLAN_FASTEST_CHOOSES = Code(
    "plan.fastest_chooses",
    "distributed_strategy: fastest searches for the layout, but a key of the config already sets"
    " part of it. Remove the key, or use distributed_strategy: auto.",
)
PLAN_FASTEST_NOTHING = Code(
    "plan.fastest_nothing",
    "No layout of this job fits, or none that fits can start. More memory or devices, a smaller"
    " data.max_length, or adapters can help.",
)
PLAN_FASTEST_UNKNOWN = Code(
    "plan.fastest_unknown",
    "A search for the fastest layout needs facts that are unknown, such as the hardware's speed or"
    " the model's sizes. Use distributed_strategy: auto.",
)
PLAN_START_CARD = Code(
    "plan.start_card",
    "At the start the complete model, in the dtype of the master weights, is on every device before"
    " it is sharded or cast, but a device has less memory. Use the alternative in the message: fsdp"
    " does not need this.",
)
PLAN_START_HOST = Code(
    "plan.start_host",
    "At the start the complete model is read into the host memory of a node, once or in each of its"
    " processes, but the node has less memory. Use a strategy in which only one process reads"
    " (fsdp), or fewer processes.",
)
PLAN_STATES_CARD = Code(
    "plan.states_card",
    "The weights, gradients and optimizer states of a rank need more memory than its device has,"
    " even without activations. Shard them over more devices, offload them, or train an adapter.",
)
PLAN_STATES_HOST = Code(
    "plan.states_host",
    "The states that the processes of a node keep in host memory (offloaded states; on a CPU all"
    " states) and their interpreters need more than the node has, or than its cgroup allows. The"
    " message names alternatives that fit.",
)
PLAN_ROWS_ROOM = Code(
    "plan.rows_room",
    "The tokens of one micro-batch alone need more memory than a device (on a CPU: the host) has."
    " Lower per_device_train_batch_size or data.max_length.",
)
PLAN_ADAPTER_FOLDER = Code(
    "plan.adapter_folder",
    "No adapter can be read at lora.adapter_name_or_path. It must be a folder with"
    " adapter_config.json and adapter_model.safetensors; download one from the hub first.",
)
PLAN_ADAPTER_KIND = Code(
    "plan.adapter_kind",
    "The adapter is not LoRA on a base that is known: it is of another method, uses options that are not"
    " supported, or changed the base by what is not saved with it (CorDA, LoRA-GA and others). Save it with"
    " peft as plain LoRA, or merge it with peft and train the merged model.",
)
PLAN_ADAPTER_STRATEGY = Code(
    "plan.adapter_strategy",
    "Adapters need complete layers and rows on each rank, or shards by FSDP, ZeRO or tensor parallelism"
    " (fsdp's, or DeepSpeed's AutoTP); context and pipeline parallelism are not supported. Change the"
    " strategy, or train all weights.",
)
PLAN_QUANTISED_FLOAT64 = Code(
    "plan.quantised_float64", "bitsandbytes does not support float64. Set model.dtype: float32."
)
PLAN_QUANTISED_STRATEGY = Code(
    "plan.quantised_strategy",
    "This strategy would shard or cast packed 4-bit weights. Use one of the strategies listed, or"
    " adapters on unquantised weights.",
)

PLAN_OPTIM_TARGET_MODULES = Code(
    "plan.optim_target_modules",
    "GaLore projects the gradients of the matrices in the named modules; the model has none of these names.",
)
PREC_FP8 = Code(
    "prec.fp8",
    "Products in fp8 need an NVIDIA device of compute capability 8.9 or higher, bf16 beside them, and layers"
    " trained in full, each whole on a rank (single, ddp, fsdp).",
)
PREC_BF16_WEIGHTS = Code(
    "prec.bf16_weights",
    "Weights in bfloat16 without float32 masters are trained in full, computed in bf16, by single, ddp or"
    " fsdp without other axes.",
)
PREC_FULL_EVAL = Code(
    "prec.full_eval",
    "Evaluation computes with the same copies of the weights as training. bf16_full_eval and"
    " fp16_full_eval are therefore accepted if training computes in that dtype, and refused"
    " otherwise.",
)

ROLLOUT_SERVER_ROOM = Code(
    "rollout.server_room",
    "To send weights to a generation server, every device gathers the complete model, but a device"
    " has less memory. Let the ranks generate together, or use more devices.",
)
ROLLOUT_GATHER_ROOM = Code(
    "rollout.gather_room",
    "gather_for_generation: true needs the complete model on every device, but a device has less"
    " memory. Leave it out: the plan decides by the available memory.",
)
ROLLOUT_GROUPS = Code(
    "rollout.groups",
    "A rollout must contain complete groups: its number of answers (batch sizes count answers) must"
    " be a multiple of `num_generations`.",
)
ROLLOUT_STEPS = Code(
    "rollout.steps",
    "`steps_per_generation` counts micro-batches and must be a multiple of"
    " `gradient_accumulation_steps`: a rollout consists of complete optimizer steps.",
)

PAR_DEEPSPEED = Code(
    "par.deepspeed",
    "A mesh size of training.parallelism and the DeepSpeed settings conflict: they set two"
    " different sizes, or an axis that DeepSpeed does not have. Set it once.",
)
PAR_DS_TP_MISMATCH = Code(
    "par.ds_tp_mismatch",
    "The DeepSpeed settings set the tensor-parallel degree twice, to different values. Keep autotp_size.",
)
PAR_PP_LAYERS = Code(
    "par.pp_layers", "The model has fewer layers than pipeline stages. Lower pp_size or pp_stages_per_rank."
)
PAR_PP_SIZE = Code(
    "par.pp_size", "The strategy pipeline needs at least two stages. Set pp_size, or use fsdp."
)
PAR_PP_STAGES = Code(
    "par.pp_stages",
    "The schedule determines how many stages a process has: two for zbv, one for gpipe and 1f1b;"
    " interleaved and zero_bubble allow more.",
)
PAR_SHARDING = Code(
    "par.sharding",
    "The sharding strategy of the fsdp key and the mesh contradict each other: one replicates where"
    " the other shards. Change fsdp, dp_replicate_size or dp_shard_size as the message says.",
)
PAR_TP_WIDTH = Code(
    "par.tp_width",
    "Tensor parallelism splits the MLP's columns into equal parts. Choose a tp_size that divides its width.",
)
PAR_PRODUCT = Code("par.product", "The product of the mesh sizes must be the number of processes.")
PAR_TP_HEADS = Code(
    "par.tp_heads", "Tensor parallelism shards attention by heads; tp_size must divide their number."
)
PAR_TP_KV_HEADS = Code(
    "par.tp_kv_heads",
    "Tensor parallelism gives each rank complete key-value heads; tp_size must divide their number.",
)
PAR_TP_NODE = Code(
    "par.tp_node",
    "Tensor-parallel groups communicate in every layer, so each must be on one node: consecutive ranks.",
)
PAR_CP_HEADS = Code(
    "par.cp_heads",
    "Ulysses exchanges heads for sequence: each rank of the group gets the same number of heads."
    " cp_method: allgather has no such requirement.",
)

FSDP2_LOCAL_STATE = Code("fsdp2.local_state", "FSDP2 has no local state dict. Use sharded_state_dict.")

ZERO_HPZ = Code(
    "zero.hpz",
    "ZeRO++ keeps a second copy of the weights within groups of zero_hpz_partition_size ranks; that"
    " number must divide the number of processes, and the copy needs ZeRO-3.",
)
ZERO_NOT_SUPPORTED = Code(
    "zero.not_supported",
    "A block of the DeepSpeed file would change training and is not supported. Switch it off in the file.",
)
ZERO_NVME_STAGE = Code("zero.nvme_stage", "Only ZeRO-3 can use NVMe. Set stage 3, or offload to the CPU.")
ZERO_OFFLOAD = Code(
    "zero.offload", "Offload needs ZeRO-1 or higher, and supports the devices none, cpu and nvme."
)
ZERO_OFFLOAD_RATIO = Code(
    "zero.offload_ratio", "Only ZeRO-3 can offload a part of the optimizer. Set ratio to 1.0."
)
ZERO_QUANTISED = Code(
    "zero.quantised",
    "ZeRO++'s quantised communication has CUDA kernels only. Switch it off on other devices.",
)

STRATEGY_DEEPSPEED_FP16 = Code(
    "strategy.deepspeed_fp16",
    "From ZeRO-1 on, DeepSpeed keeps the weights in float16, which it refuses on a CPU that cannot"
    " multiply in float16. bf16 works on every device.",
)
SPEC_CHECK = Code(
    "spec.check",
    "A method of your own strategy's or algorithm's spec raised an exception, or returned nothing"
    " where a value is needed. The message gives the method, the exception, and the line of your"
    " file.",
)
STRATEGY_SPEC_TORCH = Code(
    "strategy.spec_torch",
    "Planning imports the module of your own spec, and must start quickly, without torch. Put the"
    " class in another module and name it in the spec's implementation.",
)
STRATEGY_DEEPSPEED_TP_PLAN = Code(
    "strategy.deepspeed_tp_plan",
    "AutoTP uses the model's own tensor-parallel plan, but this model has none. Use a model that"
    " has one, or autotp_size: 1.",
)
STRATEGY_DEEPSPEED_TP_STAGE = Code(
    "strategy.deepspeed_tp_stage",
    "Without ZeRO, AutoTP clips each rank's part of the gradient separately, which changes the"
    " update. Set stage 1.",
)
STRATEGY_COMPILE = Code(
    "strategy.compile",
    "torch.compile compiles each decoder layer under single, data_parallel, ddp, zero_redundancy and"
    " fsdp (with"
    " tensor parallelism too). DeepSpeed, pipelines, context parallelism and FSDP units smaller than a layer"
    " do their work inside the layers, where a compiled one cannot be interrupted.",
)
STRATEGY_ADAFACTOR = Code(
    "strategy.adafactor",
    "Adafactor's statistics are means over complete rows and columns, which shards do not have.",
)
STRATEGY_OPTIMIZER_SPLIT = Code(
    "strategy.optimizer_split",
    "The optimizer's state cannot be split over ranks as this strategy does. Quantised moments have a scale"
    " per block of a tensor, and Muon needs complete matrices: ZeRO's flat partitions preserve neither."
    " Schedule-free optimizers need the state of every weight on a rank. Use another optimizer or strategy.",
)

MODELS_NO_STAGES = Code(
    "models.no_stages",
    "This model class cannot be split into pipeline stages. distributed_strategy: fsdp or zero3"
    " shards it without splitting it.",
)
MODELS_TP_NO_PLAN = Code(
    "models.tp_no_plan",
    "Transformers has no tensor-parallel plan for this model. fsdp without tp_size shards any model.",
)
MODELS_TP_STYLE = Code(
    "models.tp_style",
    "The model's tensor-parallel plan uses a sharding that is not supported (a style of its own, layers"
    " that are not linear, experts of another kind or with sequence_parallel). Use fsdp without tp_size.",
)

BATCH_TRIPLE = Code(
    "batch.triple",
    "DeepSpeed's train_batch_size must be micro-batch x accumulation x processes. The product takes"
    ' precedence; write "auto" in the file.',
)

KTO_ONE_ROW = Code(
    "kto.one_row",
    "KTO measures its KL on each prompt of a step with the answer to another prompt. A step of a"
    " single row has no other answer: increase the batch size or the accumulation.",
)
STRATEGY_FP16_OFFLOAD = Code(
    "strategy.fp16_offload",
    "A loss scale needs gradients on the device, but offload moves them to host memory. bf16 needs"
    " no loss scale.",
)
ROLLOUT_CORRECTION = Code(
    "rollout.correction",
    "rollout_correction compares the log-probabilities of sampling with those of training;"
    " old_logprobs: sampling treats them as equal.",
)
GRPO_CISPO_BOUND = Code(
    "grpo.cispo_bound",
    "CISPO multiplies each token's log-probability by min(ratio, epsilon_high): the bound applies"
    " to the ratio itself, which is 1 for an unchanged policy. TRL uses the key in the same way;"
    " its default (epsilon, 0.2) would scale every update down to a fifth.",
)
GRPO_CISPO_UNUSED = Code(
    "grpo.cispo_unused",
    "The losses of GRPO clip the ratio to 1 - epsilon … 1 + epsilon_high, and delta can bound it"
    " further; CISPO has only one bound on the weight, epsilon_high.",
)
PPO_KL_ESTIMATOR = Code(
    "ppo.kl_estimator",
    "The gradient of k1 = log π - log π_ref is that of log π, whose mean under π is 0. In the loss,"
    " only k2 and k3 act as a KL penalty; in the reward all three do.",
)
PPO_ADAPTIVE_KL = Code(
    "ppo.adaptive_kl", "The adaptive controller multiplies kl_coef, so a value of 0 would stay 0."
)
DPO_REFERENCE = Code(
    "dpo.reference",
    "reference_free removes the reference, so nothing can be computed with it, in advance or in training.",
)
DPO_LABEL_SMOOTHING = Code(
    "dpo.label_smoothing",
    "Only the sigmoid and the robust loss model labels that are flipped with some probability.",
)
