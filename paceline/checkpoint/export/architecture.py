"""The model of a ``config.json``: its class, its tensors on the meta device, their names checked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from paceline.checkpoint import codes
from paceline.core.errors import CheckpointError
from paceline.core.json_types import Json, JsonObject
from paceline.models.loading.multimodal import WholeModel, whole_model
from paceline.models.module_tensors import persistent_buffers
from paceline.plan.model.family import composite_of, family_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.models.auto.auto_factory import _BaseAutoModelClass

VISION = "vision"  # key in a checkpoint's state
SCORES = "ForSequenceClassification"  # suffix of class names that output one score per text


def is_known(config: Mapping[str, Json]) -> bool:
    """Whether Transformers has a causal language model of this type, alone or within a composite, or it is an
    encoder; others need remote code.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    kind = config.get("model_type")
    named = kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or family_of(kind).encoder
    return named or composite_of(config) is not None


def auto_of(config: Mapping[str, Json], vision: bool = False) -> type[_BaseAutoModelClass]:
    """Return the Auto class that loads this config: a reward model's names sequence classification, an
    embedding model's a trunk. ``vision``: the model was trained with its tower.
    """
    from transformers import (
        AutoModel,
        AutoModelForCausalLM,
        AutoModelForImageTextToText,
        AutoModelForSequenceClassification,
    )

    if is_trunk(config):
        return AutoModel
    causal = AutoModelForImageTextToText if vision else AutoModelForCausalLM
    return AutoModelForSequenceClassification if gives_scores(config) else causal


def is_trunk(config: Mapping[str, Json]) -> bool:
    """Whether a config names a class without a head. A composite's has one, also Llama 4's, which is
    ``AutoModel``'s as well.
    """
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    if composite_of(config) is not None:
        return False
    trunks = MODEL_MAPPING_NAMES.get(str(config.get("model_type")), ())
    named = (trunks,) if isinstance(trunks, str) else trunks
    classes = config.get("architectures")
    return isinstance(classes, list) and any(name in named for name in classes)


def writes_text(config: Mapping[str, Json]) -> bool:
    """Whether a config's class has a language model's head."""
    return not gives_scores(config) and not is_trunk(config)


def gives_scores(config: Mapping[str, Json]) -> bool:
    """Whether a config names a class with a score head in place of the language-model head."""
    classes = config.get("architectures")
    return isinstance(classes, list) and any(str(name).endswith(SCORES) for name in classes)


def trained_model_of(config: Mapping[str, Json], vision: bool = False) -> PreTrainedModel:
    """Build the architecture on the meta device; without ``vision`` the language model within it."""
    from transformers import AutoConfig

    plain = {
        k: _plain(v) for k, v in config.items() if k not in ("model_type", "auto_map", "transformers_version")
    }
    settings = AutoConfig.for_model(str(config["model_type"]), **plain)
    if not vision and (composite := whole_model(settings)) is not None:
        settings = composite.text
    with torch.device("meta"):
        return auto_of(config, vision).from_config(settings)  # type: ignore[no-untyped-call]


def whole_of(config: Mapping[str, Json], vision: bool = False) -> WholeModel | None:
    """Return the model with all parts for a composite's config of which the language model was trained alone;
    else None.
    """
    from transformers import AutoConfig

    if vision or composite_of(config) is None:
        return None
    plain = {k: _plain(v) for k, v in config.items() if k not in ("model_type", "transformers_version")}
    return whole_model(AutoConfig.for_model(str(config["model_type"]), **plain))


def _plain(value: Json) -> Json:
    """Decode a ``config.json`` value as Transformers does: ``{"__float__": "Infinity"}`` is a float."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return (
            float(str(value["__float__"]))
            if set(value) == {"__float__"}
            else {k: _plain(v) for k, v in value.items()}
        )
    return value


def with_tower(state: Mapping[str, Json]) -> bool:
    """Whether a checkpoint's ``state`` is that of a model trained with its vision tower, under the whole's
    names.
    """
    return bool(state.get(VISION))


def check_names(
    config: JsonObject, shapes: Mapping[str, tuple[int, ...]], where: Path, vision: bool = False
) -> PreTrainedModel:
    """Check that the tensors are exactly those of the architecture, in their shapes (tied ones once).

    Also sets ``architectures`` in ``config``. Returns the model on the meta device. Raises CheckpointError.
    """
    if not is_known(config):
        raise CheckpointError(
            codes.EXPORT_MODEL_TYPE(
                "Transformers has no causal language model of this type",
                str(where),
                f"model_type: {config.get('model_type')!r}",
            )
        )
    model = trained_model_of(config, vision)
    if composite_of(config) is None:  # a composite's names the class with all parts
        config["architectures"] = [type(model).__name__]
    expected = {n: tuple(t.shape) for n, t in (*model.state_dict().items(), *model.named_buffers())}
    needed = {n for n, _ in (*model.named_parameters(), *persistent_buffers(model))}
    wrong = {
        "missing": sorted(needed - set(shapes)),
        "unknown": sorted(set(shapes) - set(expected)),
        "have another shape": sorted(
            n for n, shape in shapes.items() if n in expected and shape != expected[n]
        ),
    }
    if any(wrong.values()):
        raise CheckpointError(
            codes.EXPORT_TENSORS(
                "the checkpoint's tensors do not match its config.json", str(where), listed_wrong(wrong)
            )
        )
    return model


def listed_wrong(wrong: Mapping[str, list[str]]) -> str:
    return "; ".join(
        f"{word}: {', '.join(map(str, some[:5]))}{' …' if len(some) > 5 else ''}"
        for word, some in wrong.items()
        if some
    )
