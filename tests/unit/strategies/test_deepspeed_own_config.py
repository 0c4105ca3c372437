"""Who owns what under DeepSpeed, and the guards before an engine is started; no process group, no
DeepSpeed needed.
"""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from paceline.core.errors import ConfigError, PacelineError
from paceline.models.compute_dtype import ComputeLinear
from paceline.plan.mesh import Mesh, split_batch
from paceline.plan.model.family import families
from paceline.plan.plan import OptimizerSpec, Precision
from paceline.plan.strategies.spec import strategy_spec
from paceline.plan.strategy_options import DeepSpeedOptions
from paceline.runtime.process_group.world import World
from paceline.strategies.deepspeed.autotp import prepare_root
from paceline.strategies.deepspeed.import_deepspeed import library, load_async_io
from paceline.strategies.deepspeed.partition_views import ParameterSlice
from paceline.strategies.deepspeed.start_engine import (
    asking_config,
    averages_gradients,
    check_packed,
    engine_config,
    options_of,
)
from paceline.strategies.deepspeed.strategy import check_optimizer


def plan(strategy: str = "zero2", compute: str = "float32", master: str = "float32", **engine: Any) -> Any:
    return SimpleNamespace(
        strategy=strategy,
        engine=DeepSpeedOptions(**{"zero_stage": strategy_spec(strategy).zero_stage or 0, **engine}),
        mesh=Mesh(dp_shard=2),
        batch=split_batch(4, 2, 2),
        precision=Precision(compute, master, master, False, "a test"),
        run_dir="outputs/x",
    )


def code_of(call: Any) -> str:
    with pytest.raises(PacelineError) as caught:
        call()
    return caught.value.diagnostics[0].code


@pytest.mark.parametrize(
    ("strategy", "engine", "stage"),
    [("zero1", {}, 1), ("zero3", {}, 3), ("deepspeed", {"zero_stage": 2}, 2), ("deepspeed", {}, 0)],
)
def test_the_stage(strategy: str, engine: dict[str, Any], stage: int) -> None:
    assert options_of(plan(strategy, **engine)).zero_stage == stage


def test_without_a_compiled_json_stage_batch_and_precision_are_the_plan_s() -> None:
    config = engine_config(plan(compute="bfloat16", offload_optimizer="cpu"))
    assert config["zero_optimization"] == {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    assert (config["train_micro_batch_size_per_gpu"], config["gradient_accumulation_steps"]) == (4, 2)
    assert config["bf16"] == {"enabled": True}


def test_what_others_own_does_not_reach_deepspeed() -> None:
    given = {
        "train_micro_batch_size_per_gpu": 4,
        "train_batch_size": 999,
        "optimizer": {"type": "Adam"},
        "scheduler": {"type": "WarmupLR"},
        "gradient_clipping": 0.7,
        "zero_force_ds_cpu_optimizer": True,
        "sequence_parallel_size": 2,
        "data_parallel_size": 1,
        "tensor_parallel": {"autotp_size": 2, "vocab_parallel_lm_head": True},
        "zero_optimization": {"stage": 2},
    }
    config = engine_config(plan(config=given))
    assert not {
        "optimizer",
        "scheduler",
        "train_batch_size",
        "sequence_parallel_size",
        "data_parallel_size",
    } & set(config)
    assert config["gradient_clipping"] == 0.0 and config["zero_force_ds_cpu_optimizer"] is False
    assert config["tensor_parallel"] == {"autotp_size": 2}
    # the plan's own is left alone
    assert given["gradient_clipping"] == 0.7 and "vocab_parallel_lm_head" in given["tensor_parallel"]


def test_stage_0_leaves_precision_to_the_model() -> None:
    config = engine_config(
        plan(
            "deepspeed",
            "bfloat16",
            config={"bf16": {"enabled": True}, "data_types": {}, "zero_optimization": {"stage": 0}},
        )
    )
    assert "bf16" not in config and "data_types" not in config


def test_two_runs_do_not_share_a_folder_on_the_drive() -> None:
    block = {"device": "nvme", "nvme_path": "/drive"}
    one, other = (
        plan("zero3", config={"zero_optimization": {"stage": 3, "offload_param": block}}),
        plan("zero3", config={"zero_optimization": {"stage": 3, "offload_param": block}}),
    )
    other.run_dir = "outputs/y"
    paths = {engine_config(p)["zero_optimization"]["offload_param"]["nvme_path"] for p in (one, other)}
    assert (
        len(paths) == 2
        and all(path.startswith("/drive/paceline-") for path in paths)
        and block["nvme_path"] == "/drive"
    )


def test_two_models_of_a_run_do_not_share_a_folder_and_a_frozen_one_has_no_optimizer() -> None:
    zero = {"stage": 3, "offload_param": {"device": "nvme"}, "offload_optimizer": {"device": "nvme"}}
    run = plan("zero3", config={"zero_optimization": zero})
    value, judge = (
        engine_config(run, "value")["zero_optimization"],
        asking_config(run, "reward")["zero_optimization"],
    )
    assert value["offload_param"]["nvme_path"] == value["offload_optimizer"]["nvme_path"]
    assert {Path(z["offload_param"]["nvme_path"]).name for z in (value, judge)} == {"value", "reward"}
    assert "offload_optimizer" not in judge and "offload_optimizer" in zero


def test_sums_instead_of_means_are_known() -> None:
    assert averages_gradients({}) and not averages_gradients({"gradient_allreduce_op": "sum"})


def test_float64_and_optimizers_without_arrays_are_refused() -> None:
    assert code_of(lambda: engine_config(plan(master="float64"))) == "strategy.deepspeed_float64"
    assert code_of(lambda: check_optimizer(OptimizerSpec("adafactor"), 1)) == "strategy.deepspeed_optimizer"
    check_optimizer(OptimizerSpec("adafactor"), 0)


def test_a_missing_package_is_named_with_its_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "deepspeed" else found(name, *a)
    )
    with pytest.raises(ConfigError, match=r"pip install .paceline\[deepspeed\]"):
        library(World.single())


