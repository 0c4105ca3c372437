"""Codes of the plan: what a job needs, what its hardware has, how it is split."""

from __future__ import annotations

from paceline.core.diagnostics import Code

ALGORITHM_NO_SPEC = Code(
    "algorithm.no_spec",
    "training.algorithm: module:SPEC names something else than an AlgorithmSpec. A spec is made of"
    " paceline.plan.algorithms.base and names the class that does the work.",
)
CLASSIFICATION_LABELS = Code(
    "classification.labels",
    "labels names each class once, in the order of their numbers; num_labels counts them where there are no"
    " names.",
)
ALGORITHM_NO_TEACHER = Code(
    "algorithm.no_teacher",
    "Distillation learns the next-token distributions of a teacher, a larger model of the same vocabulary:"
    " `training.distillation.teacher_model` names it.",
)
DISTILLATION_LMBDA_OFF = Code(
    "distillation.lmbda_off",
    "max_completion_length and sampling_temperature say how the student writes answers of its own, and with"
    " training.distillation.lmbda: 0 it writes none. Set lmbda, or remove them.",
)
ALGORITHM_VOCABULARY = Code(
    "algorithm.vocabulary",
    "Teacher and student are compared token by token, so token i has to be the same text to both. Embeddings"
    " that differ only by padding rows are compared over the rows that both have.",
)
ALGORITHM_SPEC_TORCH = Code(
    "algorithm.spec_torch",
    "The module of a spec of your own is imported where the plan is made, which needs no torch and starts"
    " quickly. Put the class in another module and name it in the spec's implementation.",
)

TRACKER_NOT_INSTALLED = Code(
    "tracker.not_installed",
    "The package of a tracker named in training.report_to is not installed. Install it as shown, or leave the"
    " name out.",
)
TRACKER_OFFLINE = Code(
    "tracker.offline",
    "Weights & Biases writes to a folder of the run only. `wandb sync` in that folder uploads it later.",
)

MODEL_ADAPTER_FOLDER = Code(
    "model.adapter_folder",
    "The folder holds an adapter, not a model. Name the base model in model.name_or_path and the folder in"
    " lora.adapter_name_or_path.",
)
MODEL_DAMAGED_WEIGHTS = Code(
    "model.damaged_weights",
    "A safetensors file is shorter or longer than its own header says, or holds no tensor: a copy or a"
    " download was cut off. Fetch it again.",
)
MODEL_MISSING_SHARDS = Code(
    "model.missing_shards",
    "model.safetensors.index.json names files that are not in the folder. Fetch them again.",
)
MODEL_NO_WEIGHTS = Code(
    "model.no_weights",
    "The folder has a config.json and no weights that can be read (model.safetensors, or an index and its"
    " files). Fetch them, or train from scratch with model.config.",
)
MODEL_SPECIAL_FILE = Code(
    "model.special_file",
    "A FIFO, a socket or a device lies among the files of a model, a tokenizer or an adapter: reading it"
    " would wait for ever, or never end.",
)
MODEL_NOT_A_FOLDER = Code(
    "model.not_a_folder",
    "model.name_or_path names a file. A model is a folder with config.json, weights and tokenizer, or a name"
    " on the hub.",
)
MODEL_PICKLED = Code(
    "model.pickled",
    "The weights are pickle files (.bin), which can run code when they are read. The message has a line that"
    " converts them with Transformers, for where you trust them.",
)
MODEL_WEIGHTS_INDEX = Code(
    "model.weights_index",
    "model.safetensors.index.json says which file holds which weight; it cannot be read. Fetch it again.",
)

