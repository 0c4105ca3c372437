"""Faults that follow from YAML, a model's shape, what is installed and the machine: each is found by
``plan``.
"""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from fault_jobs import Job, write_weights

from paceline.config.registries.trackers import TRACKERS
from paceline.core.errors import ConfigError
from paceline.core.rundir import RunDir
from paceline.launch.claim_run_dir import check_claim
from paceline.launch.preflight import child_checks
from paceline.launch.preflight.load_config import load
from paceline.plan.packages import check_packages

CPU_FP16 = {"training.mixed_precision": "fp16", "launch.nproc": 2}
TP = {"launch.nproc": 2, "training.distributed_strategy": "fsdp", "training.parallelism": {"tp_size": 2}}


def deepspeed(tp: int, stage: int = 1) -> dict[str, Any]:
    return {"zero_optimization": {"stage": stage}, "tensor_parallel": {"autotp_size": tp}}


@pytest.fixture(autouse=True)
def no_look(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """These follow without a look at files, whose process costs half a second each."""
    if "with_look" not in request.keywords:
        monkeypatch.setattr(child_checks, "run_child", lambda job: ({}, ""))


def of_shape(job: Job, **changed: Any) -> None:
    file = job.model / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changed}))
    write_weights(job.model)


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"training.deepspeed": deepspeed(4), "launch.nproc": 4}, "par.tp_kv_heads"),  # 2 KV heads: SIGFPE
        ({"training.deepspeed": deepspeed(3), "launch.nproc": 3}, "par.tp_heads"),
        ({"training.deepspeed": deepspeed(2, 0), "launch.nproc": 2}, "strategy.deepspeed_tp_stage"),
        ({**TP, "training.parallelism": {"tp_size": 4}, "launch.nproc": 4}, "par.tp_kv_heads"),
        (
            {
                "launch.nproc": 2,
                "training.parallelism": {"pp_size": 2},
                "training.distributed_strategy": "pipeline",
                "model.name_or_path": "models/gpt2",
            },
            "models.no_stages",
        ),
        ({**TP, "model.name_or_path": "models/gpt2"}, "models.tp_no_plan"),
        (
            {"training.deepspeed": deepspeed(2), "launch.nproc": 2, "model.name_or_path": "models/gpt2"},
            "strategy.deepspeed_tp_plan",
        ),
        (
            {
                "training.parallelism": {"pp_size": 8},
                "launch.nproc": 8,
                "training.distributed_strategy": "pipeline",
            },
            "par.pp_layers",
        ),
        ({**CPU_FP16, "training.distributed_strategy": "zero2"}, "strategy.deepspeed_fp16"),
        ({"model.attn_implementation": "flash_attention_2"}, "model.attention_cpu"),
        ({"training.ddp_backend": "nccl", "launch.nproc": 2}, "back.nccl_cpu"),
        ({"training.distributed_strategy": "fsdp"}, "back.fsdp_single"),
        ({"lora.target_modules": "(unclosed"}, "config.type"),
        ({"training.seed": 2**70}, "config.type"),
        ({"data.seed": 2**63}, "config.type"),
        ({"training.ddp_timeout": 10**12}, "config.value"),
        ({"training.output_dir": "a\0b"}, "config.type"),
        ({"lora.modules_to_save": "a\0b"}, "config.type"),
        ({"training.eval_strategy": "steps"}, "eval.dataset"),
        (
            {
                "data.eval": "rows.json",
                "training.eval_strategy": "steps",
                "training.eval_steps": 3,
                "training.save_steps": 4,
                "training.load_best_model_at_end": True,
            },
            "save.best_steps",
        ),
        ({"data.max_length": 4096}, "data.max_pos"),
        ({"training.report_to": "comet_ml"}, "train.report_to"),
        ({"training.early_stopping_patience": 2}, "eval.early_stopping"),
        ({"launch.nnodes": 2, "launch.master_port": 29500}, "launch.master_addr"),
        ({"launch.nnodes": 2, "launch.node_rank": 1, "launch.master_port": 29500}, "launch.master_addr"),
        (
            {"lora.quantization_bit": 4, "training.distributed_strategy": "zero3", "launch.nproc": 2},
            "plan.quantised_strategy",
        ),
        (
            {"training.algorithm": "grpo", "training.rollout": {"max_completion_length": 32}},
            "rollout.no_rewards",
        ),
        ({"training.per_device_train_batch_size": 10**12}, "plan.rows_room"),
        (
            {
                "training.fsdp": "full_shard",
                "training.fsdp_config": {"min_num_params": -5},
                "launch.nproc": 2,
            },
            "fsdp.value",
        ),
        ({"model.add_tokens": ["", ""]}, "model.added_tokens"),
        ({"model.add_tokens": ["<a>"], "model.add_special_tokens": ["<a>"]}, "model.added_tokens"),
    ],
)
def test_a_fault_is_found_by_plan(job: Job, settings: dict[str, Any], code: str) -> None:
    found = job.found(settings)
    assert code in found, {c: d.render() for c, d in found.items()}
    assert found[code].severity.value == "error" and found[code].hint


