"""``model:`` — which weights, tokenizer and attention."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from paceline.config.idle import IDLE
from paceline.config.sections.types import Bool, Int, OptMapping, OptPath, OptText, Section, Text, Texts, Word


class ModelSection(Section):
    """Which model is trained: pretrained weights (``name_or_path``) or a fresh one of a given shape (``config``)."""

    name_or_path: OptPath = Field(default=None, description="Folder or hub name of the pretrained model.")
    revision: OptText = Field(
        default=None,
        description="Branch, tag or commit on the hub. With trust_remote_code: the 40-digit commit, or of a folder the digest of its code (the refusal prints it).",
    )
    config: OptMapping = Field(
        default=None,
        description="Shape of a model made from scratch (`model_type: llama`, `hidden_size: 512`, …); excludes name_or_path.",
    )
    tokenizer: OptPath = Field(
        default=None, description="Folder or hub name of the tokenizer; name_or_path when empty."
    )
    trust_remote_code: Bool = Field(
        default=False,
        description="Run Python code that comes with the model and its tokenizer; needs a pin in revision.",
    )
    attn_implementation: Text = Field(
        default="auto",
        description="Attention kernel: auto, eager, sdpa, flash_attention_2, flex_attention; auto chooses by device and packing.",
    )
    dtype: Annotated[str, Word("auto", "float32", "bfloat16", "float16", "float64")] = Field(
        default="float32",
        description="Type the weights are read in; trained weights are kept in float32 whatever stands here, but for float64, in which everything is then computed (to compare strategies).",
    )
    chat_template: OptText = Field(
        default=None,
        description="Jinja text of a chat template, or the path of a file with one; replaces the tokenizer's.",
    )
    add_tokens: Texts = Field(default=(), description="Ordinary tokens added to the tokenizer.")
    add_special_tokens: Texts = Field(default=(), description="Special tokens added to the tokenizer.")
    resize_embeddings: Annotated[str, Word("auto", "never")] = Field(
        default="auto",
        description="auto: embedding rows are added when the tokenizer has more tokens than rows; never: that is an error.",
    )
    embedding_multiple: Int = Field(
        default=1, ge=1, description="Embedding rows are padded to a multiple of this when they are resized."
    )
    low_cpu_mem: Bool = Field(default=True, description=f"Sets nothing: {IDLE['model.low_cpu_mem']}.")
