"""``model:`` — weights, tokenizer and attention."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from paceline.config.sections.types import (
    Bool,
    Int,
    Mapping,
    OptMapping,
    OptPath,
    OptText,
    Section,
    Text,
    Texts,
    Word,
    misfit,
    to_bool,
)
from paceline.core.json_types import Json

SPECIAL_TOKENS = tuple(f"{name}_token" for name in ("bos", "eos", "pad", "unk", "sep", "cls", "mask"))


def _to_special_tokens(value: Json) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) and text for text in value.values()):
        raise misfit("must be a mapping of names to tokens, like {eos_token: <|im_end|>}")
    if other := sorted(set(value) - set(SPECIAL_TOKENS)):
        raise misfit(f"has {', '.join(map(str, other))}: the names are {', '.join(SPECIAL_TOKENS)}")
    return {name: str(text) for name, text in value.items()}


def _to_vision(value: Json) -> bool | str:
    return AUTO if isinstance(value, str) and value.strip().lower() == AUTO else to_bool(value)


#: ``vision`` by the model and the rows
AUTO = "auto"

IDLE: dict[str, str] = {
    "model.low_cpu_mem": (
        "weights are always streamed from disk tensor by tensor; Transformers 5 has no other mode"
    ),
}


class ModelSection(Section):
    """The model: pretrained weights (``name_or_path``), or a new one of a given architecture (``config``)."""

    name_or_path: OptPath = Field(default=None, description="Folder or hub name of the pretrained model.")
    revision: OptText = Field(
        default=None,
        description=(
            "Branch, tag or commit on the hub. With trust_remote_code: the 40-digit commit, "
            "or for a folder the digest of its code (printed by the error message)."
        ),
    )
    config: OptMapping = Field(
        default=None,
        description=(
            "Architecture of a model trained from scratch (`model_type: llama`, `hidden_size: "
            "512`, …); excludes name_or_path."
        ),
    )
    tokenizer: OptPath = Field(
        default=None, description="Folder or hub name of the tokenizer; name_or_path when empty."
    )
    trust_remote_code: Bool = Field(
        default=False,
        description="Run Python code shipped with the model and its tokenizer; needs a pin in revision.",
    )
    attn_implementation: Text = Field(
        default="auto",
        description=(
            "Attention implementation: auto, eager, sdpa, flash_attention_2, flex_attention; "
            "auto chooses by device and packing."
        ),
    )
    dtype: Annotated[str, Word("auto", "float32", "bfloat16", "float16", "float64")] = Field(
        default="float32",
        description=(
            "Dtype in which the weights are loaded. Trained weights are kept in float32 "
            "regardless (in bfloat16 with training.pure_bf16), except with float64, in which "
            "everything is then computed (to compare strategies)."
        ),
    )
    vision: Annotated[bool | str, BeforeValidator(_to_vision)] = Field(
        default=AUTO,
        description=(
            "Whether a model that also reads images is trained with its tower, on rows with images; auto: if"
            " the first rows of a data set have images. Otherwise its language model is trained alone."
        ),
    )
    processor_kwargs: Mapping = Field(
        default={},
        description=(
            "Options of the model's image processor, in place of those in its folder, e.g. `{do_pan_and_scan:"
            " true}`."
        ),
    )
    chat_template: OptText = Field(
        default=None,
        description="A Jinja chat template, or the path of a file with one; replaces the tokenizer's.",
    )
    chat_template_kwargs: Mapping = Field(
        default={},
        description=(
            "Options of the chat template, e.g. `{enable_thinking: false}`: in training, rollouts, `paceline"
            " chat` and the exported folder. A row's own chat_template_kwargs win."
        ),
    )
    add_tokens: Texts = Field(default=(), description="Regular tokens to add to the tokenizer.")
    add_special_tokens: Texts = Field(
        default=(),
        description="Special tokens to add to the tokenizer. Answers do not show them.",
    )
    special_tokens: Annotated[dict[str, str], BeforeValidator(_to_special_tokens)] = Field(
        default={},
        description=(
            "The tokenizer's special tokens by their role, in place of its own: `{eos_token: </s>,"
            " pad_token: <pad>}`; also bos_token, unk_token, sep_token, cls_token, mask_token."
        ),
    )
    resize_embeddings: Annotated[str, Word("auto", "never")] = Field(
        default="auto",
        description=(
            "auto: add embedding rows when the tokenizer has more tokens than the embedding "
            "has rows; never: refuse that."
        ),
    )
    embedding_multiple: Int = Field(
        default=1,
        ge=1,
        description="Pad the number of embedding rows to a multiple of this when they are resized.",
    )
    low_cpu_mem: Bool = Field(default=True, description=f"Has no effect: {IDLE['model.low_cpu_mem']}.")
