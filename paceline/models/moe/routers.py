"""The routers of a mixture: found by the classes whose outputs Transformers records as router logits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import nn

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.models import codes

if TYPE_CHECKING:
    from paceline.protocols.model import HFModel


def routers(hf: HFModel) -> Iterator[nn.Module]:
    """Yield the modules that choose a token's experts; those that hold experts or attention too are not among
    them.
    """
    recorded = (getattr(hf.base_model, "_can_record_outputs", None) or {}).get("router_logits")
    specs = recorded if isinstance(recorded, list) else [recorded]
    found: list[type[nn.Module] | None] = [getattr(spec, "target_class", None) for spec in specs]
    classes = tuple(one for one in found if one is not None)
    for module in hf.modules():
        name = type(module).__name__
        if isinstance(module, classes) and ("Router" in name or "Gat" in name):
            yield module


def freeze_routers(hf: HFModel) -> None:
    """Leave the routers as they are in training. Raises ConfigError ``models.no_router`` if none is found."""
    found = list(routers(hf))
    if not found:
        raise ConfigError(_no_router(type(hf).__name__))
    for module in found:
        module.requires_grad_(False)


def _no_router(kind: str) -> Diagnostic:
    return codes.MODELS_NO_ROUTER("training.freeze_router", kind)
