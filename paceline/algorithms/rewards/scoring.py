"""Score answers: call each reward function, check, weight and sum its values; failures name the sample."""

from __future__ import annotations

import inspect
import math
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from types import FrameType, FunctionType
from typing import SupportsFloat, SupportsIndex

from paceline.algorithms import codes
from paceline.algorithms.rewards.builtin import RowCheck, Sample, without_number
from paceline.config.registries.evaluation_metrics import reward_labels
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import ConfigError, PacelineError
from paceline.core.json_types import Json
from paceline.core.plugins.tables import Registry, is_async
from paceline.rules import codes as rules_codes

_HERE = "paceline.algorithms.rewards"
JUDGE = "judge"  # a model behind a server, asked by HTTP
REWARDS = Registry(
    "reward",
    codes.REWARD_UNKNOWN,
    {
        "exact_match": f"{_HERE}.builtin:exact_match",
        "numeric": f"{_HERE}.builtin:numeric",
        "regex": f"{_HERE}.builtin:regex",
        "format": f"{_HERE}.builtin:tags",
        "length": f"{_HERE}.builtin:length",
        "overlong": f"{_HERE}.builtin:overlong",
        "ended": f"{_HERE}.builtin:ended",
        "math_verify": f"{_HERE}.builtin:math_verify",
        "code": f"{_HERE}.code_reward:CodeReward",
        JUDGE: f"{_HERE}.judge_reward:JudgeReward",
    },
)
MODEL = "model"  # scores of a reward model: a collective forward, made by the caller
_HANGS = 3  # samples that a function may hang on before the rest is skipped

Score = SupportsFloat | SupportsIndex | None  # a number of Python's or numpy's, a tensor; None: not scored
BatchReward = Callable[[Sequence[Sample]], Sequence[Score]]
#: Rows that a reward fails on, which ends the run unless ``on_error`` says otherwise
ENDING = {"numeric": RowCheck(without_number, codes.REWARDS_NO_NUMBER)}


@dataclass(frozen=True)
class RewardSpec:
    """One entry of ``training.rollout.rewards``: built-in name or ``module:function``, weight, options."""

    name: str
    weight: float = 1.0
    options: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True)
class Scored:
    """``total`` [N]: the weighted sum, NaN if skipped; ``parts``: each function's values [N], NaN where it
    gave none.
    """

    total: list[float]
    parts: Mapping[str, list[float]]
    problems: tuple[Diagnostic, ...] = ()


class Scorer:
    """Calls the reward functions of ``specs`` on samples.

    ``on_error`` decides what happens if a function fails (it raises, exceeds ``timeout_seconds``, or returns
    NaN, infinity or no number). ``error`` ends the run with an error that names the function, ``zero`` counts
    as 0, ``skip`` leaves the sample out. A function that returns None does not score that sample and is left
    out of its sum; a sample that no function scores is skipped. ``columns``: the names of columns that any
    row of the data has; a user's function gets them all with every batch.

    Raises ConfigError for an unknown name, wrong options, or a code reward that is not allowed or has no
    sandbox here (unless ``allow_unsandboxed_code``).
    """

    def __init__(
        self,
        specs: Sequence[RewardSpec],
        *,
        on_error: str = "error",
        timeout_seconds: float = 60.0,
        allow_code: bool = False,
        allow_unsandboxed_code: bool = False,
        programs_at_once: int = 1,
    ) -> None:
        self.on_error, self.timeout_seconds = on_error, timeout_seconds
        self.names = [spec.name for spec in specs]
        self.labels = reward_labels(self.names)
        self.weights = [spec.weight for spec in specs]
        self.columns: set[str] = set()
        self.functions = [
            (
                None
                if spec.name == MODEL
                else _function(spec, self.columns, allow_code, (allow_unsandboxed_code, programs_at_once))
            )
            for spec in specs
        ]

    def __call__(self, samples: Sequence[Sample], by_model: Sequence[float] = ()) -> Scored:
        """Return scores in the order of the samples.

        ``by_model`` [N] are the reward model's scores, if one is among ``specs``. Raises PacelineError
        ``rewards.failed`` with ``on_error`` ``error``.
        """
        parts: dict[str, list[float]] = {}
        problems: list[Diagnostic] = []
        left_out = [False] * len(samples)
        for label, function in zip(self.labels, self.functions, strict=True):
            values, failures = (
                _checked(label, by_model, samples)
                if function is None
                else self._call(label, function, samples)
            )
            problems += failures.values()
            for i, failure in failures.items():
                if self.on_error == "error":
                    raise PacelineError(failure)
                values[i] = 0.0 if self.on_error == "zero" else math.nan
                left_out[i] |= self.on_error == "skip"
            parts[label] = values
        total = [
            math.nan if left_out[i] else self._sum([parts[label][i] for label in self.labels])
            for i in range(len(samples))
        ]
        findings = [finding for f in self.functions for finding in getattr(f, "warnings", tuple)()]
        return Scored(total, parts, (*(replace(p, severity=Severity.WARNING) for p in problems), *findings))

    @property
    def calls_own(self) -> bool:
        """Whether a reward is a function of the user's."""
        return any(name not in REWARDS.names() and name != MODEL for name in self.names)

    @property
    def row_checks(self) -> list[RowCheck]:
        """Return the checks with which rewards find unusable rows in advance."""
        own = [check for function in self.functions if (check := getattr(function, "row_check", None))]
        ending = ENDING if self.on_error == "error" else {}
        return [*own, *(check for name in self.names if (check := ending.get(name)))]

    def _sum(self, values: Sequence[float]) -> float:
        judged = [w * v for w, v in zip(self.weights, values, strict=True) if not math.isnan(v)]
        return math.fsum(judged) if judged else math.nan

    def _call(
        self, label: str, function: BatchReward, samples: Sequence[Sample]
    ) -> tuple[list[float], dict[int, Diagnostic]]:
        """Return (values, failures by sample) of one function.

        All samples go into one call; if that fails, one call per sample finds the one that fails.
        """
        if not samples:
            return [], {}
        try:
            with (
                nullcontext() if getattr(function, "has_deadlines", False) else deadline(self.timeout_seconds)
            ):
                scores = list(function(samples))
            if len(scores) == len(samples):
                return _checked(label, scores, samples)
            problem = f"{len(scores)} values for {len(samples)} samples"
        except ConfigError:
            raise
        except Exception as error:  # a user's function may raise anything
            problem = _words(error)
        # The whole call failed: repeat it for each sample, to name those that fail
        if len(samples) == 1:
            return [math.nan], {0: _failure(label, problem, samples[0])}
        values, failures, hangs = [math.nan] * len(samples), {}, 0
        for i, sample in enumerate(samples):
            if hangs >= _HANGS:
                failures[i] = _failure(label, "not called: it did not return for earlier samples", sample)
                continue
            score, failed = self._call(label, function, [sample])
            values[i] = score[0]
            if failed:
                failures[i] = failed[0]
                # the words of ``Overdue``
                hangs += "did not answer within" in failed[0].found
                if self.on_error == "error":
                    break
        if not failures:  # each sample passes alone: the function fails on batches
            failures[0] = _failure(label, f"called with all samples at once: {problem}", samples[0])
        return values, failures


