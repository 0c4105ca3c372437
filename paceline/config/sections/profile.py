"""``training.profile:`` — which steps are recorded, and on which ranks."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from paceline.config.sections.types import Bool, Section, to_int
from paceline.core.json_types import Json

MOST_STEPS = 100  # one trace may take hundreds of MB


def to_numbers(value: Json) -> Json:
    """Convert ``3``, ``[3, 7]``, ``"3-5,10"`` or a list of these to sorted numbers."""
    items = value if isinstance(value, (list, tuple)) else str(value).split(",")
    found: set[int] = set()
    for item in items:
        first, dash, last = str(item).strip().partition("-")
        begin = to_int(first)
        end = to_int(last) if dash and first else begin
        if not 0 <= end - begin < MOST_STEPS:
            expected = f"must be numbers or ranges of at most {MOST_STEPS}, like [3, 10-12]"
            raise PydanticCustomError("paceline", "{expected}", {"expected": expected})
        found.update(range(begin, end + 1))
    return sorted(found)


def to_ranks(value: Json) -> Json:
    """Convert ``all`` to no numbers, which means every rank; else as steps."""
    return () if value == "all" else to_numbers(value)


class Profile(Section):
    """Profiles of single steps."""

    steps: Annotated[tuple[int, ...], BeforeValidator(to_numbers)] = Field(
        min_length=1,
        max_length=MOST_STEPS,
        description="Steps to record, counted from 1 as in the log: a number, a list, or ranges like 10-12.",
    )
    ranks: Annotated[tuple[int, ...], BeforeValidator(to_ranks)] = Field(
        default=(0,), description="Ranks that record: numbers, ranges, or all."
    )
    memory: Bool = Field(
        default=True,
        description="Record what each kind of layer allocates, and on GPUs the allocator's blocks.",
    )
