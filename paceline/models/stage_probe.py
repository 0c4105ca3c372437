"""Whether a model class can be cut into pipeline stages, tried on a small model of the class: the weights of
other stages are never on this rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from paceline.core.errors import ConfigError
from paceline.models.materialise import name_trunk
from paceline.models.roles import RoleModule
from paceline.models.stages import layers_pass_tuples, split_layers
from paceline.plan.model.shrink import shrunk

if TYPE_CHECKING:
    from paceline.protocols.model import HFModel

_SEED = 0
_MISFITS = (RuntimeError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError, ImportError)


def small_layers_pass_tuples(whole: RoleModule, count: int) -> bool | None:
    """Return ``layers_pass_tuples`` of a model of ``whole``'s class with as many layers and small sizes; None
    if no such model can be made, or its stages compute something else. Raises ConfigError
    ``models.too_few_layers``.
    """
    split_layers(whole.hf.config.get_text_config().num_hidden_layers, count)
    try:
        return layers_pass_tuples(_small(whole), count)
    except (ConfigError, *_MISFITS):  # sizes that this class needs in other proportions, for example
        return None


def _small(whole: RoleModule) -> RoleModule:
    """Return a model of the same class from a seed, computing in fp32."""
    hf = whole.hf
    config = hf.config
    layers = config.get_text_config().num_hidden_layers
    made = type(config).from_dict(shrunk(config.to_dict(), layers=layers))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        build, attention = type(hf)._from_config, config._attn_implementation
        small: HFModel = build(made, attn_implementation=attention)  # type: ignore[no-untyped-call]
    name_trunk(small)
    small.config.use_cache = False
    module = RoleModule(whole.role, small.eval(), whole.attention)
    module.requires_grad_(False)
    return module
