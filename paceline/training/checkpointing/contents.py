"""Contents of a checkpoint, and its checks at a start."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.checkpoint.base_model_files import base_files, join_folders
from paceline.checkpoint.export.architecture import VISION, gives_scores
from paceline.checkpoint.export.untrained_tensors import STATE_KEY
from paceline.checkpoint.load.start_folder import START_FOLDER
from paceline.config.sections.model import ModelSection
from paceline.core.errors import CheckpointError
from paceline.core.files import read_bytes
from paceline.core.json_types import Json, JsonObject, as_object
from paceline.data.chat_template.template_texts import templates_in
from paceline.data.prepare.prepare import Prepared
from paceline.models.loading.model_source import weights_folder
from paceline.models.lora.lora import Adapter
from paceline.models.special_tokens import align
from paceline.plan.plan import Plan
from paceline.plan.plan_json import to_json
from paceline.protocols.model import RootModule
from paceline.training import codes
from paceline.training.checkpointing.resume_compatibility import STRATEGY_LABEL, shard_layout, strategy_label
from paceline.training.loop.train_state import TrainState
from paceline.training.loop.window_source import RunComponents

if TYPE_CHECKING:
    from paceline.protocols.model import HFModel


def adapter_of(root: RootModule) -> Adapter | None:
    """Return the adapter that a model has, if any."""
    return getattr(root, "adapter", None)


def run_state(
    plan: Plan, prepared: Prepared, parts: RunComponents | None = None, carried: JsonObject | None = None
) -> JsonObject:
    """Return the JSON part of a checkpoint: position, best metric, and the facts to compare at a resume.

    ``parts``: the run's components (None: it has not begun); the state holds the first trained role's adapter
    and the identity of all base models. ``carried``: untrained tensors, and where an export finds them.
    """
    state = TrainState() if parts is None else parts.state
    trains = parts.algorithm.trains if parts else ()
    bases = {role.value: adapter_of(parts.handles[role].root) for role in trains} if parts else {}
    adapter, adapters = next(iter(bases.values()), None), JsonObject()
    if adapter is not None:
        adapters |= {"adapter": to_json(adapter.spec), "base_model": dict(adapter.base)}
        if others := [*bases.items()][1:]:
            adapters["other_bases"] = {role: dict(other.base) for role, other in others if other is not None}
    if carried:
        adapters[STATE_KEY] = carried
    if plan.vision:
        adapters[VISION] = True
    return {
        **adapters,
        START_FOLDER: str(Path.cwd()),
        "train": state.to_json(),
        "windows": dict(parts.windows.state()) if parts else {},
        "algorithm": parts.algorithm.state() if parts else {},
        "config": plan.config.to_json(),
        "config_digest": plan.config_digest,
        "data_fingerprint": prepared.fingerprint,
        "train_fingerprint": prepared.train_fingerprint,
        "data_definition": prepared.definition,
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

    The BOS, EOS and padding tokens agree in all of them. With an adapter also
    ``adapter_config.json``, which marks the checkpoint as an adapter rather than a full model.
    """
    # A copy: ``align`` writes into it.
    config, generation = copy.deepcopy(dict(hf_config)), _generation(hf)
    special = prepared.special_tokens
    # Where a padding token would be taken for the end of a scored row.
    tokens = replace(special, pad=None) if gives_scores(config) else special
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
    """Return the files of the base model's folder that its checkpoints keep. These include its tokenizer if
    nothing was added to it, else that of the ``tokenizer`` folder. A model from scratch has its image
    processor's settings from the folder that ``model.tokenizer`` names.
    """
    folder = None if model.name_or_path is None else weights_folder(model.name_or_path, model.revision)
    if folder is not None:
        kept = base_files(folder)
    else:
        here = Path(model.tokenizer).expanduser().glob("*processor_config.json") if model.tokenizer else ()
        kept = {path.name: read_bytes(path) for path in sorted(here) if path.is_file()}
    added = model.add_tokens or model.add_special_tokens or model.special_tokens
    changed = added or model.chat_template or model.chat_template_kwargs
    unchanged = model.tokenizer in (None, model.name_or_path) and not changed
    if folder is not None and unchanged and bool(templates_in(folder)) == bool(templates_in(tokenizer)):
        return kept
    return join_folders(kept, base_files(tokenizer))


def _generation(hf: HFModel) -> JsonObject:
    """Return the base model's ``generation_config.json`` as ``save_pretrained`` would write it, or an empty
    dict.
    """
    config = getattr(hf, "generation_config", None)
    generation = {} if config is None else config.to_diff_dict()
    # private keys that ``to_diff_dict`` leaves in
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
