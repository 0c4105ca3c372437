"""Checks of a config that need imports.

``python -m paceline.training.preflight.trial JOB ANSWER`` runs them in a child process; both are JSON files.
The checks of ``inputs`` come first. The child rewrites ANSWER after each part, with the name of the next.
The parent stops the child at a time limit and reads what ANSWER holds by then.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NotRequired, TypedDict

from paceline.config.schema import Config
from paceline.config.sections.training_steps import SKIP
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import PacelineError
from paceline.core.json_types import Json, JsonObject
from paceline.data.images.decide import images_in_rows
from paceline.data.preflight.check_sets import imported_sets, look_at_sets
from paceline.launch.environment.guide_variables import current
from paceline.launch.program import program
from paceline.plan.algorithms.spec import algorithm_spec
from paceline.plan.model.read_config import model_config
from paceline.plan.needs_trial import (
    ALGORITHM,
    CALLBACKS,
    COMPILE,
    DATASETS,
    EXPORTERS,
    METRICS,
    MODEL,
    REWARDS,
    STRATEGY,
    TOKENIZER,
    TRACKERS,
)
from paceline.plan.plan import Plan
from paceline.training import codes
from paceline.training.preflight.inputs import check_inputs, check_named_files, reading_of
from paceline.training.preflight.tokenizer import open_questions


class TrialRequest(TypedDict):
    """The parent's request (``launch.preflight.child_checks``). With ``doubt`` (config keys) only checks that
    do not depend on them. With ``rows`` only whether the first rows have images; true: imports are tried."""

    config: JsonObject
    plan: JsonObject | None
    doubt: list[str] | None
    tries: list[str]
    open: NotRequired[bool]
    rows: NotRequired[bool]
    imports: NotRequired[bool]


@program
def main(job: str, answer: str) -> int:
    """Write what was found, for ``JOB``, to ``ANSWER``. Return the exit code."""
    for reply in answers(json.loads(Path(job).read_text(encoding="utf-8"))):
        _write(Path(answer), reply)
    return 0


def answers(request: TrialRequest) -> Iterator[JsonObject]:
    """Yield everything known so far, after the checks without imports and after each trial."""
    config = Config.from_json(request["config"])
    if (imports := request.get("rows")) is not None:
        yield {"images": images_in_rows(config.data, imports=imports)}
        return
    plan = None if request["plan"] is None else Plan.from_json(request["plan"])
    if request["doubt"] is not None:
        yield {"looked": [d.to_json() for d in check_named_files(config, frozenset(request["doubt"]))]}
        return
    # Checks without imports come first, so that they are known even if a trial hangs
    looked = check_inputs(config, current(), plan)
    tried: list[Json] = []
    questions: JsonObject = {}
    reply: JsonObject = {
        "looked": [d.to_json() for d in looked.found],
        "tried": tried,
        "asked": questions,
        "under_way": "",
        "template": None if looked.template is None else list(looked.template),
        "pictures": None if looked.pictures is None else list(looked.pictures),
    }
    reply["imported"] = [name for name in ("torch", "transformers") if name in sys.modules]
    yield reply
    formats = looked.formats
    if request["open"] and (folders := imported_sets(config.data)):
        questions[DATASETS] = ", ".join(folders)
        if request["imports"]:
            yield {**reply, "under_way": DATASETS}
            more, findings = look_at_sets(config.data, reading_of(config), imports=True)
            tried.append({"name": DATASETS, "found": [d.to_json() for d in findings]})
            formats |= more
    if request["open"]:
        questions |= open_questions(config, plan, formats)
    # One answer before each trial names it, for the parent's time limit
    names = dict.fromkeys([*request["tries"], *questions]) if request["imports"] else ()
    for name in names:
        if name == DATASETS:
            continue
        yield {**reply, "under_way": name}
        tried.append({"name": name, "found": [d.to_json() for d in try_part(name, config, plan, formats)]})
    yield reply


def _write(answer: Path, reply: JsonObject) -> None:
    staged = answer.with_suffix(".part")
    staged.write_text(json.dumps(reply), encoding="utf-8")
    # the parent reads at any time, and must never see half an answer
    os.replace(staged, answer)


def try_part(
    name: str, config: Config, plan: Plan | None, formats: frozenset[str] = frozenset()
) -> list[Diagnostic]:
    """Return the diagnostics of one trial. Any other exception is one too, since every rank will run the same
    code.
    """
    tries: dict[str, Callable[[Config, Plan | None], Iterable[Diagnostic]]] = {
        REWARDS: _rewards,
        STRATEGY: _strategy,
        ALGORITHM: _algorithm,
        CALLBACKS: _callbacks,
        TRACKERS: _trackers,
        METRICS: _metrics,
        EXPORTERS: _exporters,
        COMPILE: _compile,
        MODEL: _model,
        TOKENIZER: lambda config, plan: _tokenizer(config, plan, formats),
    }
    try:
        return list(tries[name](config, plan))
    except PacelineError as error:
        return [replace(finding, where=finding.where or _KEYS[name]) for finding in error.diagnostics]
    except (Exception, SystemExit) as error:  # a library's own error, without a code
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        text = f"{type(error).__name__}: {lines[0] if lines else ''}"[:400]
        return [codes.TRIAL_FAILED(_KEYS[name], text, name=name)]


_KEYS = {
    REWARDS: "training.rollout.rewards",
    STRATEGY: "training.distributed_strategy",
    ALGORITHM: "training.algorithm",
    CALLBACKS: "training.callbacks",
    TRACKERS: "training.report_to",
    METRICS: "training.eval_metrics",
    EXPORTERS: "training.exporters",
    COMPILE: "training.torch_compile_backend",
    MODEL: "model.name_or_path",
    TOKENIZER: "model.tokenizer",
    DATASETS: "data.train",
}


def _rewards(config: Config, plan: Plan | None) -> Iterator[Diagnostic]:
    from paceline.algorithms.rewards.scoring import RewardSpec, check_reward
    from paceline.data.preflight.check_sets import columns_of

    rollout = config.training.rollout
    assert rollout is not None
    columns: dict[str, frozenset[str] | None] = {}
    for key in ("data.train", "data.eval"):
        with suppress(PacelineError):  # already reported by ``check_inputs``
            columns[key] = columns_of(config.data, key)
    for reward in rollout.rewards:
        if ":" in reward.name:
            spec = RewardSpec(reward.name, reward.weight, dict(reward.options))
            try:
                check_reward(spec)
                for key, names in columns.items():
                    check_reward(spec, names, key)
            except PacelineError as error:
                yield from (replace(finding, where=_KEYS[REWARDS]) for finding in error.diagnostics)


def _strategy(config: Config, plan: Plan | None) -> Iterator[Diagnostic]:
    from paceline.strategies.registry import check_skips, strategy_class

    cls = strategy_class(config.training.distributed_strategy)
    if config.training.on_spike == SKIP:
        check_skips(cls)
    yield from ()


def _algorithm(config: Config, plan: Plan | None) -> Iterator[Diagnostic]:
    """Load the user's own algorithm; one that is not on-policy is also built with its options."""
    from paceline.algorithms.algorithm import algorithm_class

    spec = algorithm_spec(config.training.algorithm)
    cls = algorithm_class(spec.name)
    if not spec.on_policy:
        # others are refused already
        options = {name: v for name, v in spec.options_of(config.training).items() if name in spec.options}
        cls(**spec.arguments(options))
    yield from ()


