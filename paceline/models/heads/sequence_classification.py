"""A head with K outputs instead of the vocabulary, as in Hugging Face's sequence classification. It gives the
score of an answer (reward model), its expected score (value model), or one logit per class (classifier).

One vector a document from the hidden states of its tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, cast

import torch
from torch import Tensor, nn

from paceline.core.errors import ConfigError
from paceline.core.json_types import Json, JsonObject
from paceline.models import codes
from paceline.models.heads.lm_head import Vocabulary
from paceline.plan.model.family import family_of
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Output, Role

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from paceline.protocols.model import HFModel


FIRST, LAST, MEAN = "cls", "last", "mean"


def pooled(hidden: Tensor, batch: Batch, how: str) -> Tensor:
    """hidden [1, T, H] -> [D, H]: each document's first token (``cls``), last token, or mean over all."""
    bounds = batch.boundaries()
    if how == MEAN:  # a document is never empty
        sums = hidden[0] if hidden.dtype == torch.float64 else hidden[0].float()
        means = torch.segment_reduce(sums, "mean", lengths=bounds.diff(), axis=0, unsafe=True)
        return means.to(hidden.dtype)
    assert how in (FIRST, LAST), how
    return hidden[0].index_select(0, bounds[:-1] if how == FIRST else bounds[1:] - 1)


SCALAR_ROLES = frozenset({Role.REWARD, Role.VALUE, Role.CLASSIFIER})
TRUNK_ROLES = frozenset({Role.EMBEDDING})  # whose models have no head


@dataclass(frozen=True)
class Classes:
    """Names of the classes, in the order of their ids; ``several``: a document may have several of them, or
    none.
    """

    names: tuple[str, ...]
    several: bool = False

    @staticmethod
    def read(role: Role, config: Mapping[str, Json]) -> Classes | None:
        """Return the classes named in the ``config.json`` of a trained classifier; None for any other
        role.
        """
        if role is not Role.CLASSIFIER:
            return None
        numbers = config["id2label"]
        assert isinstance(numbers, dict)
        names = tuple(str(numbers[key]) for key in sorted(numbers, key=int))
        return Classes(names, str(config.get("problem_type")).startswith("multi"))

    @property
    def of_config(self) -> JsonObject:
        """The keys of ``config.json`` that describe the classes."""
        numbers = {str(i): name for i, name in enumerate(self.names)}
        kind = "multi_label_classification" if self.several else "single_label_classification"
        return {
            "id2label": numbers,
            "label2id": {name: i for i, name in enumerate(self.names)},
            "problem_type": kind,
        }


Attention = str | dict[str, str] | None  # a name of Transformers', or one a part of a whole model


class AutoClass(Protocol):
    """One of Transformers' auto classes."""

    __name__: str
    _model_mapping: Mapping[type[PreTrainedConfig], type[nn.Module] | tuple[type[nn.Module], ...]]

    def from_config(
        self,
        config: PreTrainedConfig,
        *,
        dtype: torch.dtype,
        attn_implementation: Attention,
        **code: bool | str | None,
    ) -> HFModel: ...

    def from_pretrained(
        self,
        name: str,
        *,
        config: PreTrainedConfig,
        revision: str,
        dtype: torch.dtype,
        attn_implementation: Attention,
        use_safetensors: Literal[True],
        output_loading_info: Literal[True],
        **code: bool | str | None,
    ) -> tuple[HFModel, Mapping[str, Collection[str]]]: ...


def auto_class(role: Role, vision: bool = False) -> AutoClass:
    """Return the Hugging Face auto class that builds the model of ``role`` (``vision``: with its tower)."""
    from transformers import (
        AutoModel,
        AutoModelForCausalLM,
        AutoModelForImageTextToText,
        AutoModelForSequenceClassification,
    )

    causal = AutoModelForImageTextToText if vision else AutoModelForCausalLM
    headed = AutoModelForSequenceClassification if role in SCALAR_ROLES else causal
    kind = AutoModel if role in TRUNK_ROLES else headed
    return cast(AutoClass, kind)  # whose methods have no types of their own


def head_modules(hf: HFModel) -> dict[str, nn.Module]:
    """Return the head's modules of a classification class, by their names in ``hf``, in call order. Raises
    ConfigError if the class has unknown ones.
    """
    names = family_of(hf.config.model_type).head
    found = dict(hf.named_modules())
    outputs = [m for name in names if name in found for m in found[name].modules()]
    linear = [module for module in outputs if isinstance(module, nn.Linear)]
    if not linear or linear[-1].out_features != hf.config.num_labels or not all(n in found for n in names):
        raise ConfigError(
            codes.MODELS_NO_SCALAR_HEAD(
                f"this model's class for sequence classification has no {' and '.join(names)} that ends in a"
                " linear layer with that number of outputs",
                "model",
                type(hf).__name__,
                "use a decoder of another family: llama, qwen2, qwen3, mistral, gemma2, gpt2, …",
            )
        )
    return {name: found[name] for name in names}


