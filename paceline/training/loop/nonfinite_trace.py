"""Where a loss or a gradient that is not finite comes from: the window runs again by micro-batches.

Check a run's loaded weights if its first loss is not finite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.algorithms.algorithm import Algorithm
from paceline.config.schema import Config
from paceline.core.errors import PacelineError
from paceline.core.safetensors_header import FLOATS, header_of
from paceline.models.loading.model_source import weights_folder
from paceline.plan.model.files.safetensors_headers import weights_of
from paceline.plan.plan_json import from_json, to_json
from paceline.protocols.window import Window
from paceline.runtime.process_group.world import World
from paceline.strategies.model_handle import Handles
from paceline.strategies.strategy import Runner
from paceline.strategies.window.nonfinite_watch import ORDER
from paceline.training import codes
from paceline.training.loop.train_state import TrainState

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
            # By micro-batch, with an exchange each: the first one that shows something ends the trace on
            # every rank.
            gathered = self.world.all_gather_json(to_json(self._of_rank(window, index)))
            seen = [(rank, from_json(Sighting, data)) for rank, data in enumerate(gathered)]
            seen = [(rank, sighting) for rank, sighting in seen if sighting.kind]
            if not seen:
                continue
            # Earlier in the window first, then the lower rank: the same answer on every rank.
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
        # Where the module has no rows per token, any document of the micro-batch may be the cause.
        hit = [documents[i] for i in watch.first.places if i < len(documents)] or documents
        rows = tuple(self.names(hit))
        return Sighting(watch.first.kind, watch.first.describe(), tuple(watch.parameters), rows)


@contextmanager
def explain_nonfinite(config: Config, state: TrainState) -> Iterator[None]:
    """Add the non-finite loaded tensor to the error of a run without a finite step."""
    try:
        yield
    except PacelineError as error:
        found = error.diagnostics[0]
        # After a finite step the files cannot be the cause, and reading them all takes minutes.
        if found.code != codes.TRAINING_NONFINITE.name or state.trained_steps:
            raise
        loaded = next((text for folder in _folders(config) if (text := not_finite(folder))), "")
        if not loaded:
            raise
        raise PacelineError(
            replace(
                found,
                what=f"{found.what}: the weights that were loaded are no numbers",
                found=f"{loaded}; {found.found}",
                hint="download the model again, or take an earlier checkpoint of the run that wrote it",
            )
        ) from error


def _folders(config: Config) -> Iterator[Path]:
    model, lora = config.model, config.lora
    if model.config is None and model.name_or_path:
        yield weights_folder(model.name_or_path, model.revision)
    if lora is not None and lora.adapter_name_or_path:
        yield Path(lora.adapter_name_or_path).expanduser()


def not_finite(folder: Path) -> str:
    """Return the first tensor of a folder's files that holds NaN or infinity, and its file; empty if none."""
    from safetensors import SafetensorError, safe_open

    adapter = folder / "adapter_model.safetensors"
    try:
        for file in [*weights_of(folder, []), *([adapter] if adapter.is_file() else [])]:
            kinds = {name: entry.dtype for name, entry in header_of(file).items() if entry.dtype in FLOATS}
            with safe_open(file, "pt") as opened:
                for name in kinds:
                    wrong = ~opened.get_tensor(name).isfinite()
                    if wrong.any():
                        count = f"{int(wrong.sum()):,} of {wrong.numel():,} values"
                        return f"{name} in {file} has {count} that are not finite"
    except (OSError, ValueError, SafetensorError):  # the files have gone or changed since
        return ""
    return ""
