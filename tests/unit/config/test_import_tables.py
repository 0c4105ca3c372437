"""Tables of other programs' keys: each row has a known verb, a condition that can hold, and a key of ours."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from paceline.config.import_export import argument_tables, decide_keys
from paceline.config.import_export.import_config import flat, import_data
from paceline.config.import_export.programs import (
    axolotl,
    axolotl_data,
    llamafactory,
    ms_swift,
    transformers,
    trl,
)
from paceline.config.import_export.verdicts import KeyVerdict
from paceline.config.import_export.write_yaml import compose
from paceline.config.schema import SECTIONS, field_of
from paceline.config.sections.data import Dataset
from paceline.core.errors import ConfigError
from paceline.core.plugins.tables import ALGORITHMS

TABLES = sorted(path.stem for path in (Path(decide_keys.__file__).parent / "keys").glob("*.toml"))
TABLES.remove("other_jobs")  # of commands that do not train: it decides no key
TABLES.remove("proof")  # what `migrate --prove` writes in place of keys: no verdicts
CODE: Mapping[str, Mapping[str, object]] = {
    "axolotl": axolotl.CODE,
    "axolotl_data": axolotl_data.CODE,
    "llamafactory": llamafactory.CODE,
    "swift": ms_swift.CODE,
    "trl": {name: code for name, code in trl.CODE.items() if name not in trl.ADAPTERS},
    "adapters": trl.ADAPTERS,
    "hf": {name: trl.CODE[name] for name in ("datasets", "images", "weights")},
}
#: Tables under TRL's names
OF_TRL = ("adapters", "hf")
OF_TRANSFORMERS = transformers.CODE.keys()
#: Tables of one entry of a list: what they set are keys of a data set
OF_DATA_SETS = {"axolotl_data", "llamafactory_data"}
OF_A_STEP = {"when", "each", "again", "says", "to", "code", "table", "step"}
OF_A_STEP |= {*decide_keys.VERBS, *decide_keys.OF_NAMES}
OF_A_ROW = {
    "to",
    "value",
    "words",
    "as",
    "of",
    "note",
    "differs",
    "otherwise",
    "inside",
    "says",
    "unset",
    "fine",
}
CLAUSE = re.compile(
    r"[\w.]+ (is (not )?((set to )?\S+|its default|a mapping|a list|a text|a (whole )?number"
    r"|a f(ile|older) here|sigmoid, sft|\['sigmoid', 'sft'\])|(has only|matches) \S+)"
)


def steps(listed: list[Any]) -> Iterator[dict[str, Any]]:
    for step in listed:
        yield step
        yield from steps(step.get("step", []))


def paths(step: dict[str, Any]) -> Iterator[str]:
    yield from step.get("set", ())
    for verb in ("keep", "write", "enable", "part"):
        rows = step.get(verb, {})
        for row in rows.values() if isinstance(rows, dict) else [step["to"]]:
            named = row["to"] if isinstance(row, dict) else row
            yield from [named] if isinstance(named, str) else named


#: What the importer tells the tables beside the file's keys; their ``let`` names more
FACTS = {"job", "named", "engine", "weights", "sees_images"}
#: Of older files, or inside a block: named in conditions alone
OLDER = {
    *("dpo_ftx", "evaluation_strategy", "kt_config.kt_expert_weight_format", "peft_config"),
    *("peft_config.name", "quant_config.name", "dist_config", "dist_config.name", "optim_config.name"),
    *("optim_config", "peft_config.adapter_name_or_path"),
    *(
        "fsdp_config.activation_checkpointing",
        "train_dataset",
        "torch_dtype",
        "visual_inputs",
        "dataset_kwargs.skip_prepare_dataset",
    ),
}


def asked(step: dict[str, Any]) -> Iterator[str]:
    """The keys that a step's conditions and texts name."""
    when = step.get("when", [])
    for line in [when] if isinstance(when, str) else when:
        yield from (
            re.split(" is | has only | matches ", clause)[0] for clause in re.split(" and | or ", line)
        )
    texts = json.dumps({verb: rows for verb, rows in step.items() if verb not in ("step", "when")})
    found = re.findall(r"\$(?:\{([\w.]+)\}|(\w+))", texts)
    yield from ({a or b for a, b in found} - {"it", *decide_keys.SENTENCES})


