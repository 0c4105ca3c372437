"""Scopes around the calls of a model's modules, so that recorded operations can be told apart by layer."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from torch import Tensor, nn
from torch.autograd.profiler import record_function

from paceline.models.replace_forward import own_class
from paceline.protocols.model import RootModule
from paceline.training.profiling.breakdown import LAYER

ROOT = "head and loss"
_OF_LAYERS = (nn.Linear, nn.Dropout, nn.Identity, nn.ModuleList, nn.ModuleDict, nn.Sequential, nn.Conv1d)
_ADAPTERS, _ADAPTED = "peft.", "Adapted"  # a layer with adapters has the name of the one inside
_SHARDED = "FSDP"  # what torch puts before the name of a class that it shards


class _OpenScopes(threading.local):
    """The scopes that are open, of each thread: replicas of a model run in threads."""

    def __init__(self) -> None:
        self.stack: list[ExitStack] = []


class Scopes:
    """Names each module's kind. ``called``: modules whose forward ran; a fused kernel calls only the module
    around those that it computes.
    """

    def __init__(self, roots: Sequence[RootModule]) -> None:
        self.called: set[nn.Module] = set()
        self._layers = {module for root in roots for part in root.parts for module in part.modules()}
        self._layers -= {part for root in roots for part in root.parts}
        self._roots = roots
        self._parents: dict[nn.Module, nn.Module] = {}
        self._open = _OpenScopes()

    @contextmanager
    def around(self) -> Iterator[None]:
        """Have a scope around every call inside the block. The hooks compute nothing."""
        hooks = []
        for root in self._roots:
            for module in root.modules():
                self._parents.update(dict.fromkeys(module.children(), module))
                if module is root or not self._is_part(module):
                    hooks.append(module.register_forward_pre_hook(self._enter))
                    hooks.append(module.register_forward_hook(self._leave, always_call=True))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def by_kind(self, counts: Mapping[nn.Module, float]) -> dict[str, float]:
        """Add ``counts`` of single modules up by the kind that computes them: the module itself if it was
        called, else the nearest around it that was.
        """
        found: dict[str, float] = {}
        for module, count in counts.items():
            computes: nn.Module | None = module
            while computes is not None and computes not in self.called:
                computes = self._parents.get(computes)
            if computes is not None and count:
                kind = self._kind(computes)
                found[kind] = found.get(kind, 0.0) + count
        return found

    @staticmethod
    def _is_part(module: nn.Module) -> bool:
        return isinstance(module, _OF_LAYERS) or type(module).__module__.startswith(
            "torch.nn.modules.activation"
        )

    def _kind(self, module: nn.Module) -> str:
        if module not in self._layers:
            return ROOT
        name = own_class(module).__name__.removeprefix(_SHARDED)
        return f"{_ADAPTED}{name}" if type(module).__module__.startswith(_ADAPTERS) else name

    def _enter(self, module: nn.Module, given: tuple[Tensor, ...]) -> None:
        self.called.add(module)
        scope = ExitStack()
        scope.enter_context(record_function(f"{LAYER}{self._kind(module)}"))
        self._open.stack.append(scope)

    def _leave(self, module: nn.Module, given: tuple[Tensor, ...], result: Tensor) -> None:
        if self._open.stack:
            self._open.stack.pop().close()