def test_the_drive_s_op_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda tool: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None)
    assert load_async_io(None) == "not found: ninja, g++"
    monkeypatch.setattr(shutil, "which", lambda tool: f"/usr/bin/{tool}")
    builder = SimpleNamespace(is_compatible=lambda verbose: False)
    assert "libaio" in load_async_io(SimpleNamespace(create_op_builder=lambda name: builder))


def test_packed_weights_and_a_cast_are_refused() -> None:
    class Params4bit(nn.Parameter):
        pass

    root = nn.Module()
    root.weight = Params4bit(torch.zeros(4))
    assert code_of(lambda: check_packed(root, {"bf16": {"enabled": True}})) == "strategy.deepspeed_packed"
    check_packed(root, {})


def test_autotp_needs_a_plan_and_a_stage() -> None:
    root = nn.Module()
    root.hf = SimpleNamespace(config=SimpleNamespace(model_type="gpt2"))  # type: ignore[assignment]
    assert code_of(lambda: prepare_root(root, 1)) == "strategy.deepspeed_tp_plan"
    planned = SimpleNamespace(base_model_tp_plan={"layers.*.q": "colwise"})
    root.hf = SimpleNamespace(config=planned, base_model=nn.Module())  # type: ignore[assignment]
    assert code_of(lambda: prepare_root(root, 0)) == "strategy.deepspeed_tp_stage"


def test_autotp_cuts_linear_layers_and_leaves_routers_what_they_choose() -> None:
    class SomeRouter(nn.Linear):
        pass

    root = nn.Module()
    planned = SimpleNamespace(base_model_tp_plan={"layers.*.q": "colwise"})
    root.hf = SimpleNamespace(config=planned, base_model=nn.Module())  # type: ignore[assignment]
    root.linear, root.gate = ComputeLinear(2, 2), SomeRouter(2, 2)
    prepare_root(root, 1)
    assert (type(root.linear), type(root.gate)) == (nn.Linear, SomeRouter)


def test_where_a_cut_parameter_lies() -> None:
    parameter: Any = nn.Parameter(torch.zeros(4, 3))
    assert ParameterSlice.of("w", parameter, 0) == ParameterSlice((4, 3), (0, 0), True)
    assert not ParameterSlice.of("w", parameter, 1).first  # one rank of a group speaks for what all have
    cut = {
        "replicated": False,
        "partition_dim": 1,
        "partition_sizes": (3, 3),
        "original_shape": (4, 6),
        "sub_param_sizes": None,
        "conversion": {},
        "partition_type": "row",
    }
    parameter.ds_autotp_universal_checkpoint_meta = cut
    assert ParameterSlice.of("w", parameter, 1) == ParameterSlice((4, 6), (0, 3), True)
    parameter.ds_autotp_universal_checkpoint_meta = {**cut, "sub_param_sizes": (2, 1)}
    assert code_of(lambda: ParameterSlice.of("w", parameter, 1)) == "strategy.deepspeed_layout"


def test_families_whose_plan_deepspeed_does_not_follow_are_refused_before_the_start() -> None:
    from deepspeed.module_inject.tp_plan_converter import SUPPORTED_STYLES
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    trained = {kind for kind, row in families().items() if row.trained and kind in CONFIG_MAPPING}
    plans = {kind: getattr(CONFIG_MAPPING[kind], "base_model_tp_plan", None) or {} for kind in trained}
    other = {k for k, plan in plans.items() if {style.lower() for style in plan.values()} - SUPPORTED_STYLES}
    assert other == {kind for kind, known in families().items() if not known.autotp}
