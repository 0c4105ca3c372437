"""Composite models (a language model with a vision tower): the language model alone is built and trained.

It is an instance of the family's causal class. Loading and saving go through the class of the whole, whose
names a folder has. ``plan.model.family`` lists the types.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import torch

from paceline.models.loading.loading_report import LoadingReport, account
from paceline.models.loading.quantized_folder import QuantisedFolder, load_dequantised
from paceline.plan.model.family import composites

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

    from paceline.models.heads.sequence_classification import Attention
    from paceline.protocols.model import HFModel


@dataclass(frozen=True)
class WholeModel:
    """``skeleton``: the whole model, on meta; ``text``: the config of its trained causal class."""

    skeleton: PreTrainedModel
    text: PreTrainedConfig

    def names(self, text: PreTrainedModel) -> dict[str, str]:
        """Return the names of ``text``'s tensors -> their names in the whole; names that the whole lacks (a
        score head) are left out.
        """
        whole, of_text = cast(Any, self.skeleton), cast(Any, text)
        inner = whole.get_decoder()
        path = next(name for name, module in self.skeleton.named_modules() if module is inner)
        trunk = f"{text.base_model_prefix}."
        if isinstance(inner, type(text)):  # a causal class within the whole (Llama 4)
            places = {"": f"{path}."}
        else:
            places = {trunk: f"{path}."}
            head, my_head = whole.get_output_embeddings(), of_text.get_output_embeddings()
            head_names = [n for n, m in whole.named_modules() if m is head and head is not None]
            my_head_names = [n for n, m in of_text.named_modules() if m is my_head and my_head is not None]
            places |= {f"{n}.": f"{head_names[0]}." for n in my_head_names if head_names}
        held = self.skeleton.state_dict()
        renamed = {
            name: there + name.removeprefix(here)
            for here, there in places.items()
            for name in text.state_dict()
            if name.startswith(here)
        }
        return {name: other for name, other in renamed.items() if other in held}

    def account(self, text: PreTrainedModel, stored: Iterable[str]) -> LoadingReport:
        """Match a folder's tensor names to the model; tensors that ``text`` lacks are carried."""
        report, names = account(self.skeleton, stored), self.names(text)
        mine = {other: name for name, other in names.items()}
        beside = [name for target, some in report.used.items() if target not in mine for name in some]
        return replace(
            report,
            used={mine[target]: some for target, some in report.used.items() if target in mine},
            ties={
                mine[n]: mine[parameter]
                for n, parameter in report.ties.items()
                if n in mine and parameter in mine
            },
            carried=tuple(sorted((*report.carried, *beside))),
        )


def whole_model(config: PreTrainedConfig) -> WholeModel | None:
    """Return the composite model of a folder's ``config``, on meta; None for a pure language model."""
    from transformers import AutoConfig

    composite = composites().get(str(config.model_type))
    text = config.get_text_config()
    if composite is None or text is config:
        return None
    with torch.device("meta"):
        skeleton = class_of_whole(config)(config)
    values = {
        key: value for key, value in text.to_dict().items() if key not in ("model_type", "architectures")
    }
    values |= composite.values
    values["tie_word_embeddings"] = bool(skeleton.all_tied_weights_keys)
    return WholeModel(skeleton, AutoConfig.for_model(composite.text or text.model_type, **values))


def class_of_whole(config: PreTrainedConfig) -> Any:
    """Return the class with all parts."""
    from transformers import AutoModelForImageTextToText

    mapping: Any = AutoModelForImageTextToText._model_mapping  # type: ignore[attr-defined]
    return mapping[type(config)]


def load_text(
    whole: WholeModel,
    made: HFModel,
    name: str,
    revision: str,
    dtype: torch.dtype,
    attention: Attention,
    quantised: QuantisedFolder | None = None,
) -> tuple[HFModel, Mapping[str, Collection[str]]]:
    """Load the language model of the folder ``name``; return it and the keys that Transformers missed.

    ``made``: the language model on meta; ``attention``: its implementation. The tower stays in host memory
    until this returns.
    """
    config = whole.skeleton.config
    kind = class_of_whole(config)
    if quantised is not None:
        every = quantised.names.plain(quantised.files)
        full, info = load_dequantised(kind, config, quantised, every, name, revision, dtype, None)
    else:
        full, info = kind.from_pretrained(
            name,
            config=config,
            revision=revision,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    tensors = full.state_dict()
    held = {mine: tensors[other] for mine, other in whole.names(made).items()}
    causal: Any = type(made)
    text, own = causal.from_pretrained(
        None,
        config=made.config,
        state_dict=held,
        dtype=dtype,
        attn_implementation=attention,
        output_loading_info=True,
    )
    text.generation_config = full.generation_config
    return text, {"missing_keys": {*info["missing_keys"], *own["missing_keys"]}}
