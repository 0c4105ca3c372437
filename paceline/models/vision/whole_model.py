"""The parts of a whole model: the language model, and what turns images into its tokens' embeddings."""

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
