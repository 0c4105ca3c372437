"""Where a loss or a gradient that is not finite comes from: the window runs again by micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.algorithms.algorithm import Algorithm
from paceline.plan.plan_json import from_json, to_json
from paceline.protocols.window import Window
from paceline.runtime.process_group.world import World
from paceline.strategies.model_handle import Handles
from paceline.strategies.strategy import Runner
from paceline.strategies.window.nonfinite_watch import ORDER

SHOWN = 4  # parameters and rows in words
NamesOf = Callable[[Sequence[int]], Sequence[str]]  # of documents -> their rows


@dataclass(frozen=True)
class Sighting:
    """What one rank saw first in one micro-batch: ``kind`` empty where it saw nothing."""

    kind: str = ""
    what: str = ""
    parameters: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()

    @property
    def order(self) -> int:
        """What comes first in a window has the least."""
        return ORDER.index(self.kind)


@dataclass(frozen=True)
class Trace:
    """The first place, equal on every rank; ``micro_batch`` counts from 1, ``ranks`` have seen it.

    ``what`` is empty if each micro-batch by itself is finite.
    """

    what: str = ""
    micro_batch: int = 0
    micro_batches: int = 0
    ranks: tuple[int, ...] = ()
    parameters: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()

    def describe(self) -> str:
        if not self.what:
            return (
                "each micro-batch by itself is finite when it runs again: the sum of their gradients is not"
            )
        where = f"rank {', '.join(map(str, self.ranks[:SHOWN]))}, micro-batch {self.micro_batch} of"
        texts = [f"first in {self.what}, on {where} {self.micro_batches}"]
        for name, values in (("rows", self.rows), ("gradients of", self.parameters)):
            more = f" and {len(values) - SHOWN} more" if len(values) > SHOWN else ""
            texts += [f"{name} {', '.join(values[:SHOWN])}{more}"] if values else []
        return "; ".join(texts)


@dataclass(frozen=True)
class NonFiniteTracer:
    """Traces a window of ``runner``; ``seed_for`` (step, micro-batch) as in training."""

    world: World
    runner: Runner
    handles: Handles
    algorithm: Algorithm
    seed_for: Callable[[int, int], int]
    names: NamesOf

    def trace(self, window: Window) -> Trace:
        """Return where the first number that is not finite is. Collective: every rank has as many
        micro-batches.
        """
        count = len(window.micro_batches)
        for index in range(count):
            gathered = self.world.all_gather_json(to_json(self._of_rank(window, index)))
            seen = [(rank, from_json(Sighting, data)) for rank, data in enumerate(gathered)]
            seen = [(rank, sighting) for rank, sighting in seen if sighting.kind]
            if not seen:
                continue
            _, first = min(seen, key=lambda pair: (pair[1].order, pair[0]))
            alike = tuple(rank for rank, other in seen if other.what == first.what)
            return Trace(first.what, index + 1, count, alike, first.parameters, first.rows)
        return Trace(micro_batches=count)

    def _of_rank(self, window: Window, index: int) -> Sighting:
        watch = self.runner.repeat(
            self.handles,
            window.micro_batches,
            self.algorithm,
            index,
            lambda micro_step: self.seed_for(window.step, micro_step),
        )
        if watch.first is None:
            return Sighting()
        documents = window.micro_batches[index].document_ids.tolist()
        hit = [documents[i] for i in watch.first.places if i < len(documents)] or documents
        rows = tuple(self.names(hit))
        return Sighting(watch.first.kind, watch.first.describe(), tuple(watch.parameters), rows)
