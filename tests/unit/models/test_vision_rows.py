"""Pictures as the data side makes them, through whole models: the tokens in place of each mark are as many as
the tower's features, in every family, and the loss is Transformers' own.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from support import swept
from test_vision_forward import NLL, alone, whole
from vision_batches import Document, VisionRows, loss_alone, pictures
from vision_models import FAMILIES, write_vision_folder
from whole_processor import WholeProcessor

from paceline.data.images.processor import ImageMarks
from paceline.plan.model.family import image_family


@pytest.mark.parametrize("kind", swept(FAMILIES, 5))
def test_tokens_in_place_of_marks_are_the_features(kind: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    folder = write_vision_folder(tmp_path, kind)
    config = json.loads((folder / "config.json").read_text())
    tokenizer, family = AutoTokenizer.from_pretrained(folder), image_family(kind)
    assert family is not None
    marks, processor = ImageMarks(family, tokenizer), WholeProcessor.of(folder, config)

    def document(count: int, seed: int) -> Document:
        drawn = pictures(count, seed)
        sizes = [(image.width, image.height) for image in drawn]
        parts = [processor.expansion(*size, marks.names, alone=count == 1) for size in sizes]
        ids = tokenizer.encode("red river".join(["stone", *parts, "cloud"]), add_special_tokens=False)
        counts = tuple(processor.tokens(*size, alone=count == 1) for size in sizes)
        assert ids.count(marks.token_id) == sum(counts)
        inputs = processor.inputs(drawn) if count else {}
        return Document(
            torch.tensor(ids), {k: torch.from_numpy(v) for k, v in inputs.items()} or None, counts
        )

    theirs, ours = alone(folder, torch.float32), whole(folder)
    rows, documents = VisionRows(folder, theirs), [document(n, n) for n in (0, 1, 3, 2)]
    with torch.no_grad():
        loss = ours(rows.batch(documents), NLL)["nll"]
        torch.testing.assert_close(loss, loss_alone(theirs, documents), rtol=2e-6, atol=0.0)