def _function(
    spec: RewardSpec, columns: Collection[str], allow_code: bool, code_runs: tuple[bool, int]
) -> BatchReward:
    """Return the function of a reward, called with a batch of samples (of rows with ``columns``).

    Raises ConfigError.
    """
    if spec.name == "code" and not allow_code:
        raise ConfigError(
            rules_codes.REWARDS_CODE_OFF(
                "this reward runs code written by the model",
                "training.rollout.allow_code_execution",
                "false",
                "set training.rollout.allow_code_execution: true, on a machine where this is acceptable",
            )
        )
    function = REWARDS.load(spec.name)
    if spec.name in REWARDS.names():
        _check_options(spec, function)
        if isinstance(function, type):
            return function(*(code_runs if spec.name == "code" else ()), **spec.options)
        return lambda samples: [function(sample, **spec.options) for sample in samples]
    # A user's function gets batches by keyword, and only what its signature accepts
    accepted = inspect.signature(function).parameters
    takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in accepted.values())

    def call(samples: Sequence[Sample]) -> Sequence[Score]:
        arguments: dict[str, Json] = {**_columns(samples, columns)}
        arguments |= {"prompts": [s.prompt for s in samples], "completions": [s.completion for s in samples]}
        arguments = (
            arguments if takes_all else {name: value for name, value in arguments.items() if name in accepted}
        )
        scores: Sequence[Score] = function(**{**arguments, **spec.options})
        if isinstance(scores, (Mapping, Set)):  # its keys would be taken for rewards
            raise TypeError(f"{type(scores).__name__} in place of a list with a number for each completion")
        return scores

    return call