PLAN_PACKAGE = Code(
    "plan.package",
    "A package that the config needs is not installed here. The message has the line that installs it.",
)
PLAN_COMPILER = Code(
    "plan.compiler",
    "torch.compile's inductor writes C++ for a CPU and compiles it. Without a compiler it ends in the first"
    " step.",
)
PLAN_ROWS_CARDS = Code(
    "plan.rows_cards",
    "The rows of a step (--rows) cannot be shared out evenly over the cards by any strategy. The nearest"
    " numbers that can are named.",
)
PLAN_MODEL_CONFIG = Code(
    "plan.model_config",
    "The model's config.json is not on this machine or cannot be read, and without it nothing can be planned."
    " Download it first, or name a folder that holds one.",
)
PLAN_MODEL_HEADS = Code(
    "plan.model_heads",
    "hidden_size must be a multiple of num_attention_heads (or head_dim given), and num_attention_heads one"
    " of num_key_value_heads. The nearest number that is is named.",
)
PLAN_MODEL_MISSING = Code(
    "plan.model_missing",
    "model.name_or_path looks like a path, and there is no such folder. Correct it, or give a hub name such"
    " as org/model.",
)
PLAN_MODEL_SIZE = Code("plan.model_size", "A size of the model is a whole number from 1 up.")
PLAN_MODEL_SIZES = Code(
    "plan.model_sizes",
    "The model's family is not known, and sizes that a plan needs are missing from its config. Write them, or"
    " correct model_type if it was misspelt.",
)
PLAN_FAMILY = Code(
    "plan.family",
    "Models of this type (model_type in config.json) are not trained: an encoder, a family that Transformers"
    " computes in a way that documents disturb each other, one that cannot be exported, or one that is not"
    " counted yet. docs/families.md lists what is trained and why the others are not.",
)
PLAN_FAMILY_STRATEGY = Code(
    "plan.family_strategy",
    "This family cannot be trained this way: context parallelism needs packed rows and rotary frequencies"
    " that do not follow a document's length, a pipeline needs a model whose state is its parameters. The"
    " hint names another way.",
)
PLAN_TOWER = Code(
    "plan.tower",
    "The model reads images or sound beside text. Its tower would be lost in the export, or stay untrained"
    " without a word. Take the text model of its family as a folder of its own.",
)
PLAN_BALANCE_LOSS = Code(
    "plan.balance_loss",
    "output_router_logits: true asks for a balance loss of the experts, which is not built: it would be left"
    " out. Set it to false to train without, which is what is computed.",
)
PLAN_ALIBI_TWICE = Code(
    "plan.alibi_twice",
    "Transformers' eager attention adds Falcon's ALiBi bias twice, its sdpa once: the losses are those of two"
    " different models. Leave attn_implementation at auto.",
)
PLAN_MODEL_FILE = Code(
    "plan.model_file",
    "A file of the model's folder is damaged, or is not what its name says: a header that is no header,"
    " tensors that overlap, a size that does not fit the shape, an index that names files that are not there."
    " Download the model again.",
)
PLAN_WEIGHTS_SIZES = Code(
    "plan.weights_sizes",
    "Tensors of a safetensors file have other sizes than the config.json (or the model under an adapter)"
    " makes them: another vocabulary, width or number of layers. Take the config.json that belongs to the"
    " weights, or an adapter of this model.",
)
PLAN_MODEL_TYPE = Code(
    "plan.model_type", "The model's config names no family. Write model_type, for instance llama."
)
PLAN_MODEL_UNKNOWN = Code(
    "plan.model_unknown",
    "--model names no model of the built-in list. The nearest names are shown; a folder with config.json goes"
    " as well.",
)
PLAN_NOT_INSTALLED = Code(
    "plan.not_installed",
    "The config needs a package that is not installed here. The message has the command that installs it.",
)
PLAN_DEEPSPEED_MISSING = Code(
    "plan.deepspeed_missing",
    "The strategy needs the package deepspeed, which is not installed. Install it, or use fsdp, which shares"
    " out the same states.",
)
PLAN_HARDWARE_FILE = Code(
    "plan.hardware_file",
    "The hardware file cannot be read, or is not one mapping. It is YAML with the keys that the message"
    " lists.",
)
PLAN_HARDWARE_FORM = Code("plan.hardware_form", "--hardware is a number and a name, as in 16xH100.")
PLAN_HARDWARE_KEY = Code(
    "plan.hardware_key", "The hardware file has keys that are not known. The nearest known ones are named."
)
PLAN_HARDWARE_MISSING = Code(
    "plan.hardware_missing",
    "A hardware file without a card of the catalogue has to name its memory and speeds itself; those missing"
    " are listed.",
)
PLAN_HARDWARE_NODES = Code(
    "plan.hardware_nodes",
    "The hardware named and the nodes asked for do not go together: nodes are taken to be alike and fully"
    " used. Give --hardware alone with all cards, or a YAML with cards_per_node.",
)
PLAN_HARDWARE_UNKNOWN = Code(
    "plan.hardware_unknown",
    "The catalogue has no accelerator of this name. The nearest names are shown; a YAML with its memory and"
    " speeds goes as well.",
)
PLAN_HARDWARE_VALUE = Code("plan.hardware_value", "A value of the hardware file is not a number above 0.")
PLAN_TOO_FEW_DEVICES = Code(
    "plan.too_few_devices",
    "More processes a node were asked for than CUDA devices are visible. Start fewer, or train on the CPU by"
    " training.use_cpu=true.",
)
PLAN_WORLD_NODES = Code(
    "plan.world_nodes",
    "The number of processes is not a multiple of the nodes; each node starts the same number.",
)
PLAN_WORLD_SIZE = Code("plan.world_size", "Processes and nodes are counted from 1 up.")
PLAN_BATCH_WORLD = Code(
    "plan.batch_world",
    "The run's rows a step cannot be shared evenly by this many data-parallel ranks. The nearest legal"
    " numbers of processes are named.",
)
PLAN_FASTEST_CHOOSES = Code(
    "plan.fastest_chooses",
    "distributed_strategy: fastest searches for the layout, and a key of the config already names part of it."
    " Leave the key out, or use distributed_strategy: auto.",
)
PLAN_FASTEST_NOTHING = Code(
    "plan.fastest_nothing",
    "No layout of this job fits, or none that fits can be started. More memory or cards, a shorter"
    " data.max_length, or adapters help.",
)
PLAN_FASTEST_UNKNOWN = Code(
    "plan.fastest_unknown",
    "A search for the fastest layout needs facts that are not known, such as the hardware's speed or the"
    " model's sizes. Use distributed_strategy: auto.",
)
PLAN_START_CARD = Code(
    "plan.start_card",
    "The start puts the whole model, in the masters' dtype, on every card before it is cut, cast or packed,"
    " and a card has less. Take what the message names: fsdp starts without.",
)
PLAN_START_HOST = Code(
    "plan.start_host",
    "The start reads the whole model into the host memory of a node, once or in each of its processes, and"
    " the node has less. Take a strategy of which one process reads (fsdp), or fewer processes.",
)
PLAN_STATES_CARD = Code(
    "plan.states_card",
    "Weights, gradients and optimizer that a rank keeps are more than its card, before any activation. Share"
    " them out over more cards, offload, or train an adapter.",
)
PLAN_STATES_HOST = Code(
    "plan.states_host",
    "What the processes of a node keep in its memory (offloaded states; on a CPU all states) and their"
    " interpreters are more than it has, or than its cgroup allows. The message names what would fit.",
)
PLAN_ROWS_ROOM = Code(
    "plan.rows_room",
    "The tokens of one micro-batch are more than a card (on a CPU: the host) holds, before any layer is"
    " computed. Lower per_device_train_batch_size or data.max_length.",
)
PLAN_ADAPTER_FOLDER = Code(
    "plan.adapter_folder",
    "No adapter can be read at lora.adapter_name_or_path. It is a folder with adapter_config.json and"
    " adapter_model.safetensors; one on the hub is downloaded first.",
)
PLAN_ADAPTER_KIND = Code(
    "plan.adapter_kind",
    "The adapter is not plain LoRA: another method, or options that are not built. Give an adapter with r,"
    " lora_alpha and target_modules alone.",
)
PLAN_ADAPTER_STRATEGY = Code(
    "plan.adapter_strategy",
    "Adapters are trained where a rank sees whole layers and rows, or shards by FSDP or ZeRO; not with"
    " tensor, context or pipeline parallelism. Change the strategy, or train all weights.",
)
PLAN_QUANTISED_FLOAT64 = Code(
    "plan.quantised_float64", "bitsandbytes computes in no float64. Set model.dtype: float32."
)
PLAN_QUANTISED_STRATEGY = Code(
    "plan.quantised_strategy",
    "Under this strategy packed 4-bit weights would be cut or cast. Take one of the strategies that are"
    " listed, or adapters on whole weights.",
)

