"""Pictures of the demo with images: drawn alike by one seed, held-out ones apart, answers true of them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from paceline.config.load import load_config
from paceline.data.rows.examples import Reading
from paceline.data.rows.kinds.base import DOCUMENTS
from paceline.demo.pictures import COLOURS, COUNTS, SIDE, Sight, draw, sights, write_processor, write_sights
from paceline.demo.vision import vision_yaml
from paceline.training.preflight.inputs import describe_pictures


def digest(sight: Sight, seed: str) -> str:
    return hashlib.sha256(draw(sight, seed).tobytes()).hexdigest()


def test_a_seed_draws_the_same_pictures_and_held_out_ones_are_others() -> None:
    made = sights("training 1", 60)
    assert made == sights("training 1", 60) != sights("training 2", 60)
    assert [digest(s, f"t {i}") for i, s in enumerate(made)] == [
        digest(s, f"t {i}") for i, s in enumerate(made)
    ]
    held_out = {digest(s, f"h {i}") for i, s in enumerate(sights("held-out 1", 60))}
    assert len(held_out) == 60 and not held_out & {digest(s, f"t {i}") for i, s in enumerate(made)}


@pytest.mark.parametrize("number", range(0, 40, 3))
def test_an_answer_is_true_of_its_picture(number: int) -> None:
    sight = sights("any", 40)[number]
    pixels = draw(sight, str(number)).load()
    assert pixels is not None
    half, filled = SIDE // 2, 0
    for left in (0, half):
        for top in (0, half):
            quarter = [pixels[x, y] for x in range(left, left + half) for y in range(top, top + half)]
            bright = [p for p in quarter if isinstance(p, tuple) and max(p) > 100]
            filled += bool(bright)
            if bright and sight.kind == "name":
                wanted = COLOURS[sight.answer.split()[0]]
                assert all(abs(a - b) <= 15 for p in bright for a, b in zip(p, wanted, strict=True))
    assert filled == len(sight.shapes)
    assert sight.answer == (COUNTS[filled - 1] if sight.kind == "count" else " ".join(sight.shapes[0]))


def test_the_files_are_read_as_a_run_reads_them(tmp_path: Path) -> None:
    material = tmp_path / "material"
    write_processor(material / "processor")
    for name in ("train", "held_out"):
        write_sights(material, name, sights(name, 8), name)
    file = tmp_path / "vision.yaml"
    file.write_text(vision_yaml(tmp_path / "run", material, seed=1, steps=6, nproc=2))
    config = load_config(file).config
    rows = [json.loads(line) for line in (material / "train.jsonl").read_text().splitlines()]
    assert all((material / row["messages"][0]["content"][0]["image"]).is_file() for row in rows)
    described = describe_pictures(config, Reading.of(config.data, DOCUMENTS, images=True))
    assert described == ("16 tokens each", "8 of 32 × 32 pixels in 8 of 8 first rows; on average 16 tokens")
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(material / "processor/tokenizer.json"))
    for sight in sights("train", 8):
        assert len(tokenizer.encode(sight.answer).ids) == len(sight.answer.split())
