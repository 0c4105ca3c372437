"""The real module on fake tensors, with the kernels that a small model with real tensors chose."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from paceline.config.sections.model import ModelSection
from paceline.core.json_types import Json
from paceline.models.factory import HFModelFactory
from paceline.models.loading.materialize import kernels_of, swap_kernel
from paceline.models.module_tensors import replace_tensors
from paceline.plan.algorithms.spec import algorithm_spec
from paceline.plan.features.freezing import Freezing
from paceline.plan.model.kernels import LEAST_CHUNK
from paceline.plan.model.shrink import shrunk
from paceline.plan.plan import Plan
from paceline.protocols.model import WHOLE, BuildOptions, RootModule
from paceline.protocols.roles import Role

_NUMBER = re.compile(r"\.\d+(?=\.|$)")


class FakeFactory:
    """A ``ModelFactory`` whose modules hold fake tensors of ``mode`` on a fake CPU."""

    def __init__(
        self,
        plan: Plan,
        config: Mapping[str, Any],
        mode: FakeTensorMode,
        options: BuildOptions | None = None,
        chunk_bytes: int = LEAST_CHUNK,
    ) -> None:
        """``options`` replace the strategy's; ``chunk_bytes``: size of the head's logits chunks."""
        self.role = Role(algorithm_spec(plan.algorithm).trains)
        self._plan, self._config, self._mode, self._options = plan, dict(config), mode, options
        self._chunk_bytes = chunk_bytes

    @property
    def hf_config(self) -> Mapping[str, Json]:
        """The model's ``config.json``."""
        return self._config

    def __call__(self, options: BuildOptions = WHOLE) -> RootModule:
        """Like ``HFModelFactory``; decisions that need real weights are copied from the small model."""
        options = self._options or options
        with _disable_current_modes():
            twin = _Decided(ModelSection(config=shrunk(self._config)), self.role, **self._arguments())(
                options
            )
            section = ModelSection(config=self._config)
            factory = _Decided(
                section,
                self.role,
                decided=kernels_of(twin.hf),
                freezing=Freezing.of(self._plan),
                **self._arguments(),
            )
            module = factory(replace(options, device=torch.device("meta")))
        module.head.fused, module.head.reason = twin.head.fused, twin.head.reason
        # then an engine's 16-bit weights are used in the forward
        low = self._options is not None and self._options.engine_casts
        with self._mode:
            _give_fake_storage(module, getattr(torch, self._plan.precision.compute) if low else None)
        vars(module)["to"] = lambda *_, **__: module  # fake tensors cannot be moved
        return module

    def _arguments(self) -> dict[str, Any]:
        plan = self._plan
        return {
            "compute_dtype": getattr(torch, plan.precision.compute),
            "attention": plan.attention,
            "recompute": plan.recompute,
            "recompute_keeps": plan.recompute_keeps,
            "master_dtype": getattr(torch, plan.precision.master),
            "adapter": plan.adapter,
            "chunk_bytes": self._chunk_bytes,
        }


class _Decided(HFModelFactory):
    """Use the kernels in ``decided``; without it, those that the probes choose."""

    def __init__(
        self, model: ModelSection, role: Role, decided: Mapping[str, Any] | None = None, **arguments: Any
    ) -> None:
        super().__init__(model, role, **arguments)
        self._decided = (
            None if decided is None else {_NUMBER.sub(".0", n): found for n, found in decided.items()}
        )

    def swap_kernels(self, hf: Any, options: BuildOptions, stand_in: bool = False) -> None:
        """Use in every layer the kernels of the small model's first layer."""
        if self._decided is None:
            super().swap_kernels(hf, options, stand_in)
            return
        for name, module in list(hf.named_modules()):
            kernel = self._decided.get(_NUMBER.sub(".0", name))
            if kernel is not None:
                swap_kernel(module, *kernel)


def _give_fake_storage(module: nn.Module, weights: torch.dtype | None) -> None:
    """Replace every meta tensor of ``module`` by a fake tensor on the CPU.

    Weights (in dtype ``weights`` if given), their low-precision copies, buffers, plain attributes.
    """
    fakes: dict[int, Tensor] = {}
    for part in module.modules():
        for tensor in (*part._parameters.values(), *part._buffers.values(), *vars(part).values()):
            if isinstance(tensor, Tensor) and tensor.is_meta and id(tensor) not in fakes:
                fakes[id(tensor)] = _fake(tensor, weights)
    replace_tensors(module, fakes)
    low = getattr(module, "low_precision", None)
    if low is not None:
        low.masters = [fakes.get(id(master), master) for master in low.masters]


def _fake(tensor: Tensor, weights: torch.dtype | None) -> Tensor:
    parameter = isinstance(tensor, nn.Parameter)
    dtype = weights if weights is not None and parameter else tensor.dtype
    storage = torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype, device="cpu")
    if not parameter:
        return storage
    fake = nn.Parameter(storage, requires_grad=tensor.requires_grad)
    for name, value in vars(tensor).items():  # attributes set by models.precision: a weight's copy, its dtype
        setattr(fake, name, _fake(value, None) if isinstance(value, Tensor) else value)
    return fake