def decided(step: dict[str, Any]) -> Iterator[str]:
    for verb in decide_keys.VERBS.keys() & step.keys():
        yield from step[verb]
    for switch, row in step.get("feature", {}).items():
        yield switch
        yield from row.get("keys", []) if isinstance(row, dict) else ()


@pytest.mark.parametrize("program", sorted({*TABLES} - OF_DATA_SETS))
def test_conditions_ask_for_keys_that_there_are(program: str) -> None:
    listed = list(steps(argument_tables.steps(program)))
    of_program = argument_tables.defaults("trl" if program in OF_TRL else program) if program in CODE else {}
    known = FACTS | set(of_program) | set(argument_tables.defaults("transformers")) | OLDER
    known |= {key for step in listed for key in (*decided(step), *step.get("let", ()))}
    names = {name for step in listed for name in asked(step) if field_of(name) is None or "." not in name}
    assert sorted(names - known) == []


def known(path: str) -> bool:
    names = [path.replace("$algorithm", name) for name in ALGORITHMS.names()] if "$" in path else [path]
    return path in SECTIONS or any(field_of(name) is not None for name in names)


def of_data_set(path: str, program: str) -> bool:
    return program in OF_DATA_SETS and path.partition(".")[0] in Dataset.model_fields


@pytest.mark.parametrize("program", TABLES)
def test_every_row_says_what_it_does_and_sets_a_key_of_ours(program: str) -> None:
    named: set[str] = set()
    for step in steps(argument_tables.steps(program)):
        assert set(step) <= OF_A_STEP, step
        when = step.get("when", [])
        for line in [when] if isinstance(when, str) else when:
            clauses = re.split(" and | or ", line)
            assert all(CLAUSE.fullmatch(clause) for clause in clauses), line
        assert not [path for path in paths(step) if not known(path) and not of_data_set(path, program)], step
        for verb in decide_keys.VERBS.keys() & step.keys():
            rows = step[verb].values() if isinstance(step[verb], dict) else ()
            for row in (row for row in rows if isinstance(row, dict)):
                assert set(row) <= OF_A_ROW and row.get("as", "switch") in {
                    "switch",
                    *decide_keys.CONVERTERS,
                }, row
        named |= {step["code"]} if "code" in step else set()
    assert named >= CODE.get(program, {}).keys() - OF_TRANSFORMERS
    assert named <= CODE.get(program, {}).keys() | OF_TRANSFORMERS


@pytest.mark.parametrize(
    ("system", "given", "lost"),
    [
        ("trl", {"add_tokens": 5, "learning_rate": 1e-4}, "add_tokens"),
        ("trl", {"grpo": False, "reward_funcs": ["f"]}, "grpo"),
        ("llamafactory", {"stage": "sft", "new_special_tokens": {"a": 1}}, "new_special_tokens"),
        ("swift", {"per_device_train_batch_size": 0, "model": "m", "generation_batch_size": 8}, ""),
        ("axolotl", {"base_model": "m", "num_epochs": 0, "evals_per_epoch": 2, "val_set_size": 0.1}, ""),
    ],
)
def test_a_value_that_cannot_be_is_lost_by_name(system: str, given: dict[str, Any], lost: str) -> None:
    found = import_data(given, dict.fromkeys(flat(given), 1), "a.yaml", system)
    assert compose(found, "t").text
    assert not lost or found.findings[lost].verdict is KeyVerdict.LOST


def test_an_algorithm_without_a_trainer_of_trl_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="no trainer of TRL for ppo is imported"):
        import_data({"model_name_or_path": "m"}, {}, "a.yaml", "trl", "ppo")


@pytest.mark.parametrize("algorithm", [{}, {"rl": "dpo"}])
def test_a_name_alone_is_a_pretraining_dataset_and_no_row_of_it_is_left_out(
    algorithm: dict[str, Any],
) -> None:
    """axolotl cuts a longer text into several rows; here it loses its end, which is said."""
    given = {"base_model": "m", "pretraining_dataset": "org/rows", "max_steps": 1, **algorithm}
    found = import_data(given, dict.fromkeys(flat(given), 1), "a.yaml", "axolotl")
    assert found.settings["data.train"].value == [{"path": "org/rows", "format": "text"}]
    assert found.findings["pretraining_dataset"].verdict is KeyVerdict.DIFFERS
    assert found.settings["data.on_too_long"].value == "truncate"
    assert not [key for key in found.findings if key.startswith("pretraining_dataset.")]
