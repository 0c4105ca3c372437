"""What a plan says of CUDA and not of a CPU: each such sentence names the function that makes it true, and
that function is driven here on a stand-in that records (no GPU is needed)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from machines import A100

from paceline.config.schema import Config
from paceline.generation.decoding import step_graph
from paceline.models.attention import packed_attention
from paceline.models.attention.reference_attention import AttentionOptions
from paceline.models.attention.sequence_info import PackedSequenceInfo
from paceline.models.fused_layers import rms_norm
from paceline.plan.hardware.probe import Hardware
from paceline.plan.strategies.spec import Job
from paceline.protocols.batch import Batch
from paceline.rules.planning import make_plan
from paceline.runtime.device import device as device_room
from paceline.runtime.process_group import world as world_room
from paceline.strategies import data_parallel
from paceline.strategies.fsdp import wrapping

GIB = 1 << 30
CPU = Hardware(
    "cpu",
    "Some CPU",
    1,
    64 * GIB,
    64 * GIB,
    1,
    True,
    True,
    64,
    None,
    ("gloo",),
    packages=("peft", "bitsandbytes", "deepspeed"),
)
MODEL = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 320,
}


class OnCuda(torch.Tensor):
    """A tensor that says it lies on a GPU."""

    device = property(lambda self: torch.device("cuda", 0))  # type: ignore[assignment]


def varlen_kernel(monkeypatch: pytest.MonkeyPatch) -> bool:
    """``models.attention.document_attention`` hands all documents of a row to one call of torch's
    variable-length kernel.
    """
    import torch.nn.attention.varlen as kernels

    asked: list[Any] = []

    def recorded(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, *longest: int, **options: Any) -> Any:
        asked.append((cu_q.tolist(), longest, options["window_size"]))
        return q

    monkeypatch.setattr(kernels, "varlen_attn", recorded)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    q = torch.zeros(1, 2, 7, 8, dtype=torch.bfloat16).as_subclass(OnCuda)
    bounds = (0, 3, 7)
    packed_attention.document_attention(
        q,
        q,
        q,
        PackedSequenceInfo(bounds, torch.tensor(bounds, dtype=torch.int32), 4),
        AttentionOptions(1.0),
    )
    return asked == [([0, 3, 7], (4, 4), (-1, 0))]


def pinned(monkeypatch: pytest.MonkeyPatch) -> bool:
    """``protocols.batch.Batch.pinned`` page-locks what is copied; ``tests/unit/training/test_loading.py``
    holds that every window goes through it.
    """
    locked: list[torch.Tensor] = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: locked.append(self) or self)
    ids = torch.zeros(1, 4, dtype=torch.int64)
    batch = Batch(ids, ids + 1, ids + 2, torch.tensor([0, 4], dtype=torch.int32), 4, torch.tensor([0]), 1)
    batch.pinned()
    return all(any(t is x for x in locked) for t in (batch.input_ids, batch.labels, batch.position_ids))


def nccl_group(monkeypatch: pytest.MonkeyPatch) -> bool:
    """``runtime.world.World._open_group`` opens the group by that name, bound to this rank's device."""
    opened: list[Any] = []
    monkeypatch.setattr(
        world_room.dist, "init_process_group", lambda name, **given: opened.append((name, given["device_id"]))
    )
    cuda = torch.device("cuda", 1)
    rank = SimpleNamespace(rank=1, world_size=2, timeout_seconds=9.0, device=cuda)
    world_room.World._open_group(rank, "nccl", mock.Mock())  # type: ignore[arg-type]
    return opened == [("nccl", cuda)]


def own_device(monkeypatch: pytest.MonkeyPatch) -> bool:
    """``runtime.device.pick_device`` gives each rank of a node a GPU of its own."""
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 8)
    return [device_room.pick_device("cuda", rank).index for rank in (0, 3)] == [0, 3]


def low_precision(monkeypatch: pytest.MonkeyPatch) -> bool:
    """``training.models_of.Models`` builds the model to compute in the plan's dtype."""
    return getattr(torch, plan({}, A100).precision.compute) is torch.bfloat16


def offloaded(monkeypatch: pytest.MonkeyPatch) -> bool:
    """``strategies.sharding.shard`` keeps the shards in host memory, page-locked where the mesh is of
    GPUs.
    """
    policies: list[Any] = []

    def recorded(unit: Any, **given: Any) -> Any:
        policies.append(given["offload_policy"])
        return mock.MagicMock()

    for name, made in (
        ("fully_shard", recorded),
        ("Units", mock.MagicMock()),
        ("_prefetch", mock.Mock()),
        ("_precision", mock.Mock()),
    ):
        monkeypatch.setattr(wrapping, name, made)
    monkeypatch.setattr(wrapping, "units_of", lambda trunk, how: [])
    root: Any = torch.nn.Linear(1, 1)
    wrapping.shard(
        root, root, SimpleNamespace(device_type="cuda"), SimpleNamespace(cpu_offload=True), mock.Mock()
    )  # type: ignore[arg-type]
    return [(type(p).__name__, p.pin_memory) for p in policies] == [("CPUOffloadPolicy", True)]


