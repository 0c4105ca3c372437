"""``training.freeze`` and ``training.unfreeze``: choose the parameters that stay as loaded, and check the
combination."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import takewhile

from paceline.config.registries.optimizers import StateSplit
from paceline.config.sections.training import TrainingSection
from paceline.core.diagnostics import Diagnostic
from paceline.core.units import human_count
from paceline.plan import codes
from paceline.plan.mesh import Mesh
from paceline.plan.model.family import PROJECTOR, VISION, Family, in_part, parts_of
from paceline.plan.model.parameter_list import Parameter, parameters_of, with_tower
from paceline.plan.model.shape import ModelShape
from paceline.plan.plan import Decision, Plan, Precision

FREEZE, UNFREEZE, FREEZE_ROUTER = "training.freeze", "training.unfreeze", "training.freeze_router"
#: Words for the parts of a model with a vision tower.
BESIDE_TEXT, TEXT = (VISION, PROJECTOR), "text"
_LARGEST_LIST = 6
_SLICE = re.compile(r"([^\[\]^]+)\[(?:(-?\d*):(-?\d*)(?::([1-9]\d*)?)?|/([1-9]\d*))\](.*)")


@dataclass(frozen=True)
class Freezing:
    """Patterns of frozen parameters, and of exceptions that are trained. With only ``unfreeze``, everything
    else is frozen. A classifier's or reward model's new head is always trained: the layers in ``head``.

    ``keeps_masters``: keep the fp32 weights too, since a low-precision copy would round frozen weights.

    ``parts``: of a model with a vision tower, ``Composite.parts``. Its tower is frozen unless ``unfreeze``
    names it. A pattern that names something in the text names nothing beside it, unless it is a regular
    expression. The words ``vision``, ``projector`` and ``text`` name parts.
    """

    freeze: tuple[str, ...] = ()
    unfreeze: tuple[str, ...] = ()
    keeps_masters: bool = True
    head: str = Family().head[-1]
    parts: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def configured(
        cls, training: TrainingSection, shape: ModelShape | None = None, *, tower: bool = False
    ) -> Freezing:
        """Return the freezing of a config for a model of this shape, if known. ``tower``: trained with it;
        without one nothing is left of ``vision`` and ``projector``.
        """
        family = Family() if shape is None else shape.family
        freeze, unfreeze = training.freeze, training.unfreeze
        parts = parts_of(shape.composite) if shape is not None and shape.composite else {}
        if parts and not tower:
            unfreeze = tuple(p for p in unfreeze if p not in BESIDE_TEXT) if freeze else unfreeze
            freeze = tuple(p for p in freeze if p not in BESIDE_TEXT)
        return cls(freeze, unfreeze, head=family.head[-1], parts=parts if tower else {})

    @classmethod
    def of(cls, plan: Plan) -> Freezing:
        """Return the freezing of a resolved plan."""
        rounds = plan.shape is None or plan.shape.stored != plan.precision.compute
        tower = plan.vision and plan.adapter is None
        return replace(cls.configured(plan.config.training, plan.shape, tower=tower), keeps_masters=rounds)

    def of_whole(self, model_type: str) -> Freezing:
        """Return the freezing of the whole model of a type, with its tower."""
        return replace(self, parts=parts_of(model_type))

    def __bool__(self) -> bool:
        return bool(self.patterns or self.parts)

    @property
    def patterns(self) -> dict[str, tuple[str, ...]]:
        """Return the patterns that a config gives, by key."""
        given = {FREEZE: self.freeze, UNFREEZE: self.unfreeze}
        return {key: patterns for key, patterns in given.items() if patterns}

    def trained(self, names: Iterable[str]) -> frozenset[str]:
        """Return the parameters (by Transformers' names) that get gradients."""
        known = frozenset(names)
        if not self:
            return known
        frozen = known
        if self.freeze or not self.unfreeze:
            frozen = self._named(self.freeze, known) | self._in_tower(known)
        of_head = {name for name in known if name.startswith(f"{self.head}.")}
        return (known - frozen) | self._named(self.unfreeze, known) | of_head

    def _named(self, patterns: Iterable[str], known: frozenset[str]) -> frozenset[str]:
        """Return the names that ``patterns`` mean (see ``parts``)."""
        if not self.parts:
            return _named(patterns, known)
        part = {name: self.parts.get(in_part(name, self.parts), TEXT) for name in known}
        text = frozenset(name for name in known if part[name] == TEXT)

        def meant(pattern: str) -> frozenset[str]:
            if pattern in (*BESIDE_TEXT, TEXT):
                return frozenset(name for name in known if part[name] == pattern)
            if pattern.startswith("^"):
                return _named((pattern,), known)
            return _named((pattern,), text) or _named((pattern,), known)

        return frozenset().union(*map(meant, patterns))

    def _in_tower(self, known: frozenset[str]) -> frozenset[str]:
        return frozenset(n for n in known if self.parts.get(in_part(n, self.parts)) == VISION)

    def of_tower(self) -> str:
        """Return what becomes of a vision tower, in words."""
        if self.unfreeze and not self.freeze:
            return "as unfreeze says"
        return "frozen, but what unfreeze names" if self.unfreeze else "frozen"

    def within(self, names: Iterable[str]) -> Freezing:
        """Return the patterns that match in a smaller model; none if these would train nothing, or freeze
        nothing there."""
        known = frozenset(names)
        freeze, unfreeze = (
            tuple(p for p in patterns if _named((p,), known)) for patterns in (self.freeze, self.unfreeze)
        )
        kept = replace(self, freeze=freeze, unfreeze=unfreeze)
        return kept if bool(freeze) is bool(self.freeze) and kept.trained(known) else Freezing()

    def check(self, names: Iterable[str], ties: dict[str, str]) -> Iterator[Diagnostic]:
        """Yield errors for patterns that match none of ``names``, and if nothing would be trained.

        ``ties``: other names of tied parameters → their names.
        """
        known, idle = list(names), False
        for key, patterns in self.patterns.items():
            wrong = [p for p in patterns if not self._named((p,), frozenset(known))]
            if wrong:
                idle = True
                hints = {p: _hint(p, known, [ties[n] for n in _named((p,), ties)]) for p in wrong}
                hint = "; ".join(f"{p}: {text}" for p, text in hints.items())
                yield codes.PLAN_FREEZE_NAME(key, ", ".join(wrong), hint=hint)
        if self and known and not idle and not self.trained(known):
            key, patterns = next(iter(self.patterns.items()), (FREEZE, ()))
            yield codes.PLAN_FREEZE_ALL(key, f"[{', '.join(patterns)}]")


#: nothing is frozen
ALL_TRAINED = Freezing()


def _matches(pattern: str, name: str) -> bool:
    """Whether ``pattern`` names the parameter ``name`` or a module around it.

    It is a name whose leading parts may be missing (``embed_tokens``, ``layers.0.mlp``), with the wildcards
    of a shell; or, after ``^``, a regular expression that begins at the start of the whole name.
    """
    return _compiled(pattern).match(name) is not None if pattern.startswith("^") else _names(pattern, name)


def _named(patterns: Iterable[str], names: Iterable[str]) -> frozenset[str]:
    known = frozenset(names)
    every = [part for pattern in patterns for part in _without_slice(pattern, known)]
    return frozenset(name for name in known if any(_matches(pattern, name) for pattern in every))


def _without_slice(pattern: str, names: frozenset[str]) -> list[str]:
    """Return ``layers[-2:].mlp`` as ``layers.30.mlp``, ``layers.31.mlp`` for a model of 32 layers. Return of
    ``layers[/8]`` the last layer of each eighth, none where 8 does not divide them.
    """
    cut = _SLICE.fullmatch(pattern)
    if cut is None:
        return [pattern]
    before, *ends, parts_of, after = cut.groups()
    numbers = sorted(
        {
            int(parts[at])
            for parts in (name.split(".") for name in names)
            for at in range(1, len(parts))
            if parts[at].isdecimal()
            and any(fnmatchcase(".".join(parts[first:at]), before) for first in range(at))
        }
    )
    chosen = numbers[slice(*(int(end) if end else None for end in ends))]
    if parts_of:
        stride, rest = divmod(len(numbers), int(parts_of))
        chosen = [] if rest or not stride else numbers[stride - 1 :: stride]
    return [f"{before}.{number}{after}" for number in chosen]


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


@lru_cache(maxsize=65536)
def _names(pattern: str, name: str) -> bool:
    parts = name.split(".")
    return any(
        fnmatchcase(".".join(parts[first:last]), pattern)
        for first in range(len(parts))
        for last in range(first + 1, len(parts) + 1)
    )


def _hint(pattern: str, known: list[str], tied: list[str]) -> str:
    if tied:
        return f"it is tied to {tied[0]}: name that, or leave it out"
    parts = {".".join(p for p in name.split(".") if not p.isdigit()) for name in known}
    modules = {part for name in parts for part in name.split(".")}
    near = difflib.get_close_matches(pattern.rpartition(".")[2], sorted(modules), 1)
    if near:
        return f"did you mean {near[0]}?"
    leaves = list(dict.fromkeys(name.split(".")[-2] for name in known if "." in name))
    layers = sorted({int(p) for name in known for p in name.split(".") if p.isdigit()})
    numbered = f"; layers.{layers[0]} to layers.{layers[-1]}" if layers else ""
    return f"there are {', '.join(leaves[:_LARGEST_LIST])}{numbered}"


def check_freezing(
    shape: ModelShape | None, freezing: Freezing, mesh: Mesh | None, *, adapters: bool
) -> Iterator[Diagnostic]:
    """Yield settings that cannot be combined with ``freezing``, and patterns without a match in a known
    family."""
    if not freezing.patterns:
        return
    key, value = next(iter(freezing.patterns.items()))
    if adapters:
        yield codes.PLAN_FREEZE_ADAPTERS(key, f"[{', '.join(value)}]")
        return
    if mesh is not None and mesh.pp > 1:
        yield codes.PLAN_FREEZE_PIPELINE(key, f"[{', '.join(value)}]")
    if shape is None or not shape.exact or (freezing.parts and shape.tower is None):
        return  # some names are known only when the model is built
    listed = parameters_of(with_tower(shape) if freezing.parts else shape)
    yield from freezing.check(
        [_in_whole(p.name, freezing.parts) for p in listed], _ties(shape, listed, freezing.parts)
    )


def check_rounding(
    shape: ModelShape | None,
    freezing: Freezing,
    state_split: StateSplit,
    precision: Precision,
    *,
    routers: bool,
) -> Iterator[Diagnostic]:
    """Yield an error if an engine would keep frozen weights in fewer bits than their folder; ``routers``:
    routers are frozen.
    """
    stored = "float32" if shape is None else shape.stored or "float32"
    low = precision.compute != precision.master and precision.compute != stored
    if not low or state_split is not StateSplit.FLAT:
        return
    values = {key: f"[{', '.join(names)}]" for key, names in freezing.patterns.items()}
    if freezing.parts and not values:
        values = {FREEZE: "the vision tower"}
    for key, value in [*values.items(), *([(FREEZE_ROUTER, "true")] if routers else [])][:1]:
        yield codes.PLAN_FREEZE_ROUNDED(key, value, dtype=precision.compute, stored=stored)


def _in_whole(name: str, parts: Mapping[str, str]) -> str:
    """Return a parameter's name in the whole model with these parts; ``name`` itself for a text alone."""
    if not parts or in_part(name, parts) or not name.startswith("model."):
        return name
    text = "text_model" if "vision_model" in parts else "language_model"
    return f"model.{text}.{name.removeprefix('model.')}"


def _ties(shape: ModelShape, listed: tuple[Parameter, ...], parts: Mapping[str, str]) -> dict[str, str]:
    return {"lm_head.weight": _in_whole(listed[0].name, parts)} if shape.tied and listed else {}


@dataclass(frozen=True)
class TrainedPart:
    """The trained part of a model: a ``share`` (0 to 1) of its parameters, all from layer ``first_layer`` on,
    so that earlier layers save nothing for a backward.
    """

    share: float = 1.0
    first_layer: int = 0


def trained_part(shape: ModelShape, freezing: Freezing) -> TrainedPart:
    """Return the trained part of a model of ``shape``."""
    if not freezing:
        return TrainedPart()
    listed = parameters_of(replace(shape, whole=False))  # each token meets the text alone
    names = freezing.trained(p.name for p in listed)
    trained = [p for p in listed if p.name in names]
    embedding = any(p.name in names for p in takewhile(lambda p: p.layer is None, listed))
    layers = [p.layer for p in trained if p.layer is not None]
    share = sum(p.numel for p in trained) / max(1, sum(p.numel for p in listed))
    return TrainedPart(share, 0 if embedding else min(layers, default=shape.layers))


def freezing_decisions(shape: ModelShape | None, freezing: Freezing) -> Iterator[Decision]:
    """Yield the plan's decisions on frozen parameters."""
    if freezing.parts and (freezing.freeze or not freezing.unfreeze):
        yield Decision(
            FREEZE,
            "the vision tower, but what unfreeze names" if freezing.unfreeze else "the vision tower",
            f"the default for a model with images; {UNFREEZE}: ['^'] trains all of it",
        )
    if not freezing.patterns or shape is None:
        return
    listed = parameters_of(shape)
    names, whole = freezing.trained(p.name for p in listed), sum(p.numel for p in listed)
    trained = sum(p.numel for p in listed if p.name in names)
    yield Decision(
        FREEZE if freezing.freeze else UNFREEZE,
        f"{human_count(trained)} of {human_count(whole)} parameters are trained",
        "the others stay as loaded, without gradients and optimizer states; gradients pass through them",
    )
