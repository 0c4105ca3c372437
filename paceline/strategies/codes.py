"""Diagnostic codes that strategies raise on a rank."""

from __future__ import annotations

from paceline.core.diagnostics import Code

STRATEGY_DATA_PARALLEL_WORLD = Code(
    "strategy.data_parallel_world",
    "The strategy data_parallel drives all devices from one process, and several were started. Start one, or"
    " use ddp.",
)
STRATEGY_SINGLE_WORLD = Code(
    "strategy.single_world", "The strategy single is for one process. Use ddp, or auto."
)
STRATEGY_FSDP_WORLD = Code(
    "strategy.fsdp_world",
    "FSDP shards over processes, and there is one. Start two or more, or use distributed_strategy: single.",
)
STRATEGY_FSDP_WRAP_CLASS = Code(
    "strategy.fsdp_wrap_class",
    "fsdp_config.transformer_layer_cls_to_wrap names a class that the model does not have. The classes that"
    " it has are listed; without the key the decoder layers are found.",
)
STRATEGY_NOT_A_STRATEGY = Code(
    "strategy.not_a_strategy",
    "What distributed_strategy names is no subclass of paceline.strategies.base:Strategy, or one that"
    " overrides methods that no window calls any more: its arithmetic would be passed by without a word.",
)
STRATEGY_NOTHING_TO_TRAIN = Code(
    "strategy.nothing_to_train", "No parameter of the model requires a gradient. Unfreeze at least one."
)
STRATEGY_OPTIMIZER_ARGS = Code(
    "strategy.optimizer_args",
    "training.optim_args names an argument that the optimizer does not take. The nearest, or all that it"
    " takes, are named.",
)
STRATEGY_OPTIMIZER_SHARDED = Code(
    "strategy.optimizer_sharded",
    "This optimizer looks at whole matrices, and under this strategy a rank has a piece of each. Choose"
    " another one, or distributed_strategy: ddp.",
)
STRATEGY_OPTIMIZER_UNSUPPORTED = Code(
    "strategy.optimizer_unsupported",
    "The optimizer is known from Transformers but not built here. Choose one of those listed.",
)
STRATEGY_EMPTY_WINDOW = Code(
    "strategy.empty_window",
    "An evaluation step was made without a micro-batch on some rank. A data source of your own has to give a"
    " filler of weight 0 there.",
)
STRATEGY_PIPELINE_CP = Code(
    "strategy.pipeline_cp",
    "A pipeline passes whole rows on and does not share out sequences. Set cp_size: 1, or use fsdp without"
    " pp_size.",
)
STRATEGY_PIPELINE_SCHEDULE = Code(
    "strategy.pipeline_schedule",
    "Schedule, ranks and stages a rank do not go together. gpipe and 1f1b have one stage a rank, zbv has two,"
    " interleaved and zero_bubble one or more; each needs two ranks.",
)
STRATEGY_DEEPSPEED_ACCELERATOR = Code(
    "strategy.deepspeed_accelerator",
    "DeepSpeed chose another kind of device than the run computes on. Set DS_ACCELERATOR as the message"
    " says.",
)
STRATEGY_DEEPSPEED_ASYNC_IO = Code(
    "strategy.deepspeed_async_io",
    "Offload to NVMe needs DeepSpeed's async_io op, which cannot be built here. Install libaio and a compiler"
    " as shown, or offload to the CPU.",
)
STRATEGY_DEEPSPEED_BROKEN = Code(
    "strategy.deepspeed_broken",
    "DeepSpeed is installed but cannot be imported; its reason is shown. Install a version that goes with"
    " this torch.",
)
STRATEGY_DEEPSPEED_FLOAT64 = Code(
    "strategy.deepspeed_float64",
    "ZeRO keeps its master weights in float32. Set model.dtype: float32, or use a native strategy.",
)
STRATEGY_DEEPSPEED_LAYOUT = Code(
    "strategy.deepspeed_layout",
    "AutoTP cuts a parameter into pieces that do not lie side by side, which a checkpoint cannot hold. Use"
    " fsdp with tp_size.",
)
STRATEGY_DEEPSPEED_MISSING = Code(
    "strategy.deepspeed_missing",
    "The strategy needs DeepSpeed, which is not installed. Install it, or use distributed_strategy: fsdp.",
)
STRATEGY_DEEPSPEED_OPTIMIZER = Code(
    "strategy.deepspeed_optimizer",
    "ZeRO cuts the optimizer's state into flat pieces, in which Adafactor's rows and columns are lost. Choose"
    " another optimizer, or fsdp.",
)
STRATEGY_DEEPSPEED_PACKED = Code(
    "strategy.deepspeed_packed",
    "4-bit weights stored as floating-point numbers do not survive DeepSpeed's cast. Use"
    " distributed_strategy: fsdp, or adapters on whole weights.",
)
STRATEGY_DEEPSPEED_REFUSED = Code(
    "strategy.deepspeed_refused",
    "DeepSpeed itself refused the configuration when it was initialised. Its own message is shown and names"
    " what it does not take, such as a dtype that the device lacks; change that in the DeepSpeed settings.",
)
STRATEGY_DEEPSPEED_TRAP = Code(
    "strategy.deepspeed_trap",
    "DeepSpeed started, but what it set up is not what the plan says, so the run would train something else."
    " Please report the message with your settings; another strategy trains meanwhile.",
)

CHECKPOINT_MISSING_TENSOR = Code(
    "checkpoint.missing_tensor",
    "The checkpoint does not hold a parameter that the model has: it was saved from another model. Use the"
    " model it was saved from.",
)
CHECKPOINT_SHAPE = Code(
    "checkpoint.shape",
    "A parameter has another shape in the checkpoint than in the model. The model, and the size of its"
    " vocabulary, have to be those that were saved.",
)