def all_devices(monkeypatch: pytest.MonkeyPatch) -> bool:
    """``strategies.data_parallel.DataParallel.devices_of``: one process drives as many GPUs as the plan
    counts, its own first.
    """
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 8)
    process = SimpleNamespace(world=SimpleNamespace(device=torch.device("cuda", 2)))
    found = data_parallel.DataParallel.devices_of(process, 8)  # type: ignore[arg-type]
    return [d.index for d in found] == [2, 0, 1, 3, 4, 5, 6, 7]


def captured_step(monkeypatch: pytest.MonkeyPatch) -> bool:
    """``generation.step_graph.StepGraphs`` runs a step once, captures it, and replays it from then on;
    ``tests/unit/device/test_device_decode.py`` decodes so.
    """
    driver, steps = mock.MagicMock(), []
    monkeypatch.setattr(step_graph.torch, "get_device_module", lambda _: driver)
    graphs = step_graph.StepGraphs(torch.device("cuda"), None)
    for _ in range(4):
        graphs.run((8, 128), lambda: steps.append(1), True)
    return len(steps) == 2 and driver.graph.call_count == 1 and driver.CUDAGraph().replay.call_count == 3


def row_kernels(monkeypatch: pytest.MonkeyPatch) -> bool:
    """``models.norms.FusedRMSNorm`` hands its rows to one Triton kernel (the other row-wise modules ask the
    same object); ``tests/unit/device/test_row_kernels.py`` runs all of them.
    """
    handed: list[Any] = []
    choice = SimpleNamespace(aten=lambda *_: False, triton=lambda *_: True)
    monkeypatch.setattr(rms_norm, "row_kernels_of", lambda _: choice)
    monkeypatch.setattr(rms_norm.TritonRmsNorm, "apply", lambda *given: handed.append(given) or given[0])
    norm = rms_norm.FusedRMSNorm()
    norm.paceline_eps, norm.paceline_offset, norm.weight = 1e-6, 0.0, torch.nn.Parameter(torch.ones(4))
    norm(torch.ones(2, 4))
    on_cpu = len(handed)
    norm(torch.ones(2, 4).as_subclass(OnCuda))
    return on_cpu == 0 and len(handed) == 1


#: subject of a decision that reads otherwise on CUDA -> what drives its function
CLAIMS: Mapping[str, Callable[[pytest.MonkeyPatch], bool]] = {
    "model.attn_implementation": varlen_kernel,
    "training.dataloader_pin_memory": pinned,
    "training.ddp_backend": nccl_group,
    "training.mixed_precision": low_precision,
    "device": own_device,
    "fsdp offload": offloaded,
    "data_parallel": all_devices,
    "decoding": captured_step,
    "row-wise kernels": row_kernels,
}
#: They differ in numbers that are counted of the hardware, or in advice: nothing that CUDA is said to do.
COUNTED = {
    "processes",
    "start",
    "training.distributed_strategy",
    "deepspeed precision",
    "training.torch_compile",
    "cores",
}
CONFIGS: list[tuple[dict[str, Any], int]] = [
    ({}, 1),
    ({}, 2),
    ({"distributed_strategy": "fsdp", "fsdp_config": {"cpu_offload": True}}, 2),
    ({"torch_compile": True}, 1),
    (
        {
            "deepspeed": {
                "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": True}}
            }
        },
        2,
    ),
    ({"gradient_checkpointing": True, "dataloader_num_workers": 2, "optim": "adamw_torch"}, 2),
    ({"algorithm": "dpo"}, 2),
    ({"algorithm": "grpo", "rollout": {"rewards": [{"name": "ended"}]}}, 1),
    ({"distributed_strategy": "data_parallel"}, 1),
]


def plan(training: dict[str, Any], hardware: Hardware, world: int = 1) -> Any:
    tree = {
        "model": {"config": MODEL, "tokenizer": "t"},
        "data": {"train": [{"path": "rows.jsonl"}]},
        "training": training,
    }
    return make_plan(
        Job(Config.from_json(tree), hardware, world_size=world, launcher="spawn", run_dir="/nowhere")
    )


def test_every_sentence_that_cuda_alone_gets_is_in_the_list() -> None:
    differing = set()
    for training, world in CONFIGS:
        here = {d.subject: (d.choice, d.reason) for d in plan(training, CPU, world).decisions}
        there = {d.subject: (d.choice, d.reason) for d in plan(training, A100, world).decisions}
        differing |= {subject for subject, said in there.items() if here.get(subject) != said}
    assert differing - CLAIMS.keys() - COUNTED == set(), "name the function that makes it true, and drive it"
    assert CLAIMS.keys() - differing == set(), "no plan says this any more"


@pytest.mark.parametrize("subject", CLAIMS)
def test_what_is_said_of_cuda_is_done(subject: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert CLAIMS[subject](monkeypatch)
