"""Contents of a checkpoint, and its checks at a start."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.algorithms.algorithm import Algorithm
from paceline.checkpoint.base_model_files import base_files, together
from paceline.checkpoint.export.architecture import gives_scores
from paceline.checkpoint.export.untrained_tensors import STATE_KEY
from paceline.config.sections.model import ModelSection
from paceline.core.errors import CheckpointError
from paceline.core.json_types import Json, JsonObject, as_object
from paceline.data.chat_template.template_texts import templates_in
from paceline.data.prepare.prepare import Prepared
from paceline.models.loading.stored_dtype import weights_folder
from paceline.models.lora.lora import Adapter
from paceline.models.special_tokens import align
from paceline.plan.plan import Plan
from paceline.plan.plan_json import to_json
from paceline.protocols.model import RootModule
from paceline.protocols.shard import Shard
from paceline.strategies.model_handle import Handles
from paceline.strategies.strategy import Strategy
from paceline.training import codes
from paceline.training.checkpointing.resume_compatibility import STRATEGY_LABEL, shard_layout, strategy_label
from paceline.training.loop.train_state import TrainState

if TYPE_CHECKING:
    from paceline.protocols.model import HFModel


def adapter_of(root: RootModule) -> Adapter | None:
    """Return the adapter that a model has, if any."""
    adapter: Adapter | None = getattr(root, "adapter", None)
    return adapter


def run_state(
    state: TrainState,
    algorithm: Algorithm | None,
    plan: Plan,
    data_fingerprint: str,
    adapters: Mapping[str, Adapter | None] | None = None,
    *,
    train_fingerprint: str = "",
    data_definition: str = "",
    windows: JsonObject | None = None,
    carried: JsonObject | None = None,
) -> JsonObject:
    """Return the JSON part of a checkpoint: position, best metric, and what a resumed run is compared with.

    ``adapters`` (by trained role, the exported model first) adds the first one's adapter and the identity of
    all base models; ``windows`` is what the data order needs beyond the step; ``carried``
    names tensors that are not trained, and where an export finds them.
    """
    (_, adapter), *others = (adapters or {"": None}).items()
    own: JsonObject = (
        {} if adapter is None else {"adapter": to_json(adapter.spec), "base_model": dict(adapter.base)}
    )
    if adapter is not None and others:
        own["other_bases"] = {role: dict(other.base) for role, other in others if other is not None}
    if carried:
        own[STATE_KEY] = carried
    return {
        **own,
        "train": state.to_json(),
        "windows": dict(windows or {}),
        "algorithm": algorithm.state() if algorithm is not None else {},
        "config": plan.config.to_json(),
        "config_digest": plan.config_digest,
        "data_fingerprint": data_fingerprint,
        "train_fingerprint": train_fingerprint,
        "data_definition": data_definition,
        "global_batch": plan.batch.global_batch,
        "seq_len": plan.seq_len,
        "packing": plan.packing,
        "seed": plan.seed,
        "world_size": plan.world_size,
        "data_parallel_size": plan.batch.data_parallel_size,
        "strategy": plan.strategy,
        STRATEGY_LABEL: strategy_label(plan),
        "shard_layout": shard_layout(plan),
        "optimizer": {
            "name": plan.optimizer.name,
            "args": dict(plan.optimizer.args),
            "target_modules": list(plan.optimizer.target_modules),
        },
        "plan_digest": plan.digest(),
    }


def hugging_face_files(
    hf_config: Mapping[str, Json],
    hf: HFModel,
    prepared: Prepared,
    base: Mapping[str, bytes],
    adapter: Adapter | None = None,
) -> dict[str, bytes]:
    """Return ``config.json``, ``generation_config.json``, the tokenizer files and the others of the ``base``,
    for a self-contained checkpoint.

    What ends, begins and pads a text is the same in all of them. With an adapter also
    ``adapter_config.json``, which marks the checkpoint as an adapter rather than a full model.
    """
    config, generation = copy.deepcopy(dict(hf_config)), _generation(hf)
    own = prepared.special_tokens
    tokens = replace(own, pad=None) if gives_scores(config) else own
    inner = config.get("text_config")
    part = inner if isinstance(inner, dict) and inner else config
    align(part, hf.config.get_text_config(), generation, tokens)
    configs: dict[str, Mapping[str, Json]] = {"config.json": config, "generation_config.json": generation}
    if adapter is not None:
        configs["adapter_config.json"] = adapter.peft
    return {
        **base,
        **{
            name: json.dumps(dict(values), indent=2, ensure_ascii=False).encode()
            for name, values in configs.items()
        },
    }


def kept_files(model: ModelSection, tokenizer: Path) -> dict[str, bytes]:
    """Return the files of the base model's folder that its checkpoints keep: its own tokenizer as it is,
    where nothing was added to it, else the ``tokenizer`` folder's.
    """
    folder = None if model.name_or_path is None else weights_folder(model.name_or_path, model.revision)
    kept = {} if folder is None else base_files(folder)
    changed = (
        model.add_tokens or model.add_special_tokens or model.chat_template or model.chat_template_kwargs
    )
    own = model.tokenizer in (None, model.name_or_path) and not changed
    if folder is not None and own and bool(templates_in(folder)) == bool(templates_in(tokenizer)):
        return kept
    return together(kept, base_files(tokenizer))


def _generation(hf: HFModel) -> JsonObject:
    """Return the base model's ``generation_config.json`` as ``save_pretrained`` would write it, or an empty
    dict.
    """
    config = getattr(hf, "generation_config", None)
    generation = {} if config is None else config.to_diff_dict()
    return {key: value for key, value in generation.items() if not key.startswith("_")}


def same_base(state: Mapping[str, Json], adapter: Adapter | None, role: str = "") -> None:
    """Raise CheckpointError if an adapter was trained on other base weights.

    ``adapter`` is that of the root module of ``role``, None in full training. Bases whose weights this rank
    does not hold are not compared.
    """
    saved = as_object(state.get("other_bases")).get(role, state.get("base_model"))
    if saved is None or adapter is None:
        return
    saved = as_object(saved)
    mine, theirs = adapter.base["fingerprint"], str(saved.get("fingerprint") or "")
    if mine and theirs and mine != theirs:
        raise CheckpointError(
            codes.RESUME_BASE_MODEL(
                "model.name_or_path",
                f"{saved.get('name_or_path')} with fingerprint {theirs[:12]}; the weights here have"
                f" {mine[:12]}",
            )
        )


def exported_shards(
    strategy: Strategy, handles: Handles, algorithm: Algorithm, more: Iterable[Shard] = ()
) -> Iterator[Shard]:
    """Yield this rank's shards of every trained role, then ``more``."""
    for role in algorithm.trains:
        yield from strategy.export_state(handles[role])
    yield from more
