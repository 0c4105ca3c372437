"""Linear layers whose products are computed in 8-bit floating point, by torchao."""

from __future__ import annotations

from torch import nn

_MULTIPLE = 16  # of both sides of a weight: what the cards' products need
_ROUTERS = ("gate", "router")  # a mixture's choice of experts is not rounded


def convert_to_fp8(trunk: nn.Module, *, emulate: bool = False) -> int:
    """Convert the linear layers of ``trunk`` that have sides of multiples of 16, and return how many.

    Input, weight and gradient are each scaled by their largest value and rounded to 8 bits for the three
    products of a layer (Micikevicius et al. 2022, arXiv:2209.05433): e4m3 forward, e5m2 for gradients.
    Parameters stay the same objects, under the same names. ``emulate``: the numbers, on any device.
    """
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    converted: list[str] = []

    def chosen(module: nn.Module, name: str) -> bool:
        if type(module) is not nn.Linear or name.rpartition(".")[2] in _ROUTERS:
            return False
        fits = module.in_features % _MULTIPLE == 0 == module.out_features % _MULTIPLE
        converted.extend([name] if fits else [])
        return fits

    # the tokens of a batch are the inner side of the weight's gradient: they are padded
    config = Float8LinearConfig(emulate=emulate, pad_inner_dim=True)
    convert_to_float8_training(trunk, module_filter_fn=chosen, config=config)
    for name in converted:
        # reads the master itself, and takes and gives activations of any dtype
        trunk.get_submodule(name).low_precision_ready = True  # type: ignore[assignment]
    return len(converted)
