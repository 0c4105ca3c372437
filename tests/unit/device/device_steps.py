"""Windows of a tiny model on the CPU or on an emulated device: planned, built and trained as a run does."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import torch
from emulated_device import emulated
from emulated_machine import Machine
from real_device import Card, card, card_capability, micro_batches_refuse_waits, on_card
from torch import Tensor

from paceline.algorithms.algorithm import Algorithm, algorithm_class
from paceline.config.schema import Config
from paceline.data.packed_source import build_batch
from paceline.models.factory import HFModelFactory
from paceline.plan.features.experts import PRODUCT_AN_EXPERT, PRODUCTS
from paceline.plan.hardware.device_catalogue import cluster_of
from paceline.plan.hardware.device_files import triton_obstacle
from paceline.plan.plan import Plan
from paceline.plan.strategies.spec import Job
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Role
from paceline.protocols.window import UnreadResult
from paceline.rules.planning import make_plan
from paceline.runtime.process_group.world import World
from paceline.strategies.model_handle import Handles
from paceline.strategies.registry import make_strategy
from paceline.strategies.strategy import Strategy
from paceline.strategies.window.runner import make_runner

VOCAB = 97
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
    "max_position_embeddings": 64,
}
CARDS = {(7, 0): "V100", (7, 5): "T4", (8, 0): "A100", (9, 0): "H100", (10, 0): "B200"}


ON_A_CPU: dict[str, Trained] = {}


@dataclass
class Trained:
    """What some windows gave: loss and gradient norm a step, the weights after them, and what was counted in
    the last window on the device.
    """

    plan: Plan
    losses: list[float] = field(default_factory=list)
    norms: list[float | None] = field(default_factory=list)
    skipped: list[str | None] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)
    waits: Counter[str] = field(default_factory=Counter)
    kernels: Counter[str] = field(default_factory=Counter)
    pageable: Counter[str] = field(default_factory=Counter)
    start_peak: int = 0
    attention: set[str] = field(default_factory=set)
    rows: set[str] = field(default_factory=set)
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def planned_attention(self) -> str:
        """The reason of the plan's decision on attention: the kernel's name, and why."""
        [found] = [d.reason for d in self.plan.decisions if d.subject == "model.attn_implementation"]
        return found

    @property
    def experts_wait(self) -> bool:
        """Whether the plan says that the host waits for each expert's tokens."""
        return waits_for_experts(self.plan)


def waits_for_experts(plan: Plan) -> bool:
    """Whether a plan says so."""
    return any((d.subject, d.choice) == (PRODUCTS, PRODUCT_AN_EXPERT) for d in plan.decisions)


def planned(
    model: Mapping[str, Any],
    precision: str,
    capability: tuple[int, int],
    no_triton: str = "",
    **sections: Any,
) -> tuple[Config, Plan]:
    """The config of a job for one card of this capability, and its plan. ``no_triton``: why no kernel can be
    compiled there.
    """
    if "lora" in sections:
        import peft  # noqa: F401  # before a device is emulated: bitsandbytes looks for one when imported
    training = {
        "distributed_strategy": "single",
        "mixed_precision": precision,
        **sections.pop("training", {}),
    }
    config = Config.model_validate(
        {
            "model": {"config": dict(model), "tokenizer": "none"},
            "data": {"train": "none.jsonl", "max_length": 64},
            "training": training,
            **sections,
        }
    )
    hardware = replace(
        cluster_of("1x" + CARDS.get(capability, "H100")).hardware(),
        capability=float("{}.{}".format(*capability)),
        uncompiled=no_triton,
        packages={"peft": "0.19", "bitsandbytes": "0.49"},
    )
    return config, make_plan(Job(config, hardware, world_size=1, launcher="single", run_dir="none"))


