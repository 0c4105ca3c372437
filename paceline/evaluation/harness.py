"""``python -m paceline.evaluation.harness MODEL... --tasks A,B``: tasks of lm-evaluation-harness.

The harness gets the model itself, so its numbers equal those of its own ``hf`` model on an export. Paceline
reads the model from the checkpoint without a copy where the layout allows it.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import torch

from paceline.core.diagnostics import Diagnostic, render_all
from paceline.core.errors import ConfigError, ExitCode
from paceline.core.files import read_text
from paceline.core.json_types import Json, JsonObject
from paceline.evaluation import codes
from paceline.evaluation.job_checks import DTYPES, check_dtype
from paceline.evaluation.model_folders import NamedModel, check_model, named_models
from paceline.evaluation.open_run import load_model
from paceline.evaluation.processes.job import EvaluationJob
from paceline.evaluation.processes.rank import own_device
from paceline.launch.program import program
from paceline.runtime.library_noise import import_without_torchao, quiet_libraries

_NAME = re.compile(r"^task:\s*['\"]?([^\s'\"#]+)", re.MULTILINE)
_FACTS = ("name", "alias", "sample_len")


@program
def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    options = _parser().parse_args(argv)
    notes: list[Diagnostic] = []
    names, folders = tasks_of(options.tasks)
    for model in options.models:
        check_model(Path(model))
    check_dtype(options.dtype)
    models = named_models(EvaluationJob((*options.models,), {}, checkpoints=options.checkpoints), notes)
    if notes:
        print(render_all(notes), file=sys.stderr)
    import_without_torchao()
    # What the harness prints itself stays
    quiet_libraries(checks_weights=False)
    measured = [_measured(model, names, folders, options) for model in models]
    print(json.dumps(measured, indent=1) if options.json else "\n".join(_lines(measured)))
    return int(ExitCode.OK)


def tasks_of(tasks: str) -> tuple[list[str], list[str]]:
    """Return (names of tasks, folders with tasks of your own): ``a.yaml`` is a task by the name in it.

    Raises ConfigError.
    """
    if find_spec("lm_eval") is None:
        message, remedy = "lm-evaluation-harness is not installed", "pip install 'paceline[lm-eval]'"
        raise ConfigError(codes.EVALUATION_LM_EVAL(message, "--lm-eval", tasks, remedy))
    names, folders = [], []
    for name in filter(None, map(str.strip, tasks.split(","))):
        if not name.endswith((".yaml", ".yml")):
            names.append(name)
            continue
        file = Path(name).expanduser()
        task = _NAME.search(read_text(file)) if file.is_file() else None
        if task is None:
            raise ConfigError(
                codes.EVALUATION_LM_EVAL(
                    "this is no file of a task", "--lm-eval", name, "a YAML file with the line task: NAME"
                )
            )
        names.append(task[1])
        folders.append(str(file.absolute().parent))
    return names, list(dict.fromkeys(folders))


def _measured(
    model: NamedModel, names: Sequence[str], folders: Sequence[str], options: argparse.Namespace
) -> JsonObject:
    """Return the harness's results of one model."""
    import lm_eval
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    tasks = TaskManager(include_path=list(folders) or None, include_defaults=len(names) > len(folders))
    if unknown := [name for name in names if name not in tasks.all_tasks]:
        message, remedy = "the harness has no such task", "lm-eval ls tasks, or a YAML file of your own"
        raise ConfigError(codes.EVALUATION_LM_EVAL(message, "--lm-eval", ", ".join(unknown), remedy))
    with model.folder() as folder:
        hf, tokenizer = load_model(folder)
    torch.nn.Module.to(hf, device=own_device(0), dtype=getattr(torch, options.dtype))
    evaluated = lm_eval.simple_evaluate(
        model=HFLM(pretrained=hf, tokenizer=tokenizer, batch_size=options.batch_size),
        tasks=list(names),
        task_manager=tasks,
        limit=options.limit,
        log_samples=False,
    )
    results: JsonObject = {
        task: {name: value for name, value in numbers.items() if name not in _FACTS}
        for task, numbers in evaluated["results"].items()
    }
    return {"name": model.name, "path": str(model.path), "step": model.step, "lm_eval": results}


def _lines(models: Sequence[JsonObject]) -> Iterator[str]:
    for model in models:
        yield str(model["name"])
        results = model["lm_eval"]
        assert isinstance(results, dict)
        for task, numbers in results.items():
            assert isinstance(numbers, dict)
            yield from (f"  {task:<30} {name:<20} {text}" for name, text in _shown(numbers))


def _shown(numbers: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    """Yield (metric, value ± standard error); the name ends with the harness's filter, if any."""
    for key, value in numbers.items():
        name, _, chosen = key.partition(",")
        if name.endswith("_stderr") or not isinstance(value, (int, float)):
            continue
        error = numbers.get(f"{name}_stderr,{chosen}")
        spread = f" ± {error:.4g}" if isinstance(error, (int, float)) else ""
        yield name if chosen in ("", "none") else f"{name} ({chosen})", f"{value:.6g}{spread}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="paceline evaluate", description=__doc__, allow_abbrev=False)
    parser.add_argument("models", nargs="+", help="runs, checkpoints or Hugging Face folders")
    parser.add_argument("--tasks", required=True, metavar="A,B", help="names, or YAML files of your own")
    parser.add_argument("--checkpoints", default="result", help="which of a run")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--limit", type=int, help="only so many rows of a task")
    parser.add_argument("--dtype", default="float32", help=", ".join(DTYPES))
    parser.add_argument("--json", action="store_true")
    return parser


if __name__ == "__main__":
    sys.exit(main())
