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
from paceline.launch.program import program
from paceline.plan.algorithms.spec import algorithm_spec

IN_PASSING = 64_000_000  # bytes that can be hashed in a tenth of a second


def lengths_of(config: Config, cache: Path) -> tuple[int, int] | None:
    """Return (rows, tokens) of the first epoch as in training, packed if training packs; None if unknown."""
    data, model, training = config.data, config.model, config.training
    folder = model.tokenizer or model.name_or_path
    spec = algorithm_spec(training.algorithm)
    if not spec.measured or not folder or not Path(folder).expanduser().is_dir():
        return None
    try:
        # Give up on anything slow: hub data sets, large files.
        train, held_out = sets_of(data)
        files = [f for s in (*train, *held_out) for f in s.located.files]
        hub = any(s.located.kind == "hub" for s in (*train, *held_out))
        if hub or sum(f.stat().st_size for f in files) > IN_PASSING:
            return None
        setup = setup_of(data, model, row_kind(spec.rows))
        store, seed = Store(cache), training.seed if data.seed is None else data.seed
        key = key_of(data, setup, train, held_out, seed, cache)
        meta, _ = store.find(key)
        if meta is None:
            return None
        # Only a data set that is already prepared has known lengths.
        table = opened(store, key, meta, data, from_cache=True).train
    except (DataError, OSError):
        return None
    order = training.seed if training.data_seed is None else training.data_seed
    documents = epoch_documents(table.dataset, table.weights, order, 0)
    packing = data.packing and spec.generation(training) is None
    bins = epoch_bins(
        documents, table.lengths, seq_len=data.max_length, packing=packing, seed=order, epoch=0, shuffle=False
    )
    return len(bins), int(table.lengths[documents].sum())


@program
def main(job: str, answer: str) -> int:
    """Write the result; return the exit code."""
    request = json.loads(Path(job).read_text("utf-8"))
    lengths = lengths_of(Config.from_json(request["config"]), Path(request["cache"]).expanduser())
    Path(answer).write_text(json.dumps(lengths), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
