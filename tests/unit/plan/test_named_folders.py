"""What one part writes, named where another asks for something else: said as what it is, with the remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.config.schema import Config
from paceline.config.sections.algorithms.supervised import ClassificationOptions
from paceline.core.errors import DataError
from paceline.plan.model.files.folder_check import classes_of_head, wrong_folders
from paceline.training.preflight.class_counts import class_numbers, with_head

CLASSES = {"0": "zz", "1": "aa", "2": "mm"}


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of each kind that an export or a run writes, by its small files alone."""
    monkeypatch.chdir(tmp_path)
    scores = {"model_type": "llama", "architectures": ["LlamaForSequenceClassification"]}
    files: dict[str, Any] = {
        "lm/config.json": {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
        "reward/config.json": scores | {"id2label": {"0": "LABEL_0"}},
        "classes/config.json": scores | {"id2label": CLASSES},
        "two/config.json": scores,  # Transformers leaves out its default
        "adapter/adapter_config.json": {"task_type": "CAUSAL_LM", "base_model_name_or_path": "base"},
        "score_adapter/adapter_config.json": {"task_type": "SEQ_CLS", "base_model_name_or_path": "base"},
    }
    for run, adapter in (("run", None), ("lora_run", {"r": 4})):
        files |= {f"{run}/config.json": {}, f"{run}/plan.json": {"adapter": adapter}}
        files[f"{run}/checkpoints/step-00000002/manifest.json"] = {}
        files[f"{run}/checkpoints/step-00000002/hf/config.json"] = {"model_type": "llama"}
        if adapter:
            files[f"{run}/checkpoints/step-00000002/hf/adapter_config.json"] = {}
    for name, content in files.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content))


def said(algorithm: str, key: str, folder: str) -> str:
    """Code, key and remedy of the only finding; empty where there is none."""
    training: dict[str, Any] = {"algorithm": algorithm}
    sections: dict[str, Any] = {"model": {"name_or_path": "lm"}, "training": training}
    if key == "rewards":
        training["rollout"] = {"rewards": [{"name": "model", "options": {"model": folder}}]}
    elif key in ("ref_model", "teacher_model", "value_model"):
        training[algorithm] = {key: folder}
    elif key == "adapter_name_or_path":
        sections["lora"] = {"adapter_name_or_path": folder}
    else:
        sections["model"] = {"name_or_path": folder}
    found = wrong_folders(Config.model_validate({"data": {"train": "rows.jsonl"}, **sections}))
    assert len(found) <= 1 and all(d.where.endswith(key) and d.hint for d in found)
    return f"{found[0].code}: {found[0].hint}" if found else ""


MODELS = [
    *(
        ("sft", "name_or_path"),
        ("dpo", "ref_model"),
        ("distillation", "teacher_model"),
        ("ppo", "value_model"),
    ),
    *(("reward", "name_or_path"), ("classification", "name_or_path"), ("grpo", "rewards")),
]


@pytest.mark.usefixtures("folders")
@pytest.mark.parametrize(("algorithm", "key"), MODELS)
def test_a_run_or_an_adapter_where_a_model_is_named(algorithm: str, key: str) -> None:
    there = said(algorithm, key, "run")
    assert there.startswith("model.run_folder: paceline export run --to DIR, then ") and f"{key}: " in there
    assert key != "rewards" or "[{name: model, options: {model: DIR}}]" in there
    assert "paceline export run --to" in said(algorithm, key, "run/checkpoints")
    for inside in ("run/checkpoints/step-00000002", "run/checkpoints/step-00000002/hf"):
        assert "paceline export run/checkpoints/step-00000002 --to" in said(algorithm, key, inside)
    assert "--to DIR --merge, then" in said(algorithm, key, "lora_run")
    adapter = said(algorithm, key, "adapter")
    # the remedy for the policy's own base would change the policy elsewhere
    assert ("adapter_name_or_path: adapter" in adapter) == (key == "name_or_path")
    assert adapter.startswith("model.adapter_folder") and ("--merge" in adapter) == (key != "name_or_path")


@pytest.mark.usefixtures("folders")
@pytest.mark.parametrize(
    ("algorithm", "key", "fits"),
    [
        ("sft", "name_or_path", {"lm"}),
        ("grpo", "name_or_path", {"lm"}),
        ("dpo", "ref_model", {"lm"}),
        ("distillation", "teacher_model", {"lm"}),
        ("reward", "name_or_path", {"lm", "reward"}),
        ("ppo", "value_model", {"lm", "reward"}),
        ("classification", "name_or_path", {"lm", "reward", "classes", "two"}),  # the data says which
    ],
)
def test_heads(algorithm: str, key: str, fits: set[str]) -> None:
    found = {folder for folder in ("lm", "reward", "classes", "two") if not said(algorithm, key, folder)}
    assert found == fits


@pytest.mark.usefixtures("folders")
def test_adapters() -> None:
    key = "adapter_name_or_path"
    assert "paceline export lora_run --to DIR, then" in said("grpo", key, "lora_run")
    assert said("sft", key, "lm").startswith("model.adapter_folder: name_or_path: lm under model:")
    for algorithm, good, bad in (("dpo", "adapter", "score_adapter"), ("reward", "score_adapter", "adapter")):
        assert not said(algorithm, key, good) and said(algorithm, key, bad).startswith("model.other_head")


@pytest.mark.usefixtures("folders")
def test_a_trained_head_keeps_its_classes() -> None:
    """The order of the head's rows, not the alphabet: else each row would be trained as another's class."""
    config = Config.model_validate({"model": {"name_or_path": "classes"}, "data": {"train": "x"}})
    head = classes_of_head(config.model)
    assert head == ("zz", "aa", "mm")

    def numbers(*labels: str | int, **options: Any) -> dict[str | int, int]:
        rows, given = [[label] for label in labels], ClassificationOptions.model_validate(options)
        return class_numbers(rows, with_head(rows, given, head, "labels"), "labels")

    assert {name: numbers("aa", "mm")[name] for name in head} == {"zz": 0, "aa": 1, "mm": 2}
    assert numbers(0, 1)["mm"] == 2 and numbers("a", "b", "c", labels=["c", "b", "a"])["c"] == 0
    wrong: list[tuple[tuple[str | int, ...], dict[str, Any]]]
    wrong = [(("a", "b", "c"), {}), (("aa", "x"), {}), ((3,), {}), (("aa",), {"num_labels": 2})]
    for labels, options in wrong:
        with pytest.raises(DataError, match="trained head"):
            numbers(*labels, **options)
    assert with_head([["a"]], ClassificationOptions(), (), "labels") == ClassificationOptions()
