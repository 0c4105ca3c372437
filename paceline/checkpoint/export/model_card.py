"""The model card of an export, from the run's own files, without secrets and local paths."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path, PurePath
from typing import Protocol

from paceline.checkpoint.export.architecture import gives_scores
from paceline.checkpoint.export.hf_export import ExportReport
from paceline.checkpoint.format.foreign_folders import ADAPTER_CONFIG
from paceline.checkpoint.format.strict_json import parse_object
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.checkpoint.load.start_folder import is_file_of_run
from paceline.config.render.effective_values import leaves
from paceline.config.schema import Config
from paceline.config.sections.training_steps import LoggingFields
from paceline.config.source import shown
from paceline.core.errors import PacelineError
from paceline.core.files import MAX_CONFIG_BYTES, read_bytes, read_run_file
from paceline.core.json_types import Json, as_object
from paceline.core.package import PACKAGE_VERSION
from paceline.core.rundir import RunDir
from paceline.core.units import human_bytes, human_count
from paceline.launch.environment.guide_variables import current
from paceline.plan.algorithms.spec import algorithm_spec
from paceline.plan.plan import Plan
from paceline.runlog.history import History, load_history
from paceline.runlog.redact import Redactor, printable

CARD = "README.md"
_CONFIG = "config.json"
_MAX_STEPS = 12  # rows of the table of losses
_OF_THE_MACHINE = (
    "launch.",
    "training.output_dir",
    "training.experiment_name",
    "training.resume_from_checkpoint",
    "training.overwrite_output_dir",
    "training.output_access",
    "data.cache_dir",
    *(f"training.{name}" for name in LoggingFields.model_fields),
)


class HubNames(Protocol):
    """The names that exist on the hub: only these may be in the card's header."""

    def has(self, name: str, kind: str) -> bool:
        """Whether there is such a ``model`` or ``dataset``."""


def model_card(checkpoint: Path, report: ExportReport, repo: str, hub: HubNames) -> str:
    """Return README.md for an export of ``checkpoint``."""
    with CheckpointReader(checkpoint) as reader:
        config = Config.from_json(as_object(reader.state["config"]))
        is_file = partial(is_file_of_run, state=reader.state, checkpoint=checkpoint)
    run = RunDir.at(checkpoint.parent.parent)
    history, plan = load_history(run), _plan_of(run)
    parts = [
        _header(config, report, hub, is_file),
        f"# {repo.rpartition('/')[2]}",
        f"{_start(config)}, trained with {config.training.algorithm} by Paceline {PACKAGE_VERSION}."
        f" This repository holds {_HELD[report.kind]}, as it was after step {report.step}.",
        _table(("", ""), _facts(config, report, history, plan)),
        *_losses(history, report.step),
        "## Use",
        _use(config, report, repo),
        "## Configuration",
        "What differs from Paceline's defaults; paths on the training machine by their last part.",
        "```text\n" + "\n".join(_settings(config)) + "\n```",
    ]
    return Redactor.of(current())("\n\n".join(parts) + "\n")


_HELD = {
    "model": "the whole model",
    "adapter": "the adapter alone, to be loaded onto its base",
    "merged model": "the whole model, with the trained adapter merged into its base",
}


def _header(config: Config, report: ExportReport, hub: HubNames, is_file: Callable[[str], bool]) -> str:
    adapter, base = report.kind == "adapter", config.model.name_or_path or ""
    library = "peft" if adapter else "transformers"
    tags = ["paceline", str(config.training.algorithm), *(["lora"] if config.lora else [])]
    lines = [f"library_name: {library}", f"tags: {json.dumps(tags)}"]
    lines += ["pipeline_tag: image-text-to-text"] if report.vision else []
    if base and not config.model.config and not is_file(base) and hub.has(base, "model"):
        lines += [f"base_model: {json.dumps(base)}"]
        lines += [f"base_model_relation: {'adapter' if adapter else 'finetune'}"]
    names = dict.fromkeys(data_set.path for data_set in config.data.train if not is_file(data_set.path))
    on_hub = [name for name in names if hub.has(name, "dataset")]
    lines += [f"datasets: {json.dumps(on_hub)}"] if on_hub else []
    return "\n".join(["---", *lines, "---"])


def _start(config: Config) -> str:
    if config.model.config:
        return f"A {_public(str(config.model.config.get('model_type', 'model')))} with weights from scratch"
    return _code(_public(config.model.name_or_path or "a model"))


