"""Parameters of a tower that no image reaches: a pooling head that nothing reads, layers behind the one whose
features are taken. They get no gradient, so they cannot be trained.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from paceline.models.vision.dummy_image import WHOLE_PICTURES, dummy_image
from paceline.models.vision.tower import features_of
from paceline.models.vision.whole_model import vision_parameters
from paceline.plan.model.family import composites

if TYPE_CHECKING:
    from paceline.protocols.model import HFModel

T = TypeVar("T")


class _SizesOnHost(TorchFunctionMode):
    """Sizes of images that a class brings to its features' device stay on the host, with their values."""

    def __torch_function__(
        self,
        func: Callable[..., T],
        types: Collection[type],
        args: Sequence[Tensor] = (),
        kwargs: Mapping[str, Tensor] | None = None,
    ) -> T:
        """Call ``func``; without a device what it makes of given values stays where they are."""
        given = dict(kwargs or {})
        if func is torch.as_tensor:
            given.pop("device", None)
        return func(*args, **given)


def unreached(skeleton: HFModel) -> frozenset[str]:
    """Return the names of the parameters that get no gradient from the features of an image.

    ``skeleton``: the whole model on meta. Towers whose shapes depend on values cannot run there; those of
    the supported families use all their parameters (``tests/unit/models/test_vision_forward.py``).
    """
    config = skeleton.config
    if composites()[str(config.model_type)].pixels not in WHOLE_PICTURES:
        return frozenset()
    image = dummy_image(config, torch.device("cpu"), torch.float32)
    inputs = {n: x.to("meta") if x.is_floating_point() else x for n, x in image.items()}
    with torch.enable_grad(), _SizesOnHost():
        output = skeleton.base_model.get_image_features(**inputs, return_dict=True)
        total = torch.stack([x.sum() for x in features_of(output)]).sum()
        parameters = dict(vision_parameters(skeleton))
        grads = torch.autograd.grad(total, list(parameters.values()), allow_unused=True)
    return frozenset(name for name, grad in zip(parameters, grads, strict=True) if grad is None)


def freeze_unreached(hf: HFModel, names: frozenset[str]) -> str:
    """Freeze those parameters of ``hf``, and adapters on them; return a note, empty if none was trained."""
    frozen, others = list[str](), set[str]()
    for name, parameter in vision_parameters(hf):
        plain = _plain(name)
        if plain not in names:
            others |= _prefixes(plain)
        elif parameter.requires_grad:
            parameter.requires_grad_(False)
            frozen.append(plain)
    if not frozen:
        return ""
    whole = {min((p for p in _prefixes(name) - others), key=len) for name in frozen}
    return f"no image reaches {', '.join(sorted(whole))}: {len(frozen)} tensors frozen"


def skip_pooling(hf: HFModel, names: frozenset[str]) -> None:
    """Have towers compute no pooling head that nothing reads, trained or not. ZeRO-3 gathers what is called,
    and does not see that torch's attention in it reads the weights of a submodule.
    """
    for name, module in hf.named_modules():
        if getattr(module, "use_head", False):
            inside = [f"{name}.head.{p}" for p, _ in module.head.named_parameters()]
            module.use_head = not names.issuperset(map(_plain, inside))


def _plain(name: str) -> str:
    """Return the name of a parameter before adapters; for an adapter's, that of the weight it is for."""
    base, adapter, _ = name.partition(".lora_")
    return f"{base}.weight" if adapter else name.replace(".base_layer.", ".")


def _prefixes(name: str) -> set[str]:
    """Return the name of a parameter and of every module that it is in."""
    parts = name.split(".")
    return {".".join(parts[: i + 1]) for i in range(len(parts))}
