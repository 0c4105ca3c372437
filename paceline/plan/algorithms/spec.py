"""``AlgorithmSpec``: an algorithm's properties. Other code reads these and never compares algorithm names."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from paceline.config.schema import Config
from paceline.config.sections.rollout import RolloutOptions
from paceline.config.sections.training import TrainingSection
from paceline.config.sections.types import Section
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json, JsonObject
from paceline.core.plugins.tables import ALGORITHMS, ROW_KINDS, load_attr
from paceline.plan import codes
from paceline.plan.model.read_config import scoring, shape_of
from paceline.plan.model.shape import ModelShape
from paceline.plan.plan import AdapterSpec, Decision, JobToCheck, OtherModel, Plan, decomposes
from paceline.plan.user_code import guarded

Training = TrainingSection
Adapter = AdapterSpec | None
COUNTED = 3  # a query, its document, and one that does not answer it
NO_MODELS: tuple[str, dict[str, OtherModel], tuple[Decision, ...]] = ("", {}, ())


class Rows(Protocol):
    """The properties of a row kind that a plan reads (``data.rows.kinds``)."""

    words: str
    group: int
    answered: bool
    expected: bool

    def trained_tokens(self, train_on: str) -> str: ...


@dataclass(frozen=True)
class AlgorithmSpec:
    """An algorithm's properties, without torch.

    ``rows``: row kind, a name of ``core.plugins.tables.ROW_KINDS`` or ``module:KIND``. ``trains``: role of
    the model that training starts from. ``outputs``: what its forward must compute (values of
    ``protocols.roles.Output``). ``whole_answers``: the loss is per answer, not a sum over tokens.
    ``disable_dropout``: the default of ``training.disable_dropout``. ``named``: role → option that names the
    role's model. ``evaluated``: names of the evaluation metrics (empty: those of its rewards).
    ``frozen_beside``, ``trained_beside``: number of further models, for predictions; ``further_forwards``:
    forwards over all rows of a step in addition to each model's own. ``value_model``: a value model is
    trained, too. ``group_relative``: answers to one prompt are compared with each other (``group_option``: if
    this option is on); ``num_generations``: default number of answers per prompt. ``kl``, ``passes``: options
    with the KL coefficient and the number of epochs per rollout. ``own_answers``: option with the fraction of
    rows whose answers the model generates itself; ``max_completion_length`` and ``sampling_temperature`` are
    options next to it. ``loaded_by``: class of sentence-transformers that loads an export; ``scores_pairs``:
    it reads a query and a document together. ``beside``: options that the run uses, not the class.
    ``idle_without``: option → (option, value; empty: any) without which it has no effect.
    ``lends_head``: frozen roles whose head every rank keeps whole; ``same_tokens``: roles that need the
    policy's tokenizer. ``reads_images``: its rows may have images.
    For a user-defined spec (``module:SPEC``): ``implementation``: its class, as ``module:Class``;
    ``options``: options with defaults, which set their types; they are given in
    ``training.algorithm_options``.
    """

    name: str = ""
    rows: str = "documents"
    trains: str = "policy"
    outputs: tuple[str, ...] = ("nll", "correct")
    whole_answers: bool = False
    disable_dropout: bool = False
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
    own_answers: str = ""
    loaded_by: str = ""
    scores_pairs: bool = False
    beside: tuple[str, ...] = ()
    idle_without: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    lends_head: tuple[str, ...] = ()
    same_tokens: tuple[str, ...] = ()
    reads_images: bool = True
    implementation: str = ""
    options: Mapping[str, Json] = field(default_factory=dict)

    @property
    def row_kind(self) -> Rows:
        """The row kind. Raises ConfigError for an unknown one."""
        kind: Rows = load_attr(ROW_KINDS.get(self.rows, self.rows))
        return kind

    @property
    def scores_answers(self) -> bool:
        """Whether whole answers are scored or compared, so that each must be on one rank."""
        return self.whole_answers or self.row_kind.group != 1

    @property
    def on_policy(self) -> bool:
        """Whether rows are prompts, to which the model generates answers during training."""
        return self.row_kind.answered

    @property
    def measured(self) -> bool:
        """Whether prepared data determines an epoch's length: each row is one given document."""
        return self.row_kind.group == 1 and not self.on_policy

    @property
    def scalar_head(self) -> bool:
        """Whether the trained model has a small head that scores documents, or none, instead of the
        vocabulary's.
        """
        return bool({"scores", "classes", "hidden"} & set(self.outputs))

    @property
    def encodes(self) -> bool:
        """Whether it needs one output a text and no next token, so that an encoder can be trained."""
        return bool({"classes", "hidden"} & set(self.outputs)) or self.scores_pairs

    @property
    def sums_tokens(self) -> bool:
        """Whether the loss is a sum over tokens, so that ranks may hold parts of a document."""
        return "nll" in self.outputs

    @property
    def documents_a_row(self) -> int:
        """Number of documents in a row before packing; the plan's assumption if rows differ."""
        return self.row_kind.group or COUNTED

    @property
    def own(self) -> bool:
        """Whether it is user-defined."""
        return ":" in self.name

    @property
    def key(self) -> str:
        """Config key of its options."""
        return f"training.{'algorithm_options' if self.own else self.name}"

    def check_documents(
        self, training: Training, columns: Mapping[str, Sequence[float]], texts: Sequence[str] = ()
    ) -> Iterator[Diagnostic]:
        """Yield what the loss cannot read of documents: ``columns`` are numbers of the row kind, by name."""
        return iter(())

    def options_of(self, training: Training) -> Mapping[str, Json]:
        """Return all options with defaults filled in, from its section or (user-defined) ``options``."""
        if self.own:
            return {**self.options, **training.algorithm_options}
        section = ALGORITHMS.section(self.name)
        if section is None:
            return {}
        options: Section | None = getattr(training, self.name)
        return (options or section()).model_dump(mode="json")

    def arguments(self, options: Mapping[str, Json]) -> JsonObject:
        """Return the options its class is constructed with: all but model names and ``beside``."""
        return {k: v for k, v in options.items() if k not in (*self.named.values(), *self.beside)}

    def uses_group_baseline(self, training: Training) -> bool:
        """Whether an answer's advantage is relative to the other answers to its prompt."""
        return self.group_relative or bool(self.group_option and self.options_of(training)[self.group_option])

    def group_size(self, training: Training) -> int:
        """Return the number of answers per prompt."""
        return (training.rollout or RolloutOptions()).num_generations or self.num_generations

    def forwards_of(self, training: Training) -> int:
        """Return ``further_forwards`` under these options."""
        return self.further_forwards

    def own_fraction(self, training: Training) -> float:
        """Return the fraction of rows whose answer the model generates itself in training."""
        if self.own_answers:
            return self._number(training, self.own_answers)
        return 1.0 if self.on_policy else 0.0

    def generation(self, training: Training) -> RolloutOptions | None:
        """Return how the model generates answers in training; None if all answers are the data's."""
        if self.on_policy:
            return training.rollout or RolloutOptions()
        if not self.own_fraction(training):
            return None
        return RolloutOptions(
            max_completion_length=int(self._number(training, "max_completion_length")),
            temperature=self._number(training, "sampling_temperature"),
        )

    def num_passes(self, training: Training) -> int:
        """Return the number of epochs over a rollout."""
        return int(self._number(training, self.passes)) if self.passes else 1

    def _number(self, training: Training, option: str) -> float:
        value = self.options_of(training)[option]
        if not isinstance(value, (int, float)):
            raise TypeError(f"{option} is no number: {value!r}")
        return value

    def head_outputs(self, training: Training) -> int:
        """Return the outputs of a scalar head per document, as far as the config says."""
        return 1

    def with_head(self, shape: ModelShape, training: Training) -> ModelShape:
        """Return the shape as trained: with its scalar head, if it has one, in place of the vocabulary's."""
        return scoring(shape, self.head_outputs(training)) if self.scalar_head else shape

    def model_named(self, training: Training, role: str) -> str | None:
        """Return the folder or hub name of a role's model; None: the weights that training starts from."""
        name = self.options_of(training).get(self.named.get(role, ""))
        return None if name is None else str(name)

    def check_plan(self, plan: Plan) -> Iterable[Diagnostic]:
        """Yield errors and warnings about the models of a complete plan."""
        return ()

    def model_key(self, role: str) -> str:
        """Return the config key that names a role's model."""
        return f"{self.key}.{self.named[role]}"

    def models(
        self, training: Training, adapter: Adapter
    ) -> tuple[str, dict[str, OtherModel], tuple[Decision, ...]]:
        """Return (``Plan.reference``, ``Plan.models`` without shapes, decisions).

        ``Plan.reference``: where the reference's log-probabilities come from.
        """
        return NO_MODELS

    def named_roles(self) -> tuple[str, ...]:
        """Return the roles, besides the trained model's, for which a model can be named."""
        return tuple(self.named)

    def check(self, job: JobToCheck) -> Iterable[Diagnostic]:
        """Yield problems of a config with this algorithm, made by ``job.problem``.

        Problems are impossible combinations, and options without effect.
        """
        return ()


