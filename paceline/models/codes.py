"""Diagnostic codes of building and loading models."""

from __future__ import annotations

from paceline.core.diagnostics import Code

MODELS_BAD_CONFIG = Code(
    "models.bad_config",
    "Transformers cannot build a model from model.config; the message shows its reason. Correct the"
    " sizes, or copy them from the config.json of a model of that family.",
)
MODELS_CANNOT_LOAD = Code(
    "models.cannot_load",
    "The model cannot be loaded. Weights are read as safetensors only: name a folder with config.json and"
    " .safetensors files, or a hub name that has them.",
)
MODELS_MISSING_WEIGHTS = Code(
    "models.missing_weights",
    "The checkpoint lacks weights that the model has; they would be initialised at random. Get a"
    " complete checkpoint, or train from scratch with model.config.",
)
MODELS_UNTIED = Code(
    "models.untied",
    "config.json ties two weights, but the checkpoint stores both with different values. Set"
    " tie_word_embeddings: false in its config.json, or remove the one that is not meant.",
)
MODELS_LOST_WEIGHTS = Code(
    "models.lost_weights",
    "The checkpoint has tensors within the layers of this model that its class does not compute with."
    " The message lists them; use the class or the checkpoint that matches.",
)
MODELS_ROPE_BY_LENGTH = Code(
    "models.rope_by_length",
    "Dynamic and LongRoPE rotary embeddings derive their frequencies from the length of a complete"
    " document, but this rank has only a part of it. Set cp_size: 1.",
)
MODELS_NO_MODEL = Code(
    "models.no_model",
    "No model is given. Set model.name_or_path to a folder or hub name, or model.config.",
)
MODELS_NOT_CAUSAL = Code(
    "models.not_causal",
    "This type of model has no causal language model in Transformers. Use a decoder, such as llama,"
    " qwen2, mistral, gemma2 or gpt2.",
)
MODELS_NOT_FILLED = Code(
    "models.not_filled",
    "After initialisation on the meta device some parameters had no values. Set"
    " fsdp_config.cpu_ram_efficient_loading: false, and report the model's type.",
)
MODELS_NO_SCALAR_HEAD = Code(
    "models.no_scalar_head",
    "Reward and value models need the family's class for sequence classification with one linear"
    " layer named score, but this family has none. Use a decoder of another family.",
)
MODELS_TEACHER_HEAD = Code(
    "models.teacher_head",
    "The class of this teacher computes its logits with more than one linear layer, so it needs"
    " complete weights on every rank. Use a strategy that does not shard them, or another teacher.",
)
MODELS_VOCAB_TOO_LARGE = Code(
    "models.vocab_too_large",
    "The tokenizer has more tokens than the embedding has rows, but model.resize_embeddings forbids"
    " new rows. Set it to auto: new rows start at the mean of the old ones.",
)
MODELS_NO_RECOMPUTE = Code(
    "models.no_recompute",
    "The class of this model does not support gradient checkpointing. Set gradient_checkpointing: false.",
)
MODELS_NOTHING_TO_QUANTISE = Code(
    "models.nothing_to_quantise",
    "The model has no linear layer that bitsandbytes can quantise to 4 bits. Train adapters on"
    " unquantised weights: quantization_bit: null.",
)
MODELS_ATTENTION_NOT_PACKABLE = Code(
    "models.attention_not_packable",
    "Packed rows contain several documents, but this model's attention cannot separate them. Set"
    " attn_implementation: auto.",
)
MODELS_POSITION_BIAS = Code(
    "models.position_bias",
    "The model adds a position bias inside its attention, which the packed kernels do not support."
    " Set model.attn_implementation: eager.",
)
MODELS_ADAPTER_MODULES_TO_SAVE = Code(
    "models.adapter_modules_to_save",
    "lora.modules_to_save names a module that the model does not have. The available names are listed.",
)
MODELS_ADAPTER_NEW_ROWS = Code(
    "models.adapter_new_rows",
    "The tokenizer has more tokens than the embedding has rows; with a frozen embedding the new"
    " rows would never be trained. Train embedding and head in full with lora.modules_to_save.",
)
MODELS_ADAPTER_TARGET = Code(
    "models.adapter_target",
    "Adapters can only be added to linear layers of the trunk, but lora.target_modules matches"
    " something else, such as the experts of a mixture stored in one tensor. Name linear layers"
    " (for example the attention's projections); modules_to_save trains embeddings and head in"
    " full.",
)
MODELS_ADAPTER_TARGETS = Code(
    "models.adapter_targets",
    "lora.target_modules, or a name in its list, matches no layer of the model; peft would silently"
    " use only the others. all-linear selects every linear layer except the head; the available"
    " names are listed.",
)
MODELS_ADAPTER_WEIGHTS = Code(
    "models.adapter_weights",
    "The weights at lora.adapter_name_or_path do not fit this model. An adapter works only with the"
    " base model that it was trained on.",
)
MODELS_CP_HEADS = Code(
    "models.cp_heads",
    "Ulysses gives each rank of a context-parallel group the same number of attention heads, but"
    " their number is not divisible. Choose a cp_size that divides it, or cp_method: allgather.",
)
MODELS_CP_PADDED = Code(
    "models.cp_padded",
    "Context parallelism shards packed rows, but this model uses one padded row per document, or passes"
    " a state from token to token. Set cp_size: 1.",
)
MODELS_TOO_FEW_LAYERS = Code(
    "models.too_few_layers",
    "There are more pipeline stages than layers. Lower pp_size or pp_stages_per_rank.",
)
MODELS_SP_FINAL_NORM = Code(
    "models.sp_final_norm",
    "Sequence parallelism ends at the norm after the layers, but this model does not have exactly"
    " one such module. Set sequence_parallel: false.",
)
MODELS_NO_ROUTER = Code(
    "models.no_router",
    "training.freeze_router is set, but the model's class has no routers. Set freeze_router: false.",
)
MODELS_ROUTER_LOGITS = Code(
    "models.router_logits",
    "The model's class gives no router logits, which the balance loss of its experts is computed from. Set"
    " training.router_aux_loss_coef: 0.",
)
MODELS_SP_PADDED = Code(
    "models.sp_padded",
    "Sequence parallelism shards packed rows, but this model uses one padded row per document, or passes"
    " a state from token to token. Set sequence_parallel: false.",
)
MODELS_TP_HEADS = Code(
    "models.tp_heads",
    "Tensor parallelism gives each rank complete attention heads, but their number is not"
    " divisible. Choose a tp_size that divides it, and use the other ranks for dp_shard_size.",
)
MODELS_TP_NOT_SHARDED = Code(
    "models.tp_not_sharded",
    "The model's tensor-parallel plan matches nothing in one of its layers, so every rank would"
    " hold it completely. Use fsdp without tp_size.",
)
MODELS_TP_PLAN_INCOMPLETE = Code(
    "models.tp_plan_incomplete",
    "The model's tensor-parallel plan leaves out a layer between sharded ones, which would compute"
    " on partial values. Use fsdp without tp_size.",
)
MODELS_TP_VOCABULARY = Code(
    "models.tp_vocabulary",
    "A loss over a sharded vocabulary needs a number of rows that is divisible by the number of"
    " ranks. Pad it with model.embedding_multiple, or set loss_parallel: false.",
)
MODELS_TP_WIDTH = Code(
    "models.tp_width",
    "A layer's width is not divisible by the number of tensor-parallel ranks. Choose a tp_size that"
    " divides it.",
)
