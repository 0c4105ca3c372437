"""``extends:``, ``${NAME:-default}``, the JSON schema, and the difference of two configs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.config.load import load_config
from paceline.config.render.effective_values import as_text, differences
from paceline.config.render.json_schema import json_schema
from paceline.config.schema import fields
from paceline.core.errors import ConfigError
from paceline.core.json_types import as_object


def write(folder: Path, **files: str) -> str:
    """Write NAME.yaml for each keyword; the path of the first."""
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return str(folder / f"{next(iter(files))}.yaml")


def test_keys_override_those_below(tmp_path: Path) -> None:
    top = write(
        tmp_path,
        top="extends: [one.yaml, two.yaml]\ntraining: {seed: 7}\n",
        one="training: {seed: 1, learning_rate: 1e-4, dpo: {beta: 0.3}}\n",
        two="extends: three.yaml\ntraining: {learning_rate: 2e-4, dpo: {label_smoothing: 0.1}}\n",
        three="model: {name_or_path: base}\ntraining: {seed: 3, weight_decay: 0.2}\n",
    )
    loaded = load_config(top, ["training.weight_decay=0.5"])
    training = loaded.config.training
    assert (training.seed, training.learning_rate, training.weight_decay) == (7, 2e-4, 0.5)
    assert loaded.config.model.name_or_path == "base" and training.dpo is not None
    assert (training.dpo.beta, training.dpo.label_smoothing) == (0.3, 0.1)
    assert loaded.provenance["training.learning_rate"].place().endswith("two.yaml:2")
    assert loaded.config.training.experiment_name == "top"


@pytest.mark.parametrize(
    "text, what",
    [
        ("extends: b.yaml\n", "a.yaml -> b.yaml -> a.yaml"),
        ("extends: missing.yaml\n", "does not exist"),
        ("extends: {a: 1}\n", "names files"),
    ],
)
def test_circles_and_missing_files_are_named(tmp_path: Path, text: str, what: str) -> None:
    top = write(tmp_path, a=text, b="extends: a.yaml\n")
    with pytest.raises(ConfigError) as caught:
        load_config(top)
    (problem,) = caught.value.diagnostics
    assert what in problem.what and problem.code == "config.extends"
    assert problem.where.rpartition(":")[2] == "1"


def test_an_error_below_names_its_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(
            write(tmp_path, a="extends: b.yaml\ntraining: {seed: x}\n", b="\ntraining: {learning_rats: 1}\n")
        )
    places = {problem.where.rpartition("/")[2] for problem in caught.value.diagnostics}
    assert places == {"a.yaml:2", "b.yaml:2"}


def test_a_file_named_below_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "ds.json").write_text(
        '{"gradient_clipping": 0.25, "zero_optimization": {"stage": 1}}'
    )
    write(tmp_path / "base", base="training: {deepspeed: ds.json}\n")
    config = load_config(write(tmp_path, a="extends: base/base.yaml\n")).config
    assert config.training.max_grad_norm == 0.25


def test_variables_with_a_default(tmp_path: Path) -> None:
    top = write(
        tmp_path,
        a="model:\n  name_or_path: ${ROOT:-/models}/llama\n"
        "training:\n  learning_rate: ${LR:-1e-4}\n  seed: '${SEED:-3}'\n",
    )
    config = load_config(top, environ={"SEED": "11"}).config
    assert (config.model.name_or_path, config.training.learning_rate) == ("/models/llama", 1e-4)
    assert config.training.seed == 11


def test_secrets_and_variables_without_default_are_refused(tmp_path: Path) -> None:
    for text in ("training: {run_name: '${HF_TOKEN:-x}'}", "training: {run_name: '${NAME}'}"):
        with pytest.raises(ConfigError) as caught:
            load_config(write(tmp_path, a=text), environ={"HF_TOKEN": "secret", "NAME": "x"})
        assert caught.value.diagnostics[0].code == "config.variable"


def test_schema_describes_every_key() -> None:
    schema = json_schema()
    json.dumps(schema)
    for path in fields():
        inner: object = schema
        for part in path.split("."):
            options = [inner, *as_object(inner).get("anyOf", ())]  # type: ignore[arg-type, misc]
            held = [as_object(item)["properties"] for item in options if "properties" in as_object(item)]  # type: ignore[arg-type]
            inner = as_object(held[0])[part]
        assert as_object(inner)["description"], path  # type: ignore[arg-type]


def fits(value: object, schema: object) -> bool:
    """Whether a value fits a schema (of the words that ours has)."""
    known = as_object(schema)  # type: ignore[arg-type]
    options = [item for item in known.get("anyOf", ()) if "pattern" not in as_object(item)]  # type: ignore[union-attr, arg-type]
    if options:
        return any(fits(value, option) for option in options)
    types = {
        "object": dict,
        "array": list,
        "string": str,
        "boolean": bool,
        "integer": int,
        "number": (int, float),
    }
    named = known.get("type", [])
    kinds = [named] if isinstance(named, str) else list(named)  # type: ignore[arg-type]
    if kinds and not any(
        kind == "null" and value is None or isinstance(value, types.get(kind, ())) for kind in kinds
    ):  # type: ignore[arg-type]
        return False
    keys = as_object(known.get("properties"))
    if "enum" in known and value not in known["enum"]:  # type: ignore[operator]
        return False
    if isinstance(value, dict) and keys:
        return all(fits(inner, keys[key]) if key in keys else False for key, inner in value.items())
    return not isinstance(value, list) or all(fits(item, known.get("items", {})) for item in value)


def test_schema_takes_a_config_and_refuses_a_misspelling() -> None:
    good = {
        "extends": "a.yaml",
        "model": {"name_or_path": "x"},
        "data": {"train": ["a.jsonl", {"path": "b", "weight": 2}]},
        "training": {"algorithm": "dpo", "learning_rate": 1e-4, "dpo": {"beta": 0.2}, "fp16": True},
        "lora": {"r": 4},
    }
    assert fits(good, json_schema())
    for wrong in ({"training": {"learning_rats": 1}}, {"training": {"seed": []}}, {"colour": 1}):
        assert not fits(wrong, json_schema())


def test_difference_is_by_resolved_keys(tmp_path: Path) -> None:
    one = write(tmp_path, a="learning_rate: 1e-4\nwarmup_ratio: 0.1\n")
    two = write(tmp_path, b="training:\n  warmup_steps: 0.1\n  lr: 0.0001\n  experiment_name: a\n")
    assert differences(load_config(one), load_config(two)) == []
    three = write(tmp_path, c="training: {lr: 2e-4, experiment_name: a, warmup_steps: 0.1}\nlora: {r: 4}\n")
    found = differences(load_config(one), load_config(three))
    assert {d.path for d in found} >= {"training.learning_rate", "lora.r"}
    assert "c.yaml:1" in as_text(found, ("a", "c"))
