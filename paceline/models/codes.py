"""Diagnostic codes of building and loading models."""

from __future__ import annotations

from paceline.core.diagnostics import Code

MODELS_BAD_CONFIG = Code(
    "models.bad_config",
    "Transformers cannot build a model from model.config; its reason is shown. Correct the sizes, or take"
    " them from the config.json of a model of that family.",
)
MODELS_CANNOT_LOAD = Code(
    "models.cannot_load",
    "The model cannot be loaded. Weights are read as safetensors only: name a folder with config.json and"
    " .safetensors files, or a hub name that has them.",
)
MODELS_MISSING_WEIGHTS = Code(
    "models.missing_weights",
    "The checkpoint lacks weights that the model has; they would start at random. Get a complete checkpoint,"
    " or train from scratch by model.config.",
)
MODELS_LOST_WEIGHTS = Code(
    "models.lost_weights",
    "The checkpoint holds tensors that the model's class has no place for: an export would lose them. They"
    " are counted and named; take the class or the checkpoint that fits.",
)
MODELS_ROPE_BY_LENGTH = Code(
    "models.rope_by_length",
    "Dynamic and LongRoPE rotary embeddings take their frequencies from the length of a whole document, and"
    " this rank has a part of it. Set cp_size: 1.",
)
MODELS_NO_MODEL = Code(
    "models.no_model",
    "Neither weights nor a config are named. Set model.name_or_path to a folder or hub name, or"
    " model.config.",
)
MODELS_NOT_CAUSAL = Code(
    "models.not_causal",
    "This type of model has no causal language model in Transformers. Take a decoder, such as llama, qwen2,"
    " mistral, gemma2 or gpt2.",
)
MODELS_NOT_FILLED = Code(
    "models.not_filled",
    "After the start without memory (meta device) some parameters had no values. Set"
    " fsdp_config.cpu_ram_efficient_loading: false, and report the model's type.",
)
MODELS_NO_SCALAR_HEAD = Code(
    "models.no_scalar_head",
    "Reward and value models need the family's class for sequence classification with one linear layer called"
    " score, and this family has none. Take a decoder of another family.",
)
MODELS_TEACHER_HEAD = Code(
    "models.teacher_head",
    "A teacher whose class computes its logits by more than one linear layer is asked through that class,"
    " which needs its weights whole on every rank. Use a strategy that does not share them out, or another"
    " teacher.",
)
MODELS_VOCAB_TOO_LARGE = Code(
    "models.vocab_too_large",
    "The tokenizer has more tokens than the embedding has rows, and model.resize_embeddings forbids new ones."
    " Set it to auto: new rows start at the mean of the old ones.",
)
MODELS_NO_RECOMPUTE = Code(
    "models.no_recompute",
    "The class of this model cannot compute its activations again. Set gradient_checkpointing: false.",
)
MODELS_NOTHING_TO_QUANTISE = Code(
    "models.nothing_to_quantise",
    "The model has no linear layer that bitsandbytes can pack into 4 bits. Train adapters on whole weights:"
    " quantization_bit: null.",
)
MODELS_ATTENTION_NOT_PACKABLE = Code(
    "models.attention_not_packable",
    "With packed rows several documents stand in one, and this model's attention cannot keep them apart. Set"
    " attn_implementation: auto.",
)
MODELS_POSITION_BIAS = Code(
    "models.position_bias",
    "The model adds a position bias inside its attention, which the packed kernels do not have. Set"
    " model.attn_implementation: eager.",
)
MODELS_ADAPTER_MODULES_TO_SAVE = Code(
    "models.adapter_modules_to_save",
    "lora.modules_to_save names a module that the model does not have. The names that it has are listed.",
)
MODELS_ADAPTER_NEW_ROWS = Code(
    "models.adapter_new_rows",
    "The tokenizer has more tokens than the embedding has rows; with a frozen embedding the new rows would"
    " never learn. Train embedding and head in full by lora.modules_to_save.",
)
MODELS_ADAPTER_TARGET = Code(
    "models.adapter_target",
    "An adapter goes on linear layers of the trunk, and lora.target_modules matches something else, such as"
    " the experts of a mixture kept in one tensor. Name linear layers (for instance the attention's"
    " projections); modules_to_save trains embeddings and head in full.",
)
MODELS_ADAPTER_TARGETS = Code(
    "models.adapter_targets",
    "lora.target_modules, or a name in its list, matches no layer of the model; peft would go by the others"
    " without a word. all-linear takes every linear layer but the head; the names that there are are listed.",
)
MODELS_ADAPTER_WEIGHTS = Code(
    "models.adapter_weights",
    "The weights at lora.adapter_name_or_path do not fit this model. An adapter goes with the very base model"
    " that it was trained on.",
)
MODELS_CP_HEADS = Code(
    "models.cp_heads",
    "Ulysses gives each rank of a context-parallel group the same number of attention heads, and they do not"
    " divide. Choose a cp_size that divides them, or cp_method: allgather.",
)
MODELS_CP_PADDED = Code(
    "models.cp_padded",
    "Context parallelism cuts packed rows, and this model takes one padded row a document. Set cp_size: 1.",
)
MODELS_TOO_FEW_LAYERS = Code(
    "models.too_few_layers",
    "There are more pipeline stages than layers. Lower pp_size or pp_stages_per_rank.",
)
MODELS_SP_FINAL_NORM = Code(
    "models.sp_final_norm",
    "Sequence parallelism ends at the norm after the layers, and this model has not exactly one such module."
    " Set sequence_parallel: false.",
)
MODELS_SP_PADDED = Code(
    "models.sp_padded",
    "Sequence parallelism cuts packed rows, and this model takes one padded row a document. Set"
    " sequence_parallel: false.",
)
MODELS_TP_COMPILE = Code(
    "models.tp_compile",
    "Tensor parallelism exchanges tensors between the parts of a layer, for which a compiled trunk has no"
    " room. Set torch_compile: false.",
)
MODELS_TP_HEADS = Code(
    "models.tp_heads",
    "Tensor parallelism gives each rank whole attention heads, and they do not divide. Choose a tp_size that"
    " divides their number, and give the other ranks to dp_shard_size.",
)
MODELS_TP_NOT_SHARDED = Code(
    "models.tp_not_sharded",
    "The model's tensor-parallel plan matches nothing in one of its layers, so every rank would hold it"
    " whole. Use fsdp without tp_size.",
)
MODELS_TP_PLAN_INCOMPLETE = Code(
    "models.tp_plan_incomplete",
    "The model's tensor-parallel plan leaves out a layer between ones that are cut, which would compute on"
    " parts. Use fsdp without tp_size.",
)
MODELS_TP_VOCABULARY = Code(
    "models.tp_vocabulary",
    "A loss over a cut vocabulary needs a number of rows that divides by the ranks. Pad it by"
    " model.embedding_multiple, or set loss_parallel: false.",
)
MODELS_TP_WIDTH = Code(
    "models.tp_width",
    "A layer's width does not divide by the tensor-parallel ranks. Choose a tp_size that divides it.",
)
