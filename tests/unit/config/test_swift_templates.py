"""Chat templates made of ms-swift's formats, against what ms-swift itself wrote (``tests/peers``)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from paceline.config.import_export.argument_tables import table
from paceline.config.import_export.programs.ms_swift_templates import (
    Writing,
    differences,
    formats_of,
    jinja,
)
from paceline.data.chat_template.encode import Encoded, Encoder
from paceline.data.rows.formats import Example

PEERS = Path(__file__).parents[2] / "peers"
sys.path.insert(0, str(PEERS))

from swift_templates import CONVERSATIONS, conversation, marked, tokenizer  # noqa: E402

RECORDED = json.loads((PEERS / "recorded/swift_templates.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("way", list(RECORDED))
def test_texts_and_losses_are_ms_swifts_or_the_difference_is_named(way: str) -> None:
    coder = tokenizer(table("swift_templates")["templates"])  # type: ignore[arg-type]
    unnamed: list[str] = []
    for name, texts in RECORDED[way].items():
        formats = formats_of(name)
        coder.chat_template = jinja(formats, Writing(last_round=way != "sft"))
        encoder = Encoder(coder, "assistant")
        for turns, expected in zip(CONVERSATIONS, texts, strict=way != "prompt"):
            asked = max(n for n, (role, _) in enumerate(turns) if role == "user") + 1
            example = Example(
                messages=tuple(conversation(way, turns)),  # type: ignore[arg-type]
                learn_from=asked if way == "last" else 0,
            )
            (made,) = (encoder.encode_prompts if way == "prompt" else encoder.encode)([example])
            if not isinstance(made, Encoded):
                assert expected is None or differences(formats), (name, made)
                continue
            ours = marked(coder, made.input_ids.tolist(), made.labelled.tolist())
            if expected is not None and ours != expected and not differences(formats):
                unnamed.append(f"{name}: {ours!r} for {expected!r}")
    assert unnamed == [] and len(RECORDED[way]) >= 20
