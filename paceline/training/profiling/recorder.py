"""Records the steps in ``training.profile``, and writes their profiles into ``RUN/profile``."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.profiler import record_function
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import profile

from paceline.config.sections.training_steps import Profile
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.json_types import JsonObject
from paceline.core.rundir import RunDir
from paceline.models.flops import attention_products, multiply_adds
from paceline.models.replace_forward import own_class
from paceline.plan.plan import Plan
from paceline.protocols.batch import Batch
from paceline.protocols.model import RootModule
from paceline.protocols.window import Window
from paceline.runtime.process_group.world import World
from paceline.strategies.model_handle import Handle, Handles
from paceline.training import codes
from paceline.training.profiling.breakdown import LAYER, STEP, Breakdown, Op, breakdown, sentence, text

Around = Callable[[Window], AbstractContextManager[None]]
Report = Callable[[Diagnostic], None]


def profile_of(
    requested: Profile,
    plan: Plan,
    world: World,
    run: RunDir,
    handles: Handles,
    report: Report,
    steps: range,
) -> Around | None:
    """Return the recorder of this rank's requested steps; None if it records none of ``steps``, the steps
    that the run will reach. Rank 0 reports the requested steps outside of them.
    """
    others = [step for step in requested.steps if step not in steps]
    if others and world.is_main:
        steps_beyond = ", ".join(map(str, others[:10]))
        report(
            codes.PROFILE_BEYOND(
                "training.profile.steps",
                steps_beyond,
                of_run=f"this run has steps {steps.start} to {steps.stop - 1}",
                others=len(others),
            )
        )
    due = frozenset(step for step in requested.steps if step in steps)
    if not due or (requested.ranks and world.rank not in requested.ranks):
        return None
    return Profiles(
        steps=due,
        memory=requested.memory,
        run=run,
        rank=world.rank,
        device=world.device,
        handles=handles,
        report=report,
        compiled=plan.compile,
        recomputes=plan.recompute,
        parts=plan.mesh.tp,
    ).around


@dataclass(frozen=True)
class Profiles:
    """Records ``steps`` (from 1) of this rank. Outside of them a step passes through ``around`` untouched.

    - ``compiled``: layers are not distinguished, since hooks would recompile them
    - ``recomputes``: the backward computes the forward again
    - ``parts``: ranks that share each matrix product
    """

    steps: frozenset[int]
    memory: bool
    run: RunDir
    rank: int
    device: torch.device
    handles: Handles
    report: Report
    compiled: bool = False
    recomputes: bool = False
    parts: int = 1

    @contextmanager
    def around(self, window: Window) -> Iterator[None]:
        """Record the step of ``window`` if requested; report errors of the recording."""
        step = window.step + 1
        if step not in self.steps:
            yield
            return
        scopes = Scopes([root for handle in self.handles.values() for root in handle.roots])
        with ExitStack() as stack:
            recorded = stack.enter_context(profile(profile_memory=self.memory))
            if not self.compiled:
                stack.enter_context(scopes.around())
            with record_function(STEP):
                yield
        try:
            self._write(step, window, recorded, scopes)
        except (OSError, RuntimeError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"[:400]
            self.report(codes.PROFILE_FAILED(str(self.run.profile), reason, step=step))

    def _write(self, step: int, window: Window, recorded: profile, scopes: Scopes) -> None:
        times = breakdown(operations(recorded))
        flops = self._flops(window, scopes)
        states = self._states()
        self.run.profile.mkdir(parents=True, exist_ok=True)
        base = self.run.profile / f"step-{step:08d}-rank-{self.rank:05d}"
        report = text(step, self.rank, times, flops, states)
        base.with_suffix(".txt").write_text(report, encoding="utf-8")
        numbers = self._numbers(step, times, flops, states)
        base.with_suffix(".json").write_text(json.dumps(numbers, indent=1), encoding="utf-8")
        recorded.export_chrome_trace(f"{base}.trace.json.gz")
        snapshot: Callable[[], list[JsonObject]] | None
        snapshot = getattr(torch.get_device_module(self.device), "memory_snapshot", None)
        if self.memory and snapshot is not None:
            with gzip.open(f"{base}.memory.json.gz", "wt", encoding="utf-8") as file:
                json.dump(snapshot(), file, default=str)
        what = sentence(step, self.rank, times)
        self.report(codes.PROFILE_STEP(what, f"{base}.txt", severity=Severity.NOTE))

    def _flops(self, window: Window, scopes: Scopes) -> dict[str, float]:
        """Return the FLOPs of the step by kind of layer, from shapes."""
        totals: dict[str, float] = {}
        for handle in self.handles.values():
            for batch in window.micro_batches:
                for kind, count in scopes.by_kind(self._of_step(handle, batch)).items():
                    totals[kind] = totals.get(kind, 0.0) + 2 * count / self.parts
        return totals

    def _of_step(self, handle: Handle, batch: Batch) -> dict[nn.Module, float]:
        """Return each module's multiply-adds of a forward and, for a trained model, its backward. The
        backward counts once for the gradient of the input, and once for the gradient of trained weights (an
        adapter's, not its base's).
        """
        forward = multiply_adds(handle.root, batch, batch.input_ids.numel())
        if not handle.trained:
            return forward
        attention = attention_products(handle.root, batch)
        again = 2 + self.recomputes
        # A module's own weights alone: those of its submodules count where they are multiplied
        trained = {m for m in forward if any(p.requires_grad for p in m.parameters(recurse=False))}
        return {
            module: again * count + (count if module in trained else attention.get(module, 0.0))
            for module, count in forward.items()
        }

    def _states(self) -> dict[str, int]:
        weights, gradients, masters, moments = 0, 0, 0, 0
        for handle in self.handles.values():
            for parameter in handle.root.parameters():
                part = getattr(parameter, "ds_tensor", None)  # of a parameter that ZeRO-3 has released
                weights += _bytes(parameter) + (_bytes(part) if isinstance(part, torch.Tensor) else 0)
                gradients += _bytes(parameter.grad) if parameter.grad is not None else 0
            if handle.optimizer is not None:
                parameters = {id(parameter) for parameter in handle.root.parameters()}
                masters += sum(_bytes(p) for p in handle.optimizer.state if id(p) not in parameters)
                values = (v for state in handle.optimizer.state.values() for v in state.values())
                moments += sum(_bytes(v) for v in values if isinstance(v, torch.Tensor))
        held = {"weights": weights, "gradients": gradients, "optimizer": moments}
        return held | ({"master weights of the optimizer": masters} if masters else {})

    def _numbers(
        self, step: int, times: Breakdown, flops: dict[str, float], states: dict[str, int]
    ) -> JsonObject:
        return {
            "step": step,
            "rank": self.rank,
            "seconds": times.seconds,
            "busy": times.busy,
            "communication": {"hidden": times.hidden, "exposed": times.exposed},
            "waiting": times.waiting,
            "layers": dict(times.layers),
            "flops": dict(flops),
            "allocated": dict(times.allocated),
            "operations": {name: [seconds, calls] for name, (seconds, calls) in times.operations.items()},
            "states": dict(states),
        }


def _bytes(tensor: torch.Tensor) -> int:
    """Return the bytes that this rank holds of a tensor."""
    local = getattr(tensor, "_local_tensor", tensor)
    return int(local.numel() * local.element_size())


def operations(recorded: profile) -> list[Op]:
    """Return torch's recorded events, each with the event around it."""
    host = torch.autograd.DeviceType.CPU
    recorded_events: Callable[[], Sequence[FunctionEvent] | None] = recorded.events
    events = list(recorded_events() or ())
    # on a CPU the operations' own time is the device's
    uses_device = any(event.device_type != host for event in events)
    ops: dict[int, Op] = {}
    for event in sorted(events, key=_depth):  # the one around an event first
        ops[id(event)] = Op(
            event.name,
            event.time_range.start,
            event.time_range.end,
            event.self_device_time_total if uses_device else event.self_cpu_time_total,
            ops.get(id(event.cpu_parent)) if event.cpu_parent is not None else None,
            event.sequence_nr if event.sequence_nr is not None else -1,
            event.device_type != host,
            event.self_device_memory_usage if uses_device else event.self_cpu_memory_usage,
        )
    return [ops[id(event)] for event in events]