def live_reference(
    spec: AlgorithmSpec, training: Training, adapter: Adapter, more: str = ""
) -> tuple[str, dict[str, OtherModel], tuple[Decision, ...]]:
    """Return ``AlgorithmSpec.models`` for a reference run in every step; ``more`` is added to its reason."""
    model = spec.model_named(training, "reference")
    if switched_off(adapter, model):
        return (
            "adapter",
            {},
            (
                Decision(
                    "reference",
                    "adapter off",
                    "the policy itself with its adapter switched off: no second model",
                ),
            ),
        )
    source = f"{spec.key}.ref_model: {model}" if model else "the model that training starts from"
    return (
        "live",
        {"reference": OtherModel(False, model)},
        (Decision("reference", "live", f"{source}, kept frozen in addition to the policy{more}"),),
    )


def algorithm_spec(name: str) -> AlgorithmSpec:
    """Return an algorithm's spec by name, or by ``module:SPEC`` for a user-defined one.

    Raises ConfigError for an unknown name, or a module that cannot be imported, has no such spec, or imports
    torch.
    """
    if ":" in name:
        return _own_spec(name)
    spec: AlgorithmSpec = ALGORITHMS.spec(name)
    return spec


def _own_spec(name: str) -> AlgorithmSpec:
    had_torch, where = "torch" in sys.modules, "training.algorithm"
    try:
        spec = load_attr(name)
    except ConfigError as error:
        raise ConfigError(*(replace(d, where=where) for d in error.diagnostics)) from error
    if not isinstance(spec, AlgorithmSpec):
        raise ConfigError(
            codes.ALGORITHM_NO_SPEC(
                where,
                repr(spec)[:99],
                name=name,
                hint="write SPEC = AlgorithmSpec(implementation='my_module:MyAlgorithm'), with AlgorithmSpec"
                " from paceline.extend",
            )
        )
    module = name.partition(":")[0]
    if "torch" in sys.modules and not had_torch:
        raise ConfigError(
            codes.ALGORITHM_SPEC_TORCH(
                where,
                name,
                module=module,
                hint=(
                    f"move the class to a module of its own, and set in {module}:"
                    " implementation='other_module:Class'"
                ),
            )
        )
    return guarded(replace(spec, name=name), where)


