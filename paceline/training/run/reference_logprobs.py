"""Reference log-probabilities of all answers, computed once before training and cached with the data."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from paceline.algorithms.preference.pair_policy import REFERENCE, document_sums
from paceline.core.json_types import Json, JsonObject
from paceline.core.units import human_seconds
from paceline.data.dataset_store import DERIVED
from paceline.data.packed_source import PackedSource
from paceline.plan.algorithms.spec import algorithm_spec
from paceline.plan.plan_json import to_json
from paceline.protocols.roles import Output, Role
from paceline.runtime.process_group.world import World
from paceline.strategies.model_handle import Handles
from paceline.strategies.strategy import Runner
from paceline.training.loop.window_source import BatchLayout

if TYPE_CHECKING:
    from paceline.models.factory import HFModelFactory
    from paceline.training.run.build import RunBuilder

Column = NDArray[np.float64]
FORMAT = 1
_AT_ONCE = 2**20  # numbers in one all-reduce


def compute_reference_logprobs(
    session: RunBuilder, runner: Runner, handles: Handles, policy: HFModelFactory
) -> tuple[dict[str, dict[str, Column]], str]:
    """Return (reference log-probabilities by split and document, a message for the log). Collective.

    Reads the cache or computes them; must run before any weight is trained or restored. ``policy`` is the
    policy's factory: unless another model is named, the reference is the policy as it is now.
    """
    config, plan = session.config, session.plan
    spec, training = algorithm_spec(plan.algorithm), config.training
    other_model = spec.model_named(training, "reference")
    start = plan.adapter.start if plan.adapter else None
    # The cache key: everything that the log-probabilities depend on
    key: JsonObject = {
        "data": session.prepared.fingerprint,
        "weights": weights_identity(other_model, None) if other_model else policy.fingerprint,
        "adapter": None if other_model else to_json(plan.adapter),
        "adapter_weights": weights_identity(start, None) if start else None,
        "numbers": [plan.precision.compute, plan.precision.master, plan.attention],
    }
    # Sources in table order; the role whose forward gives the log-probabilities
    splits = {"train": True} | ({"eval": False} if session.prepared.eval is not None else {})
    sources = {name: session.source(train=train, shuffle=False) for name, train in splits.items()}
    batch_size = spec.options_of(training).get("precompute_ref_batch_size")
    rows = (
        batch_size
        if isinstance(batch_size, int) and batch_size
        else config.training.per_device_train_batch_size
    )
    strategy = runner.strategy
    layout = session.batch_layout(strategy, rows, 1)
    role = Role.REFERENCE if other_model else Role.POLICY
    built = dict(handles)

    def compute(source: PackedSource) -> Column:
        if role not in built:
            built[role] = strategy.prepare(role, session.models.frozen(role), None)
        return reference_column(runner, built, role, source, layout)

    cache = ReferenceCache(session.world, session.prepared.path / DERIVED, key)
    columns, note = cached_columns(cache, sources, compute, time.monotonic)
    if Role.REFERENCE in built:
        strategy.release(built[Role.REFERENCE])
    return columns, note


def reference_column(
    runner: Runner, handles: Handles, role: Role, source: PackedSource, layout: BatchLayout
) -> Column:
    """Return float64 [documents]: log p(answer | prompt) under the model of ``role``. Collective.

    It is equal on every rank. ``source`` keeps the order of its table and has every document once.
    """
    column = np.zeros(len(source.table.lengths), np.float64)
    rows, strategy = source.num_rows(0), runner.strategy
    for micro_step in range(math.ceil(rows / (layout.micro_batch * layout.dp_size))):
        local_batch = strategy.shard_batch(source.batch(0, layout.positions(0, micro_step, rows)))
        outputs = runner.forward_no_grad(handles, role, local_batch, frozenset({Output.LOGPROBS}))
        sums = document_sums(outputs[Output.LOGPROBS.value], local_batch).cpu().double().numpy()
        ids = local_batch.document_ids.cpu().numpy()
        # Each document is on one data-parallel rank; the others hold 0, so the sum is its value.
        column[ids[ids >= 0]] = sums[: len(ids)][ids >= 0]
    for start in range(0, len(column), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        column[part] = (
            np.array(strategy.world.all_reduce_sum_float(column[part].tolist())) / strategy.loss_copies
        )
    return column


class ReferenceCache:
    """One file per fingerprint, read and written by rank 0; every rank gets its contents."""

    def __init__(self, world: World, folder: Path, key: Mapping[str, Json]) -> None:
        """``key`` is what the values depend on, JSON; that of rank 0 is used."""
        self.world = world
        text = json.dumps({"format": FORMAT, **key}, sort_keys=True, default=str)
        self.path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.safetensors"

    def load(self, sizes: Mapping[str, int]) -> dict[str, Column] | None:
        """Return the columns by split, each of its size in ``sizes``, or None. Collective."""
        held = self._read(sizes) if self.world.is_main else None
        if not self.world.any(held is not None):
            return None
        columns = {}
        for name, size in sorted(sizes.items()):
            # a sum of which one rank holds the values is a broadcast in float64
            values = held[name].tolist() if held is not None else [0.0] * size
            parts = [values[i : i + _AT_ONCE] for i in range(0, size, _AT_ONCE)]
            columns[name] = np.array([v for part in parts for v in self.world.all_reduce_sum_float(part)])
        return columns

    def save(self, columns: Mapping[str, Column]) -> str:
        """Write the file atomically. Return what went wrong, or an empty string."""
        from safetensors.numpy import save_file

        if not self.world.is_main:
            return ""
        # Renamed when complete: who reads never sees a half.
        part = self.path.with_suffix(f".{os.getpid()}.part")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            save_file(
                {n: np.ascontiguousarray(c) for n, c in columns.items()}, part, {"sha256": _digest(columns)}
            )
            part.replace(self.path)
        except OSError as error:
            return f"{self.path}: {error.strerror or error}"
        return ""

    def _read(self, sizes: Mapping[str, int]) -> dict[str, Column] | None:
        """Return the file's columns; None if it is missing or damaged (it is then recomputed)."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self.path, "np") as file:
                names = file.keys()  # no mapping: it cannot be iterated
                columns: dict[str, Column] = {name: file.get_tensor(name) for name in names}
                digest = (file.metadata() or {}).get("sha256")
        except (OSError, SafetensorError):
            return None
        # Computed again rather than trained on.
        if digest != _digest(columns):
            return None
        fits = {name: column.shape for name, column in columns.items()} == {
            n: (size,) for n, size in sizes.items()
        }
        return columns if fits and all(column.dtype == np.float64 for column in columns.values()) else None