PREC_FULL_EVAL = Code(
    "prec.full_eval",
    "Evaluation computes with the same copies of the weights as training does. bf16_full_eval and"
    " fp16_full_eval therefore hold where training computes in that dtype, and are refused elsewhere.",
)

ROLLOUT_SERVER_ROOM = Code(
    "rollout.server_room",
    "Weights for a server that writes answers are gathered whole on every card, and a card has less room. Let"
    " the ranks answer together, or take more cards.",
)
ROLLOUT_GATHER_ROOM = Code(
    "rollout.gather_room",
    "gather_for_generation: true wants the whole model on every card, and a card has less room. Leave it out:"
    " the plan decides by the room there is.",
)
ROLLOUT_GROUPS = Code(
    "rollout.groups",
    "A rollout has to hold whole groups: its number of answers (batch sizes count answers) is a multiple of"
    " `num_generations`.",
)
ROLLOUT_STEPS = Code(
    "rollout.steps",
    "`steps_per_generation` counts micro-batches and has to be a multiple of `gradient_accumulation_steps`: a"
    " rollout is cut into whole optimizer steps.",
)

PAR_DEEPSPEED = Code(
    "par.deepspeed",
    "A mesh size of training.parallelism and the DeepSpeed settings do not go together: they name two sizes,"
    " or an axis that DeepSpeed does not have. Name it once.",
)
PAR_DS_TP_MISMATCH = Code(
    "par.ds_tp_mismatch",
    "The DeepSpeed settings name the tensor-parallel degree twice with two values. Keep autotp_size.",
)
PAR_PP_LAYERS = Code(
    "par.pp_layers", "The model has fewer layers than pipeline stages. Lower pp_size or pp_stages_per_rank."
)
PAR_PP_SIZE = Code(
    "par.pp_size", "The strategy pipeline needs at least two stages. Set pp_size, or use fsdp."
)
PAR_PP_STAGES = Code(
    "par.pp_stages",
    "The schedule fixes how many stages a process holds: two for zbv, one for gpipe and 1f1b; interleaved and"
    " zero_bubble take more.",
)
PAR_SHARDING = Code(
    "par.sharding",
    "The sharding of the fsdp key and the mesh contradict each other: one keeps copies where the other"
    " shards. Change fsdp, dp_replicate_size or dp_shard_size as the message says.",
)
PAR_TP_WIDTH = Code(
    "par.tp_width",
    "Tensor parallelism cuts the MLP's columns in equal parts. Choose a tp_size that divides its width.",
)
PAR_PRODUCT = Code("par.product", "The product of the mesh sizes is the number of processes.")
PAR_TP_HEADS = Code(
    "par.tp_heads", "Tensor parallel splits attention by heads; their number must be divisible."
)
PAR_TP_KV_HEADS = Code(
    "par.tp_kv_heads",
    "Tensor parallel gives each rank whole key-value heads; their number must be divisible.",
)
PAR_TP_NODE = Code(
    "par.tp_node", "Tensor-parallel groups talk in every layer and stand on one node: consecutive ranks."
)
PAR_CP_HEADS = Code(
    "par.cp_heads",
    "Ulysses exchanges heads for sequence: each rank of the group takes as many heads. cp_method: allgather"
    " needs no such number.",
)

