"""Diagnostic codes that strategies raise on a rank."""

from __future__ import annotations

from paceline.core.diagnostics import Code

STRATEGY_DATA_PARALLEL_WORLD = Code(
    "strategy.data_parallel_world",
    "The strategy data_parallel uses all devices from one process, but several were started. Start"
    " one, or use ddp.",
)
STRATEGY_SINGLE_WORLD = Code(
    "strategy.single_world", "The strategy single is for one process. Use ddp, or auto."
)
STRATEGY_FSDP_WORLD = Code(
    "strategy.fsdp_world",
    "FSDP shards over processes, but there is only one. Start two or more, or use"
    " distributed_strategy: single.",
)
STRATEGY_FSDP_WRAP_CLASS = Code(
    "strategy.fsdp_wrap_class",
    "fsdp_config.transformer_layer_cls_to_wrap names a class that the model does not have. Its"
    " classes are listed; without the key the decoder layers are detected.",
)
STRATEGY_NOT_A_STRATEGY = Code(
    "strategy.not_a_strategy",
    "The class named in distributed_strategy is not a subclass of"
    " paceline.extend:Strategy, or overrides methods that are no longer called: its"
    " arithmetic would silently be skipped.",
)
STRATEGY_NOTHING_TO_TRAIN = Code(
    "strategy.nothing_to_train", "No parameter of the model requires a gradient. Unfreeze at least one."
)
STRATEGY_OPTIMIZER_ARGS = Code(
    "strategy.optimizer_args",
    "training.optim_args names an argument that the optimizer does not have. The nearest one, or"
    " all of its arguments, are listed.",
)
STRATEGY_OPTIMIZER_SHARDED = Code(
    "strategy.optimizer_sharded",
    "This optimizer needs complete matrices, but under this strategy a rank has only a part of"
    " each. Choose another optimizer, or distributed_strategy: ddp.",
)
STRATEGY_OPTIMIZER_UNSUPPORTED = Code(
    "strategy.optimizer_unsupported",
    "Transformers has this optimizer, but it is not supported here. Choose one of those listed.",
)
STRATEGY_EMPTY_WINDOW = Code(
    "strategy.empty_window",
    "An evaluation step had no micro-batch on some rank. Your own data source must provide a filler"
    " of weight 0 there.",
)
STRATEGY_PIPELINE_CP = Code(
    "strategy.pipeline_cp",
    "A pipeline passes on complete rows and cannot shard sequences. Set cp_size: 1, or use fsdp"
    " without pp_size.",
)
STRATEGY_PIPELINE_SCHEDULE = Code(
    "strategy.pipeline_schedule",
    "The schedule, the number of ranks and the stages per rank do not match. gpipe and 1f1b have"
    " one stage per rank, zbv has two, interleaved and zero_bubble one or more; each needs two"
    " ranks.",
)
STRATEGY_DEEPSPEED_ACCELERATOR = Code(
    "strategy.deepspeed_accelerator",
    "DeepSpeed chose another type of device than the one that the run computes on. Set"
    " DS_ACCELERATOR as the message says.",
)
STRATEGY_DEEPSPEED_ASYNC_IO = Code(
    "strategy.deepspeed_async_io",
    "Offload to NVMe needs DeepSpeed's async_io op, which cannot be built here. Install libaio and a compiler"
    " as shown, or offload to the CPU.",
)
STRATEGY_DEEPSPEED_BROKEN = Code(
    "strategy.deepspeed_broken",
    "DeepSpeed is installed but cannot be imported; its reason is shown. Install a version that is"
    " compatible with this torch.",
)
STRATEGY_DEEPSPEED_FLOAT64 = Code(
    "strategy.deepspeed_float64",
    "ZeRO keeps its master weights in float32. Set model.dtype: float32, or use a native strategy.",
)
STRATEGY_DEEPSPEED_LAYOUT = Code(
    "strategy.deepspeed_layout",
    "AutoTP splits a parameter into pieces that are not contiguous, which a checkpoint cannot"
    " store. Use fsdp with tp_size.",
)
STRATEGY_DEEPSPEED_MISSING = Code(
    "strategy.deepspeed_missing",
    "The strategy needs DeepSpeed, which is not installed. Install it, or use distributed_strategy: fsdp.",
)
STRATEGY_DEEPSPEED_OPTIMIZER = Code(
    "strategy.deepspeed_optimizer",
    "ZeRO partitions the optimizer's state into flat buffers, which do not preserve Adafactor's"
    " rows and columns. Choose another optimizer, or fsdp.",
)
STRATEGY_DEEPSPEED_PACKED = Code(
    "strategy.deepspeed_packed",
    "4-bit weights stored as floating-point numbers do not survive DeepSpeed's cast. Use"
    " distributed_strategy: fsdp, or adapters on unquantised weights.",
)
STRATEGY_DEEPSPEED_REFUSED = Code(
    "strategy.deepspeed_refused",
    "DeepSpeed itself refused the configuration when it was initialised. Its own message is shown"
    " and names the cause, such as a dtype that the device does not support; change that in the"
    " DeepSpeed settings.",
)
STRATEGY_DEEPSPEED_TRAP = Code(
    "strategy.deepspeed_trap",
    "DeepSpeed started, but its setup differs from the plan, so the run would train something else."
    " Please report the message with your settings; use another strategy meanwhile.",
)

CHECKPOINT_MISSING_TENSOR = Code(
    "checkpoint.missing_tensor",
    "The checkpoint does not contain a parameter that the model has: it was saved from another"
    " model. Use the model it was saved from.",
)
CHECKPOINT_SHAPE = Code(
    "checkpoint.shape",
    "A parameter has another shape in the checkpoint than in the model. The model, and the size of"
    " its vocabulary, must be those that were saved.",
)
