"""Everything that can be wrong with a job before a model or a row is read, found at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from paceline.config.sections.data import Dataset
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError, PacelineError
from paceline.data.preflight.find_sets import find_sets
from paceline.evaluation import codes
from paceline.evaluation.model_folders import NamedModel, check_model, config_of, named_models
from paceline.evaluation.processes.job import EvaluationJob
from paceline.evaluation.processes.ranks import number_of_ranks
from paceline.evaluation.processes.work_folder import COPIES, SHARED
from paceline.evaluation.scores.judge import judge_prompt
from paceline.evaluation.scores.metrics import check_metrics

DTYPES = ("float32", "bfloat16", "float16")


def checked(job: EvaluationJob, notes: list[Diagnostic]) -> list[NamedModel]:
    """Return the models of a job. Raises PacelineError with all its problems."""
    problems: list[PacelineError] = []
    checks: list[Callable[[], object]] = [
        partial(check_metrics, job.metrics, job.samples),
        partial(_check_options, job),
        *(partial(check_model, Path(model)) for model in (*job.models, *([job.judge] if job.judge else []))),
        partial(judge_prompt, job),
        partial(_check_overrides, job, None),
        partial(_check_data, job),
    ]
    for check in checks:
        try:
            check()
        except PacelineError as error:
            problems.append(error)
    if problems:
        raise _joint(problems)
    models = named_models(job, notes)
    _check_overrides(job, models[0])
    return models


def _joint(problems: Sequence[PacelineError]) -> PacelineError:
    """Return one error with the diagnostics of all, each once, and the first one's exit code."""
    every = {one.render(): one for problem in problems for one in problem.diagnostics}
    found = ConfigError(*every.values())
    found.exit_code = problems[0].exit_code
    return found


def sharing_problems(strategy: str, nproc: int | None) -> list[Diagnostic]:
    """Return what is wrong with a way to share a model among so many processes."""
    if strategy not in (COPIES, *SHARED):
        what = "there is no such way to share a model here"
        return [codes.EVALUATION_JOB(what, "--strategy", strategy, ", ".join((COPIES, *SHARED)))]
    if strategy in SHARED and number_of_ranks(nproc) == 1:
        what = "a model is shared among several processes, but there is one"
        return [codes.EVALUATION_JOB(what, "--strategy", strategy, "--nproc 2")]
    return []


def _check_options(job: EvaluationJob) -> None:
    found = []
    if job.dtype not in DTYPES:
        found.append(
            codes.EVALUATION_JOB("there is no such dtype here", "--dtype", job.dtype, ", ".join(DTYPES))
        )
    found += sharing_problems(job.strategy, job.nproc)
    if not found and job.strategy in SHARED and job.dtype == "float16":
        what = "a model that is shared computes in float32 or bfloat16"
        found.append(codes.EVALUATION_JOB(what, "--dtype", job.dtype, "--dtype bfloat16"))
    if not (job.losses or job.metrics or job.judge or job.to):
        hint = "--metrics exact_match, or leave out --no-losses"
        found.append(codes.EVALUATION_JOB("nothing is to be measured", "--no-losses", hint=hint))
    if found:
        raise ConfigError(*found)


def _check_data(job: EvaluationJob) -> None:
    find_sets("--data", (Dataset.model_validate(job.data),))


def _check_overrides(job: EvaluationJob, model: NamedModel | None) -> None:
    """Whether the overrides are keys, with values that these have.

    With a model, also what its run's own settings decide.
    """
    some = model or NamedModel(job.models[0], Path(job.models[0]), None, None)
    config = config_of(some, some.path, job)
    if model is not None and job.samples > 1 and config.generation.temperature == 0:
        what = "several answers a row are all the same at temperature 0"
        hint = "generation.temperature=0.8, or --samples 1"
        raise ConfigError(codes.EVALUATION_JOB(what, "--samples", str(job.samples), hint))