FSDP2_LOCAL_STATE = Code("fsdp2.local_state", "FSDP2 has no local state dict. Use sharded_state_dict.")

ZERO_HPZ = Code(
    "zero.hpz",
    "ZeRO++ keeps a second copy of the weights within groups of zero_hpz_partition_size ranks; that number"
    " must divide the processes, and the copy needs ZeRO-3.",
)
ZERO_NOT_SUPPORTED = Code(
    "zero.not_supported",
    "A block of the DeepSpeed file changes what is learnt and is not built. Switch it off in the file.",
)
ZERO_NVME_STAGE = Code(
    "zero.nvme_stage", "Only ZeRO-3 reads and writes NVMe. Set stage 3, or offload to the CPU."
)
ZERO_OFFLOAD = Code(
    "zero.offload", "Offload needs ZeRO-1 or higher, and knows the devices none, cpu and nvme."
)
ZERO_OFFLOAD_RATIO = Code(
    "zero.offload_ratio", "Only ZeRO-3 offloads a part of the optimizer. Set ratio to 1.0."
)
ZERO_QUANTISED = Code(
    "zero.quantised", "ZeRO++'s quantised exchange has kernels for CUDA only. Switch it off on other devices."
)

STRATEGY_DEEPSPEED_FP16 = Code(
    "strategy.deepspeed_fp16",
    "From ZeRO-1 on DeepSpeed keeps the weights in float16, which it refuses on a CPU that cannot multiply in"
    " float16. bf16 runs everywhere.",
)
SPEC_CHECK = Code(
    "spec.check",
    "A method of a strategy's or an algorithm's spec of your own raised an exception, or returned nothing"
    " where a value is needed. The message names the method, the exception, and the line of your file.",
)
STRATEGY_SPEC_TORCH = Code(
    "strategy.spec_torch",
    "The module of a spec of your own is imported where the plan is made, which needs no torch and starts"
    " quickly. Put the class in another module and name it in the spec's implementation.",
)
STRATEGY_DEEPSPEED_TP_PLAN = Code(
    "strategy.deepspeed_tp_plan",
    "AutoTP uses the model's own tensor-parallel plan, and this model has none. Take a model with one, or"
    " autotp_size: 1.",
)
STRATEGY_DEEPSPEED_TP_STAGE = Code(
    "strategy.deepspeed_tp_stage",
    "Without ZeRO, AutoTP clips each rank's part of the gradient by itself, which is another update. Set"
    " stage 1.",
)
STRATEGY_COMPILE = Code(
    "strategy.compile", "torch.compile is built for the strategies that keep the whole model on each rank."
)
STRATEGY_ADAFACTOR = Code(
    "strategy.adafactor",
    "Adafactor's statistics are means over whole rows and columns; shards do not have them.",
)

MODELS_NO_STAGES = Code(
    "models.no_stages",
    "The class of this model cannot be cut into pipeline stages. distributed_strategy: fsdp or zero3 shards"
    " it without cutting it.",
)
MODELS_TP_NO_PLAN = Code(
    "models.tp_no_plan",
    "Transformers has no tensor-parallel plan for this model. fsdp without tp_size shards any model.",
)
MODELS_TP_STYLE = Code(
    "models.tp_style",
    "The model's tensor-parallel plan asks for a way of cutting that is not built (experts, latent attention,"
    " layers that are not linear). Use fsdp without tp_size.",
)

BATCH_TRIPLE = Code(
    "batch.triple",
    "DeepSpeed's train_batch_size must be micro-batch x accumulation x processes. The product decides; write"
    ' "auto" in the file.',
)

KTO_ONE_ROW = Code(
    "kto.one_row",
    "KTO measures its KL on each prompt of a step with the answer to another one. A step of a single row has"
    " no other answer: raise the batch size or the accumulation.",
)
