"""``AlgorithmSpec``: what an algorithm reads, trains and asks; every question about one is asked here, none of its name."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from paceline.config.sections.rollout import RolloutOptions
from paceline.config.sections.training import TrainingSection
from paceline.config.sections.types import Section
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.core.registry import load_attr
from paceline.core.tables import ALGORITHMS, ROW_KINDS
from paceline.plan import codes
from paceline.plan.job_to_check import JobToCheck
from paceline.plan.parts import AdapterSpec, OtherModel
from paceline.plan.plan import Decision, Plan

Training = TrainingSection
Adapter = AdapterSpec | None
NO_MODELS: tuple[str, dict[str, OtherModel], tuple[Decision, ...]] = ("", {}, ())


class Rows(Protocol):
    """What a plan asks of a kind of row (``data.kinds``)."""

    words: str
    group: int
    answered: bool


@dataclass(frozen=True)
class AlgorithmSpec:
    """``rows``: the kind of row that it reads, a name of ``core.tables.ROW_KINDS`` or ``module:KIND``. ``trains``: the role of the model that training
    starts from; ``outputs``: what its forward must give (values of ``protocols.roles.Output``), in training and evaluation.

    ``whole_answers``: its loss is of answers, not a sum over tokens that stand by themselves. ``named``: role → the key of its options that names the role's model. ``evaluated``: names of an evaluation's numbers (empty: those of its rewards).
    ``frozen_beside``, ``trained_beside``: models beside the first that a layout is predicted with; ``further_forwards``: over all rows of a step, beside each
    model's own one. ``value_model``: another one, trained beside, scores tokens. ``group_relative``: answers to one prompt are compared with each other (``group_option``: where this key of its options is on);
    ``num_generations``: how many there are where nothing is said. ``kl``, ``passes``: keys of its options for the weight that holds the policy to its
    reference, and for the passes over a rollout. ``beside``: options that the run goes by, not the class. ``lends_head``: frozen roles whose head every rank
    keeps whole; ``same_tokens``: those whose tokenizer must be the policy's. Of a user's own, named as ``module:SPEC``: ``implementation`` is its class, as ``module:Class``, and
    ``options`` its options with their defaults, which say their types; they stand under ``training.algorithm_options``.
    """

    name: str = ""
    rows: str = "documents"
    trains: str = "policy"
    outputs: tuple[str, ...] = ("nll", "correct")
    whole_answers: bool = False
    named: Mapping[str, str] = field(default_factory=dict)
    evaluated: tuple[str, ...] = ()
    frozen_beside: int = 0
    trained_beside: int = 0
    further_forwards: int = 0
    value_model: bool = False
    group_relative: bool = False
    group_option: str = ""
    num_generations: int = 1
    kl: str = ""
    passes: str = ""
    beside: tuple[str, ...] = ()
    lends_head: tuple[str, ...] = ()
    same_tokens: tuple[str, ...] = ()
    implementation: str = ""
    options: Mapping[str, object] = field(default_factory=dict)

    @property
    def row_kind(self) -> Rows:
        """What it reads. Raises ConfigError for a kind that there is not."""
        kind: Rows = load_attr(ROW_KINDS.get(self.rows, self.rows))
        return kind

    @property
    def scores_answers(self) -> bool:
        """Whether answers are scored as wholes, so that each lies on one rank: ``whole_answers``, and wherever those of a row are compared."""
        return self.whole_answers or self.row_kind.group > 1

    @property
    def on_policy(self) -> bool:
        """Whether rows are prompts that the model answers itself in training."""
        return self.row_kind.answered

    @property
    def measured(self) -> bool:
        """Whether prepared data tells how long an epoch is: each row is one document, written already."""
        return self.row_kind.group == 1 and not self.on_policy

    @property
    def scalar_head(self) -> bool:
        """Whether the trained model scores whole documents, with a head of a few numbers in place of the vocabulary's."""
        return bool({"scores", "classes"} & set(self.outputs))

    @property
    def sums_tokens(self) -> bool:
        """Whether the loss of a document is a sum that the head makes over its tokens, so that ranks may hold pieces of it."""
        return "nll" in self.outputs

    @property
    def documents_a_row(self) -> int:
        """How many documents lie in a row side by side before packing."""
        return self.row_kind.group

    @property
    def own(self) -> bool:
        """Whether it is a user's own."""
        return ":" in self.name

    @property
    def key(self) -> str:
        """Where its options stand in the config."""
        return f"training.{'algorithm_options' if self.own else self.name}"

    def options_of(self, training: Training) -> Mapping[str, Any]:
        """Every option, with its default where nothing is said: those of its section, of a user's own those of ``options``."""
        if self.own:
            return {**self.options, **training.algorithm_options}
        section = ALGORITHMS.section(self.name)
        if section is None:
            return {}
        given: Section | None = getattr(training, self.name)
        return (given or section()).model_dump(mode="json")

    def arguments(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Of its options those that its class is made with: not the names of models, nor what the run goes by."""
        return {k: v for k, v in options.items() if k not in (*self.named.values(), *self.beside)}

    def uses_group_baseline(self, training: Training) -> bool:
        """Whether an answer is as good as it is better than the others to its prompt."""
        return self.group_relative or bool(self.group_option and self.options_of(training)[self.group_option])

    def group_size(self, training: Training) -> int:
        """Answers to each prompt."""
        return (training.rollout or RolloutOptions()).num_generations or self.num_generations

    def num_passes(self, training: Training) -> int:
        """Passes over the rows of a rollout."""
        return int(self.options_of(training)[self.passes]) if self.passes else 1

    def head_outputs(self, training: Training) -> int:
        """Numbers that a head in the vocabulary's place gives a document, as far as the config says."""
        return 1

    def model_named(self, training: Training, role: str) -> str | None:
        """The folder or hub name of a role's own weights; None where it starts from those that training starts from."""
        name = self.options_of(training).get(self.named.get(role, ""))
        return None if name is None else str(name)

    def check_plan(self, plan: Plan) -> Iterable[Diagnostic]:
        """What is wrong with the models of an assembled ``plan``, and what there is to warn of."""
        return ()

    def model_key(self, role: str) -> str:
        """The key of the config that names a role's own weights."""
        return f"{self.key}.{self.named[role]}"

    def models(self, training: Training, adapter: Adapter) -> tuple[str, dict[str, OtherModel], tuple[Decision, ...]]:
        """(``Plan.reference``: where log-probabilities of the reference come from, ``Plan.models`` without their shapes, what there is to say)."""
        return NO_MODELS

    def named_roles(self) -> tuple[str, ...]:
        """The roles beside the trained model's for which another model can be named."""
        return tuple(self.named)

    def check(self, job: JobToCheck) -> Iterable[Diagnostic]:
        """What this algorithm cannot be combined with, and options of it that do nothing: findings of the one pass of rules, made by ``job.problem``."""
        return ()


def live_reference(
    spec: AlgorithmSpec, training: Training, adapter: Adapter, more: str = ""
) -> tuple[str, dict[str, OtherModel], tuple[Decision, ...]]:
    """What ``AlgorithmSpec.models`` answers of a reference that is asked in every step; ``more`` is said of one that lies beside the policy."""
    model = spec.model_named(training, "reference")
    if switched_off(adapter, model):
        why = "the policy itself with its adapter switched off: no second model"
        return "adapter", {}, (Decision("reference", "adapter off", why),)
    named = f"{spec.key}.ref_model: {model}" if model else "the model that training starts from"
    why = f"{named}, frozen beside the policy{more}"
    return "live", {"reference": OtherModel(False, model)}, (Decision("reference", "live", why),)


def algorithm_spec(name: str) -> AlgorithmSpec:
    """The spec of an algorithm by name; of a user's own by ``module:SPEC``.

    Raises ConfigError for an unknown one, and for a module that cannot be imported, holds no such spec, or imports torch.
    """
    if ":" in name:
        return _own_spec(name)
    found: AlgorithmSpec = ALGORITHMS.spec(name)
    return found


def _own_spec(name: str) -> AlgorithmSpec:
    had_torch, where = "torch" in sys.modules, "training.algorithm"
    try:
        found = load_attr(name)
    except ConfigError as error:
        raise ConfigError(*(replace(d, where=where) for d in error.diagnostics)) from error
    if not isinstance(found, AlgorithmSpec):
        hint = "SPEC = AlgorithmSpec(implementation='my_module:MyAlgorithm'), of paceline.plan.algorithms.base"
        raise ConfigError(codes.ALGORITHM_NO_SPEC(f"'{name}' is no AlgorithmSpec", where, repr(found)[:99], hint))
    module = name.partition(":")[0]
    if "torch" in sys.modules and not had_torch:
        what = f"'{module}' imports torch, and a plan is made without it"
        hint = f"the class in a module of its own, and in {module}: implementation='other_module:Class'"
        raise ConfigError(codes.ALGORITHM_SPEC_TORCH(what, where, name, hint))
    return replace(found, name=name)


def algorithm_specs() -> tuple[AlgorithmSpec, ...]:
    """All built-in ones, in the order of the table."""
    return tuple(algorithm_spec(name) for name in ALGORITHMS.names())


def switched_off(adapter: Adapter, named: object) -> bool:
    """Whether the policy with its adapter switched off is the reference: none is ``named``, and the adapter started from nothing."""
    return adapter is not None and not named and not adapter.start and not adapter.modules_to_save
