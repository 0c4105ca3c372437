"""The task of the demo with images: to name and count coloured shapes, drawn by Pillow.

Each picture follows from a seed. The held-out ones are others: sizes, places and shades are drawn anew, so
that no answer can be known by heart.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.json_types import JsonObject
from paceline.demo.files import ASSISTANT, BOS, EOS, PAD, UNK, USER

if TYPE_CHECKING:
    from PIL.Image import Image

SIDE, PATCH, MERGE = 32, 4, 2  # pixels; a token is 2 × 2 patches of 4 × 4
COLOURS: Mapping[str, tuple[int, int, int]] = {
    "red": (220, 40, 40),
    "green": (40, 170, 60),
    "blue": (50, 80, 220),
    "yellow": (235, 205, 40),
    "purple": (150, 60, 190),
    "white": (240, 240, 240),
}
SHAPES = ("circle", "square", "triangle", "cross")
COUNTS = ("one", "two", "three", "four")
NAME, COUNT = "What is in the picture?", "How many shapes are there?"
PICTURE = "<|image_pad|>"
SPECIAL = (
    PAD,
    BOS,
    EOS,
    UNK,
    USER,
    ASSISTANT,
    "<|vision_start|>",
    "<|vision_end|>",
    PICTURE,
    "<|video_pad|>",
)
WORDS = (NAME, COUNT, *COUNTS, *COLOURS, *(f" {shape}" for shape in SHAPES))

TRAINING, HELD_OUT = 4_000, 200
#: Tokens between {% generation %} and {% endgeneration %} have loss.
_TEMPLATE = (
    "{{- bos_token }}{%- for message in messages %}"
    "{%- if message['role'] == 'assistant' %}"
    "{{- '<|assistant|>' }}{% generation %}{{- message['content'] + eos_token }}{% endgeneration %}"
    "{%- else %}{{- '<|user|>' }}"
    "{%- if message['content'] is string %}{{- message['content'] }}{%- else %}"
    "{%- for part in message['content'] %}{%- if part['type'] == 'image' %}"
    "{{- '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- else %}{{- part['text'] }}{%- endif %}{%- endfor %}{%- endif %}"
    "{%- endif %}{%- endfor %}{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"
)


@dataclass(frozen=True)
class Sight:
    """A picture's question and its only right answer; ``shapes``: (colour, shape) of each in it."""

    kind: str
    answer: str
    shapes: tuple[tuple[str, str], ...]

    @property
    def question(self) -> str:
        """The text of the question."""
        return NAME if self.kind == "name" else COUNT


def sights(seed: str, count: int) -> list[Sight]:
    """Return ``count`` questions, naming and counting in turn."""
    rng = random.Random(seed)
    made = []
    for number in range(count):
        shapes = [(rng.choice(list(COLOURS)), rng.choice(SHAPES)) for _ in range(rng.randint(1, len(COUNTS)))]
        if number % 2:
            made.append(Sight("count", COUNTS[len(shapes) - 1], tuple(shapes)))
        else:
            made.append(Sight("name", " ".join(shapes[0]), tuple(shapes[:1])))
    return made


def draw(sight: Sight, seed: str) -> Image:
    """Return the picture, RGB: each shape in a quarter of it, or one anywhere."""
    from PIL import Image, ImageDraw

    rng = random.Random(seed)
    shade = rng.randint(0, 60)
    image = Image.new("RGB", (SIDE, SIDE), (shade, shade, shade))
    pen, half = ImageDraw.Draw(image), SIDE // 2
    quarters = rng.sample([(0, 0), (half, 0), (0, half), (half, half)], len(sight.shapes))
    for (colour, shape), (left, top) in zip(sight.shapes, quarters, strict=True):
        size = rng.randint(10, 13)
        x, y = left + rng.randint(1, half - size - 2), top + rng.randint(1, half - size - 2)
        fill = tuple(max(0, min(255, value + rng.randint(-12, 12))) for value in COLOURS[colour])
        box = (x, y, x + size, y + size)
        if shape == "circle":
            pen.ellipse(box, fill=fill)
        elif shape == "square":
            pen.rectangle(box, fill=fill)
        elif shape == "triangle":
            pen.polygon([(x + size // 2, y), (x, y + size), (x + size, y + size)], fill=fill)
        else:
            third = size // 3
            pen.rectangle((x + third, y, x + size - third, y + size), fill=fill)
            pen.rectangle((x, y + third, x + size, y + size - third), fill=fill)
    return image


def write_sights(folder: Path, name: str, made: Sequence[Sight], seed: str) -> Path:
    """Write the pictures (PNG) and ``NAME.jsonl``, which names them."""
    pictures = folder / name
    pictures.mkdir(parents=True, exist_ok=True)
    rows = []
    for number, sight in enumerate(made):
        draw(sight, f"{seed} {number}").save(pictures / f"{number:05}.png")
        question = [
            {"type": "image", "image": f"{name}/{number:05}.png"},
            {"type": "text", "text": sight.question},
        ]
        turns = [{"role": "user", "content": question}, {"role": "assistant", "content": sight.answer}]
        rows.append(json.dumps({"messages": turns}))
    file = folder / f"{name}.jsonl"
    file.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return file


_PLAIN = ("single_word", "lstrip", "rstrip", "normalized")  # of a special token


def write_processor(folder: Path) -> None:
    """Write the tokenizer, whose tokens are whole words, and the image processor's settings."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = [*SPECIAL, *WORDS]
    added: list[JsonObject] = [
        {"id": i, "content": t, "special": True, **dict.fromkeys(_PLAIN, False)}
        for i, t in enumerate(SPECIAL)
    ]
    tokenizer: JsonObject = {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {
                "Regex": "|".join(word.replace("?", r"\?") for word in sorted(WORDS, key=len, reverse=True))
            },
            "behavior": "Isolated",
            "invert": False,
        },
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": {t: i for i, t in enumerate(vocabulary)}, "unk_token": UNK},
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD,
        "bos_token": BOS,
        "eos_token": EOS,
        "unk_token": UNK,
        "image_token": PICTURE,
        "model_max_length": 256,
        "clean_up_tokenization_spaces": False,
        "padding_side": "left",
    }
    pixels = SIDE * SIDE
    processor = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": PATCH,
        "merge_size": MERGE,
        "temporal_patch_size": 2,
        "size": {"shortest_edge": pixels, "longest_edge": pixels},
    }
    texts = {
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": settings,
        "preprocessor_config.json": processor,
    }
    for name, values in texts.items():
        (folder / name).write_text(json.dumps(values, indent=1), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(_TEMPLATE, encoding="utf-8")
