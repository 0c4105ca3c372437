"""One rank of training with images under strategies: ``python vision_worker.py CELLS.json OUT_DIR``; writes
``OUT_DIR/<rank>.json``: (loss, gradient norm) by step, or why a cell was refused, by cell.

In each step a rank has no image, another one or seven.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

sys.path.append(str(Path(__file__).resolve().parents[1]))

from engine_stub import engine_of
from vision_batches import Document, VisionRows

from paceline.algorithms.preference.reward_model import Reward
from paceline.algorithms.supervised.classification import Classification
from paceline.algorithms.supervised.sft import SFT
from paceline.models.factory import HFModelFactory
from paceline.models.heads.sequence_classification import Classes
from paceline.plan.features.freezing import Freezing
from paceline.plan.mesh import Mesh, split_batch
from paceline.plan.model.family import parts_of
from paceline.plan.plan import AdapterSpec, DdpOptions, OptimizerSpec, Precision
from paceline.plan.plan_json import from_json
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Role
from paceline.runtime.process_group.world import RankEnv, World, environment
from paceline.strategies.registry import make_strategy
from paceline.strategies.window.runner import make_runner

STEPS, ACCUMULATION, LR = 3, 2, 1e-2
LEARNS: dict[str, Any] = {"sft": SFT, "reward": Reward, "classification": Classification}
IMAGES = ([0, 7, 1, 0], [1, 0, 0, 2], [0, 0, 3, 0])  # of each document, by step


def train(world: World, cell: dict[str, Any]) -> list[list[float]]:
    """``cell``: folder, kind, strategy, mesh, engine, compute, adapter, unfreeze, recompute, algorithm."""
    algorithm = LEARNS[cell.get("algorithm", "sft")]()
    (role,) = algorithm.trains
    mesh, compute = Mesh(**cell.get("mesh", {})), cell.get("compute", "float32")
    adapter = from_json(AdapterSpec, cell["adapter"]) if "adapter" in cell else None
    micro = len(IMAGES[0]) // mesh.data_parallel_size // ACCUMULATION
    plan: Any = SimpleNamespace(
        strategy=cell["strategy"],
        strategy_options={},
        ddp_options=DdpOptions(),
        precision=Precision(compute, "float32", "float32", False, "a test"),
        num_nodes=1,
        mesh=mesh,
        batch=split_batch(micro, ACCUMULATION, mesh.data_parallel_size),
        engine=engine_of(cell.get("engine", {}), cell["strategy"]),
        adapter=adapter,
        world_size=world.world_size,
        run_dir="",
    )
    source = SimpleNamespace(
        name_or_path=cell["folder"],
        revision=None,
        trust_remote_code=False,
        resize_embeddings="never",
        embedding_multiple=1,
        config=None,
    )
    parts = parts_of(cell["kind"])
    factory = HFModelFactory(
        source,
        seed=5,
        compute_dtype=getattr(torch, compute),
        recompute=cell.get("recompute", False),
        adapter=adapter,
        freezing=Freezing(unfreeze=tuple(cell.get("unfreeze", ())), parts=parts),
        vision=True,
        role=role,
        classes=Classes(("no", "some", "many")) if role is Role.CLASSIFIER else None,
    )
    strategy = make_strategy(cell["strategy"], world, plan)
    spec = OptimizerSpec(
        learning_rate=LR, weight_decay=0.1, rate_ratios={path: 0.5 for path in parts if cell.get("ratios")}
    )
    handle = strategy.prepare(role, factory, spec)
    rows = VisionRows(Path(cell["folder"]), _alone(cell["folder"]))
    size, rank = strategy.data_parallel_size, strategy.data_parallel_rank
    strategy.warm_up(handle, _batch(rows, [_documents(rows, 0, role)], role), algorithm)
    found = []
    for images in IMAGES:
        groups = [_documents(rows, n, role) for n in images]
        micros: list[Batch] = [
            _batch(rows, groups[(j * size + rank) * micro : (j * size + rank + 1) * micro], role)
            for j in range(ACCUMULATION)
        ]
        result = make_runner(strategy).train_window(
            {role: handle}, micros, algorithm, lr=LR, max_grad_norm=1.0
        )
        assert result.grad_norm is not None
        found.append([*result.losses.values(), result.grad_norm])
    strategy.close()
    return found


def _documents(rows: VisionRows, images: int, role: Role) -> list[Document]:
    """A document, or a reward model's pair."""
    return [rows.document(images) for _ in range(1 + (role is Role.REWARD))]


def _batch(rows: VisionRows, groups: list[list[Document]], role: Role) -> Batch:
    documents = [document for group in groups for document in group]
    batch = rows.batch(documents)
    if role is Role.REWARD:
        return replace(batch, group=2, extras={"margin": torch.zeros(len(documents), dtype=torch.float64)})
    labels = torch.tensor([min(2, len(d.counts)) for d in documents])
    return replace(batch, extras={"label": labels}) if role is Role.CLASSIFIER else batch


def _alone(folder: str) -> Any:
    from transformers import AutoModelForImageTextToText

    return AutoModelForImageTextToText.from_pretrained(folder)


def main() -> None:
    torch.set_num_threads(1)
    world = World.open(RankEnv.from_environ(environment()), device="cpu", timeout_seconds=60)
    cells = json.loads(Path(sys.argv[1]).read_text())
    found = {name: train(world, cell) for name, cell in cells.items()}
    Path(sys.argv[2], f"{world.rank}.json").write_text(json.dumps(found))
    world.close(ok=True)


if __name__ == "__main__":
    main()
