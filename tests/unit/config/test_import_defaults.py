"""What an import may not do without a word: adapters that nobody asked for, nulls, other rewards."""

from __future__ import annotations

import ast
import csv
import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from paceline.config.import_export.argument_tables import table
from paceline.config.import_export.commands.command_line import read_command
from paceline.config.import_export.import_config import TRANSLATORS, import_config, import_data
from paceline.config.import_export.programs.trl import REWARDS
from paceline.config.import_export.verdicts import Imported, KeyVerdict, as_text
from paceline.core.errors import ConfigError
from paceline.core.plugins.tables import ALGORITHMS

FULL: dict[str, dict[str, Any]] = {
    "trl": {"model_name_or_path": "m", "dataset_name": "rows"},
    "llamafactory": {"model_name_or_path": "m", "dataset": "rows", "finetuning_type": "full", "stage": "sft"},
    "axolotl": {"base_model": "m", "datasets": [{"path": "rows"}]},
    "swift": {"model": "m", "dataset": "rows", "tuner_type": "full"},
    "hf": {"model_name_or_path": "m"},
}
#: the keys that ask for adapters
ASK = {"use_peft", "finetuning_type", "adapter", "tuner_type"}


def imported(system: str, given: dict[str, Any], algorithm: str | None = None) -> Imported:
    return import_data(given, dict.fromkeys(given, 1), "a.yaml", system, algorithm)


@pytest.mark.parametrize("system", FULL)
def test_full_training_gets_adapters_by_no_other_key(system: str) -> None:
    known = TRANSLATORS[system].defaults("sft")
    about = re.compile("lora|quant|bit|adapter|peft|target|rank|alpha")
    for key in (key for key in known if about.search(key) and key not in ASK):
        for value in (True, 4):
            found = imported(system, {**FULL[system], key: value})
            made = [path for path in found.settings if path.startswith("lora")]
            assert made == [], (key, value)


@pytest.mark.parametrize("system", ["trl", "llamafactory", "hf"])
@pytest.mark.parametrize("algorithm", ["sft", "dpo", "grpo"])
def test_a_null_in_place_of_a_default_is_said(system: str, algorithm: str) -> None:
    """These programs' parsers hand a null on, where the default would have been a value."""
    known = TRANSLATORS[system].defaults(algorithm)
    nulls = {key: None for key in known if key not in ("bf16", "report_to", "output_dir", "stage")}
    found = imported(system, {**nulls, **FULL[system]}, algorithm)
    silent = [
        key
        for key in nulls.keys() - FULL[system].keys()
        if known[key] not in (None, False, "", 0, [], {}, "none")
        and (found.findings[key].verdict is KeyVerdict.MAPPED or "no value" in found.findings[key].says)
    ]
    assert silent == []


def test_thoughts_are_rewarded_as_trl_rewards_them() -> None:
    """The answers of TRL 1.16's think_format_reward."""
    theirs = {
        "<think>a</think>b": 1,
        "<think>a</think>": 1,
        "<think>a</think>\nx <think>": 0,
        "a<think>b</think>": 0,
        "<think>a<think>b</think>c": 0,
        "<think>\na\n</think>\n<answer>3</answer>": 1,
        " <think>a</think>b": 0,
        "<think>a</think>b</think>": 1,
        "no": 0,
    }
    made: Any = REWARDS["think_format_reward"]
    assert made["name"] == "regex"  # which searches, `.` for newlines, too
    ours = {text: int(bool(re.search(made["options"]["pattern"], text, re.DOTALL))) for text in theirs}
    assert ours == theirs


@pytest.mark.parametrize("names", ["think_format_reward", ["mine.f", "trl.rewards.think_format_reward"]])
def test_a_reward_keeps_its_own_weight(names: object) -> None:
    weights = [0.5] if isinstance(names, str) else [1.0, 0.5]
    given = {**FULL["trl"], "reward_funcs": names, "reward_weights": weights}
    found = imported("trl", given, "grpo")
    made: Any = found.settings["training.rollout.rewards"].value
    assert [one["weight"] for one in made] == [0.5]
    assert found.findings["reward_funcs"].verdict is (
        KeyVerdict.MAPPED if isinstance(names, str) else KeyVerdict.LOST
    )


@pytest.mark.parametrize("key", ["modules_to_save", "target_modules"])
@pytest.mark.parametrize("word", ["all-embedding", "all-norm", "all-router"])
def test_words_that_swift_expands_in_the_built_model_are_no_names(key: str, word: str) -> None:
    given = {**FULL["swift"], "tuner_type": "lora", key: ["q_proj", word]}
    found = imported("swift", given)
    assert found.findings[key].verdict is KeyVerdict.LOST and word in found.findings[key].says
    plain = imported("swift", {**given, key: ["lm_head"]})
    assert plain.settings[f"lora.{key}"].value == ["lm_head"]


