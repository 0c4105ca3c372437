"""axolotl's ``type: alpaca`` and formats of the user's own: its tokens and labels are those of the import.

``axolotl_prompts.json``: what the strategies of axolotl 0.19.0 made of the rows by ``examples/tokenizer``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline.config.import_export.argument_tables import table
from paceline.config.import_export.import_config import import_data
from paceline.config.import_export.verdicts import Imported, KeyVerdict
from paceline.data.chat_template.encode import Encoded, Encoder
from paceline.data.rows.examples import Reading, RowReader
from paceline.data.rows.formats import Shape, detect
from paceline.data.rows.values import RowError
from paceline.data.tokenizer.load import TokenizerSpec, open_tokenizer

HERE = Path(__file__)
sys.path.insert(0, str(HERE.parents[2] / "peers"))
from axolotl_templates import CONVERSATIONS  # noqa: E402

RECORDED = json.loads(HERE.with_name("axolotl_prompts.json").read_text(encoding="utf-8"))
TOKENIZER = HERE.parents[3] / "examples" / "tokenizer"


def imported(*sets: dict[str, Any], **keys: Any) -> Imported:
    tree = {
        "base_model": "m",
        "datasets": [{"path": f"{n}.jsonl", **one} for n, one in enumerate(sets)],
        **keys,
    }
    return import_data(tree, dict.fromkeys(tree, 1), "theirs.yaml", "axolotl")


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: str(case["keys"])[:70])
def test_the_tokens_and_labels_are_axolotl_s(case: dict[str, Any]) -> None:
    keys = dict(case["keys"])
    settings = imported({"type": keys.pop("type")}, **keys).settings
    [of_set] = settings["data.train"].value  # type: ignore[misc,union-attr]
    template = str(settings["model.chat_template"].value)
    train_on = "all" if case["keys"].get("train_on_inputs") else "assistant"
    assert settings.get("data.train_on") is None or settings["data.train_on"].value == train_on
    shape = detect(
        case["rows"], where="rows", requested=of_set["format"], mapping=of_set.get("columns") or {}
    )
    reader = RowReader(shape, Reading())
    examples = [example for row in case["rows"] for example in reader.read(row, "row")]  # type: ignore[union-attr]
    coder = Encoder(open_tokenizer(TokenizerSpec(str(TOKENIZER), chat_template=template)), train_on)
    apart = isinstance(case["keys"]["type"], dict) and case["keys"]["type"].get("format", " ").endswith(" ")
    for made, (ids, labelled) in zip(coder.encode(examples), case["answers"], strict=True):
        assert isinstance(made, Encoded)
        if apart:  # the named difference: axolotl's blank before the answer is a token of the prompt
            assert coder.tokenizer.decode(made.input_ids) == coder.tokenizer.decode(ids)
            continue
        assert made.input_ids.tolist() == ids
        assert made.labelled.nonzero()[0].tolist() == labelled


def lost(found: Imported) -> list[str]:
    return [key for key, finding in found.findings.items() if finding.verdict is KeyVerdict.LOST]


def test_one_template_writes_the_rows_of_all_data_sets() -> None:
    alike = {"type": "alpaca"}, {"type": "alpaca", "split": "train"}
    assert not lost(imported(*alike)) and "data.train" in imported(*alike).settings
    for other in ("chat_template", "alpaca:chat", {"format": "{instruction}"}):
        assert any(key.endswith(".type") for key in lost(imported(alike[0], {"type": other})))
    assert lost(imported({"type": "alpaca:verse"})) and lost(imported({"type": {"format": "{question}"}}))


def test_a_chat_template_does_not_write_such_rows() -> None:
    alone = imported({"type": "alpaca"}).settings["model.chat_template"].value
    for name in ("chatml", "gemma3"):
        found = imported({"type": "alpaca"}, chat_template=name)
        assert not lost(found) and found.settings["model.chat_template"].value == alone


def test_the_file_s_end_of_text_ends_the_answers() -> None:
    found = imported({"type": "alpaca"}, special_tokens={"eos_token": "<|end|>"})
    assert not lost(found) and '"<|end|>"' in str(found.settings["model.chat_template"].value)


TEMPLATES = json.loads(HERE.with_name("axolotl_templates.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", TEMPLATES, ids=lambda case: case["template"])
def test_the_named_templates_write_axolotl_s_tokens_and_labels(case: dict[str, Any]) -> None:
    """``axolotl_templates.json``: by ``tests/peers/axolotl_templates.py``, whose conversations these are."""
    found = imported({"type": "chat_template"}, chat_template=case["template"])
    template = str(found.settings["model.chat_template"].value)
    end = table("axolotl_templates")["templates"][case["template"]]["end"]  # type: ignore[index,call-overload]
    special = {"bos_token": "<s>", "eos_token": "</s>" if end == "eos_token" else str(end)}
    spec = TokenizerSpec(str(TOKENIZER), special_tokens=tuple(special.items()), chat_template=template)
    coder, shape = Encoder(open_tokenizer(spec), "assistant"), Shape("messages", {"messages": "messages"}, "")
    reader = RowReader(shape, Reading())
    for turns, answer in zip(CONVERSATIONS, case["answers"], strict=True):
        if answer is None:
            continue
        [example] = list(reader.read({"messages": turns}, "row"))
        [made] = coder.encode([example])  # type: ignore[list-item]
        if isinstance(made, RowError):  # Mistral's write the system's turn at the last question alone
            assert "mistral_v" in case["template"] and made.reason == "turn_left_out"
            continue
        assert made.input_ids.tolist() == answer[0]
        assert made.labelled.nonzero()[0].tolist() == answer[1]
