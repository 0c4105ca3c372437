"""Load a run's model, directly from its checkpoint where the layout allows it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from paceline.checkpoint.convert.tensor_names import read_config
from paceline.checkpoint.export.architecture import check_names, is_known, whole_of, writes_text
from paceline.checkpoint.export.hf_folder import config_of, write_side_files
from paceline.checkpoint.export.main import choose
from paceline.checkpoint.export.peft_adapter import is_adapter
from paceline.checkpoint.export.untrained_tensors import carried_entries
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.checkpoint.save.retention import being_read
from paceline.core.errors import ConfigError, PacelineError
from paceline.core.rundir import RunDir
from paceline.data.chat_template.encode import CostlyTemplateError, Encoder
from paceline.generation import codes
from paceline.generation.answer import load_folder
from paceline.models.heads.sequence_classification import auto_class
from paceline.models.loading.materialize import from_config
from paceline.models.module_tensors import persistent_buffers
from paceline.models.special_tokens import end_tokens
from paceline.plan.model.family import family_of
from paceline.protocols.roles import Role
from paceline.protocols.shard import BUFFER, PARAM

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from paceline.protocols.model import HFModel


def opened(run: Path) -> tuple[HFModel, PreTrainedTokenizerBase]:
    """Return (model, tokenizer) of a run, of one of its checkpoints or of a Hugging Face folder, in fp32 and
    evaluation mode. Raises ConfigError and CheckpointError.
    """
    with model_folder(run) as folder:
        return load_model(folder)


@contextmanager
def model_folder(run: Path, straight: bool = True) -> Iterator[Path]:
    """Yield a folder for ``straight.load_model``. It is ``run`` itself if that is a Hugging Face folder. Else
    it is one without weights that points to the checkpoint, or an export where that is impossible. Raises
    ConfigError, also for a model without a language-model head, and CheckpointError.
    """
    with _folder_of(run, straight) as folder:
        check_writes_text(folder, run)
        yield folder


def check_writes_text(folder: Path, path: Path) -> None:
    """Raise ConfigError if the model in ``folder`` has no language-model head; ``path``: the user's name for
    it."""
    config = read_config(folder)
    kind = str(config.get("model_type"))
    if family_of(kind).encoder:
        raise ConfigError(
            codes.GENERATION_NO_MODEL(
                "this model is an encoder: it reads a text and classifies it, and writes no answers",
                str(path),
                f"model_type: {kind}",
                "load its export with AutoModelForSequenceClassification or pipeline('text-classification');"
                " data.eval with eval_strategy measures it",
            )
        )
    if writes_text(config):
        return
    raise ConfigError(
        codes.GENERATION_NO_MODEL(
            "this model scores or classifies texts, or stands for them by vectors: it writes no answers, and"
            " has no losses of tokens",
            str(path),
            f"architectures: {config.get('architectures')}",
            "name it under training.rollout.rewards ({name: model, options: {model: FOLDER}}), or load it"
            " with AutoModelForSequenceClassification, or sentence-transformers; data.eval with eval_strategy"
            " measures it",
        )
    )


@contextmanager
def _folder_of(run: Path, straight: bool) -> Iterator[Path]:
    if not run.is_dir():
        raise ConfigError(codes.GENERATION_NO_RUN(str(run)))
    if (
        (run / "config.json").is_file()
        and any(run.glob("*.safetensors"))
        and not (run / "plan.json").is_file()
    ):
        yield run
        return
    if (run / "adapter_config.json").is_file() and not RunDir.at(run).checkpoints.is_dir():
        raise ConfigError(
            codes.GENERATION_NO_MODEL(
                "this folder contains an adapter, without the model that it belongs to",
                str(run),
                "adapter_config.json",
                "give the run, or what `paceline export FOLDER --merge --model BASE --to DIR` writes: FOLDER"
                " is the run, or another program's adapter",
            )
        )
    with tempfile.TemporaryDirectory(prefix="paceline-model-") as scratch:
        folder = Path(scratch) / "model"
        checkpoint = _checkpoint_of(run)
        if straight and checkpoint is not None:
            with being_read(checkpoint):
                if prepared_without_copy(checkpoint, folder):
                    yield folder
                    return
        export_copy(run, folder)
        yield folder


def _checkpoint_of(run: Path) -> Path | None:
    """Return the checkpoint that an export takes; None without one, since the export reports the error."""
    try:
        return choose(run, "result", [])
    except PacelineError:
        return None


def export_copy(run: Path, to: Path) -> None:
    """Export the model of ``run``, adapters merged, in a separate process, which frees its memory."""
    options = ("--to", str(to), "--merge")
    export = subprocess.run(
        [sys.executable, "-m", "paceline.checkpoint.export.main", "export", str(run), *options],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if export.returncode:
        last_lines = export.stderr.strip().splitlines()[-6:]
        raise ConfigError(
            codes.GENERATION_NO_MODEL(
                "the model of this folder cannot be exported",
                str(run),
                "\n      ".join(last_lines),
                "do what is said there; or give a run with a checkpoint, or an exported folder",
            )
        )


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from paceline.protocols.model import HFModel

MARK = "checkpoint.json"
_ROLE = Role.POLICY.value


def prepared_without_copy(checkpoint: Path, to: Path) -> bool:
    """Write the folder ``to``, without weights; return False, with nothing written, where that is
    impossible."""
    with CheckpointReader(checkpoint) as reader:
        config = config_of(reader, "float32")
        fits = _ROLE in reader.roles() and is_known(config) and writes_text(config)
        if not fits or is_adapter(reader) or "auto_map" in config or whole_of(config) is not None:
            return False
        if carried_entries(reader):
            return False
        tensors = [n for n in reader.names() if n.role == _ROLE and n.kind in (PARAM, BUFFER)]
        check_names(config, {n.name: reader.shape(n.role, n.name, n.kind) for n in tensors}, checkpoint)
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
    """Add the end-of-turn tokens of tokenizer and chat template, as training found them, to the model's end
    tokens.
    """
    stops: tuple[int, ...] = ()
    with suppress(CostlyTemplateError):  # the first conversation reports it
        stops = Encoder(tokenizer, "assistant" if tokenizer.is_fast else "all").stop_token_ids()
    hf.generation_config.eos_token_id = end_tokens(hf, stops) or None


@torch.no_grad()
def _read(folder: Path) -> HFModel:
    from transformers import AutoConfig, GenerationConfig
    from transformers.initialization import no_init_weights

    checkpoint = Path(json.loads((folder / MARK).read_text(encoding="utf-8"))["checkpoint"])
    config = AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    # Every weight is read from the checkpoint
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
