"""What the first pictures of a job's rows cost: their sizes, and the tokens by which they lengthen rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.data.images.decide import settings_of
from paceline.data.preflight.check_sets import first_examples
from paceline.data.rows.examples import Reading
from paceline.plan.images.layouts import image_layout

if TYPE_CHECKING:
    from paceline.config.schema import Config


def describe_pictures(config: Config, reading: Reading) -> tuple[str, str] | None:
    """Return what the plan says of the pictures in the first training rows: their tokens, and their sizes.

    None without pictures. Raises PacelineError for data and models that other checks name, too.
    """
    examples = first_examples(config.data, reading, "data.train").examples
    images = [(image, len(example.images) == 1) for example in examples for image in example.images]
    if not images:
        return None
    settings = settings_of(config.data, config.model)
    layouts = [image_layout(settings, image.width, image.height, alone=alone) for image, alone in images]
    tokens = sorted(layout.length for layout in layouts)
    widths, heights = (sorted(getattr(image, side) for image, _ in images) for side in ("width", "height"))
    seen = sum(bool(example.images) for example in examples)
    return (
        f"{_span(tokens)} tokens each",
        f"{len(images)} of {_span(widths)} × {_span(heights)} pixels in {seen} of {len(examples)} first rows;"
        f" on average {sum(tokens) / len(tokens):.0f} tokens",
    )


def _span(numbers: list[int]) -> str:
    low, high = numbers[0], numbers[-1]
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
