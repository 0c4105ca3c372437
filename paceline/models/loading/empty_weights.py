"""A model whose parameters have no storage, but whose buffers have their values: those that no file holds,
such as rotary frequencies, are computed where the model is built.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from paceline.models.loading.materialize import from_config, replace_tensors

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from paceline.models.heads.sequence_classification import AutoClass
    from paceline.protocols.model import HFModel


def empty_model(
    auto: AutoClass,
    config: PreTrainedConfig,
    attention: str | None,
    code: Mapping[str, bool | str | None],
    name: str | None,
    revision: str,
) -> HFModel:
    """Return the model that ``auto.from_pretrained(name)`` would, in fp32, with its parameters on meta;
    without a name, the one that ``auto.from_config`` would.
    """
    from transformers.initialization import no_init_weights

    with no_init_weights(), _parameters_on_meta():
        model = from_config(auto, config, attention, code)
    model.tie_weights()
    if name is None:
        return model
    model.config.dtype = model.config.get_text_config().dtype = torch.float32
    adjust: Callable[..., None] | None = getattr(model, "adjust_generation_fn", None)
    if model.can_generate() and adjust is not None:
        adjust(  # as from_pretrained calls it
            generation_config=None,
            from_auto_class=True,
            from_pipeline=False,
            pretrained_model_name_or_path=name,
            cache_dir=None,
            force_download=False,
            proxies=None,
            local_files_only=False,
            token=None,
            revision=revision,
            subfolder="",
            trust_remote_code=False,
        )
    return model.eval()


@torch.no_grad()
def draw(hf: HFModel, names: Iterable[str], seed: int) -> None:
    """Draw the parameters ``names`` of a model on meta, and their modules' others, as ``from_pretrained``
    draws those that a folder lacks: on the CPU, from ``seed``.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for path in dict.fromkeys(name.rpartition(".")[0] for name in names):
            module = hf.get_submodule(path)
            module.to_empty(device="cpu", recurse=False)
            hf._init_weights(module)  # type: ignore[no-untyped-call]


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Inside the context a module's parameters lose their storage when they are registered."""
    register = nn.Module.register_parameter

    def on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:
            parameter = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
        register(module, name, parameter)

    nn.Module.register_parameter = on_meta  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


@dataclass(frozen=True)
class Unread:
    """``names``: the model's parameters, all of which the checkpoint has. Until it is imported they are NaN:
    one that no import fills is not trained on as if it were a weight.
    """

    names: frozenset[str]
    more: dict[str, Tensor] = field(default_factory=dict)  # nothing

    def grow(self, seed: int) -> None:
        """New rows come from the checkpoint as well."""

    def has(self, name: str) -> bool:
        return name in self.names

    def read(self, name: str, offsets: Sequence[int], shape: Sequence[int]) -> Tensor:
        """Return a block of NaN, fp32."""
        return torch.full(tuple(shape), math.nan)


def unread(hf: nn.Module, restored: Collection[str]) -> Unread | None:
    """Return slices that read nothing if all parameters of ``hf`` (which may be on meta) are ``restored``."""
    names = frozenset(name for name, _ in hf.named_parameters())
    return Unread(names) if restored and names.issubset(restored) else None


@torch.no_grad()
def give_storage(hf: nn.Module, device: torch.device) -> None:
    """Put parameters that are on meta on ``device``, as NaN, and all buffers with them. Ties hold."""
    made: dict[int, Tensor] = {}
    for parameter in hf.parameters():
        if parameter.is_meta:
            values = torch.full(parameter.shape, math.nan, dtype=parameter.dtype, device=device)
            made[id(parameter)] = nn.Parameter(values, parameter.requires_grad)
    replace_tensors(hf, made)
    hf.to(device)
