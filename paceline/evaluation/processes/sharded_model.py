"""A model shared among the processes of an evaluation, for one that is larger than a card.

All processes compute the same rows, each with its part of the model: ``tp`` divides heads and columns,
``fsdp`` gathers the layers in turn. The first process's results are kept.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from paceline.checkpoint.export.architecture import writes_text
from paceline.config.sections.model import ModelSection
from paceline.core.errors import ConfigError
from paceline.evaluation import codes
from paceline.evaluation.open_run import end_where_turns_end
from paceline.launch.environment.guide_variables import current
from paceline.launch.run_secret import read_secret
from paceline.models.factory import HFModelFactory
from paceline.models.loading.materialize import build_on_meta, fill
from paceline.models.parallel.tensor_parallel import apply_tensor_parallel
from paceline.models.parallel.tensor_parallel_cut import TP_SIZE, how_cut
from paceline.plan.mesh import Mesh
from paceline.plan.strategy_options import FsdpOptions
from paceline.protocols.model import BuildOptions
from paceline.protocols.roles import Role
from paceline.runtime.process_group.device_mesh import device_mesh, sharding_mesh
from paceline.runtime.process_group.world import World
from paceline.runtime.rank_env import RankEnv
from paceline.strategies.fsdp.wrapping import Dtypes, shard

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from paceline.protocols.model import HFModel


def open_world(device: str) -> World:
    """Meet the other processes. Collective."""
    environ = current()
    return World.open(RankEnv.from_environ(environ), device=device, secret=read_secret(environ))


def check_shareable(folder: Path, strategy: str, world_size: int, *, vision: bool = False) -> None:
    """Raise ConfigError for a Hugging Face folder whose model cannot be shared by ``world_size``
    processes. ``vision``: with its tower."""
    if (folder / "adapter_config.json").is_file():
        message = "an adapter lies beside this model: processes that share it would leave it out"
        remedy = "merge it into the model (merge_and_unload of peft), or --strategy copies"
        raise ConfigError(codes.EVALUATION_JOB(message, "--strategy", str(folder), remedy))
    try:
        factory = _factory(folder, torch.float32, vision)
        if not writes_text(factory.hf_config):
            raise ConfigError(
                codes.EVALUATION_JOB(
                    "this model gives scores or vectors, not text: it cannot be shared",
                    "--strategy",
                    str(folder),
                    "name a model with a language-model head",
                )
            )
        root, _ = build_on_meta(factory, _options(strategy), World.single())  # refuses missing weights
        if strategy == "tp":
            how_cut(root, world_size)
    except ConfigError as error:
        findings = (
            replace(finding, where="--strategy", hint="--strategy fsdp, or another --nproc")
            if finding.where == TP_SIZE
            else finding
            for finding in error.diagnostics
        )
        raise ConfigError(*findings) from error


def _factory(folder: Path, dtype: torch.dtype, vision: bool) -> HFModelFactory:
    return HFModelFactory(
        ModelSection(name_or_path=str(folder)),
        Role.POLICY,
        compute_dtype=dtype,
        master_dtype=dtype,
        frozen=True,
        # Rows with pictures go through the class's own forward, which gives masks and not documents
        attention="sdpa" if vision else "auto",
        vision=vision,
    )


def _options(strategy: str) -> BuildOptions:
    return BuildOptions(device=torch.device("cpu"), fused=strategy != "tp")


@torch.no_grad()
def shared_model(
    folder: Path, strategy: str, dtype: torch.dtype, world: World, *, vision: bool = False
) -> tuple[HFModel, PreTrainedTokenizerBase]:
    """Return (model, tokenizer) of a Hugging Face folder; this process holds its part. ``vision``: with its
    tower. Collective.
    """
    from transformers import AutoTokenizer

    tp = strategy == "tp"
    root, source = build_on_meta(_factory(folder, dtype, vision), _options(strategy), world)
    root.requires_grad_(False).eval()
    units = None
    if tp:
        apply_tensor_parallel(root, device_mesh(world, Mesh(tp=world.world_size))["tp"])
    else:
        mesh = device_mesh(world, Mesh(dp_shard=world.world_size))
        units = shard(root, root.hf, sharding_mesh(mesh), FsdpOptions(), Dtypes())
    fill(root, source, world, world.device)
    if units is not None:
        units.reshard_between_layers()
    hf: HFModel = root.hf
    hf.generation_config.max_length = None
    tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    end_where_turns_end(hf, tokenizer)
    return hf, tokenizer
