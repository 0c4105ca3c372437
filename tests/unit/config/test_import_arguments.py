"""Arguments of other programs, set to other values than their defaults: each acts, or a word says why not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support import swept

from paceline.config.import_export.argument_tables import defaults
from paceline.config.import_export.import_config import flat, import_data
from paceline.config.import_export.programs import axolotl, llamafactory, ms_swift
from paceline.config.import_export.verdicts import Imported, KeyVerdict

GIVEN: dict[str, dict[str, Any]] = {
    "llamafactory": {
        "model_name_or_path": "m",
        "stage": "sft",
        "dataset": "a",
        "template": "qwen3",
        "do_train": True,
        "finetuning_type": "lora",
    },
    "axolotl": {
        "base_model": "m",
        "datasets": [{"path": "a.jsonl", "type": "chat_template"}],
        "adapter": "lora",
        "bf16": False,
    },
    "swift": {"model": "m", "dataset": "a.jsonl", "tuner_type": "lora"},
}
DEFAULTS = {
    "llamafactory": llamafactory.llamafactory_defaults,
    "axolotl": axolotl.axolotl_defaults,
    "swift": lambda: ms_swift.swift_defaults("sft"),
}
#: words of their own, or read beside another key only
WORDS: dict[str, tuple[Any, ...]] = {
    "excess_length_strategy": ("truncate",),
    "attn_implementation": ("sdpa",),
    "fp16": (True,),
    "bf16": (True,),
    "gradient_checkpointing": (False, True),
    "roles_to_train": (["user"],),
    "split": ("test",),
    "packing": (True,),
    "use_swanlab": (True,),
}


def values(name: str, default: object) -> tuple[Any, ...]:
    """Values that are not the default."""
    if name in WORDS:
        return WORDS[name]
    if isinstance(default, bool):
        return (not default,)
    if isinstance(default, (int, float)):
        return (default + 3, default / 2 + 0.11)
    if isinstance(default, (list, dict)):
        return (["x"], {"x": 1})
    return ("aaa",) if isinstance(default, str) else (True, 3, "aaa", 0.25)


def settings(found: Imported) -> dict[str, Any]:
    return {path: setting.value for path, setting in found.settings.items()}


def given_with(system: str, outer: str, name: str, value: object) -> dict[str, Any]:
    given = GIVEN[system]
    if outer == "datasets.0":
        return {**given, "datasets": [{**given["datasets"][0], name: value}]}
    return {**given, outer: {name: value}, "rl": "grpo"} if outer else {**given, name: value}


def silent(system: str, outer: str, name: str, default: object) -> Iterator[str]:
    """What is said to be kept and changes nothing, or has no verdict or no reason."""
    before = given_with(system, outer, "strict", None)
    base = settings(import_data(before, {}, "x.yaml", system))
    kept, changed = 0, False
    for value in values(name, default):
        given = given_with(system, outer, name, value)
        found = import_data(given, dict.fromkeys(flat(given), 1), "x.yaml", system)
        key = f"{outer}.{name}" if outer else name
        finding = found.findings.get(key)
        if finding is None:
            yield f"{key}: {value!r} has no verdict"
        elif finding.verdict is KeyVerdict.MAPPED:
            kept, changed = kept + 1, changed or settings(found) != base
        elif not finding.says:
            yield f"{key}: {value!r} is {finding.verdict.value} without a reason"
    if kept and not changed and name not in ALIKE:
        yield f"{outer}.{name}: said to be kept, and nothing changes"


#: kept and alike in the files of this test
ALIKE = frozenset(
    {
        *("gradient_checkpointing", "bf16", "float32", "preserve_thinking"),  # on, or off, already
        *("field", "roles", "message_property_mappings"),  # of texts; names that are known anyway
    }
)


#: a program's hundreds of arguments, an import for each value: a fifth of them is in the fast tier
PARTS = 5


@pytest.mark.parametrize("part", swept(range(PARTS), PARTS, 2))
@pytest.mark.parametrize(
    ("system", "outer", "classes"),
    [
        ("llamafactory", "", ()),
        ("swift", "", ()),
        ("axolotl", "", ()),
        ("axolotl", "datasets.0", ("SFTDataset", "DPODataset", "KTODataset", "PretrainingDataset")),
        ("axolotl", "trl", ("TRLConfig",)),
    ],
)
def test_no_argument_is_silent(system: str, outer: str, classes: tuple[str, ...], part: int) -> None:
    listed = defaults("axolotl", classes) if classes else DEFAULTS[system]()
    names = {name: default for name, default in listed.items() if name not in GIVEN[system] or outer}
    assert len(names) > 15
    drawn = [*names.items()][part::PARTS]
    wrong = [word for name, default in drawn for word in silent(system, outer, name, default)]
    assert wrong == []
