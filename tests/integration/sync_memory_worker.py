"""One rank that sends weights to nobody: ``python sync_memory_worker.py SCENARIO OUT_DIR``; writes the bytes
that a sync needs at its peak, by strategy and way, to ``OUT_DIR/<rank>.json``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from memory_worker import plan_of
from torch.utils._pytree import tree_leaves

from paceline.config.load import load_config
from paceline.models.factory import HFModelFactory
from paceline.models.lora import base_weights
from paceline.plan.features.freezing import Freezing
from paceline.protocols.roles import Role
from paceline.runtime.process_group.world import RankEnv, World, environment
from paceline.simulate.counting import LiveBytes, local_tensor
from paceline.strategies.registry import make_strategy
from paceline.training.rollout import weight_transfer
from paceline.training.rollout.weight_entries import Sharing
from paceline.training.rollout.weight_folder import FolderSender, WeightFolder
from paceline.training.rollout.weight_transfer import TransferSender


class ToNobody(TransferSender):
    """Its server takes all that it is told."""

    def _call(self, place: int, path: str, body: Any) -> None: ...


WRAPPER = "AsyncCollectiveTensor"


class Memory(LiveBytes):
    """Counts what has memory: neither tensors that are shapes alone, nor a collective's wrapper."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        leaves = [local_tensor(leaf) for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        counted = [leaf for leaf in leaves if leaf.device.type != "meta" and type(leaf).__name__ != WRAPPER]
        super().__torch_dispatch__(lambda: counted, types)  # type: ignore[arg-type]
        return result


def peak(case: dict[str, Any], way: str, world: World, out: Path) -> dict[str, int]:
    """Bytes at the peak of a sync beyond those before it, and of the largest tensor and of all."""
    plan = plan_of(case, world, out)
    strategy = make_strategy(plan.strategy, world, plan)
    source = load_config(str(out / f"config{world.rank}.json")).config.model
    factory = HFModelFactory(source, seed=5, adapter=plan.adapter, freezing=Freezing.of(plan))
    handle = strategy.prepare(Role.POLICY, factory, plan.optimizer)
    sharing = Sharing.of(strategy, handle)
    server = SimpleNamespace(request=lambda *_: {}, post_once=lambda *_: None)
    engine: Any = SimpleNamespace(server=server, stamp=lambda _: None)
    wire: Any = SimpleNamespace(device=torch.device("cpu"), broadcast=lambda data: done, close=lambda: None)
    done = SimpleNamespace(is_completed=lambda: True, wait=lambda: True)
    sender: Any
    if way == "transfer":
        sender = ToNobody([engine], [60.0], world, sharing, torch.float32, "paceline", groups={0: wire})
    else:
        folder = WeightFolder(out / "weights" / plan.strategy, torch.float32)
        engine.server.request = lambda *_: {"success": True}
        sender = FolderSender([engine], [60.0], world, sharing, [folder])
    partitions = [p.ds_tensor for p in handle.root.parameters() if hasattr(p, "ds_tensor")]
    with Memory([*handle.root.parameters(), *partitions]) as meter:
        failed = sender.send(handle.root, [0], "1")
    assert not failed, failed
    shapes = [getattr(p, "ds_shape", p.shape).numel() * 4 for p in handle.root.parameters()]
    return {"peak": meter.peak - meter.before, "largest": max(shapes), "all": sum(shapes)}


def main() -> None:
    torch.set_num_threads(1)
    out = Path(sys.argv[2])
    told = json.loads((out / "cases.json").read_text())
    weight_transfer.BUCKET_BYTES = base_weights.PIECE_BYTES = told["bucket"]
    world = World.open(RankEnv.from_environ(environment()), device="cpu", timeout_seconds=60)
    found = {}
    for name, (case, way) in told["cases"].items():
        print(name, flush=True)
        found[name] = peak(case, way, world, out)
    (out / f"{world.rank}.json").write_text(json.dumps(found))
    world.close(ok=True)


if __name__ == "__main__":
    main()
