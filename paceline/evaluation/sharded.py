"""A model shared among the processes of an evaluation, for one that is larger than a card.

All processes compute the same rows, each with its part of the model: ``tp`` divides heads and columns,
``fsdp`` gathers one layer after the other. The first one's results are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from paceline.config.sections.model import ModelSection
from paceline.core.json_types import Json
from paceline.evaluation.losses import RowLosses
from paceline.evaluation.work import PartFile, WorkFolder, WorkSettings, own_batches
from paceline.launch.environ import current
from paceline.launch.secret import read_secret
from paceline.models.factory import HFModelFactory
from paceline.models.materialise import build_on_meta, fill
from paceline.models.tensor_parallel import apply_tensor_parallel
from paceline.plan.mesh import Mesh
from paceline.plan.strategies.options import FsdpOptions
from paceline.protocols.model import BuildOptions
from paceline.protocols.roles import Role
from paceline.runtime.mesh import device_mesh, sharding_mesh
from paceline.runtime.rank_env import RankEnv
from paceline.runtime.world import World
from paceline.strategies.sharding import Dtypes, shard

if TYPE_CHECKING:
    from paceline.protocols.model import HFModel


def compute_sharded(
    work: WorkFolder,
    device: str,
    report: Callable[[str, int, int], None],
    row_results: Callable[..., list[Json]],
) -> None:
    """Compute the batches that are not done yet by ``rank.row_results``, together with the other processes of
    the work. Collective.

    Raises ConfigError for a model that cannot be shared so.
    """
    from transformers import AutoTokenizer

    settings = work.settings()
    environ = current()
    world = World.open(RankEnv.from_environ(environ), device=device, secret=read_secret(environ))
    hf = shared_model(settings, world)
    tokenizer = AutoTokenizer.from_pretrained(settings.model, local_files_only=True, trust_remote_code=False)
    losses = RowLosses(hf, settings.pad_id)
    for task in settings.tasks:
        documents, numbers = work.rows(task)
        done = set(world.broadcast_json(sorted(work.done(task))))
        with closing(PartFile(work.part(task, world.rank, world.world_size))) as part:
            for batch, rows in own_batches(len(documents), settings.batch_size, 0, 1):
                if batch not in done:
                    found = row_results(
                        task, hf, tokenizer, losses, documents[rows], numbers[rows], settings, world.any
                    )
                    if world.is_main:
                        part.append(batch, found)
                if world.is_main:
                    report(task, rows.stop, len(documents))
    world.close(ok=True)


@torch.no_grad()
def shared_model(settings: WorkSettings, world: World) -> HFModel:
    """Return the model of the work's folder, of which this process holds its part. Collective."""
    tp = settings.strategy == "tp"
    dtype = getattr(torch, settings.dtype)
    factory = HFModelFactory(
        ModelSection(name_or_path=str(Path(settings.model))),
        Role.POLICY,
        compute_dtype=dtype,
        master_dtype=dtype,
        frozen=True,
    )
    root, source = build_on_meta(factory, BuildOptions(device=torch.device("cpu"), fused=not tp), world)
    root.requires_grad_(False).eval()
    units = None
    if tp:
        mesh = device_mesh(world, Mesh(tp=world.world_size))
        apply_tensor_parallel(root, mesh["tp"])
    else:
        mesh = device_mesh(world, Mesh(dp_shard=world.world_size))
        units = shard(root, root.hf, sharding_mesh(mesh), FsdpOptions(), Dtypes())
    fill(root, source, world, world.device)
    if units is not None:
        units.reshard_between_layers()
    hf: HFModel = root.hf
    hf.generation_config.max_length = None
    return hf