def last_layer(hf: HFModel) -> nn.Module | None:
    """Return the layer that gives a language model's logits, or an encoder's."""
    if not family_of(hf.config.model_type).encoder:
        return hf.get_output_embeddings()
    linear = [m for part in head_modules(hf).values() for m in part.modules() if isinstance(m, nn.Linear)]
    return linear[-1]


def head_layers(hf: HFModel) -> tuple[str, ...]:
    """Return the last names of the head's modules with parameters, which adapters leave to be trained."""
    modules = head_modules(hf)
    held = (name for name, module in modules.items() if next(module.parameters(), None) is not None)
    return tuple(name.rpartition(".")[2] for name in held)


class PooledHead:
    """An encoder's head: the modules of its classification class, called in turn on a pooled document.

    Pooled is the first token, or the mean of all (``classifier_pooling``). Modules are called instead of
    reading their weights, so that engines gather them. Each computes in the dtype of its weights.
    """

    fused = True

    def __init__(self, hf: HFModel) -> None:
        self._hf = hf
        self.pooling = str(getattr(hf.config, "classifier_pooling", "cls"))
        self._names = tuple(head_modules(hf))
        self.reason = f"{hf.config.num_labels} classes per document: {self.pooling}, {', '.join(self._names)}"
        self.vocabulary: Vocabulary | None = None

    def __call__(self, hidden: Tensor, batch: Batch, required: frozenset[Output]) -> dict[str, Tensor]:
        """hidden [1, T, H] -> ``classes`` [D, K], ``scores`` [D]: fp32 (fp64 for fp64 weights)."""
        assert required <= {Output.SCORES, Output.CLASSES}, "an encoder has no vocabulary"
        with torch.autocast(hidden.device.type, enabled=False):
            # as a row of one token: modules that take a document's first token find it
            x = pooled(hidden, batch, self.pooling)[:, None]
            for module in map(self._hf.get_submodule, self._names):
                held: Tensor | None = next(module.parameters(), None)
                x = module(x if held is None else x.to(held.dtype))
        logits = x.reshape(x.shape[0], -1)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        return {kind.value: logits if kind is Output.CLASSES else logits.squeeze(-1) for kind in required}


def scalar_head(hf: HFModel) -> ScalarHead | PooledHead:
    """Return the head of a classification class: a decoder's at the last token, or an encoder's."""
    return PooledHead(hf) if family_of(hf.config.model_type).encoder else ScalarHead(hf)


class NoHead:
    """Replaces a head where only hidden states are required."""

    fused = True
    reason = "none: hidden states stand for documents"
    vocabulary: Vocabulary | None = None

    def __call__(self, hidden: Tensor, batch: Batch, required: frozenset[Output]) -> dict[str, Tensor]:
        raise NotImplementedError(f"a model without a head has no {', '.join(required)}")


class ScalarHead:
    """``Linear(hidden, K)`` without bias, K being ``num_labels``, applied to the last hidden states at the
    last token of each document or at the labelled positions.

    The layer is called instead of reading its weight, so that engines gather its parameters. It computes in
    the dtype of its weight.
    """

    fused = True

    def __init__(self, hf: HFModel) -> None:
        self._hf = hf
        outputs = hf.config.num_labels
        self.reason = (
            "one number per document or token" if outputs == 1 else f"{outputs} classes per document"
        )
        self.vocabulary: Vocabulary | None = None
        (self._name,) = head_modules(hf)

    def __call__(self, hidden: Tensor, batch: Batch, required: frozenset[Output]) -> dict[str, Tensor]:
        """hidden [1, T, H] -> ``scores`` [D], ``classes`` [D, K] or ``values`` [L], fp32 (fp64 for fp64
        weights).

        The layer is called once, however many outputs are required.
        """
        assert required <= {Output.SCORES, Output.CLASSES, Output.VALUES}, "a scalar head has no vocabulary"
        layer = getattr(self._hf, self._name)
        places = []
        if required & {Output.SCORES, Output.CLASSES}:
            places.append(batch.boundaries()[1:] - 1)
        if Output.VALUES in required:
            places.append(batch.label_places())
        sizes = [len(index) for index in places]
        # the score is computed in the dtype of its own weight
        with torch.autocast(hidden.device.type, enabled=False):
            scores = layer(hidden[0].index_select(0, torch.cat(places)).to(layer.weight.dtype))
        scores = scores if scores.dtype == torch.float64 else scores.float()
        kinds = [kind for kind in (Output.SCORES, Output.CLASSES, Output.VALUES) if kind in required]
        parts = zip(kinds, scores.split(sizes), strict=True)
        return {kind.value: part if kind is Output.CLASSES else part.squeeze(-1) for kind, part in parts}
