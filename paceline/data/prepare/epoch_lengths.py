"""The number of rows and tokens of an epoch, if the data is already prepared.

``python -m paceline.data.prepare.epoch_lengths JOB ANSWER`` (``launch.child``): JOB has the effective config
and the cache; ANSWER is [rows, tokens], or null. For a plan: nothing is prepared, downloaded or written, and
files too large to hash quickly are skipped.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from paceline.config.schema import Config
from paceline.core.errors import DataError
from paceline.data.data_order import epoch_bins, epoch_documents
from paceline.data.dataset_store import Store
from paceline.data.prepare.prepare import key_of, opened, sets_of, setup_of
from paceline.data.rows.kinds.base import row_kind
from paceline.data.token_table import TokenTable
from paceline.launch.program import program
from paceline.plan.algorithms.spec import algorithm_spec

IN_PASSING = 64_000_000  # bytes that can be hashed in a tenth of a second


def lengths_of(config: Config, cache: Path) -> tuple[int, int] | None:
    """Return (rows, tokens) of the first epoch as in training, packed if training packs; None if unknown."""
    model, spec = config.model, algorithm_spec(config.training.algorithm)
    folder = model.tokenizer or model.name_or_path
    if not spec.measured or not folder or not Path(folder).expanduser().is_dir():
        return None
    table = cached_train(config, cache)
    if table is None:
        return None
    packing = config.data.packing and spec.generation(config.training) is None
    return rows_and_tokens(config, table, packing=packing)


def cached_train(config: Config, cache: Path) -> TokenTable | None:
    """Return the prepared training data; None if there are none, or from the hub or large files."""
    data, model, training = config.data, config.model, config.training
    try:
        train, held_out = sets_of(data)
        files = [f for s in (*train, *held_out) for f in s.located.files]
        hub = any(s.located.kind == "hub" for s in (*train, *held_out))
        if hub or sum(f.stat().st_size for f in files) > IN_PASSING:
            return None
        setup = setup_of(data, model, row_kind(algorithm_spec(training.algorithm).rows))
        store, seed = Store(cache), training.seed if data.seed is None else data.seed
        key = key_of(data, setup, train, held_out, seed, cache)
        meta, _ = store.find(key)
        return None if meta is None else opened(store, key, meta, data, from_cache=True).train
    except (DataError, OSError):
        return None


def rows_and_tokens(config: Config, table: TokenTable, *, packing: bool) -> tuple[int, int]:
    """Return (rows, tokens) of the first epoch of prepared training data."""
    training = config.training
    order = training.seed if training.data_seed is None else training.data_seed
    lengths, room = table.group_lengths, table.room(config.data.max_length)
    groups = epoch_documents(table.group_dataset, table.weights, order, 0)
    bins = epoch_bins(groups, lengths, seq_len=room, packing=packing, seed=order, epoch=0, shuffle=False)
    return len(bins), int(lengths[groups].sum())


@program
def main(job: str, answer: str) -> int:
    """Write the result; return the exit code."""
    request = json.loads(Path(job).read_text("utf-8"))
    lengths = lengths_of(Config.from_json(request["config"]), Path(request["cache"]).expanduser())
    Path(answer).write_text(json.dumps(lengths), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
