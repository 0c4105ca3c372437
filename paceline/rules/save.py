"""Rules for evaluation, the answers it generates, saving, resuming and trackers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from paceline.config.registries.evaluation_metrics import ANSWER_METRICS, METRIC_GROUPS, SEVERAL_ANSWERS
from paceline.config.registries.object_store_url import is_url, parse_url
from paceline.config.registries.trackers import TRACKERS, names_of
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.units import human_bytes
from paceline.plan.packages import missing_object_store
from paceline.rules import codes
from paceline.rules.parallel import WHOLE, in_words, places, sharding_axes, sharding_keys, whole_again
from paceline.rules.rule import Context, Rule


def _evaluated(c: Context, every: str = "steps") -> str:
    """Return the lines that turn evaluation on, with held-out rows if the config names none."""
    rows = "" if _has_eval_rows(c) else " with data.validation_split: 0.05 (or data.eval: PATH)"
    return f"eval_strategy: {every}{rows}"


def _has_eval_rows(c: Context) -> bool:
    return bool(c.config.data.eval or c.config.data.validation_split)


def best_strategy(c: Context) -> Iterator[Diagnostic]:
    """save.best_strategy"""
    t = c.training
    if not t.load_best_model_at_end:
        return
    if t.save_strategy != "best" and t.eval_strategy != t.save_strategy:
        every = t.save_strategy if t.save_strategy != "no" else "steps"
        yield c.problem(
            codes.SAVE_BEST_STRATEGY,
            "load_best_model_at_end needs a checkpoint at every evaluation",
            "training.load_best_model_at_end",
            "training.eval_strategy",
            "training.save_strategy",
            hint=f"set {_evaluated(c, every)} and save_strategy: {every} or best",
        )
    elif t.save_strategy == t.eval_strategy == "steps":
        yield from _best_steps(c)
    elif t.eval_strategy == "no":
        yield c.problem(
            codes.SAVE_BEST_STRATEGY,
            "the best model is chosen by evaluation, but there is no evaluation",
            "training.load_best_model_at_end",
            "training.eval_strategy",
            hint=_evaluated(c),
        )


def _best_steps(c: Context) -> Iterator[Diagnostic]:
    every = c.training.logging_steps if c.training.eval_steps is None else c.training.eval_steps
    multiple = every
    if every <= 0 or (every < 1) != (c.training.save_steps < 1):
        uneven = every > 0
    else:
        ratio = c.training.save_steps / every
        uneven = abs(ratio - round(ratio)) > 1e-9 or round(ratio) < 1
        multiple = every * max(1, round(ratio))  # what the user evaluates stays
    if uneven:
        yield c.at(
            codes.SAVE_BEST_STEPS(
                found=f"save_steps: {c.training.save_steps:g}, eval_steps: {every:g}"
                + ("" if c.training.eval_steps is not None else " (from logging_steps)"),
                multiple=multiple,
            ),
            "training.save_steps",
            "training.eval_steps",
        )


def best_needs_eval(c: Context) -> Iterator[Diagnostic]:
    """save.best_needs_eval, eval.early_stopping"""
    t = c.training
    yield from c.each(
        (
            t.save_strategy == "best" and t.eval_strategy == "no",
            partial(codes.SAVE_BEST_NEEDS_EVAL, hint=_evaluated(c)),
            ("training.save_strategy", "training.eval_strategy"),
        ),
        (
            t.early_stopping_patience is not None and t.eval_strategy == "no",
            partial(codes.EVAL_EARLY_STOPPING, hint=_evaluated(c)),
            ("training.early_stopping_patience", "training.eval_strategy"),
        ),
    )


#: what turns an interval off, as 0 does in other programs
_OFF = {
    "save_steps": "; save_strategy: no saves nothing",
    "eval_steps": "; eval_strategy: no evaluates nothing",
    "logging_steps": "; more than all steps logs the last step only",
}


def intervals(c: Context) -> Iterator[Diagnostic]:
    """save.steps_fraction, eval.steps"""
    for name, code, active in (
        ("save_steps", codes.SAVE_STEPS_FRACTION, c.training.save_strategy == "steps"),
        ("eval_steps", codes.EVAL_STEPS, c.training.eval_strategy == "steps"),
        ("logging_steps", codes.TRAIN_LOGGING_STEPS, True),
    ):
        value = getattr(c.training, name)
        if value is None or not active:
            continue
        if value <= 0:
            yield c.problem(
                code,
                f"{name} must be above 0",
                f"training.{name}",
                hint=f"{name}: 100, or a fraction of all steps below 1{_OFF.get(name, '')}",
            )
        elif value > 1 and value != int(value):
            yield c.problem(
                code,
                f"{name} of 1 or more must be a whole number of steps",
                f"training.{name}",
                hint=f"{name}: {int(value)}, or a fraction below 1",
            )
    if c.training.save_total_limit is not None and c.training.save_total_limit < 1:
        yield c.at(codes.SAVE_TOTAL_LIMIT(), "training.save_total_limit")
    if c.training.save_keep_every is not None and (
        c.training.save_keep_every < 1 or c.training.save_total_limit is None
    ):
        few = c.training.save_keep_every < 1
        yield c.problem(
            codes.SAVE_KEEP_EVERY,
            "save_keep_every is a number of steps" if few else "without save_total_limit all are kept anyway",
            "training.save_keep_every",
            hint="set save_keep_every: 1000, or remove it"
            if few
            else "set save_total_limit, or remove save_keep_every",
        )


def eval_dataset(c: Context) -> Iterator[Diagnostic]:
    """eval.dataset"""
    if (
        c.starting
        and (c.training.eval_strategy != "no" or c.training.eval_on_start)
        and not _has_eval_rows(c)
    ):
        requested = "training.eval_strategy" if c.training.eval_strategy != "no" else "training.eval_on_start"
        yield c.at(codes.EVAL_DATASET(), requested)


def resume(c: Context) -> Iterator[Diagnostic]:
    """resume.no_checkpoint, resume.only_incomplete, resume.overwrite"""
    several = (c.facts.num_nodes or 1) > 1  # the others may have what this one lacks: the ranks look on all
    if (
        c.training.resume_from_checkpoint is not None
        and c.training.overwrite_output_dir
        and c.training.resume_from_checkpoint in ("latest", "auto")
    ):
        yield c.at(
            codes.RESUME_OVERWRITE(), "training.resume_from_checkpoint", "training.overwrite_output_dir"
        )
    if (
        c.training.resume_from_checkpoint in ("latest", "auto")
        and c.facts.incomplete_checkpoints
        and c.facts.complete_checkpoints == 0
        and not several
    ):
        yield c.problem(
            codes.RESUME_ONLY_INCOMPLETE,
            f"the run directory contains {c.facts.incomplete_checkpoints} checkpoints, but none is complete",
            "training.resume_from_checkpoint",
            hint="set resume_from_checkpoint to the PATH of a complete one, or overwrite_output_dir:"
            " true without resume_from_checkpoint to start from step 0",
        )
    elif (
        c.training.resume_from_checkpoint == "latest"
        and c.facts.complete_checkpoints == 0
        and not (several or c.training.checkpoint_url)
    ):
        yield c.problem(
            codes.RESUME_NO_CHECKPOINT,
            "there is no checkpoint to resume from",
            "training.resume_from_checkpoint",
            hint="set resume_from_checkpoint: auto (resume if there is a checkpoint), or the path of a"
            " checkpoint",
        )


def disk(c: Context) -> Iterator[Diagnostic]:
    """save.disk"""
    if (
        c.facts.checkpoint_bytes is not None
        and c.facts.disk_free_bytes is not None
        and c.training.save_strategy != "no"
    ):
        need = ((c.training.save_total_limit or 1) + 1) * c.facts.checkpoint_bytes
        if need > c.facts.disk_free_bytes:
            yield c.at(
                codes.SAVE_DISK(need=human_bytes(need), disk_free_bytes=human_bytes(c.facts.disk_free_bytes)),
                "training.save_total_limit",
            )


def trackers(c: Context) -> Iterator[Diagnostic]:
    """train.report_to"""
    for name in names_of(c.training.report_to):
        if name not in TRACKERS and ":" not in name:
            yield c.at(codes.TRAIN_REPORT_TO(name=name, trackers=", ".join(TRACKERS)), "training.report_to")


def profile(c: Context) -> Iterator[Diagnostic]:
    """train.profile"""
    settings, world = c.training.profile, c.facts.world_size
    if settings is None:
        return
    if min(settings.steps) < 1:
        yield c.problem(
            codes.TRAIN_PROFILE,
            "steps are counted from 1",
            "training.profile.steps",
            hint="profile: {steps: [10-12]}",
        )
    if world is not None and settings.ranks and max(settings.ranks) >= world:
        yield c.problem(
            codes.TRAIN_PROFILE,
            f"there is no rank {max(settings.ranks)}: this run has {world}",
            "training.profile.ranks",
            hint="ranks: all, or numbers from 0",
        )


def callbacks(c: Context) -> Iterator[Diagnostic]:
    """train.callback"""
    for callback in c.training.callbacks:
        if ":" not in callback.name:
            yield c.at(codes.TRAIN_CALLBACK(name=callback.name), "training.callbacks")


def folders(c: Context) -> Iterator[Diagnostic]:
    """run.remote_folder, run.name_leaves_outputs"""
    written = {
        "training.output_dir": c.training.output_dir,
        "training.experiment_name": c.training.experiment_name,
        "data.cache_dir": c.config.data.cache_dir,
        "training.resume_from_checkpoint": None
        if is_url(c.training.resume_from_checkpoint)
        else c.training.resume_from_checkpoint,
    }
    for key, value in written.items():
        if value and re.match(r"[A-Za-z][\w+.-]*:/", value):
            yield c.at(codes.RUN_REMOTE_FOLDER(key=key.rpartition(".")[2]), key)
    name = c.training.experiment_name or ""
    if not c.training.output_dir and (name.startswith("/") or ".." in name.split("/")):
        yield c.at(codes.RUN_NAME_LEAVES_OUTPUTS(), "training.experiment_name")


def object_storage(c: Context) -> Iterator[Diagnostic]:
    """save.checkpoint_url, save.upload_timeout, and whether the package is there"""
    has_url = False
    for key, value in (
        ("training.checkpoint_url", c.training.checkpoint_url),
        ("training.resume_from_checkpoint", c.training.resume_from_checkpoint),
    ):
        if value is None or (key != "training.checkpoint_url" and not is_url(value)):
            continue
        has_url = True
        try:
            if parse_url(value).step is not None and key == "training.checkpoint_url":
                raise ValueError("it names one checkpoint: name the folder of the run")
        except ValueError as wrong:
            yield c.problem(
                codes.SAVE_CHECKPOINT_URL,
                f"this URL cannot be used: {wrong}",
                key,
                hint="checkpoint_url: s3://bucket/folder",
            )
    if c.training.upload_timeout is not None and c.training.checkpoint_url is None:
        yield c.at(codes.SAVE_UPLOAD_TIMEOUT(), "training.upload_timeout")
    key = "training.checkpoint_url" if c.training.checkpoint_url else "training.resume_from_checkpoint"
    missing = missing_object_store(key) if has_url and c.starting else None
    if missing is not None:
        yield c.at(missing, key)


_KEY, _METRICS, _ROWS = "training.eval_generate", "training.eval_metrics", "training.eval_generate_rows"


def needs(c: Context) -> Iterator[Diagnostic]:
    """train.eval_generate, strategy.eval_generate"""
    spec = c.algorithm
    if not c.training.eval_generate:
        for key in (_METRICS, _ROWS):
            if c.given(key):
                yield c.problem(
                    codes.TRAIN_EVAL_GENERATE,
                    "evaluations generate no answers, so this has no effect",
                    key,
                    found="eval_generate: false",
                    hint="set eval_generate: true, or remove it",
                    severity=Severity.WARNING,
                )
        return
    if c.training.eval_strategy == "no" and not c.training.eval_on_start:
        yield c.problem(
            codes.TRAIN_EVAL_GENERATE,
            "answers are generated at evaluations, but this run does not evaluate",
            _KEY,
            "training.eval_strategy",
            found="eval_strategy: no",
            hint=_evaluated(c),
        )
    if spec.scalar_head or not spec.row_kind.expected:
        reason = "has no head for words" if spec.scalar_head else f"trains on {spec.row_kind.words}"
        yield c.problem(
            codes.TRAIN_EVAL_GENERATE,
            f"the algorithm {spec.name} {reason}, so there are no answers to compare",
            _KEY,
            "training.algorithm",
            hint="set eval_generate: false",
        )
    wrong = sharding_keys(c, sharding_axes(c, scores=False))
    if wrong:
        remedy = whole_again(wrong, WHOLE, frozenset({"tp"}))
        yield c.at(
            codes.STRATEGY_EVAL_GENERATE(
                in_words=in_words(wrong), hint=f"{remedy}; or measure checkpoints by paceline evaluate"
            ),
            _KEY,
            *places(wrong),
        )


def metrics(c: Context) -> Iterator[Diagnostic]:
    """train.eval_metrics"""
    metric_names = (*ANSWER_METRICS, *METRIC_GROUPS)
    names = c.training.eval_metrics
    if c.training.eval_generate and not names:
        yield c.problem(
            codes.TRAIN_EVAL_METRICS, "no metric is named", _METRICS, hint=f"one of {', '.join(metric_names)}"
        )
    for name in names:
        if SEVERAL_ANSWERS.fullmatch(name):
            yield c.problem(
                codes.TRAIN_EVAL_METRICS,
                f"{name} needs several answers to a row, an evaluation during training writes one",
                _METRICS,
                hint="paceline evaluate RUN --metrics pass@4 --samples 4 measures checkpoints by it",
            )
        elif name not in metric_names and ":" not in name:
            yield c.problem(
                codes.TRAIN_EVAL_METRICS,
                f"there is no metric named '{name}'",
                _METRICS,
                hint=f"{', '.join(metric_names)}, or your own as module:function",
            )


SAVE_RULES: tuple[Rule, ...] = (
    folders,
    object_storage,
    best_strategy,
    best_needs_eval,
    intervals,
    eval_dataset,
    resume,
    disk,
    trackers,
    profile,
    callbacks,
    needs,
    metrics,
)
