"""Check before a start that the rows, as read and as packed, are enough for every data-parallel rank.

Where partial steps are dropped, they must be enough for a step.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable
from pathlib import Path

from paceline.config.schema import Config
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import DataError
from paceline.core.package import cache_folder
from paceline.data.preflight.check_sets import check_feeds, first_examples, is_looked_into
from paceline.data.preflight.find_sets import find_sets
from paceline.data.rows.examples import Reading
from paceline.data.rows.kinds.base import row_kind
from paceline.data.sources.file_kinds import is_packed
from paceline.launch.environment.guide_variables import current
from paceline.plan.algorithms.spec import algorithm_spec
from paceline.plan.plan import Plan
from paceline.training import codes

_PREPARED = 4_000_000  # bytes that are tokenised in a second or two
_COMPRESSED = 4  # times as many bytes of text, about
_BYTES_OF_A_TOKEN = 16  # no text has longer ones on average


def enough_rows(config: Config, plan: Plan | None, reading: Reading) -> Iterable[Diagnostic]:
    """Check the rows that are read here, if these are all: packing never adds rows, a weight repeats them."""
    if plan is None or algorithm_spec(config.training.algorithm).on_policy:
        return ()
    try:
        first = first_examples(config.data, reading, "data.train")
    except DataError:
        return ()  # reported with the data sets
    if not first.whole or not first.examples:
        return ()
    weight = max(section.weight for section in config.data.train)
    return _fed(config, plan, len(first.examples) * math.ceil(weight))


def _fed(config: Config, plan: Plan, rows: int) -> list[Diagnostic]:
    findings = check_feeds(rows, plan.batch.data_parallel_size)
    if not findings and config.training.dataloader_drop_last and rows < plan.batch.global_batch:
        return [codes.TRAINING_NO_STEPS("training.dataloader_drop_last", f"{rows} rows; {plan.batch}")]
    return findings


def may_pack_too_few(config: Config, plan: Plan) -> bool:
    """Return whether so few bytes of text are packed that a rank may get no row of it."""
    needed = (
        plan.batch.global_batch if config.training.dataloader_drop_last else plan.batch.data_parallel_size
    )
    if not plan.packing or plan.vision or needed == 1:
        return False
    weight = max(section.weight for section in config.data.train)
    size = bytes_of_text(config)
    return size is not None and size * weight <= _BYTES_OF_A_TOKEN * needed * config.data.max_length


def bytes_of_text(config: Config) -> int | None:
    """Return about how many bytes the training data's files hold; None if they are not read here."""
    kind = row_kind(algorithm_spec(config.training.algorithm).rows)
    try:
        data_sets = find_sets("data.train", config.data.train)
        if not all(is_looked_into(one, Reading.of(config.data, kind)) for one in data_sets):
            return None
        files = [file for one in data_sets for file in one.located.files]
        return sum(file.stat().st_size * (_COMPRESSED if is_packed(file) else 1) for file in files)
    except (DataError, OSError):
        return None  # reported with the data sets


def enough_packed_rows(config: Config, plan: Plan) -> Iterable[Diagnostic]:
    """Check the packed rows of data that are prepared, or prepared quickly. Writes nothing that stays."""
    from paceline.data.prepare.epoch_lengths import cached_train, rows_and_tokens
    from paceline.data.prepare.prepare import prepare

    data, training = config.data, config.training
    cache = Path(data.cache_dir or cache_folder(current())).expanduser()
    table = cached_train(config, cache) if (cache / "prepared").is_dir() else None
    if table is not None:
        return _fed(config, plan, rows_and_tokens(config, table, packing=True)[0])
    if (bytes_of_text(config) or 0) > _PREPARED:
        return ()  # the preparation counts them
    seed = training.seed if data.seed is None else data.seed
    kind = row_kind(algorithm_spec(training.algorithm).rows)
    one_process = data.model_copy(update={"num_proc": 1})
    with tempfile.TemporaryDirectory(prefix="paceline-rows-") as folder:
        try:
            made = prepare(one_process, config.model, seed=seed, cache_dir=Path(folder), kind=kind)
        except DataError:
            return ()  # reported with the data sets, or by the preparation itself
        return _fed(config, plan, rows_and_tokens(config, made.train, packing=True)[0])
