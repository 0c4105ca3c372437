"""Whole models: the language model, what turns images into its tokens' embeddings, and score heads.

Where Transformers has no scoring class for a family, its generic one stands around the family's trunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from paceline.models.heads.sequence_classification import Attention
    from paceline.protocols.model import HFModel


def sees_images(hf: HFModel) -> bool:
    """Whether ``hf`` is a whole model with a vision tower."""
    return hasattr(hf.base_model, "get_image_features")


def text_model(hf: HFModel) -> HFModel:
    """Return the module of ``hf`` that computes texts: a whole model's decoder, else all of ``hf``."""
    return hf.get_decoder() if sees_images(hf) else hf


def vision_parameters(hf: HFModel) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters of a whole model's tower and projector by their names in ``hf``; none of a
    language model.
    """
    if not sees_images(hf):
        return
    text = {id(p) for p in text_model(hf).parameters()}
    parts = {id(p) for p in hf.base_model.parameters()} - text
    yield from ((name, parameter) for name, parameter in hf.named_parameters() if id(parameter) in parts)


def attention_of_parts(config: PreTrainedConfig, attention: Attention) -> Attention:
    """Return the attention functions to build a whole model with: ``attention`` in the language model,
    Transformers' own choice in each tower.
    """
    if not isinstance(attention, str):
        return attention
    text = [name for name in config.sub_configs if getattr(config, name, None) is config.get_text_config()]
    return dict.fromkeys(("", *text), attention)


def register_classifier(config: type[PreTrainedConfig]) -> None:
    """Have Transformers' auto class for sequence classification know whole models of this config class.

    Names of the folder's tensors are read as those of the class with a vocabulary (Qwen2-VL's are older than
    its class).
    """
    from transformers import AutoModelForSequenceClassification, conversion_mapping
    from transformers.modeling_layers import GenericForSequenceClassification
    from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING as KNOWN
    from transformers.models.auto.modeling_auto import MODEL_MAPPING

    if config in KNOWN or config in KNOWN._extra_content:
        return
    trunk = MODEL_MAPPING[config]
    assert isinstance(trunk, type)
    family = trunk.__name__.removesuffix("Model")
    name, bases = f"{family}ForSequenceClassification", (GenericForSequenceClassification, trunk.__mro__[1])
    made = type(name, bases, {"__module__": trunk.__module__, "config_class": config})
    AutoModelForSequenceClassification.register(config, made, exist_ok=True)  # of a config of its own
    of_causal = conversion_mapping.get_checkpoint_conversion_mapping(f"{family}ForConditionalGeneration")
    if of_causal is not None:
        conversion_mapping.register_checkpoint_conversion_mapping(name, of_causal, overwrite=True)