def algorithm_specs() -> tuple[AlgorithmSpec, ...]:
    """Return all built-in specs in table order."""
    return tuple(algorithm_spec(name) for name in ALGORITHMS.names())


def switched_off(adapter: Adapter, reference: str | None) -> bool:
    """Whether the reference is the policy with its adapter disabled.

    True if no ``reference`` model is named, and only a new adapter is trained on the unchanged base.
    """
    if adapter is None or reference or adapter.start or decomposes(adapter):
        return False
    return not adapter.modules_to_save and adapter.bias == "none"


def models_named(training: TrainingSection) -> dict[str, str]:
    """Return model name → config key for the algorithm's roles other than the trained model's."""
    spec = algorithm_spec(training.algorithm)
    keys: dict[str, str] = {}
    for role in spec.named_roles():
        name = spec.model_named(training, role)
        if name is not None:
            keys.setdefault(name, key_of_model(training, role))
    return keys


def key_of_model(training: TrainingSection, role: str) -> str:
    """Return the config key that names the role's model: its own option, else the rewards."""
    spec = algorithm_spec(training.algorithm)
    key = spec.named.get(role, "")
    return (
        f"{spec.key}.{key}"
        if (spec.options_of(training).get(key) is not None)
        else "training.rollout.rewards"
    )


def named_shapes(
    config: Config, environ: Mapping[str, str] | None = None, *, exactly: bool = False
) -> dict[str, ModelShape | None]:
    """Return the shapes of the named models (``make_plan``'s ``others``); None if not downloaded yet.

    ``exactly``: as in ``shape_of``.

    Raises ConfigError for a missing folder.
    """
    shapes: dict[str, ModelShape | None] = {}
    wrong: list[Diagnostic] = []
    for name, key in models_named(config.training).items():
        try:
            shapes[name] = shape_of(
                config.model.model_copy(update={"name_or_path": name, "config": None, "revision": None}),
                environ,
                exactly=exactly,
            )
        except ConfigError as error:
            wrong += (
                replace(d, where=key) if d.where == "model.name_or_path" else d for d in error.diagnostics
            )
    if wrong:
        raise ConfigError(*wrong)
    return shapes
