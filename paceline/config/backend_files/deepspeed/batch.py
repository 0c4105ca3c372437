"""DeepSpeed's three keys of a batch, and the batch that follows from them for a number of ranks."""

from __future__ import annotations

from paceline.core.json_types import Json

MICRO, STEPS, TOTAL = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size"


def batch_of(deepspeed: Json, micro: int, steps: int, data_parallel_size: int) -> tuple[int, int, str | None]:
    """Return (micro-batch, accumulation, message) for a number of data-parallel ranks, by DeepSpeed's rule.

    ``deepspeed`` is ``training.deepspeed`` (ignored unless a mapping); ``micro`` and ``steps`` are the
    effective values of ``training``. Where the JSON gives ``train_batch_size`` as a number and lacks one or
    both of the other batch keys, they follow from it (rounded down, at least 1); anything else is used as
    given.
    """
    if not isinstance(deepspeed, dict):
        return micro, steps, None
    total, absent = deepspeed.get(TOTAL), [key for key in (MICRO, STEPS) if key not in deepspeed]
    if not isinstance(total, int) or not absent:
        return micro, steps, None
    rows = total // data_parallel_size
    if MICRO in absent:
        steps = steps if STEPS not in absent else 1
        micro = max(rows // steps, 1)
    else:
        steps = max(rows // micro, 1)
    product = micro * steps * data_parallel_size
    says = (
        f"the DeepSpeed file's {total} rows per step over {data_parallel_size} ranks: micro-batch"
        f" {micro}, accumulation {steps}"
    )
    return (
        micro,
        steps,
        says if product == total else f"{says}; {total} does not divide evenly, so {product} rows are used",
    )
