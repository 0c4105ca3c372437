"""The reference and the explanations cover everything there is."""

from __future__ import annotations

from pathlib import Path

import paceline.config
from paceline.config.keys.aliases import ALIASES, SECTION_ALIASES
from paceline.config.keys.valid_keys import RECOGNISED
from paceline.config.render.reference import reference
from paceline.config.schema import SECTIONS, field_of, fields
from paceline.core.diagnostics import all_codes

ROOM = Path(paceline.config.__file__).parent


def test_every_field_is_documented_and_printed():
    text = reference()
    for path, info in fields().items():
        assert info.description and info.description.endswith((".", "loss)")), path
        assert f"| `{path.rsplit('.', 1)[1]}` |" in text
    for name in (*ALIASES, *SECTION_ALIASES, *RECOGNISED, *all_codes()):
        assert f"`{name}`" in text


def test_every_alias_leads_to_a_field():
    pseudo = {"training.fp16", "training.bf16", "data.max_rows", "lora"}
    for written, alias in {**ALIASES, **SECTION_ALIASES}.items():
        assert alias.to in pseudo or field_of(alias.to) is not None, written
        assert written not in SECTIONS["training"].model_fields, f"{written} is a field itself"
    assert not set(RECOGNISED) & set(ALIASES)


def test_the_shipped_reference_is_the_generated_one():
    docs = ROOM.parents[1] / "docs/reference/config.md"
    assert docs.read_text(encoding="utf-8") == reference()