def test_modules_without_a_name_are_those_of_peft(tmp_path: Path) -> None:
    spec = find_spec("peft")
    assert spec is not None and spec.submodule_search_locations
    source = Path(spec.submodule_search_locations[0], "utils", "constants.py").read_text()
    name = "TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING"
    [theirs] = [
        ast.literal_eval(node.value)
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name
    ]
    targets: Any = {**table("peft")["targets"]}
    assert targets.pop("") == theirs["llama"]
    for kind, ours in targets.items():
        assert theirs[kind] in (ours, ours[0]), kind
    verdicts = {}
    for kind in ("phi", "no_such"):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "config.json").write_text(json.dumps({"model_type": kind}))
        given = {**FULL["trl"], "model_name_or_path": str(tmp_path / kind), "use_peft": True}
        found = imported("trl", given)
        targets = found.settings.get("lora.target_modules")
        verdicts[kind] = targets.value if targets else found.findings["lora_target_modules"].verdict
    assert verdicts == {"phi": ["q_proj", "v_proj", "fc1", "fc2"], "no_such": KeyVerdict.LOST}


@pytest.mark.parametrize(
    ("stored", "settings"),
    [("bfloat16", {"training.pure_bf16": True}), ("float32", {}), (None, None)],
)
def test_weights_of_dtype_auto_are_trained_as_they_are_stored(
    tmp_path: Path, stored: str | None, settings: dict[str, Any] | None
) -> None:
    if stored:
        (tmp_path / "config.json").write_text(json.dumps({"dtype": stored}))
    found = imported("trl", {**FULL["trl"], "model_name_or_path": str(tmp_path), "dtype": "auto"})
    said = found.findings["dtype"].verdict is KeyVerdict.DIFFERS
    values = {path: setting.value for path, setting in found.settings.items()}
    assert said is (settings is None) and (settings or {}).items() <= values.items()


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl", "hub"])
def test_completions_have_loss_by_the_rows_columns(tmp_path: Path, kind: str) -> None:
    file, row = tmp_path / f"rows.{kind}", {"prompt": "q", "completion": "a"}
    if kind == "jsonl":
        file.write_text('{"prompt": [], "completion": [{"role": "assistant", "content": "a"}]}\n')
    if kind == "csv":
        with file.open("w", encoding="utf-8-sig", newline="") as stream:
            csv.writer(stream).writerows([row.keys(), row.values()])
    elif kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), file)
    found = imported("trl", {**FULL["trl"], "dataset_name": str(file)})
    trained = found.settings["data.train_on"].value
    differs = kind in ("jsonl", "hub")  # where turns are or may be: TRL learns what is written after them
    assert trained == ("completion" if differs else "assistant")
    assert ("completion_only_loss" in found.findings) is differs


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (
            "torchrun --nproc_per_node $NGPU src/train.py lf.yaml",
            "the variable NGPU has no value in the script",
        ),
        ("torchrun $(which llamafactory-cli) train a.yaml", "prints: which llamafactory-cli"),
        ("srun bash -c 'torchrun $WHAT x.yaml'", r"in the text of a shell \(-c\)"),
        ("python -c 'import torch'", "no command here is known"),
    ],
)
def test_why_no_command_was_found_is_said(text: str, what: str, tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text(text + "\n")
    with pytest.raises(ConfigError, match=what):
        read_command([str(tmp_path / "a.sh")])


@pytest.mark.parametrize(
    ("given", "strategy", "processes"),
    [
        ({"accelerate_config": "zero3"}, "zero3", 8),
        ({"accelerate_config": "fsdp2", "num_processes": 2}, "fsdp", 2),
        ({"accelerate_config": "single_gpu", "num_processes": 2}, "ddp", 1),
    ],
)
def test_trl_starts_by_its_own_files(given: dict[str, Any], strategy: str, processes: int) -> None:
    found = imported("trl", {**FULL["trl"], "dtype": "bfloat16", "env": {"A": "b"}, **given})
    values = {path: setting.value for path, setting in found.settings.items()}
    assert values["training.distributed_strategy"] == strategy and values["launch.nproc"] == processes
    assert ("training.pure_bf16" in values) is (strategy == "ddp")  # the others make float32 masters
    assert not found.of(KeyVerdict.LOST)


@pytest.mark.parametrize(
    ("system", "job", "algorithm"),
    [
        *[("trl", {}, name) for name in ("sft", "dpo", "kto", "reward", "grpo")],
        *[
            ("llamafactory", {"stage": "dpo", "pref_loss": loss}, None)
            for loss in ("sigmoid", "orpo", "simpo")
        ],
        *[("llamafactory", {"stage": stage}, None) for stage in ("sft", "rm", "kto", "ppo")],
        *[("axolotl", {"rl": rl}, None) for rl in (None, "dpo", "kto", "orpo", "simpo", "grpo")],
        *[
            ("swift", {"rlhf_type": word, "max_length": 8}, "rlhf")
            for word in ("dpo", "kto", "rm", "grpo", "cpo")
        ],
    ],
)
def test_options_of_another_algorithm_are_not_taken_for_this_ones(
    system: str, job: dict[str, Any], algorithm: str | None
) -> None:
    about = re.compile("alpha|beta|weight|gamma|ref_|reward|coef|smooth|gather|label")
    options = {key: 0.5 for key in TRANSLATORS[system].defaults(algorithm or "sft") if about.search(key)}
    options |= {
        "center_rewards_coefficient": 0.5,
        "desirable_weight": 0.5,
        "rpo_alpha": 0.5,
        "cpo_alpha": 0.5,
    }
    options.pop("process_reward_model", None)  # an algorithm of its own, which cannot be kept
    found = imported(system, {**options, **FULL[system], **job}, algorithm)
    ours = found.settings["training.algorithm"].value
    sections = {path.split(".")[1] for path in found.settings if path.count(".") > 1}
    others = sections & set(ALGORITHMS.names()) - {ours}
    assert others == set() and ("rollout" not in sections or ours in ("grpo", "ppo"))


def test_what_is_replaced_in_a_file_of_a_job_differs(tmp_path: Path) -> None:
    """8-bit products and 1-bit moments are computed exactly; the note of a warning is no small print."""
    (tmp_path / "a.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 2\nmixed_precision: fp8\n")
    adam = {"optimizer": {"type": "OneBitAdam", "params": {"lr": 1e-4}}, "train_batch_size": 8}
    (tmp_path / "ds.json").write_text(json.dumps(adam))
    for file, key in (("a.yaml", "mixed_precision"), ("ds.json", "optimizer")):
        assert import_config(str(tmp_path / file)).findings[key].verdict is KeyVerdict.DIFFERS


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ("mask", "sequence", 3.0)),
        ({"vllm_importance_sampling_mode": "token_truncate"}, ("truncate", "token", 3.0)),
        ({"vllm_importance_sampling_clip_max": 2.5}, ("mask", "sequence", 2.5)),
        ({"vllm_importance_sampling_correction": False}, ("none", None, None)),
    ],
)
def test_a_servers_probabilities_are_corrected_as_by_trl(given: dict[str, Any], expected: object) -> None:
    server = {"use_vllm": True, "vllm_mode": "server", "environment_factory": "f"}
    found = imported("trl", {**FULL["trl"], **server, **given}, "grpo")
    settings = [found.settings.get(f"training.grpo.rollout_correction{of}") for of in ("", "_level", "_cap")]
    assert tuple(setting.value if setting else None for setting in settings) == expected
    assert found.findings["environment_factory"].verdict is KeyVerdict.LOST  # no block env
    apart = imported("trl", {**FULL["trl"], "use_vllm": True, "vllm_mode": "colocate"}, "grpo")
    assert "training.grpo.rollout_correction" not in apart.settings  # the processes' own probabilities


