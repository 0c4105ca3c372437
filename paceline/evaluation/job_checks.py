"""Find every error of a job at once, before a model or a row is read."""

from __future__ import annotations

from collections.abc import Callable
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

Check = Callable[[], object]
DTYPES = ("float32", "bfloat16", "float16")


def checked(job: EvaluationJob, notes: list[Diagnostic]) -> list[NamedModel]:
    """Return the models of a job. Raises PacelineError with all its problems."""
    checks: list[Check] = [
        partial(check_metrics, job.metrics, job.samples),
        partial(check_dtype, job.dtype),
        partial(_check_options, job),
        *(partial(check_model, Path(model)) for model in (*job.models, *([job.judge] if job.judge else []))),
        partial(judge_prompt, job),
        partial(_check_overrides, job, None),
        partial(find_sets, "--data", (Dataset.model_validate(job.data),)),
    ]
    problems = [error for check in checks if (error := _problem(check)) is not None]
    if problems:
        every = {finding.render(): finding for error in problems for finding in error.diagnostics}
        joint = ConfigError(*every.values())  # each finding once, with the first error's exit code
        joint.exit_code = problems[0].exit_code
        raise joint
    models = named_models(job, notes)
    _check_overrides(job, models[0])
    return models


def _problem(check: Check) -> PacelineError | None:
    try:
        check()
    except PacelineError as error:
        return error
    return None


def check_dtype(dtype: str) -> None:
    """Raise ConfigError for an unsupported dtype."""
    if dtype not in DTYPES:
        message = "there is no such dtype here"
        raise ConfigError(codes.EVALUATION_JOB(message, "--dtype", dtype, ", ".join(DTYPES)))


def sharing_problems(strategy: str, nproc: int | None) -> list[Diagnostic]:
    """Return what is wrong with sharing a model among ``nproc`` processes by ``strategy``."""
    if strategy not in (COPIES, *SHARED):
        message = "there is no such way to share a model here"
        return [codes.EVALUATION_JOB(message, "--strategy", strategy, ", ".join((COPIES, *SHARED)))]
    if strategy in SHARED and number_of_ranks(nproc) == 1:
        message = "a model is shared among several processes, but there is one"
        return [codes.EVALUATION_JOB(message, "--strategy", strategy, "--nproc 2")]
    return []


def _check_options(job: EvaluationJob) -> None:
    problems = sharing_problems(job.strategy, job.nproc)
    if not problems and job.strategy in SHARED and job.dtype == "float16":
        message = "a model that is shared computes in float32 or bfloat16"
        problems.append(codes.EVALUATION_JOB(message, "--dtype", job.dtype, "--dtype bfloat16"))
    if not (job.losses or job.metrics or job.judge or job.to):
        remedy = "--metrics exact_match, or leave out --no-losses"
        problems.append(codes.EVALUATION_JOB("nothing is to be measured", "--no-losses", hint=remedy))
    if problems:
        raise ConfigError(*problems)


def _check_overrides(job: EvaluationJob, model: NamedModel | None) -> None:
    """Check that the overrides are valid keys with valid values.

    With a model, also check them together with its run's settings.
    """
    some = model or NamedModel(job.models[0], Path(job.models[0]), None, None)
    config = config_of(some, some.path, job)
    if model is not None and job.samples > 1 and config.generation.temperature == 0:
        raise ConfigError(
            codes.EVALUATION_JOB(
                "several answers a row are all the same at temperature 0",
                "--samples",
                str(job.samples),
                "generation.temperature=0.8, or --samples 1",
            )
        )
