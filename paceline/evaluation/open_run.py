"""The model that a run has trained, in memory: from its checkpoint without a copy, where that can be."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.checkpoint.convert.tensor_names import gives_scores, read_config
from paceline.checkpoint.export.main import choose
from paceline.checkpoint.save.retention import being_read
from paceline.core.errors import ConfigError, PacelineError
from paceline.core.rundir import RunDir
from paceline.evaluation.stream_weights import load_model, prepared_without_copy
from paceline.generation import codes

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
    """Yield a folder for ``straight.load_model``: ``run`` itself if it is a Hugging Face folder, else one
    without weights that names the checkpoint, or an export where that cannot be. Raises ConfigError, also
    for a model that writes no text, and CheckpointError.
    """
    with _folder_of(run, straight) as folder:
        check_writes_text(folder, run)
        yield folder


def check_writes_text(folder: Path, named: Path) -> None:
    """Raise ConfigError if the model in ``folder``, which the user named so, has no language-model head."""
    if not gives_scores(config := read_config(folder)):
        return
    what = "this model scores or classifies texts: it writes no answers, and has no losses of tokens"
    hint = (
        "name it under training.rollout.rewards ({name: model, options: {model: FOLDER}}), or load it"
        " with AutoModelForSequenceClassification; data.eval with eval_strategy measures it"
    )
    raise ConfigError(
        codes.GENERATION_NO_MODEL(what, str(named), f"architectures: {config.get('architectures')}", hint)
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
        what, hint = (
            "this folder contains an adapter, without the model that it belongs to",
            "give the run, or what `paceline export RUN --to DIR --merge` writes; of another program's"
            " adapter what peft's merge_and_unload().save_pretrained(DIR) writes",
        )
        raise ConfigError(codes.GENERATION_NO_MODEL(what, str(run), "adapter_config.json", hint))
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
    """Return the checkpoint that an export takes; None if there is none: the export says what is wrong."""
    try:
        return choose(run, "result", [])
    except PacelineError:
        return None


def export_copy(run: Path, to: Path) -> None:
    """Export the model of ``run``, adapters merged, in a process of its own, which frees its memory."""
    options = ("--to", str(to), "--merge")
    made = subprocess.run(
        [sys.executable, "-m", "paceline.checkpoint.export.main", "export", str(run), *options],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if made.returncode:
        found = made.stderr.strip().splitlines()[-6:]
        raise ConfigError(
            codes.GENERATION_NO_MODEL(
                "this folder contains no model to load",
                str(run),
                "\n      ".join(found),
                "give a run with a checkpoint, or an exported folder",
            )
        )
