"""add_bos_token and add_eos_token of a tokenizer's config: Transformers decides what a text gets."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest
from data_fixtures import make_tokenizer

from paceline.config.sections.data import DataSection
from paceline.config.sections.model import ModelSection
from paceline.data.prepare.choose_template import settle_template
from paceline.data.prepare.prepare import setup_of
from paceline.data.rows.kinds.base import row_kind
from paceline.data.tokenizer.file_facts import unsettled
from paceline.data.tokenizer.load import open_tokenizer

BOS, EOS = "<|im_start|>", "<|end|>"
KEYS = ("add_bos_token", "add_eos_token")


@pytest.mark.parametrize("rows", ["retrieval", "classified", "documents"])
def test_ends_that_the_config_asks_for_and_texts_do_not_get_are_named(tmp_path: Path, rows: str) -> None:
    from tokenizers import processors
    from transformers import AutoTokenizer

    for number, (asked, adds) in enumerate(product(product((True, False), repeat=2), repeat=2)):
        folder = make_tokenizer(tmp_path / str(number))
        made = AutoTokenizer.from_pretrained(str(folder), bos_token=BOS)
        ends = list(zip((BOS, EOS), (made.bos_token_id, made.eos_token_id), strict=True))
        around = f"{BOS} $A" if adds[0] else "$A"
        made.backend_tokenizer.post_processor = processors.TemplateProcessing(
            f"{around} {EOS}" if adds[1] else around, None, ends
        )
        made.save_pretrained(str(folder))
        file = folder / "tokenizer_config.json"
        settings = {**json.loads(file.read_text()), **dict(zip(KEYS, asked, strict=True))}
        file.write_text(json.dumps(settings))

        model = ModelSection(tokenizer=str(folder))
        setup = setup_of(DataSection(train="unread.jsonl"), model, row_kind(rows))
        tokenizer = open_tokenizer(setup.tokenizer)
        ids = tokenizer("hi").input_ids
        lacks = (ids[0] != tokenizer.bos_token_id, ids[-1] != tokenizer.eos_token_id)
        # of documents with loss the end is always learnt
        expected = [
            key
            for key, wanted, missing in zip(KEYS, asked, lacks, strict=True)
            if wanted and missing and not (rows == "documents" and key == "add_eos_token")
        ]
        _, notes = settle_template(setup, tokenizer, {"text"})
        assert [note.found.partition(":")[0] for note in notes] == expected, (asked, adds)
        assert {note.code for note in notes} <= {"data.tokenizer_ends"}
        reasons = unsettled(folder, model, {"text"}, learns_answers=False)
        assert all(any(key in reason for reason in reasons) for key in expected), "plan loads it"