def test_a_mixture_reads_the_files_that_it_names() -> None:
    of_files = {"path": "json", "data_files": "x.jsonl", "columns": ["messages"]}
    several = {"path": "a", "data_files": ["x", "y"], "data_dir": "z"}
    given = {"model_name_or_path": "m", "datasets": [of_files, several]}
    found = import_data(given, {"model_name_or_path": 1, "datasets": 2}, "a.yaml", "trl", "sft")
    first: Any = found.settings["data.train"].value
    assert first[0] == {"path": "x.jsonl"}
    lost = {key for key, finding in found.findings.items() if finding.verdict is KeyVerdict.LOST}
    assert lost == {"datasets", "datasets.1.data_files", "datasets.1.data_dir"}


@pytest.mark.parametrize(("kind", "differs"), [("lora", True), ("full", False)])
def test_adapters_without_a_precision_are_not_said_to_be_alike(kind: str, differs: bool) -> None:
    """LLaMA-Factory loads frozen weights in bfloat16 then (extras/misc.py: infer_optim_dtype)."""
    found = imported("llamafactory", {**FULL["llamafactory"], "finetuning_type": kind})
    assert found.settings["training.mixed_precision"].value == "no"
    said = found.findings.get("bf16")
    assert (said is not None and said.verdict is KeyVerdict.DIFFERS) is differs


