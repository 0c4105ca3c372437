"""Images in files of other programs: what they freeze and resize, and its rates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.config.import_export.commands.command_line import read_command
from paceline.config.import_export.import_config import import_command, import_data
from paceline.config.import_export.verdicts import Imported, KeyVerdict
from paceline.config.import_export.write_yaml import compose
from paceline.config.schema import Config
from paceline.core.json_types import as_object

QWEN = {"model_name_or_path": "Qwen/Qwen2.5-VL-7B-Instruct", "template": "qwen2_vl"}
TEXT = {"model_name_or_path": "Qwen/Qwen2.5-7B-Instruct", "template": "qwen"}


def llamafactory(**data: Any) -> Imported:
    given = {"stage": "sft", "dataset": "mllm_demo", "finetuning_type": "full", **data}
    return import_data(as_object(given), dict.fromkeys(given, 1), "a.yaml", "llamafactory")


def swift(*words: str, model: str = "Qwen/Qwen2.5-VL-7B-Instruct") -> Imported:
    line = ["swift", "sft", "--model", model, "--dataset", "AI-ModelScope/LaTeX_OCR", *words]
    return import_command(read_command(line))


def value(imported: Imported, path: str) -> Any:
    setting = imported.settings.get(path)
    return None if setting is None else setting.value


def parts(imported: Imported) -> tuple[Any, Any]:
    return value(imported, "training.freeze"), value(imported, "training.unfreeze")


#: (tower, projector, language model frozen) → what of it is written here
FROZEN: dict[tuple[bool, bool, bool], tuple[Any, Any]] = {
    (True, True, False): (["projector"], None),  # the defaults of both programs
    (True, False, False): (None, None),
    (False, True, False): (["projector"], ["vision"]),
    (False, False, False): (["vision"], ["vision"]),
    (True, False, True): (["text"], None),
    (False, False, True): (["text"], ["vision"]),
    (False, True, True): (["projector", "text"], ["vision"]),
}


@pytest.mark.parametrize(("switches", "written"), FROZEN.items())
def test_parts_that_llamafactory_and_swift_freeze_stay_as_loaded_here(
    switches: tuple[bool, bool, bool], written: tuple[Any, Any]
) -> None:
    tower, projector, text = switches
    theirs = llamafactory(
        **QWEN,
        freeze_vision_tower=tower,
        freeze_multi_modal_projector=projector,
        freeze_language_model=text,
    )
    words = [
        f"--{key}={str(on).lower()}"
        for key, on in zip(("freeze_vit", "freeze_aligner", "freeze_llm"), switches, strict=True)
    ]
    options = [part for word in words for part in word.split("=")]
    assert parts(theirs) == parts(swift("--tuner_type", "full", *options)) == written
    names = ("freeze_vision_tower", "freeze_multi_modal_projector", "freeze_language_model")
    assert {theirs.findings[name].verdict for name in names} == {KeyVerdict.MAPPED}
    sections: dict[str, Any] = {
        "training": {key: part for key, part in zip(("freeze", "unfreeze"), written, strict=True) if part}
    }
    assert Config.from_json(sections)


def test_the_defaults_of_both_freeze_the_projector_and_adapters_reach_the_text() -> None:
    assert parts(llamafactory(**QWEN)) == (["projector"], None) == parts(swift("--tuner_type", "full"))
    adapted = llamafactory(**QWEN, finetuning_type="lora", freeze_vision_tower=True)
    assert parts(adapted) == (None, None) == parts(swift("--tuner_type", "lora"))
    assert adapted.findings["freeze_vision_tower"].verdict is KeyVerdict.NO_EFFECT
    reached = llamafactory(**QWEN, finetuning_type="lora", freeze_vision_tower=False)
    assert reached.findings["freeze_vision_tower"].verdict is KeyVerdict.LOST
    assert parts(llamafactory(**TEXT, dataset="alpaca_en_demo")) == (None, None)


def test_sizes_folders_options_and_rates_have_their_keys_here() -> None:
    theirs = llamafactory(
        **QWEN,
        image_max_pixels=262144,
        media_dir="pictures",
        image_do_pan_and_scan=True,
        video_max_pixels=16384,
    )
    assert value(theirs, "data.image_max_pixels") == 262144
    assert value(theirs, "data.image_min_pixels") == 1024, "its default"
    assert value(theirs, "data.media_dir") == "pictures"
    assert value(theirs, "model.processor_kwargs") == {"do_pan_and_scan": True}
    assert theirs.findings["video_max_pixels"].verdict is KeyVerdict.NO_EFFECT
    assert value(llamafactory(**QWEN, image_resolution=589824), "data.image_max_pixels") == 589824
    words = ("--tuner_type", "full", "--max_pixels", "50000", "--vit_lr", "1e-6", "--aligner_lr", "1e-5")
    of_swift = swift(*words, "--freeze_vit", "false")
    assert value(of_swift, "data.image_max_pixels") == 50000
    rates = [value(of_swift, f"training.learning_rates.{part}") for part in ("vision", "projector")]
    assert rates == [1e-6, 1e-5]
    named = import_command(
        read_command(["MAX_PIXELS=1003520", "MIN_PIXELS=3136", "swift", "sft", "--model", "m"])
    )
    assert value(named, "model.processor_kwargs") == {"max_pixels": 1003520, "min_pixels": 3136}


@pytest.mark.parametrize(
    ("data", "key"),
    [
        ({**QWEN, "dataset": "mllm_video_demo"}, "dataset"),
        ({**TEXT}, "dataset"),
        ({"model_name_or_path": "openbmb/MiniCPM-V-4", "template": "minicpm_v"}, "dataset"),
    ],
)
def test_what_is_not_read_is_said(data: dict[str, Any], key: str) -> None:
    assert llamafactory(**data).findings[key].verdict is KeyVerdict.LOST


def test_swift_says_that_rollouts_and_other_models_read_no_images() -> None:
    line = ["swift", "rlhf", "--rlhf_type", "grpo", "--model", "Qwen/Qwen2.5-VL-3B-Instruct"]
    line += ["--dataset", "AI-ModelScope/clevr_cogen_a_train", "--reward_funcs", "accuracy"]
    assert import_command(read_command(line)).findings["dataset"].verdict is KeyVerdict.LOST
    assert swift(model="Qwen/Qwen2.5-Omni-7B").findings["model"].verdict is KeyVerdict.LOST
    assert swift(model="google/gemma-3-4b-it").findings["model"].verdict is not KeyVerdict.LOST


@pytest.mark.parametrize(
    ("more", "written", "lost"),
    [
        ({}, (["vision"], ["vision"]), None),
        ({"freeze_mm_modules": True}, (["projector"], None), None),
        ({"image_size": 512}, (["vision"], ["vision"]), "image_size"),
        ({"adapter": "lora", "lora_r": 8}, (None, None), None),
        ({"base_model": "mistralai/Voxtral-Mini-3B-2507"}, (None, None), "processor_type"),
    ],
)
def test_axolotl_trains_all_of_a_model_that_reads_images(
    more: dict[str, Any], written: tuple[Any, Any], lost: str | None
) -> None:
    data: dict[str, Any] = {
        "base_model": "Qwen/Qwen2.5-VL-7B-Instruct",
        "processor_type": "AutoProcessor",
        "datasets": [{"path": "rows.jsonl", "type": "chat_template"}],
        **more,
    }
    theirs = import_data(as_object(data), dict.fromkeys(data, 1), "a.yaml", "axolotl")
    assert parts(theirs) == written
    of_images = [f.key for f in theirs.of(KeyVerdict.LOST) if f.key in ("processor_type", "image_size")]
    assert of_images == ([lost] if lost else [])


def of_trl(system: str = "trl", file: str = "a.yaml", **data: Any) -> Imported:
    given = {"dataset_name": "org/rows", "model_name_or_path": "Qwen/Qwen2.5-VL-7B-Instruct", **data}
    return import_data(as_object(given), dict.fromkeys(given, 1), file, system)


@pytest.mark.parametrize("system", ["trl", "hf"])
def test_trl_and_transformers_train_all_of_a_model_that_reads_images(system: str, tmp_path: Path) -> None:
    whole = (["vision"], ["vision"])
    theirs = of_trl(system)
    assert parts(theirs) == whole
    assert "trains the tower" in compose(theirs, "a").text, "and the YAML says it"
    assert parts(of_trl(system, model_name_or_path="Qwen/Qwen2.5-7B-Instruct")) == (None, None)
    adapted = of_trl(system, use_peft=True, lora_target_modules="all-linear")
    assert parts(adapted) == (None, None)
    assert adapted.findings["lora_target_modules"].verdict is KeyVerdict.DIFFERS
    # of a folder: by its config, by the rows, or a note where neither is here
    folder = tmp_path / "model"
    assert parts(of_trl(system, model_name_or_path=str(folder))) == (None, None)
    unknown = of_trl(system, model_name_or_path=str(folder))
    assert "if it reads images" in unknown.settings["model.name_or_path"].note
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"images": ["a.png"], "messages": []}\n', encoding="utf-8")
    named = str(tmp_path / "a.yaml")
    assert parts(of_trl(system, named, model_name_or_path=str(folder), dataset_name="rows.jsonl")) == whole
    folder.mkdir()
    for config, expected in (({"vision_config": {}}, whole), ({"model_type": "llama"}, (None, None))):
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        assert parts(of_trl(system, model_name_or_path=str(folder))) == expected