def _callbacks(config: Config, plan: Plan | None) -> Iterator[Diagnostic]:
    from paceline.training.reporting.callbacks import UserCallback, check_callback

    for callback in config.training.callbacks:
        try:
            check_callback(UserCallback(callback.name, dict(callback.options)))
        except PacelineError as error:
            yield from (replace(finding, where=_KEYS[CALLBACKS]) for finding in error.diagnostics)


def _trackers(config: Config, plan: Plan | None) -> Iterator[Diagnostic]:
    from paceline.training.reporting.trackers import own_tracker

    for name in config.training.report_to:
        if ":" in name:
            own_tracker(name)
    yield from ()


def _metrics(config: Config, plan: Plan | None) -> Iterator[Diagnostic]:
    from paceline.evaluation.scores.metrics import own_metric

    for name in config.training.eval_metrics:
        if ":" in name:
            try:
                own_metric(name)
            except PacelineError as error:
                yield from (replace(finding, where=_KEYS[METRICS]) for finding in error.diagnostics)


def _exporters(config: Config, plan: Plan | None) -> Iterator[Diagnostic]:
    from paceline.checkpoint.export.exporters import own_exporter

    for name in config.training.exporters:
        if ":" in name:
            own_exporter(name, _KEYS[EXPORTERS])
    yield from ()


def _compile(config: Config, plan: Plan | None) -> Iterator[Diagnostic]:
    from torch._dynamo import list_backends
    from torch._inductor import list_mode_options

    t = config.training
    backends = [
        name for name in list_backends(exclude_tags=()) if "TESTING" not in name and "minifier" not in name
    ]
    modes = list(list_mode_options())
    if t.torch_compile_backend not in (None, *backends):
        yield codes.TRAIN_COMPILE_BACKEND(
            "training.torch_compile_backend", str(t.torch_compile_backend), backends=", ".join(backends)
        )
    if t.torch_compile_mode not in (None, "default", *modes):
        yield codes.TRAIN_COMPILE_MODE(
            "training.torch_compile_mode", str(t.torch_compile_mode), modes=", ".join(modes)
        )


def _tokenizer(config: Config, plan: Plan | None, formats: frozenset[str]) -> Iterator[Diagnostic]:
    from paceline.training.preflight.tokenizer import try_tokenizer

    yield from try_tokenizer(config, plan, formats)


def _model(config: Config, plan: Plan | None) -> Iterator[Diagnostic]:
    assert plan is not None
    try:
        model_config(config.model, current())
    except PacelineError as error:
        first = error.diagnostics[0]
        yield codes.TRIAL_NOT_HERE(first.where, first.found, detail=first.what, hint=first.hint)
        return
    from paceline.training.preflight.trial_model import try_model

    yield from try_model(config, plan)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], sys.argv[2]))