def test_autotp_needs_a_key_value_head_a_rank_and_no_more(job: Job) -> None:
    of_shape(job, num_attention_heads=12, num_key_value_heads=1, hidden_size=48)
    assert "par.tp_kv_heads" in job.found({"training.deepspeed": deepspeed(2), "launch.nproc": 2})
    of_shape(job, num_attention_heads=12, num_key_value_heads=3, hidden_size=48)
    assert "par.tp_kv_heads" not in job.found({"training.deepspeed": deepspeed(2), "launch.nproc": 2})


def test_a_width_that_ranks_cannot_share(job: Job) -> None:
    of_shape(job, intermediate_size=51)
    found = job.found(TP)
    assert "tp_size: 1" in found["par.tp_width"].hint
    of_shape(job, intermediate_size=52)
    assert "par.tp_width" not in job.found(TP)


def test_fp16_where_the_processor_multiplies_it_is_let_through(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    from paceline.plan.hardware import probe as hardware

    monkeypatch.setattr(
        hardware, "cpu_flags", lambda text=None: (frozenset({"avx512_fp16", "f16c"}), "A CPU")
    )
    assert "strategy.deepspeed_fp16" not in job.found({**CPU_FP16, "training.distributed_strategy": "zero2"})


def test_a_port_in_use_is_warned_of(job: Job) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        found = job.found({"launch.master_port": taken.getsockname()[1], "launch.nproc": 2})
    assert found["launch.port_in_use"].severity.value == "warning"


def test_a_disk_too_small_for_a_checkpoint(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.launch.preflight import facts

    monkeypatch.setattr(facts, "disk_free_bytes", lambda path: 1000)
    assert "save.disk" in job.found()


def test_a_disk_for_an_adapter_need_not_hold_its_base() -> None:
    from paceline.config.sections.lora import LoraSection
    from paceline.config.sections.training import TrainingSection
    from paceline.launch.preflight.facts import checkpoint_bytes
    from paceline.plan.model.model_catalogue import known_models
    from paceline.plan.model.read_config import shape_from_config

    shape = shape_from_config(known_models()["llama-3-8b"].config)
    adam, pure = TrainingSection(), TrainingSection(pure_bf16=True)
    assert checkpoint_bytes(shape, None, adam) == 12 * shape.num_parameters
    assert checkpoint_bytes(None, None, adam) is None
    assert checkpoint_bytes(shape, None, pure) == 6 * shape.num_parameters
    # q and v of 32 layers: 8 x (4096 + 4096) and 8 x (4096 + 1024)
    small = LoraSection(r=8, target_modules=("q_proj", "v_proj"))
    assert checkpoint_bytes(shape, small, adam) == 12 * 32 * 8 * (4096 + 4096 + 4096 + 1024)


def test_a_run_that_is_there_is_warned_of(job: Job) -> None:
    (job.root / "run" / "checkpoints" / "step-00000001").mkdir(parents=True)
    assert job.found()["run.exists"].severity.value == "warning"


def test_a_model_that_must_be_fetched_offline(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.rules import at_start

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = job.found({"model.name_or_path": "some-org/some-model"})["model.offline"]
    assert found.severity.value == "warning" and at_start([found])
    monkeypatch.delenv("HF_HUB_OFFLINE")
    assert "model.offline" not in job.found({"model.name_or_path": "some-org/some-model"})


@pytest.mark.parametrize(
    ("settings", "code", "key"),
    [
        ({"data.train": "some-org/some-rows"}, "data.offline", "data.train"),
        ({"model.tokenizer": "some-org/some-model"}, "data.offline", "model.tokenizer"),
        ({"model.tokenizer": "some-model"}, "data.offline", "model.tokenizer"),
        ({"model.revision": "main"}, "model.revision_unread", "model.revision"),
        ({"training.weight_decay": 1e10}, "train.weight_decay", "training.weight_decay"),
        ({"training.adam_epsilon": 1e5}, "train.adam_epsilon", "training.adam_epsilon"),
    ],
)
def test_what_changes_nothing_or_is_not_here_is_warned_of(
    job: Job, settings: dict[str, Any], code: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = job.found(settings)
    assert found[code].severity.value == "warning" and found[code].hint
    monkeypatch.delenv("HF_HUB_OFFLINE")
    sound = {"model.revision": None, "training.weight_decay": 0.1, "training.adam_epsilon": 1e-6}.get(key)
    assert code not in job.found(settings if sound is None and key != "model.revision" else {key: sound})


HUB = {
    "model.name_or_path": "some-org/some-model",
    "model.tokenizer": "some-model",
    "data.train": "some-org/SomeRows",
}


@pytest.mark.parametrize("through", ["HF_ENDPOINT", "https_proxy"])
def test_a_hub_that_does_not_answer_is_known_in_seconds(
    job: Job, through: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from paceline.rules import at_start

    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_ENDPOINT", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setenv(through, f"http://127.0.0.1:{port}")
        assert "hub.unreachable" not in job.found(HUB)
    found = [d for d in job.all_found(HUB) if d.code == "hub.unreachable"]  # nobody listens there now
    assert [(d.found, d.severity.value) for d in found] == [(name, "warning") for name in HUB.values()]
    assert all(f"127.0.0.1:{port}" in d.what for d in found) and len(at_start(found)) == len(HUB)
    (tmp_path / "datasets" / "some-org___some_rows").mkdir(parents=True)
    (tmp_path / "hub" / "models--some-model").mkdir(parents=True)
    only = {name: value for name, value in HUB.items() if name != "model.name_or_path"}
    assert "hub.unreachable" not in job.found(only)


def test_the_address_of_a_model_is_told_as_its_name(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    from fault_jobs import tried_here

    tried_here(monkeypatch)
    found = job.found({"model.name_or_path": "https://huggingface.co/Qwen/Qwen3-0.6B"})["plan.model_missing"]
    assert found.hint == "name_or_path: Qwen/Qwen3-0.6B"


@pytest.mark.parametrize(
    ("settings", "missing", "code", "severity"),
    [
        ({"lora.r": 4}, "peft", "plan.not_installed", "error"),
        ({"lora.quantization_bit": 4}, "bitsandbytes", "plan.not_installed", "error"),
        (
            {"training.distributed_strategy": "zero2", "launch.nproc": 2},
            "deepspeed",
            "plan.deepspeed_missing",
            "error",
        ),
        ({"training.report_to": "wandb"}, "wandb", "tracker.not_installed", "error"),
        ({"training.report_to": "tensorboard"}, "tensorboard", "tracker.not_installed", "error"),
        ({"training.report_to": "wandb,mlflow"}, "mlflow", "tracker.not_installed", "error"),
        ({"data.train": "rows.parquet"}, "pyarrow", "plan.package", "error"),
        ({"data.train": "org/rows"}, "datasets", "plan.package", "error"),
    ],
)
def test_a_missing_package_is_found(
    job: Job,
    settings: dict[str, Any],
    missing: str,
    code: str,
    severity: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == missing else real(name, *a)
    )
    monkeypatch.setattr(check_packages, "__defaults__", (lambda name: None if name == missing else "there",))
    from paceline.plan.features.lora import check_adapter

    monkeypatch.setattr(check_adapter, "__defaults__", (None, importlib.util.find_spec, True))
    found = job.found(settings)
    assert found[code].severity.value == severity and missing in found[code].render(), found
    assert "pip install" in found[code].hint


@pytest.mark.parametrize("name", ["wandb", "swanlab"])
def test_a_tracker_without_a_key_is_said(job: Job, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(check_packages, "__defaults__", (lambda name: "there",))
    monkeypatch.setenv("HOME", "/nowhere")
    key, mode = TRACKERS[name].key, TRACKERS[name].mode
    monkeypatch.delenv(key, raising=False)
    monkeypatch.delenv(mode, raising=False)
    assert "tracker.offline" in job.found({"training.report_to": name})
    monkeypatch.setenv(mode, "offline")
    assert "tracker.offline" not in job.found({"training.report_to": name})
    monkeypatch.delenv(mode)
    monkeypatch.setenv(key, "k" * 40)
    assert "tracker.offline" not in job.found({"training.report_to": name})


def test_all_trackers_are_those_that_are_there(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_packages, "__defaults__", (lambda name: None,))
    assert not [code for code in job.found({"training.report_to": "all"}) if code.startswith("tracker.")]


def test_for_other_hardware_packages_are_notes(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    from paceline.plan.features.lora import check_adapter
    from paceline.plan.hardware.device_catalogue import cluster_of

    real = importlib.util.find_spec
    none = lambda name, *a: None if name == "peft" else real(name, *a)  # noqa: E731
    monkeypatch.setattr(check_adapter, "__defaults__", (None, none, True))
    settings = {"lora.r": 4, "training.use_cpu": False, "data.train": "/no/rows.jsonl"}
    found = job.found(settings, cluster=cluster_of("1xA100"))
    assert "data.missing" not in found and "plan.not_installed" not in {
        c for c, d in found.items() if d.severity.value == "error"
    }


def test_the_remedy_for_a_run_that_is_there_leads_elsewhere(job: Job) -> None:
    """``experiment_name`` was named, which acts only where no ``output_dir`` is set."""
    run = RunDir.at(job.root / "run")
    (run.checkpoints / "step-00000001").mkdir(parents=True)
    with pytest.raises(ConfigError) as caught:
        check_claim(run, overwrite=False, resume=False)
    [finding] = caught.value.diagnostics
    (remedy,) = [part.split()[0] for part in finding.hint.split(", ") if part.endswith("for a new run")]
    for settings in ({}, {"training.experiment_name": "mine"}):
        loaded = load(job.yaml(settings), [remedy])
        assert RunDir.at(loaded.config.run_directory()).root != run.root