def _depth(event: FunctionEvent) -> int:
    depth, current = 0, event.cpu_parent
    while current is not None:
        depth, current = depth + 1, current.cpu_parent
    return depth


ROOT = "head and loss"
_OF_LAYERS = (nn.Linear, nn.Dropout, nn.Identity, nn.ModuleList, nn.ModuleDict, nn.Sequential, nn.Conv1d)
_ADAPTERS, _ADAPTED = "peft.", "Adapted"  # a layer with adapters has the name of the one inside
_SHARDED = "FSDP"  # what torch puts before the name of a class that it shards


class _OpenScopes(threading.local):
    """The open scopes of each thread, since replicas of a model run in threads."""

    def __init__(self) -> None:
        self.stack: list[ExitStack] = []


class Scopes:
    """Names each module's kind. ``called``: modules whose forward ran; a fused kernel calls only the module
    around the fused ones.
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
        """Add up the ``counts`` of single modules by the kind that computes them. That is the module itself
        if it was called, else the nearest called module around it.
        """
        totals: dict[str, float] = {}
        for module, count in counts.items():
            computes: nn.Module | None = module
            while computes is not None and computes not in self.called:
                computes = self._parents.get(computes)
            if computes is not None and count:
                kind = self._kind(computes)
                totals[kind] = totals.get(kind, 0.0) + count
        return totals

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
