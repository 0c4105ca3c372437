"""The tokens and pixels of pictures equal those of Transformers' whole processors, family by family."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from image_judges import SETTINGS, family_of, image_folder, image_tokenizer, judge, judged
from PIL import Image
from whole_processor import WholeProcessor

from paceline.core.errors import ConfigError
from paceline.data.images.processor import ImageMarks

SIZES = [(1, 1), (28, 28), (56, 84), (84, 56), (224, 224), (640, 480), (333, 41), (100, 199), (31, 640)]


def picture(size: tuple[int, int], seed: int) -> Image.Image:
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), np.uint8), "RGB")


@pytest.mark.parametrize("kind", SETTINGS)
def test_tokens_and_pixels_are_those_of_the_whole_processor(kind: str, tmp_path: Path) -> None:
    folder, config = image_folder(kind, tmp_path / kind)
    whole, tokenizer, rng = judge(kind), image_tokenizer(kind), random.Random(kind)
    processor, marks = WholeProcessor.of(folder, config), ImageMarks(family_of(kind), tokenizer)
    for trial in range(8):
        count = 1 + trial % 3
        sizes = [
            rng.choice(SIZES) if rng.random() < 0.5 else (rng.randint(8, 300), rng.randint(8, 300))
            for _ in range(count)
        ]
        images = [picture(size, 10 * trial + n) for n, size in enumerate(sizes)]
        pieces = ["look", "\nand\n\n", "x\n\n", "\nwhat?\n"][:count] + ["\nthen"]
        text = marks.mark.join(pieces)
        expected, arrays = judged(whole, text, images)
        ours = pieces[0]
        for size, piece in zip(sizes, pieces[1:], strict=True):
            ours += processor.expansion(*size, marks.names, alone=count == 1) + piece
        ids = tokenizer.encode(ours, add_special_tokens=False)
        assert ids == expected, sizes
        features = sum(processor.tokens(*size, alone=count == 1) for size in sizes)
        assert ids.count(marks.token_id) == features
        made = processor.inputs(images)
        assert made.keys() == set(family_of(kind).inputs)
        for name, values in made.items():
            assert values.shape == arrays[name].shape and np.array_equal(values, arrays[name]), (name, sizes)


def test_options_of_the_config_reach_tokens_and_pixels(tmp_path: Path) -> None:
    folder, config = image_folder("gemma3", tmp_path)
    options = {"do_pan_and_scan": True, "pan_and_scan_min_crop_size": 40}
    processor = WholeProcessor.of(folder, config, options=options)
    whole, tokenizer = judge("gemma3"), image_tokenizer("gemma3")
    marks = ImageMarks(family_of("gemma3"), tokenizer)
    for size in [(300, 60), (60, 300), (100, 90), (200, 80), (45, 400)]:
        image = picture(size, 1)
        made = whole(
            images=[image], text=[marks.mark], add_special_tokens=False, return_tensors="np", **options
        )
        text = processor.expansion(*size, marks.names)
        assert tokenizer.encode(text, add_special_tokens=False) == made["input_ids"][0].tolist()
        assert np.array_equal(processor.inputs([image])["pixel_values"], made["pixel_values"])
    with pytest.raises(ConfigError, match="no such option"):
        WholeProcessor.of(folder, config, options={"max_dynamic_patch": 6})


def test_bounds_of_pixels_resize_before_the_processor(tmp_path: Path) -> None:
    folder, config = image_folder("qwen2_vl", tmp_path)
    bounded = WholeProcessor.of(folder, config, min_pixels=90_000, max_pixels=100_000)
    free = WholeProcessor.of(folder, config)
    for size in [(50, 60), (640, 480), (310, 300)]:
        image = picture(size, 2)
        resized = bounded.resized(image)
        assert 89_000 <= resized.width * resized.height <= 100_000
        assert bounded.tokens(*size) == free.tokens(*resized.size)
        assert np.array_equal(bounded.inputs([image])["pixel_values"], free.inputs([resized])["pixel_values"])


def test_a_shape_that_the_processor_refuses_is_refused_from_its_size(tmp_path: Path) -> None:
    folder, config = image_folder("qwen2_vl", tmp_path)
    with pytest.raises(ValueError, match="200 times"):
        WholeProcessor.of(folder, config).tokens(9000, 30)