def _facts(
    config: Config, report: ExportReport, history: History, plan: Plan | None
) -> Iterable[tuple[str, str]]:
    training, lora = config.training, config.lora
    yield (
        "Base model",
        _start(config) + (f", revision {config.model.revision}" if config.model.revision else ""),
    )
    for data_set in config.data.train:
        more = f", split {data_set.split}" if data_set.split != "train" else ""
        more += f", weight {data_set.weight:g}" if data_set.weight != 1 else ""
        yield "Data", _code(_public(data_set.path)) + more
    if report.vision:
        yield "Images", "trained with the vision tower and its projector, on rows with images"
    yield "Algorithm", str(training.algorithm)
    if lora is not None:
        yield "Adapter", f"LoRA, rank {lora.r}, alpha {lora.alpha}; exported as: {report.kind}"
    total = history.started.total_steps if history.started is not None else None
    yield "Steps", f"{report.step:,}" + (f" of {total:,}" if total else "")
    if (tokens := sum(e.tokens for s, e in history.steps.items() if s <= report.step)) > 0:
        yield "Tokens", f"{tokens:,}"
    yield "Learning rate", f"{training.learning_rate:g}, {training.lr_scheduler_type}"
    yield "Seed", str(training.seed)
    if plan is not None:
        yield "Plan", plan.headline()
        yield "Sequence length", f"{plan.seq_len:,} tokens{', packed' if plan.packing else ''}"
        yield "Optimizer", plan.optimizer.name
    yield (
        "Weights",
        f"{human_count(report.num_parameters)} parameters, {report.dtype}, {human_bytes(report.num_bytes)}",
    )


def _losses(history: History, last: int) -> Iterable[str]:
    steps = [step for step in history.steps if step <= last]
    if steps:
        every = max(1, -(-len(steps) // _MAX_STEPS))
        chosen = sorted({steps[0], steps[-1], *steps[every - 1 :: every]})
        rows = [
            (str(step), f"{history.steps[step].loss:.4f}", f"{history.steps[step].lr:.3g}") for step in chosen
        ]
        yield "## Training loss"
        yield _table(("step", "loss", "learning rate"), rows)
    evals = {step: event.metrics for step, event in history.evals.items() if step <= last}
    if evals:
        step = max(evals)
        yield f"## Evaluation after step {step}"
        yield _table(("metric", "value"), [(name, f"{value:.6g}") for name, value in evals[step].items()])


def _use(config: Config, report: ExportReport, repo: str) -> str:
    """Return a snippet that loads the repository with the class that its own files name."""
    if report.kind == "adapter":
        settings = parse_object(read_bytes(report.path / ADAPTER_CONFIG), repo, max_bytes=MAX_CONFIG_BYTES)
        scores = settings.get("task_type") == "SEQ_CLS"
        package, prefix = "peft", "AutoPeftModelFor"
    else:
        settings = parse_object(read_bytes(report.path / _CONFIG), repo, max_bytes=MAX_CONFIG_BYTES)
        scores, package, prefix = gives_scores(settings), "transformers", "AutoModelFor"
    name = prefix + ("SequenceClassification" if scores else "CausalLM")
    if report.vision and not scores:
        return _use_with_images(report, repo)
    if loaded_by := algorithm_spec(config.training.algorithm).loaded_by:
        package, name = "sentence_transformers", loaded_by
        lines = (f"from {package} import {name}", "", f'model = {name}("{repo}")')
        return "```python\n" + "\n".join(lines) + "\n```"
    lines = (f"from {package} import {name}", "", f'model = {name}.from_pretrained("{repo}")')
    return "```python\n" + "\n".join(lines) + "\n```"


def _use_with_images(report: ExportReport, repo: str) -> str:
    """Return a snippet that loads the whole model, its adapter's base before it, and its processor."""
    lines = ["from transformers import AutoModelForImageTextToText, AutoProcessor", ""]
    if report.kind == "adapter":
        lines[:1] = ["from peft import PeftConfig, PeftModel", *lines[:1]]
        lines += [f'base = PeftConfig.from_pretrained("{repo}").base_model_name_or_path']
        lines += ["model = AutoModelForImageTextToText.from_pretrained(base)"]
        lines += [f'model = PeftModel.from_pretrained(model, "{repo}")']
    else:
        lines += [f'model = AutoModelForImageTextToText.from_pretrained("{repo}")']
    lines += [f'processor = AutoProcessor.from_pretrained("{repo}")']
    return "```python\n" + "\n".join(lines) + "\n```"


def _settings(config: Config) -> Iterable[str]:
    """Yield ``key=value`` of settings that differ from defaults and do not describe the training machine."""
    values, defaults = leaves(config.to_json()), leaves(Config().to_json())
    for path, value in values.items():
        if value != defaults.get(path) and not path.startswith(_OF_THE_MACHINE):
            yield f"{path}={shown(path, _plain(value), 400)}"


def _plain(value: Json) -> Json:
    if isinstance(value, str):
        return _public(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _public(text: str) -> str:
    """Return a path on the training machine, or an address, by its last part; other texts as they are."""
    local = text.startswith(("/", "~", "./", "../", "http://", "https://")) or Path(text).is_absolute()
    return PurePath(text).name or "(a local path)" if local else text


def _plan_of(run: RunDir) -> Plan | None:
    try:
        return Plan.from_json(json.loads(read_run_file(run.plan_json)))
    except (OSError, ValueError, KeyError, TypeError, PacelineError):  # alone, or another version's
        return None


def _table(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [titles, tuple("---" for _ in titles), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return printable(text).replace("|", "\\|")


def _code(text: str) -> str:
    return "`" + text.replace("`", "'") + "`"
