"""The type of a rule, the context it receives, and checks that several rules share."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from paceline.config.schema import Config
from paceline.config.sections.training import TrainingSection
from paceline.config.sections.types import Section
from paceline.config.source import DEFAULTS, Source, shown
from paceline.core.diagnostics import Code, Diagnostic, Severity
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json, JsonObject, as_object
from paceline.core.plugins.tables import CHOOSERS
from paceline.plan.algorithms.spec import AlgorithmSpec, algorithm_spec, algorithm_specs
from paceline.plan.choose_strategy import by_sections
from paceline.plan.strategies.spec import StrategySpec, declared_spec, strategy_spec

#: A value of the config: of a section, or a section itself.
Value: TypeAlias = "Section | Json"


@dataclass(frozen=True)
class Facts:
    """Known facts of the machine, the model and the run.

    None means unknown: rules that need the fact stay silent.

    ``launch.preflight.facts`` and ``plan.planner`` fill every field; a test checks that each is
    filled and read.

    - ``backends``: process-group backends of this torch build
    - ``code_sandbox``: why model-written programs cannot be sandboxed here, empty if they can
    - ``config_fields``, ``config_words``: the keys that the model family of ``model.config`` declares, and
      all words of its code
    - ``pretrained_dtype``: torch's name for the dtype of the pretrained weights
    - ``composite``: type of a multimodal model whose language model is trained, empty for others
    - ``infiniband``: this node has an InfiniBand device, and NCCL may use it
    - ``outside_srun``: nodes and tasks of a Slurm allocation in which this process is not a task
    """

    device: str | None = None
    device_name: str = ""
    bf16: bool | None = None
    fp16: bool | None = None
    world_size: int | None = None
    num_nodes: int | None = None
    launcher: str | None = None
    backends: frozenset[str] | None = None
    max_position_embeddings: int | None = None
    pretrained_dtype: str | None = None
    config_fields: tuple[str, ...] | None = None
    config_words: frozenset[str] | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    composite: str | None = None
    complete_checkpoints: int | None = None
    incomplete_checkpoints: int | None = None
    checkpoint_bytes: int | None = None
    disk_free_bytes: int | None = None
    infiniband: bool | None = None
    memlock_unlimited: bool | None = None
    max_open_files: int | None = None
    interfaces: frozenset[str] | None = None
    nccl_socket_ifname: str | None = None
    slurm_ntasks_per_node: int | None = None
    inside_srun: bool | None = None
    outside_srun: tuple[int, int] | None = None
    torch_xla: bool | None = None
    code_sandbox: str | None = None


@dataclass(frozen=True)
class Context:
    """What a rule receives: the config, the known facts, and which layer set each key."""

    config: Config
    facts: Facts
    starting: bool
    provenance: Mapping[str, Source] = field(default_factory=dict)

    @property
    def training(self) -> TrainingSection:
        """The config's ``training``."""
        return self.config.training

    @property
    def deepspeed(self) -> JsonObject:
        """``training.deepspeed`` if it is a mapping, else an empty one."""
        return as_object(self.config.training.deepspeed)

    @property
    def zero(self) -> JsonObject:
        """``zero_optimization`` of the DeepSpeed config, if it is a mapping."""
        return as_object(self.deepspeed.get("zero_optimization"))

    @property
    def algorithm(self) -> AlgorithmSpec:
        """The spec of this run's algorithm.

        Raises ConfigError when a user-defined one cannot be loaded: no other rule could run then.
        """
        return algorithm_spec(self.config.training.algorithm)

    @property
    def algorithms(self) -> tuple[AlgorithmSpec, ...]:
        """The specs of all algorithms."""
        return algorithm_specs()

    @property
    def world_size(self) -> int | None:
        """The number of processes; None if it is not known yet."""
        return self.facts.world_size

    @property
    def own_options(self) -> Section | None:
        """The options section of this run's algorithm, if given; None for an algorithm without options."""
        options: Section | None = getattr(self.config.training, self.config.training.algorithm, None)
        return options

    @property
    def named_strategy(self) -> StrategySpec | None:
        """The spec of the strategy that the config names, built-in or the user's own.

        None for ``auto`` and ``fastest``, and for a user-defined class without a spec. None also for an
        unknown name or a spec that cannot be loaded (``rules.strategy.of_the_spec`` reports it).
        """
        return declared_spec(self.config.training.distributed_strategy)

    @property
    def strategy(self) -> StrategySpec | None:
        """``named_strategy``, or the strategy that ``auto`` chooses because of a config section.

        None while the choice is open.
        """
        t = self.config.training
        chooser = CHOOSERS.get(t.distributed_strategy)
        if chooser is None or chooser.searches:
            return self.named_strategy
        chosen = by_sections(t)
        return strategy_spec(chosen.strategy) if chosen else None

    def given(self, path: str) -> bool:
        """Whether a layer above the defaults set this key."""
        source = self.provenance.get(path)
        return source is not None and source.layer != DEFAULTS

    def value(self, path: str) -> Value:
        """Return the effective value at a dotted path; inside a free-form mapping None if the key is not
        given.
        """
        value: Value | Config = self.config
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else getattr(value, part)
        assert not isinstance(value, Config)
        return value

    def place(self, *paths: str) -> str:
        """Return ``file:line`` of those keys that were set; if none was, the first key's name.

        A section counts as its first key that was set.
        """
        places = [source.place() for p in paths if (source := self._source(p))]
        return " and ".join(dict.fromkeys(places)) or paths[0]

    def _source(self, path: str) -> Source | None:
        """Return the source of a key, or of the first key that was set in a section; None if none was."""
        if self.given(path):
            return self.provenance[path]
        return next(
            (s for p, s in self.provenance.items() if p.startswith(f"{path}.") and self.given(p)), None
        )

    def problem(
        self,
        code: Code,
        what: str,
        *paths: str,
        hint: str,
        found: str = "",
        severity: Severity = Severity.ERROR,
    ) -> Diagnostic:
        """Return a finding about some keys (or sections) in the caller's words."""
        return self.at(code(what, found=found, hint=hint, severity=severity), *paths)

    def each(self, *rows: tuple[object, Callable[[], Diagnostic], tuple[str, ...]]) -> Iterator[Diagnostic]:
        """Yield the finding of each row (condition, code, keys) whose condition holds."""
        return (self.at(code(), *keys) for holds, code, keys in rows if holds)

    def at(self, finding: Diagnostic, *paths: str) -> Diagnostic:
        """Return the finding with the place of some keys, or sections; ``found`` defaults to their values."""
        found = finding.found or ", ".join(
            f"{p.partition('.')[2] or p}: {shown(p, _plain(self.value(p)))}" for p in paths
        )
        return replace(finding, where=self.place(*paths), found=found)