def _digest(columns: Mapping[str, Column]) -> str:
    """Return the sha256 of names and values, so that a flipped bit is not silently trained on."""
    digest = hashlib.sha256()
    for name, column in sorted(columns.items()):
        digest.update(f"{name} {column.dtype} {column.shape} ".encode() + column.tobytes())
    return digest.hexdigest()


def cached_columns(
    cache: ReferenceCache,
    sources: Mapping[str, PackedSource],
    compute: Callable[[PackedSource], Column],
    clock: Callable[[], float],
) -> tuple[dict[str, dict[str, Column]], str]:
    """Return (extra columns of the documents by split, a message for the log). Collective."""
    sizes = {name: len(source.table.lengths) for name, source in sources.items()}
    columns = cache.load(sizes)
    if columns is not None:
        note = f"log-probabilities of {sum(sizes.values()):,} answers from {cache.path}"
    else:
        started = clock()
        columns = {name: compute(source) for name, source in sources.items()}
        problem = cache.save(columns)
        took = human_seconds(clock() - started)
        kept = f"not cached ({problem})" if problem else f"cached in {cache.path}"
        note = f"log-probabilities of {sum(sizes.values()):,} answers computed in {took}, {kept}"
    return {name: {REFERENCE: column} for name, column in columns.items()}, note


def weights_identity(name: str, revision: str | None) -> list[Json]:
    """Return an identity of weights without reading them: files, sizes and times, or the hub's commit."""
    from huggingface_hub import try_to_load_from_cache

    folder = Path(name).expanduser()
    if not folder.is_dir():
        held = try_to_load_from_cache(name, "config.json", revision=revision or "main")
        if not isinstance(held, str):
            return [name, revision]
        return [name, Path(held).parent.name]
    files = sorted(p for p in folder.iterdir() if p.suffix in (".safetensors", ".json"))
    return [[p.name, p.stat().st_size, p.stat().st_mtime_ns] for p in files]
