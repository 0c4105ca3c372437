"""A checkpoint's weights straight into a model: evaluated and generated from without an exported copy.

The folder that the processes are given has config, tokenizer and MARK, which names the checkpoint, but no
weights. An adapter, a part of a composite, and a class of the hub's code are exported instead.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from paceline.checkpoint.export.hf_folder import (
    check_names,
    config_of,
    gives_scores,
    is_known,
    whole_of,
    write_side_files,
)
from paceline.checkpoint.export.peft_adapter import is_adapter
from paceline.checkpoint.export.untrained_tensors import carried_entries
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.data.chat_template.encode import CostlyTemplateError, Encoder
from paceline.generation.answer import load_folder
from paceline.models.heads.sequence_classification import auto_class
from paceline.models.loading.materialize import from_config
from paceline.models.persistent_buffers import persistent_buffers
from paceline.models.special_tokens import end_tokens
from paceline.protocols.roles import Role
from paceline.protocols.shard import BUFFER, PARAM

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from paceline.protocols.model import HFModel

MARK = "checkpoint.json"
_ROLE = Role.POLICY.value


def prepared_without_copy(checkpoint: Path, to: Path) -> bool:
    """Write the folder ``to``, without weights; return False, with nothing written, where that cannot be."""
    with CheckpointReader(checkpoint) as reader:
        config = config_of(reader, "float32")
        fits = _ROLE in reader.roles() and is_known(config) and not gives_scores(config)
        if not fits or is_adapter(reader) or "auto_map" in config or whole_of(config) is not None:
            return False
        if carried_entries(reader):
            return False
        named = [n for n in reader.names() if n.role == _ROLE and n.kind in (PARAM, BUFFER)]
        check_names(config, {n.name: reader.shape(n.role, n.name, n.kind) for n in named}, checkpoint)
        to.mkdir(parents=True)
        write_side_files(to, reader, config, remote=False)
    (to / MARK).write_text(json.dumps({"checkpoint": str(checkpoint)}), encoding="utf-8")
    return True


def load_model(folder: Path) -> tuple[HFModel, PreTrainedTokenizerBase]:
    """Return (model, tokenizer) of a Hugging Face folder, or of one that ``prepared_without_copy`` wrote, in
    fp32 and evaluation mode. Raises ConfigError and CheckpointError.
    """
    hf, tokenizer = load_folder(folder, _read if (folder / MARK).is_file() else None)
    end_where_turns_end(hf, tokenizer)
    return hf, tokenizer


def end_where_turns_end(hf: HFModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Add to what ends the model's answers the tokens with which its tokenizer and chat template end them, as
    training found them.
    """
    found: tuple[int, ...] = ()
    with suppress(CostlyTemplateError):  # the first conversation reports it
        found = Encoder(tokenizer, "assistant" if tokenizer.is_fast else "all").stop_token_ids()
    hf.generation_config.eos_token_id = end_tokens(hf, found) or None


@torch.no_grad()
def _read(folder: Path) -> HFModel:
    from transformers import AutoConfig, GenerationConfig
    from transformers.initialization import no_init_weights

    checkpoint = Path(json.loads((folder / MARK).read_text(encoding="utf-8"))["checkpoint"])
    config = AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    with no_init_weights():
        hf = from_config(auto_class(Role.POLICY), config, None, {"trust_remote_code": False})
    hf.tie_weights()
    with CheckpointReader(checkpoint) as reader:
        for name, parameter in hf.named_parameters():
            parameter.copy_(reader.read(_ROLE, name, PARAM))
        for name, buffer in persistent_buffers(hf):
            buffer.copy_(reader.read(_ROLE, name, BUFFER))
    hf.generation_config = GenerationConfig.from_pretrained(str(folder), local_files_only=True)
    return hf