def checked(c: Context, spec: AlgorithmSpec | StrategySpec, key: str) -> Iterable[Diagnostic]:
    """Run a spec's own checks; an exception in a user's spec becomes an error at the line of ``key``."""
    try:
        return tuple(spec.check(c))
    except ConfigError as error:
        return tuple(replace(d, where=c.place(key)) for d in error.diagnostics)


def _plain(value: Value) -> Json:
    if isinstance(value, Section):
        return value.model_dump(mode="json", exclude_unset=True)
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def wrong_options(
    c: Context, code: Code, name: str, key: str, declared: Mapping[str, Json]
) -> Iterator[Diagnostic]:
    """Yield an error for each option under ``key`` that is not ``declared`` (option -> default) by the spec
    ``name``, or not of its default's type.
    """
    options = c.value(key)
    assert isinstance(options, Mapping)
    for option, value in options.items():
        found, path = f"{option}: {value!r}", f"{key}.{option}"
        if option not in declared:
            near = difflib.get_close_matches(option, declared, n=1)
            yield c.problem(
                code,
                f"{name} has no such option",
                path,
                found=found,
                hint=f"did you mean '{near[0]}'?"
                if near
                else f"one of {', '.join(declared) or 'none: it has none'}",
            )
        elif not _fits(value, declared[option]):
            yield c.problem(
                code,
                f"{name} expects another type of value there",
                path,
                found=found,
                hint=f"such as {option}: {declared[option]!r}",
            )


def _fits(value: Json, default: Json) -> bool:
    """Whether ``value`` has the type of ``default``; an int fits a float, and anything fits None."""
    if default is None or (isinstance(default, float) and type(value) is int):
        return True
    return type(value) is type(default)


Rule = Callable[[Context], Iterable[Diagnostic]]
