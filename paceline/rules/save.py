"""Rules for evaluation, the answers it generates, saving, resuming and trackers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from paceline.config.registries.evaluation_metrics import ANSWER_METRICS, METRIC_GROUPS, SEVERAL_ANSWERS
from paceline.config.registries.object_store_url import is_url, parse_url
from paceline.config.registries.trackers import TRACKERS, names_of
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.units import human_bytes
from paceline.plan.packages import missing_object_store
from paceline.rules import codes
from paceline.rules.parallel import in_words, places, sharding_axes, sharding_keys
from paceline.rules.rule import Context, Rule


def best_strategy(c: Context) -> Iterator[Diagnostic]:
    """save.best_strategy"""
    t = c.config.training
    if t.load_best_model_at_end and t.save_strategy != "best" and t.eval_strategy != t.save_strategy:
        yield c.problem(
            codes.SAVE_BEST_STRATEGY,
            "load_best_model_at_end needs a checkpoint at every evaluation",
            "training.load_best_model_at_end",
            "training.eval_strategy",
            "training.save_strategy",
            hint=f"set eval_strategy: {t.save_strategy if t.save_strategy != 'no' else 'steps'} and"
            " the same save_strategy, or save_strategy: best",
        )
    elif t.load_best_model_at_end and t.save_strategy == t.eval_strategy == "steps":
        yield from _best_steps(c)
    elif t.load_best_model_at_end and t.eval_strategy == "no":
        yield c.problem(
            codes.SAVE_BEST_STRATEGY,
            "the best model is chosen by evaluation, but there is no evaluation",
            "training.load_best_model_at_end",
            "training.eval_strategy",
            hint="eval_strategy: steps",
        )


def _best_steps(c: Context) -> Iterator[Diagnostic]:
    t = c.config.training
    every = t.logging_steps if t.eval_steps is None else t.eval_steps
    if every <= 0 or (every < 1) != (t.save_steps < 1):
        uneven = every > 0
    else:
        ratio = t.save_steps / every
        uneven = abs(ratio - round(ratio)) > 1e-9 or round(ratio) < 1
    if uneven:
        yield c.at(
            codes.SAVE_BEST_STEPS(
                found=f"save_steps: {t.save_steps:g}, eval_steps: {every:g}"
                + ("" if t.eval_steps is not None else " (from logging_steps)"),
                save_steps=t.save_steps,
            ),
            "training.save_steps",
            "training.eval_steps",
        )


def best_needs_eval(c: Context) -> Iterator[Diagnostic]:
    """save.best_needs_eval, eval.early_stopping"""
    t = c.config.training
    if t.save_strategy == "best" and t.eval_strategy == "no":
        yield c.at(codes.SAVE_BEST_NEEDS_EVAL(), "training.save_strategy", "training.eval_strategy")
    if t.early_stopping_patience is not None and t.eval_strategy == "no":
        yield c.at(codes.EVAL_EARLY_STOPPING(), "training.early_stopping_patience", "training.eval_strategy")


def intervals(c: Context) -> Iterator[Diagnostic]:
    """save.steps_fraction, eval.steps"""
    t = c.config.training
    for name, code, active in (
        ("save_steps", codes.SAVE_STEPS_FRACTION, t.save_strategy == "steps"),
        ("eval_steps", codes.EVAL_STEPS, t.eval_strategy == "steps"),
        ("logging_steps", codes.TRAIN_LOGGING_STEPS, True),
    ):
        value = getattr(t, name)
        if value is None or not active:
            continue
        if value <= 0:
            yield c.problem(
                code,
                f"{name} must be above 0",
                f"training.{name}",
                hint=f"{name}: 100, or a fraction of all steps below 1",
            )
        elif value > 1 and value != int(value):
            yield c.problem(
                code,
                f"{name} of 1 or more must be a whole number of steps",
                f"training.{name}",
                hint=f"{name}: {int(value)}, or a fraction below 1",
            )
    if t.save_total_limit is not None and t.save_total_limit < 1:
        yield c.at(codes.SAVE_TOTAL_LIMIT(), "training.save_total_limit")
    if t.save_keep_every is not None and (t.save_keep_every < 1 or t.save_total_limit is None):
        few = t.save_keep_every < 1
        yield c.problem(
            codes.SAVE_KEEP_EVERY,
            "save_keep_every is a number of steps" if few else "without save_total_limit all are kept anyway",
            "training.save_keep_every",
            hint="set save_keep_every: 1000" if few else "set save_total_limit, or remove save_keep_every",
        )


def eval_dataset(c: Context) -> Iterator[Diagnostic]:
    """eval.dataset"""
    t, d = c.config.training, c.config.data
    if c.starting and (t.eval_strategy != "no" or t.eval_on_start) and not d.eval and not d.validation_split:
        requested = "training.eval_strategy" if t.eval_strategy != "no" else "training.eval_on_start"
        yield c.at(codes.EVAL_DATASET(), requested)


def resume(c: Context) -> Iterator[Diagnostic]:
    """resume.no_checkpoint, resume.only_incomplete, resume.overwrite"""
    t, f = c.config.training, c.facts
    several = (f.num_nodes or 1) > 1  # the others may have what this one lacks: the ranks look on all
    if (
        t.resume_from_checkpoint is not None
        and t.overwrite_output_dir
        and t.resume_from_checkpoint in ("latest", "auto")
    ):
        yield c.at(
            codes.RESUME_OVERWRITE(), "training.resume_from_checkpoint", "training.overwrite_output_dir"
        )
    if (
        t.resume_from_checkpoint in ("latest", "auto")
        and f.incomplete_checkpoints
        and f.complete_checkpoints == 0
        and not several
    ):
        yield c.problem(
            codes.RESUME_ONLY_INCOMPLETE,
            f"the run directory contains {f.incomplete_checkpoints} checkpoints, but none is complete",
            "training.resume_from_checkpoint",
            hint="set resume_from_checkpoint to the PATH of a complete one, or overwrite_output_dir:"
            " true without resume_from_checkpoint to start from step 0",
        )
    elif (
        t.resume_from_checkpoint == "latest"
        and f.complete_checkpoints == 0
        and not (several or t.checkpoint_url)
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
    t, f = c.config.training, c.facts
    if f.checkpoint_bytes is not None and f.disk_free_bytes is not None and t.save_strategy != "no":
        need = ((t.save_total_limit or 1) + 1) * f.checkpoint_bytes
        if need > f.disk_free_bytes:
            yield c.at(
                codes.SAVE_DISK(need=human_bytes(need), disk_free_bytes=human_bytes(f.disk_free_bytes)),
                "training.save_total_limit",
            )


def trackers(c: Context) -> Iterator[Diagnostic]:
    """train.report_to"""
    for name in names_of(c.config.training.report_to):
        if name not in TRACKERS and ":" not in name:
            yield c.at(codes.TRAIN_REPORT_TO(name=name, trackers=", ".join(TRACKERS)), "training.report_to")


def profile(c: Context) -> Iterator[Diagnostic]:
    """train.profile"""
    found, world = c.config.training.profile, c.facts.world_size
    if found is None:
        return
    if min(found.steps) < 1:
        yield c.problem(
            codes.TRAIN_PROFILE,
            "steps are counted from 1",
            "training.profile.steps",
            hint="profile: {steps: [10-12]}",
        )
    if world is not None and found.ranks and max(found.ranks) >= world:
        yield c.problem(
            codes.TRAIN_PROFILE,
            f"there is no rank {max(found.ranks)}: this run has {world}",
            "training.profile.ranks",
            hint="ranks: all, or numbers from 0",
        )


def callbacks(c: Context) -> Iterator[Diagnostic]:
    """train.callback"""
    for one in c.config.training.callbacks:
        if ":" not in one.name:
            yield c.at(codes.TRAIN_CALLBACK(name=one.name), "training.callbacks")


def folders(c: Context) -> Iterator[Diagnostic]:
    """run.remote_folder, run.name_leaves_outputs"""
    t = c.config.training
    written = {
        "training.output_dir": t.output_dir,
        "training.experiment_name": t.experiment_name,
        "data.cache_dir": c.config.data.cache_dir,
        "training.resume_from_checkpoint": None
        if is_url(t.resume_from_checkpoint)
        else t.resume_from_checkpoint,
    }
    for key, value in written.items():
        if value and re.match(r"[A-Za-z][\w+.-]*:/", value):
            yield c.at(codes.RUN_REMOTE_FOLDER(key=key.rpartition(".")[2]), key)
    name = t.experiment_name or ""
    if not t.output_dir and (name.startswith("/") or ".." in name.split("/")):
        yield c.at(codes.RUN_NAME_LEAVES_OUTPUTS(), "training.experiment_name")


def object_storage(c: Context) -> Iterator[Diagnostic]:
    """save.checkpoint_url, save.upload_timeout, and whether the package is there"""
    t, named = c.config.training, False
    for key, value in (
        ("training.checkpoint_url", t.checkpoint_url),
        ("training.resume_from_checkpoint", t.resume_from_checkpoint),
    ):
        if value is None or (key != "training.checkpoint_url" and not is_url(value)):
            continue
        named = True
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
    if t.upload_timeout is not None and t.checkpoint_url is None:
        yield c.at(codes.SAVE_UPLOAD_TIMEOUT(), "training.upload_timeout")
    key = "training.checkpoint_url" if t.checkpoint_url else "training.resume_from_checkpoint"
    missing = missing_object_store(key) if named and c.starting else None
    if missing is not None:
        yield c.at(missing, key)


_KEY, _METRICS, _ROWS = "training.eval_generate", "training.eval_metrics", "training.eval_generate_rows"


def needs(c: Context) -> Iterator[Diagnostic]:
    """train.eval_generate, strategy.eval_generate"""
    t, spec = c.config.training, c.algorithm
    if not t.eval_generate:
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
    if t.eval_strategy == "no" and not t.eval_on_start:
        yield c.problem(
            codes.TRAIN_EVAL_GENERATE,
            "answers are generated at evaluations, but this run does not evaluate",
            _KEY,
            "training.eval_strategy",
            found="eval_strategy: no",
            hint="eval_strategy: steps",
        )
    if spec.scalar_head or not spec.row_kind.expected:
        what = "has no head for words" if spec.scalar_head else f"trains on {spec.row_kind.words}"
        yield c.problem(
            codes.TRAIN_EVAL_GENERATE,
            f"the algorithm {spec.name} {what}, so there are no answers to compare",
            _KEY,
            "training.algorithm",
            hint="set eval_generate: false",
        )
    wrong = sharding_keys(c, sharding_axes(c, scores=False))
    if wrong:
        yield c.at(codes.STRATEGY_EVAL_GENERATE(in_words=in_words(wrong)), _KEY, *places(wrong))


def metrics(c: Context) -> Iterator[Diagnostic]:
    """train.eval_metrics"""
    known = (*ANSWER_METRICS, *METRIC_GROUPS)
    names = c.config.training.eval_metrics
    if c.config.training.eval_generate and not names:
        yield c.problem(
            codes.TRAIN_EVAL_METRICS, "no metric is named", _METRICS, hint=f"one of {', '.join(known)}"
        )
    for name in names:
        if SEVERAL_ANSWERS.fullmatch(name):
            yield c.problem(
                codes.TRAIN_EVAL_METRICS,
                f"{name} needs several answers to a row, an evaluation during training writes one",
                _METRICS,
                hint="paceline evaluate RUN --metrics pass@4 --samples 4 measures checkpoints by it",
            )
        elif name not in known and ":" not in name:
            yield c.problem(
                codes.TRAIN_EVAL_METRICS,
                f"there is no metric named '{name}'",
                _METRICS,
                hint=f"{', '.join(known)}, or your own as module:function",
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
