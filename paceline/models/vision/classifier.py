"""Score heads on whole models: where Transformers has no class for a family, its generic one around the
family's trunk, as it makes its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


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
