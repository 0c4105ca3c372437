"""An absent key means what it means to the library whose file it is: held against the installed DeepSpeed,
Accelerate and torch.

What differs on purpose stands here with its reason; a field that a new version brings, or a default that
changes, fails one of these tests.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.config.load import load_config
from paceline.plan.hardware.device_catalogue import cluster_of
from paceline.plan.model.model_catalogue import known_shape
from paceline.plan.plan import Plan
from paceline.plan.strategies.spec import Job
from paceline.rules.planning import make_plan

ZERO = "zero_optimization"
MICRO = {"train_micro_batch_size_per_gpu": 8}  # training's own default; DeepSpeed has none

#: what DeepSpeed is given otherwise than the file, left to itself, would give it → why
DEEPSPEED_DIFFERS = {
    "zero_allow_untested_optimizer": (
        "the optimizer is handed over ready-made, which DeepSpeed calls untested"
    ),
    "zero_force_ds_cpu_optimizer": (
        "under offload the optimizer is torch's, which resumes bit for bit; the update is the same"
    ),
    "communication_data_type": (
        "gradients travel in float32 under half precision, as on every strategy; the plan says so"
    ),
    "grad_accum_dtype": (
        "gradients are summed in float32 under half precision, as on every strategy; the plan says so"
    ),
    "optimizer_name": "read as training.optim, with DeepSpeed's own defaults (tested below)",
    "scheduler_name": "read as training.lr_scheduler_type, DeepSpeed's own schedule (tests/unit/training)",
    "bfloat16_config.enabled": (
        "without ZeRO half precision is Paceline's, since DeepSpeed's drifts there; torch_autocast is read as"
        " bf16; the plan and a note say so"
    ),
    "torch_autocast_enabled": "read as bf16: true; a note says so",
    "monitor_config.tensorboard.enabled": "read as report_to; a note says so",
    "monitor_config.csv_monitor.enabled": "every step is in the run's events; a note and the plan say so",
}
WRITTEN: list[dict[str, Any]] = [
    *({ZERO: {"stage": stage}} for stage in range(4)),
    {"steps_per_print": 5},
    {ZERO: {}},
    {"bf16": {"enabled": True}},
    {ZERO: {"stage": 2}, "bf16": {"enabled": True}},
    {ZERO: {"stage": 2}, "fp16": {"enabled": True}},
    {ZERO: {"stage": 2}, "fp16": {}},
    {ZERO: {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}},
    {ZERO: {"stage": 2}, "optimizer": {"type": "AdamW"}},
    {ZERO: {"stage": 2}, "scheduler": {"type": "WarmupLR"}},
    {ZERO: {"stage": 2}, "torch_autocast": {"enabled": True}},
    {ZERO: {"stage": 2}, "tensorboard": {"enabled": True}},
    {ZERO: {"stage": 2}, "csv_monitor": {"enabled": True}},
    *(
        {ZERO: {"stage": 2}, block: {}}
        for block in (
            "activation_checkpointing",
            "aio",
            "comms_logger",
            "flops_profiler",
            "data_types",
            "compile",
            "checkpoint",
        )
    ),
    {
        ZERO: {"stage": 2},
        "flops_profiler": {"enabled": True},
        "comms_logger": {"enabled": True},
        "wall_clock_breakdown": True,
    },
]


def plan_of(**training: Any) -> Plan:
    flags = {f"training.{key}": value for key, value in training.items()}
    config = load_config(None, flags={**flags, "data.train": "x", "model.name_or_path": "llama-2-7b"}).config
    hardware, shape = cluster_of("1xA100").hardware(), known_shape("llama-2-7b")
    return make_plan(
        Job(config, hardware, world_size=1, launcher="x", run_dir="x", shape=shape, needs_room=False)
    )


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    value = value.model_dump() if hasattr(value, "model_dump") else value
    value = vars(value) if path == "comms_config" else value
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _flat(item, f"{path}.{key}" if path else str(key))
    else:
        yield path, str(value)


@pytest.fixture(scope="module")
def read() -> Any:
    """Everything that DeepSpeed makes of a config, by path."""
    module = pytest.importorskip("deepspeed.runtime.config")

    def effective(config: dict[str, Any]) -> dict[str, str]:
        made = module.DeepSpeedConfig(json.loads(json.dumps(config)))
        return {key: value for key, value in _flat(vars(made)) if not key.startswith("_")}

    return effective


def test_what_deepspeed_is_given_is_what_the_file_means_to_it(read: Any) -> None:
    seen: set[str] = set()
    for written in WRITTEN:
        theirs, ours = read({**MICRO, **written}), read(plan_of(deepspeed=written).engine.config)
        assert len(theirs) > 150
        differs = {key for key in {*theirs, *ours} if theirs.get(key) != ours.get(key)}
        unexplained = {key: (theirs.get(key), ours.get(key)) for key in differs - set(DEEPSPEED_DIFFERS)}
        assert not unexplained, written
        seen |= differs
    assert seen == set(DEEPSPEED_DIFFERS), "a difference that is none any more"


@pytest.mark.parametrize(
    ("kind", "module", "name"),
    [
        ("AdamW", "deepspeed.ops.adam.fused_adam", "FusedAdam"),
        ("Adam", "deepspeed.ops.adam.cpu_adam", "DeepSpeedCPUAdam"),
        ("SGD", "torch.optim", "SGD"),
        ("Adagrad", "torch.optim", "Adagrad"),
        ("RMSprop", "torch.optim", "RMSprop"),
    ],
)
def test_an_optimizer_without_parameters_has_the_classes_defaults(kind: str, module: str, name: str) -> None:
    cls = getattr(pytest.importorskip(module), name)
    theirs = {key: p.default for key, p in inspect.signature(cls.__init__).parameters.items()}
    t = load_config(None, flags={"training.deepspeed": {"optimizer": {"type": kind}}}).config.training
    ours = {"lr": t.learning_rate, "weight_decay": t.weight_decay, "betas": (t.adam_beta1, t.adam_beta2)}
    ours["eps"] = t.adam_epsilon if t.optim.startswith("adamw") else theirs.get("eps")
    assert {key: ours[key] for key in ours if key in theirs} == {
        key: theirs[key] for key in ours if key in theirs
    }


def test_torch_adam_has_torchs_decay() -> None:
    torch = pytest.importorskip("torch")
    t = load_config(
        None, flags={"training.deepspeed": {"optimizer": {"type": "AdamW", "params": {"torch_adam": True}}}}
    ).config.training
    theirs = inspect.signature(torch.optim.AdamW.__init__).parameters
    assert (t.learning_rate, t.weight_decay) == (theirs["lr"].default, theirs["weight_decay"].default)


@pytest.mark.parametrize("kind", ["WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle", "LRRangeTest"])
def test_a_schedule_without_parameters_has_the_classes_defaults(kind: str) -> None:
    """Each parameter of the class is one that is read, under the same default."""
    from paceline.config.backend_files.deepspeed.key_verdicts import SCHEDULES
    from paceline.config.backend_files.deepspeed.training_keys import _PARAMS
    from paceline.training.loop.lr_schedules import DEEPSPEED

    module = pytest.importorskip("deepspeed.runtime.lr_schedules")
    theirs = {k: p.default for k, p in inspect.signature(getattr(module, kind).__init__).parameters.items()}
    name = SCHEDULES[kind.lower()]
    rate, known = _PARAMS[name]
    momentum = (
        {"cycle_momentum", "cycle_min_mom", "cycle_max_mom", "decay_mom_rate"}
        if name == "one_cycle"
        else set()
    )
    assert set(theirs) - {"self", "optimizer", "last_batch_iteration", "warmup_num_steps", rate} == {
        *known,
        *momentum,
    }
    ours = {k: p.default for k, p in inspect.signature(DEEPSPEED[name]).parameters.items()}
    for key in known:
        if key != "total_num_steps":
            assert ours[key] == theirs[key], key
    if name.startswith("warmup"):
        t = load_config(None, flags={"training.deepspeed": {"scheduler": {"type": kind}}}).config.training
        assert t.warmup_steps == theirs["warmup_num_steps"]
    if isinstance(theirs.get(rate), float):
        t = load_config(None, flags={"training.deepspeed": {"scheduler": {"type": kind}}}).config.training
        assert t.learning_rate == theirs[rate]


# --- Accelerate

#: fields of FullyShardedDataParallelPlugin without a counterpart, or with another value when nobody says →
#: why
FSDP_DIFFERS = {
    "fsdp_version": "FSDP2 runs whatever is asked for: the same numbers; the plan says so",
    "auto_wrap_policy": (
        "the model's decoder layers are gathered one by one: the same numbers in less memory; the plan"
        " says so"
    ),
    "backward_prefetch": "the next layer is gathered while one computes: the same numbers",
    "state_dict_type": "Paceline writes its own checkpoints, written in shards",
    "state_dict_config": "Paceline writes its own checkpoints",
    "optim_state_dict_config": "Paceline writes its own checkpoints",
    "cpu_ram_efficient_loading": (
        "rank 0 reads and hands out: the same weights, less host memory; the plan says so"
    ),
    "sync_module_states": "every rank begins with rank 0's weights in any case",
    "use_orig_params": "FSDP2 keeps every parameter under its own name",
    "param_init_fn": "no setting of a file",
    "limit_all_gathers": "FSDP2 frees gathered weights in stream order",
    "mixed_precision_policy": "mixed_precision is the file's own key",
    "activation_checkpointing_offload": "said where it is asked for",
    "transformer_cls_names_to_wrap": "None: the model's own decoder layer",
    "min_num_params": "None: no sizes",
    "ignored_modules": "refused where it is asked for",
}


@pytest.fixture
def accelerate_plan(tmp_path: Path) -> Any:
    def plan(text: str) -> Any:
        (tmp_path / "acc.yaml").write_text(text)
        return load_config(None, flags={"training.accelerate_config": str(tmp_path / "acc.yaml")})

    return plan


@pytest.mark.parametrize("version", [1, 2])
def test_fsdp_without_settings_is_the_plugins(
    accelerate_plan: Any, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    plugin_class = pytest.importorskip("accelerate.utils.dataclasses").FullyShardedDataParallelPlugin
    from paceline.plan.strategies.fsdp_options import read_fsdp

    plugin = plugin_class(fsdp_version=version)
    t = accelerate_plan(
        f"distributed_type: FSDP\nmixed_precision: bf16\nfsdp_config: {{fsdp_version: {version}}}\n"
    ).config.training
    asked = read_fsdp(t.model_copy(update={"fsdp": t.fsdp or "full_shard"}))
    same = {
        "sharding_strategy": version == 2 or asked.sharding == plugin.sharding_strategy.name.lower(),
        "reshard_after_forward": (
            version == 1 or plugin.reshard_after_forward is (asked.sharding == "full_shard")
        ),
        "cpu_offload": bool(getattr(plugin.cpu_offload, "offload_params", False)) is asked.offload,
        "forward_prefetch": bool(plugin.forward_prefetch) is asked.forward_prefetch,
        "activation_checkpointing": plugin.activation_checkpointing is t.gradient_checkpointing,
    }
    assert all(same.values()), same
    fields = {field.name for field in dataclasses.fields(plugin_class)}
    assert fields == {*same, *FSDP_DIFFERS}
    assert plugin.ignored_modules is None and plugin.min_num_params is None
    assert not plugin.activation_checkpointing_offload


def test_deepspeed_without_settings_is_the_plugins(accelerate_plan: Any, read: Any) -> None:
    plugin = pytest.importorskip("accelerate.utils.dataclasses").DeepSpeedPlugin()
    theirs = {k: v for k, v in plugin.deepspeed_config.items() if v != "auto" and k != "steps_per_print"}
    ours = accelerate_plan("distributed_type: DEEPSPEED\nmixed_precision: 'no'\n").config.training.deepspeed
    ours = {k: v for k, v in ours.items() if v != "auto"}
    none = {"offload_optimizer": "None", "offload_param": "None"}  # a device of none is no offload
    left, right = (
        {k: v for k, v in read({**MICRO, **c}).items() if "offload_" not in k} for c in (theirs, ours)
    )
    assert left == right and none
    steps = {k for k in plugin.deepspeed_config if plugin.deepspeed_config[k] == "auto"}
    assert steps <= {
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "gradient_clipping",
    }


def test_an_accelerate_file_without_a_key_means_the_cluster_configs_default(accelerate_plan: Any) -> None:
    cluster = pytest.importorskip("accelerate.commands.config.config_args").ClusterConfig
    loaded = accelerate_plan("distributed_type: MULTI_GPU\n")
    c = loaded.config
    assert c.training.mixed_precision == "no"
    assert [n for n in loaded.notes if "mixed_precision is absent: float32" in n.what]
    ours = {
        "num_processes": -1 if c.launch.nproc is None else c.launch.nproc,
        "machine_rank": c.launch.node_rank,
        "num_machines": c.launch.nnodes,
        "main_process_port": c.launch.master_port,
        "downcast_bf16": False,
        "enable_cpu_affinity": False,
    }
    defaults = {
        f.name: f.default for f in dataclasses.fields(cluster) if f.default is not dataclasses.MISSING
    }
    for name, default in defaults.items():
        if name in ours:
            assert ours[name] == default, name
        else:
            assert default in (None, False, "static", "main"), f"{name}: a default that is new"


def test_a_mesh_and_dynamo_without_settings_are_off(monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.config.backend_files.accelerate.environment import READ

    mesh = pytest.importorskip("accelerate.parallelism_config").ParallelismConfig()
    t = load_config(None).config.training
    for name in ("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "sp_size"):
        assert getattr(mesh, name) == 1
        assert READ[f"PARALLELISM_CONFIG_{name.upper()}"][1] == "1"
    dynamo = pytest.importorskip("accelerate.utils.dataclasses").TorchDynamoPlugin()
    assert dynamo.backend.value == "NO" and not t.torch_compile
    assert READ["ACCELERATE_DYNAMO_MODE"][1] == dynamo.mode


def test_what_the_launcher_sets_when_nobody_asks_is_its_parsers_default() -> None:
    """The defaults by which an option is told from one that nobody gave."""
    pytest.importorskip("accelerate")
    from accelerate.commands.launch import launch_command_parser

    from paceline.config.backend_files.accelerate.environment import READ

    options = vars(launch_command_parser().parse_args(["x.py"]))
    checked = 0
    for variable, (path, default) in READ.items():
        option = path.rpartition(".")[2]
        if default is None or option not in options or options[option] is None:
            continue
        assert str(options[option]).lower() == default.lower(), variable
        checked += 1
    assert checked > 25