def test_a_length_of_llamafactorys_generation_is_no_limit_of_rows() -> None:
    found = imported("llamafactory", {**FULL["llamafactory"], "cutoff_len": 64, "max_length": 32})
    assert found.settings["data.max_length"].value == 64
    assert found.findings["max_length"].verdict is KeyVerdict.NO_EFFECT


@pytest.mark.parametrize(("tuner", "key"), [("lora", "lora.adapter_name_or_path"), ("full", None)])
def test_swift_resumes_the_weights_alone_as_a_new_run(tuner: str, key: str | None) -> None:
    """``resume_only_model`` is no resume of ours, which goes on with rows and optimizer."""
    given = {**FULL["swift"], "tuner_type": tuner, "resume_from_checkpoint": "x/checkpoint-2"}
    made = imported("swift", {**given, "resume_only_model": True, "ignore_data_skip": True})
    assert "training.resume_from_checkpoint" not in made.settings
    assert key is None or made.settings[key].value == "x/checkpoint-2"
    lost = made.findings["resume_from_checkpoint"].verdict is KeyVerdict.LOST
    assert lost == (key is None)
    assert imported("swift", given).settings["training.resume_from_checkpoint"].value == "x/checkpoint-2"


@pytest.mark.parametrize("system", ["hf", "trl", "llamafactory", "axolotl", "swift"])
def test_a_checkpoint_of_another_program_is_converted_before_it_is_resumed(
    system: str, tmp_path: Path
) -> None:
    def found(value: Any) -> tuple[str, Any, str]:
        made = imported(system, {**FULL[system], "resume_from_checkpoint": value})
        finding = made.findings["resume_from_checkpoint"]
        return finding.verdict.value, made.settings["training.resume_from_checkpoint"].value, finding.says

    theirs, ours = tmp_path / "checkpoint-2", tmp_path / "run"
    theirs.mkdir()
    (ours / "checkpoints").mkdir(parents=True)
    verdict, value, says = found(str(theirs))  # a start refuses it: nothing begins anew unseen
    assert (verdict, value) == ("differs", str(theirs)) and f"checkpoints convert {theirs}" in says
    assert "adapter" not in says
    (theirs / "adapter_config.json").write_text("{}")
    assert "lora.adapter_name_or_path" in found(str(theirs))[2]
    assert found(str(ours)) == ("mapped", str(ours), "")


def test_the_counts_say_which_defaults_differ() -> None:
    adapted = {**FULL["llamafactory"], "finetuning_type": "lora"}
    first = as_text(imported("llamafactory", adapted)).splitlines()[0]
    assert "0 differs" in first and first.endswith("; of its defaults 1 differs")
    assert "of its defaults" not in as_text(imported("llamafactory", FULL["llamafactory"]))


def test_a_switch_that_is_off_is_kept() -> None:
    """A switch that axolotl leaves open by default turns nothing on where it is given as false."""
    known = TRANSLATORS["axolotl"].defaults("sft")
    named = ("auto_resume_from_checkpoints", "cpu_ram_efficient_loading", "fp32_norms", "dpo_use_weighting")
    assert all(known[key] is None for key in named)
    for key in named:
        finding = imported("axolotl", {**FULL["axolotl"], key: False}).findings[key]
        assert finding.verdict is not KeyVerdict.LOST, (key, finding.says)


@pytest.mark.parametrize(
    ("system", "given", "key", "says"),
    [
        ("llamafactory", {"eval_dataset": "e", "dataset": None, "dataset_dir": "d"}, "dataset_dir", ""),
        ("llamafactory", {"resize_vocab": False}, "resize_vocab", "model.resize_embeddings"),
        ("trl", {"pad_token": "<pad>"}, "pad_token", "padding is not attended to"),
        (
            "axolotl",
            {
                "datasets": [{"path": "rows", "type": "chat_template"}],
                "special_tokens": {"eos_token": "<|im_end|>"},
            },
            "special_tokens.eos_token",
            "",
        ),
    ],
)
def test_a_reason_is_true_and_names_our_key(system: str, given: dict[str, Any], key: str, says: str) -> None:
    finding = imported(system, {**FULL[system], **given}).findings[key]
    assert finding.verdict is not KeyVerdict.LOST and says in finding.says
    assert "none is named" not in finding.says