def micro_batches(
    count: int, seed: int, lengths: Sequence[int] = (7, 12, 5), paired: bool = False
) -> list[Batch]:
    """Flat micro-batches of random documents, every token but a document's first a label; ``paired``: chosen
    and rejected answers by turns, an even number of documents, both after one prompt of three tokens.
    """
    draw, made = np.random.default_rng(seed), []
    lengths = (*lengths, lengths[0]) if paired and len(lengths) % 2 else lengths
    for _ in range(count):
        documents = [draw.integers(3, VOCAB, n).astype(np.int32) for n in lengths]
        if paired:
            for chosen, rejected in zip(documents[::2], documents[1::2], strict=True):
                rejected[:3] = chosen[:3]
        rows = len(lengths) // (2 if paired else 1)
        made.append(build_batch(documents, list(range(len(lengths))), rows))
    margins = {"margin": torch.arange(len(lengths), dtype=torch.float64) / 8}
    shared = (0, 3) * (len(lengths) // 2)
    return [replace(b, group=2, shared=shared, extras=margins) for b in made] if paired else made


def train(
    where: str,
    precision: str = "no",
    model: Mapping[str, Any] = LLAMA,
    *,
    capability: tuple[int, int] = (9, 0),
    windows: int = 2,
    batches: Any = None,
    accumulation: int = 2,
    no_triton: str = "",
    **sections: Any,
) -> Trained:
    """Train on ``cpu`` or on an emulated ``cuda`` or ``xpu`` of this capability; as planned for the card.

    From the second window on, a micro-batch that waits for the device raises. A real card: ``real_device``.
    What a CPU gave is remembered: several devices are held to it.
    """
    asked = json.dumps(
        [precision, model, capability, windows, accumulation, no_triton, sections], default=str
    )
    if where == "cpu" and batches is None and asked in ON_A_CPU:
        return ON_A_CPU[asked]
    if on_card():
        capability = card_capability(where, precision, capability)
        no_triton = no_triton or triton_obstacle()
    config, plan = planned(model, precision, capability, no_triton, **sections)
    make = batches or partial(micro_batches, paired=plan.algorithm != "sft")
    place: contextlib.AbstractContextManager[Card | Machine | None] = (
        products_round() if where == "cpu" else card() if on_card() else emulated(capability, where)
    )
    with place as machine:
        if machine is not None:
            machine.no_triton = no_triton
        found = run_windows(config, plan, machine, windows, lambda step: make(accumulation, step))
    if where == "cpu" and batches is None:
        ON_A_CPU[asked] = found
    return found


@contextlib.contextmanager
def products_round() -> Iterator[None]:
    """A CPU multiplies low precision as devices do, whichever instructions it has: else it keeps more digits
    (``models.precision.product_dtype``), and how near a device is would depend on the tests' processor.
    """
    able = {**torch.cpu.get_capabilities(), "avx512_bf16": True, "avx512_fp16": True}
    with mock.patch.object(torch.cpu, "get_capabilities", lambda: able):
        yield


def prepared(config: Config, plan: Plan, device: torch.device) -> tuple[Strategy, Handles, Algorithm]:
    """The planned strategy, its models and the algorithm."""
    strategy = make_strategy("single", World(0, 0, 1, 1, device, "none", None), plan)
    algorithm = algorithm_class(plan.algorithm)()

    def factory(role: Role, **changed: Any) -> HFModelFactory:
        return HFModelFactory(
            config.model,
            role,
            compute_dtype=getattr(torch, plan.precision.compute),
            attention=plan.attention,
            recompute=plan.recompute,
            master_dtype=getattr(torch, plan.precision.master),
            device=device,
            **changed,
        )

    trained = {
        role: strategy.prepare(role, factory(role, adapter=plan.adapter), plan.optimizer)
        for role in algorithm.trains
    }
    frozen = {role: strategy.prepare(role, factory(role, frozen=True), None) for role in algorithm.frozen}
    return strategy, {**trained, **frozen}, algorithm


def run_windows(
    config: Config, plan: Plan, machine: Card | Machine | None, windows: int, batches: Any
) -> Trained:
    device = torch.device("cpu") if machine is None else machine.device
    strategy, handles, algorithm = prepared(config, plan, device)
    found = Trained(plan, start_peak=machine.peak if machine else 0)
    [role] = algorithm.trains
    unread: UnreadResult | None = None

    def read() -> None:
        if unread is not None:
            result = unread.read()
            found.losses.append(sum(result.losses.values()))
            found.norms.append(result.grad_norm)
            found.skipped.append(result.skipped)

    for step in range(windows):
        if machine is not None:
            machine.forget()
        # the first one tries kernels out
        refuses = machine and step and not waits_for_experts(plan)
        strict = micro_batches_refuse_waits(machine) if refuses else contextlib.nullcontext()
        with strict:
            started = make_runner(strategy).start_window(
                handles, batches(step), algorithm, lr=1e-3, max_grad_norm=1.0, generator_seed=lambda j: j
            )
        read()  # the window before this one, as a trainer does
        unread = started
    read()
    if machine is not None:
        found.waits, found.kernels = Counter(machine.waits), Counter(machine.kernels)
        found.pageable = Counter(machine.pageable)
    found.attention = set(handles[role].root.slot.kernels.ran)
    found.rows, found.notes = set(handles[role].root.slot.row_kernels.ran), handles[role].root.notes()
    for shard in strategy.export_state(handles[role]):
        if shard.kind == "param":
            found.weights[shard.name] = shard.tensor.detach().to("cpu").float()
    return found