def check_reward(spec: RewardSpec, columns: Collection[str] | None = None, data: str = "data.train") -> None:
    """Import a user's reward function and check its signature; ``columns`` are those of ``data``, if known.

    Raises ConfigError if it cannot be imported, is not callable, requires other arguments, or lacks an
    option.
    """
    function = REWARDS.load(spec.name)
    where = "training.rollout.rewards"
    if not callable(function):
        hint = (
            "use a function of prompts and completions (and of the rows' columns) that returns one"
            " number each"
        )
        raise ConfigError(
            codes.REWARDS_NOT_A_FUNCTION(
                f"'{spec.name}' is not a function", where, type(function).__name__, hint
            )
        )
    if is_async(function):
        what = f"the reward '{spec.name}' is a coroutine function (async def), and rewards are called plainly"
        hint = (
            f"def {spec.name.rpartition(':')[2]}(…) without async; to wait for many answers at once,"
            " return asyncio.run(…) of them all"
        )
        raise ConfigError(codes.REWARDS_NOT_A_FUNCTION(what, where, "async def", hint))
    try:
        accepted = inspect.signature(function).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return
    # Compare what the function requires and accepts with what a call passes
    plain = {n: p for n, p in accepted.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    available = {"prompts", "completions", *spec.options, *(columns or ())}
    takes_all = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
    unknown = set() if takes_all else set(spec.options) - set(plain)
    needed = {n for n, p in plain.items() if p.default is p.empty}
    by_place = inspect.Parameter.POSITIONAL_ONLY
    missing = sorted(
        n for n in needed if plain[n].kind is by_place or (columns is not None and n not in available)
    )
    if missing or unknown:
        what = f"the reward '{spec.name}' cannot be called with the arguments of a reward"
        problems = ", ".join(
            [*(f"it needs '{n}'" for n in missing), *(f"it has no argument '{n}'" for n in sorted(unknown))]
        )
        hint = f"def {spec.name.rpartition(':')[2]}(prompts, completions, **columns), its options by name"
        if missing and columns:
            problems += f"; columns of {data}: {', '.join(sorted(columns))}"[:200]
            hint += f"; {missing[0]}=None where rows may lack a column"
        raise ConfigError(
            codes.REWARDS_SIGNATURE(what, where, f"{inspect.signature(function)}: {problems}", hint)
        )


def _columns(samples: Sequence[Sample], columns: Collection[str]) -> dict[str, list[Json]]:
    """Return the union of ``columns`` and the rows' own, with None where a row lacks one."""
    names = dict.fromkeys([*(name for s in samples for name in s.columns), *sorted(columns)])
    return {name: [s.columns.get(name) for s in samples] for name in names}


def check_built_in(spec: RewardSpec) -> None:
    """Check name and options of a built-in reward. Raises ConfigError."""
    _check_options(spec, REWARDS.load(spec.name))
    if spec.name == "code":
        from paceline.algorithms.rewards.code_reward import check_limits

        check_limits(**spec.options)
    if spec.name == JUDGE:
        REWARDS.load(spec.name)(**spec.options).close()
    if spec.name == "math_verify":
        from paceline.algorithms.rewards.builtin import check_package

        check_package()


def _check_options(spec: RewardSpec, function: FunctionType | type) -> None:
    options = {
        name: p for name, p in inspect.signature(function).parameters.items() if p.kind is p.KEYWORD_ONLY
    }
    needed = [name for name, p in options.items() if p.default is inspect.Parameter.empty]
    wrong = sorted(set(spec.options) - set(options)) + [n for n in needed if n not in spec.options]
    if wrong:
        hint = f"options: {', '.join(options) or 'none'}" + (
            f" (needed: {', '.join(needed)})" if needed else ""
        )
        what = f"the reward '{spec.name}' has other options"
        raise ConfigError(codes.REWARDS_OPTIONS(what, "training.rollout.rewards", ", ".join(wrong), hint))
    if spec.name == "regex":
        import re

        try:
            re.compile(str(spec.options["pattern"]))
        except re.error as error:
            what = "the pattern is not a valid regular expression"
            raise ConfigError(
                codes.REWARDS_OPTIONS(
                    what, "training.rollout.rewards", str(error), "use the syntax of Python's re module"
                )
            ) from error


def _checked(
    label: str, scores: Sequence[Score], samples: Sequence[Sample]
) -> tuple[list[float], dict[int, Diagnostic]]:
    values, failures = [], {}
    for i, (value, sample) in enumerate(zip(scores, samples, strict=True)):
        number = _number(value)
        values.append(math.nan if number is None else number)
        if value is not None and (number is None or not math.isfinite(number)):
            failures[i] = _failure(label, f"gave {value!r}"[:200], sample)
    return values, failures


def _number(value: Score) -> float | None:
    """Return a number as float; None for anything else."""
    try:
        return float(value) if isinstance(value, (SupportsFloat, SupportsIndex)) else None
    except (TypeError, ValueError, RuntimeError):
        return None


def _words(error: BaseException) -> str:
    return str(error) if isinstance(error, Overdue) else f"{type(error).__name__}: {error}"[:300]


def _failure(label: str, problem: str, sample: Sample) -> Diagnostic:
    return codes.REWARDS_FAILED(
        f"prompt {sample.prompt[-120:]!r}",
        problem,
        label=label,
        evidence={"prompt": sample.prompt[-2000:], "completion": sample.completion[:2000], "reward": label},
    )


class Overdue(Exception):
    """The time limit is exceeded."""


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise Overdue inside the block after ``seconds``: in Python code, waits and regular expressions, but
    not inside a library's own C loops.

    Uses SIGALRM, so that endless loops are interrupted too; outside the main thread there is no limit.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise Overdue(f"did not answer within {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
