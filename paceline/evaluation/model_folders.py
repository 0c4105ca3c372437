"""The models that a user names, run by run and checkpoint by checkpoint, as Hugging Face folders."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from paceline.checkpoint.export.hf_export import export_hf
from paceline.checkpoint.export.main import choose
from paceline.checkpoint.format.verify_files import is_step_name, scan, step_of
from paceline.checkpoint.save.retention import being_read
from paceline.config.schema import Config
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.core.json_types import JsonObject, as_object
from paceline.core.rundir import RunDir
from paceline.evaluation import codes
from paceline.evaluation.open_run import check_writes_text, model_folder, prepared_without_copy
from paceline.evaluation.processes.job import EvaluationJob
from paceline.generation.settings import run_of, stored_config
from paceline.launch.preflight.load_config import load

_SECTIONS = ("data", "generation", "model")
_OF_THE_RUN = {  # keys of a run's data section that say how its rows are read, whichever they are
    "model": ("processor_kwargs",),
    "data": (
        "image_min_pixels",
        "image_max_pixels",
        "image_refuse_pixels",
        "max_length",
        "train_on",
        "on_bad_row",
        "on_too_long",
        "strict",
        "converter",
        "default_system",
    ),
    "generation": ("max_new_tokens", "temperature", "top_p", "top_k"),
}


@dataclass(frozen=True)
class NamedModel:
    """A model to evaluate: a checkpoint (``step``) of a run, or a Hugging Face folder."""

    name: str
    path: Path
    run: RunDir | None
    step: int | None

    @contextmanager
    def folder(self, straight: bool = True) -> Iterator[Path]:
        """Yield the model as a Hugging Face folder: its own, an export, or with ``straight`` one without
        weights that points to the checkpoint. The last two exist only inside the context.
        """
        if self.run is None:
            with model_folder(self.path, straight) as folder:
                yield folder
            return
        with tempfile.TemporaryDirectory(prefix="paceline-model-") as scratch, being_read(self.path):
            folder = Path(scratch) / "model"
            if not (straight and prepared_without_copy(self.path, folder)):
                export_hf(self.path, folder, "float32", merge=True, load_back=False)
            check_writes_text(folder, self.path)
            yield folder


def named_models(job: EvaluationJob, notes: list[Diagnostic]) -> list[NamedModel]:
    """Return the models of a job; a run's checkpoints are sorted by step."""
    models = [model for path in job.models for model in _of(Path(path), job.checkpoints, notes)]
    names = [model.name for model in models]
    return [  # two runs' step-00000010 are told apart by their runs
        model
        if names.count(model.name) == 1 or model.run is None
        else NamedModel(f"{model.run.root.name}/{model.name}", model.path, model.run, model.step)
        for model in models
    ]


def check_model(path: Path) -> None:
    """Raise ConfigError if there is no such folder."""
    if not path.expanduser().is_dir():
        remedy = "a run directory, a checkpoint or a Hugging Face folder"
        raise ConfigError(codes.EVALUATION_JOB("there is no such folder", str(path), hint=remedy))


def _of(folder: Path, which: str, notes: list[Diagnostic]) -> list[NamedModel]:
    path, run = folder.expanduser().absolute(), run_of(folder)
    if run is None or (path / "config.json").is_file() and not (path / "plan.json").is_file():
        return [NamedModel(path.name, path, None, None)]
    if is_step_name(path.name):
        return [NamedModel(path.name, path, run, step_of(path.name))]
    if which != "all":
        checkpoint = choose(path, which, notes)
        return [NamedModel(checkpoint.name, checkpoint, run, step_of(checkpoint.name))]
    complete = sorted(
        (entry for entry in scan(run.checkpoints) if entry.problem is None), key=lambda entry: entry.step
    )
    notes += [
        d for entry in scan(run.checkpoints) if entry.problem is not None for d in entry.problem.diagnostics
    ]
    if not complete:
        return [
            NamedModel(checkpoint.name, checkpoint, run, step_of(checkpoint.name))
            for checkpoint in [choose(path, "latest", notes)]
        ]
    return [NamedModel(entry.name, entry.path, run, entry.step) for entry in complete]


def config_of(model: NamedModel, folder: Path, job: EvaluationJob) -> Config:
    """Return the settings for a model: its run's config with the job's overrides.

    The tokenizer is that of ``folder``, as trained. Raises ConfigError.
    """
    for setting in job.overrides:
        section, _, rest = setting.partition("=")[0].partition(".")
        if section not in _SECTIONS or not rest:
            raise ConfigError(
                codes.EVALUATION_JOB(
                    f"only keys of {', '.join(_SECTIONS)} can be set here",
                    "command line",
                    setting,
                    "e.g. data.max_length=512 generation.temperature=0.7",
                )
            )
    tree: JsonObject = {} if model.run is None else _of_run(stored_config(model.run))
    tree["model"] = {**as_object(tree.get("model")), "name_or_path": str(folder)}
    data = tree.get("data")
    tree["data"] = {**(data if isinstance(data, dict) else {}), "train": [job.data]}
    return load(None, job.overrides, ruled=False, tree=tree).config


def _of_run(config: JsonObject) -> JsonObject:
    kept: JsonObject = {}
    for section, keys in _OF_THE_RUN.items():
        stored = config.get(section)
        if isinstance(stored, dict):
            kept[section] = {key: stored[key] for key in keys if key in stored}
    return kept
