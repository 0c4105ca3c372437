"""``accelerate launch``'s variables as a layer: every one that it can set is translated, named or refused;
conflicts name both places.
"""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.config.backend_files.accelerate.environment import (
    NOTES_BY_KEY,
    OLD,
    OTHERS,
    READ,
    REFUSED,
    SWITCHES,
)
from paceline.config.load import load_config
from paceline.core.diagnostics import Severity

KNOWN = {*READ, *NOTES_BY_KEY, *REFUSED, *SWITCHES, *OTHERS}
# As accelerate 1.15 sets them when nobody asks for anything, on two processes.
PLAIN = {
    "ACCELERATE_MIXED_PRECISION": "no",
    "ACCELERATE_DYNAMO_BACKEND": "NO",
    "ACCELERATE_DYNAMO_MODE": "default",
    "ACCELERATE_DYNAMO_USE_FULLGRAPH": "False",
    "ACCELERATE_DYNAMO_USE_DYNAMIC": "False",
    "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION": "False",
    "OMP_NUM_THREADS": "1",
}
FSDP = {
    **PLAIN,
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "1",
    "FSDP_SHARDING_STRATEGY": "FULL_SHARD",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
    "FSDP_OFFLOAD_PARAMS": "false",
    "FSDP_MIN_NUM_PARAMS": "100000000",
    "FSDP_FORWARD_PREFETCH": "false",
    "FSDP_USE_ORIG_PARAMS": "true",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "true",
    "FSDP_SYNC_MODULE_STATES": "true",
    "FSDP_ACTIVATION_CHECKPOINTING": "false",
    "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD": "false",
}
ZERO = {**PLAIN, "ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_CONFIG_DS_FIELDS": ""}

Load = Callable[..., Any]


def notes(loaded: Any, code: str) -> list[str]:
    return [n.what for n in loaded.notes if n.code == code]


# --- the list is complete


def variables_set_in(function: Any) -> Iterator[str]:
    """Names that a function of accelerate puts into an environment, its prefixes filled in."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    prefixes = {
        target.id: node.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.ctx, ast.Store)
            and "env" in ast.unparse(node.value)
        ):
            yield from _names(node.slice, prefixes)
        if isinstance(node, ast.Dict):
            yield from (
                k.value
                for k in node.keys
                if isinstance(k, ast.Constant) and str(k.value).startswith("ACCELERATE_")
            )


def _names(key: ast.expr, prefixes: dict[str, str]) -> Iterator[str]:
    if isinstance(key, ast.Constant) and isinstance(key.value, str):
        yield key.value
    elif (
        isinstance(key, ast.BinOp) and isinstance(key.left, ast.Name) and isinstance(key.right, ast.Constant)
    ):
        yield prefixes[key.left.id] + str(key.right.value)
    # f"{prefix}{arg.upper()}": of the parser's options that begin with fp8_
    elif isinstance(key, ast.JoinedStr):
        from accelerate.commands.launch import launch_command_parser

        options = vars(launch_command_parser().parse_args(["x.py"]))
        skipped = "fp8_override_linear_precision"
        yield from (
            f"ACCELERATE_{name.upper()}" for name in options if name.startswith("fp8_") and name != skipped
        )
    else:
        raise AssertionError(
            f"a variable's name is made in a way that this test does not know: {ast.dump(key)}"
        )


def test_every_variable_that_accelerate_launch_sets_is_known() -> None:
    pytest.importorskip("accelerate")
    from accelerate.commands import launch as commands
    from accelerate.utils import launch

    makers = [
        value
        for name, value in vars(launch).items()
        if name.startswith(("prepare_", "setup_")) and callable(value)
    ]
    makers += [getattr(commands, name) for name in vars(commands) if name.endswith("_launcher")]
    makers.append(launch.PrepareForLaunch)
    found = {name for maker in makers for name in variables_set_in(maker) if name.isupper()}
    assert len(found) > 100
    assert found - KNOWN == set()


def test_every_variable_that_accelerate_reads_is_known() -> None:
    """What a user may export without the launcher: accelerate's own prefixes, read anywhere in its state
    and plugins.
    """
    accelerate = pytest.importorskip("accelerate")
    import re

    root = Path(accelerate.__file__).parent
    prefixes = {"FSDP_": "FSDP_", "MEGATRON_LM_": "MEGATRON_LM_"}
    found: set[str] = set()
    for file in ("state.py", "accelerator.py", "parallelism_config.py", "utils/dataclasses.py"):
        text = (root / file).read_text()
        found |= set(
            re.findall(r"[\"']((?:ACCELERATE|FSDP|PARALLELISM_CONFIG|MEGATRON_LM)_[A-Z0-9_]+)[\"']", text)
        )
        for block in re.split(r"\n    def ", text):
            prefix = re.search(r"(?:env_)?prefix = \"([A-Z0-9_]+)\"", block)
            if prefix:
                found |= {prefix[1] + name for name in re.findall(r"prefix \+ \"([A-Z0-9_]+)\"", block)}
    found -= {*prefixes, "ACCELERATE_FP8_", "ACCELERATE_DYNAMO_", "MEGATRON_LM_"}
    found = {name for name in found if not name.endswith("_")}
    assert len(found) > 60
    assert found - KNOWN - {"FSDP_SHARDING_STRATEGY_LIST"} == set()


@pytest.mark.parametrize(
    "name", [n for n in READ if n.startswith(("FSDP_", "MEGATRON_LM_", "PARALLELISM_CONFIG_"))]
)
def test_each_setting_of_a_block_acts_is_said_or_is_refused(load: Load, name: str) -> None:
    """A value that differs from what is set when nobody asks leaves a trace: in the config, a note, or a
    refusal.
    """
    from paceline.config.load import load_config
    from paceline.core.errors import ConfigError

    switch = next(s for s, (block, _) in SWITCHES.items() if READ[name][0].startswith(f"{block}."))
    values = {
        "FSDP_VERSION": "2",
        "FSDP_SHARDING_STRATEGY": "NO_SHARD",
        "FSDP_RESHARD_AFTER_FORWARD": "false",
        "FSDP_AUTO_WRAP_POLICY": "SIZE_BASED_WRAP",
        "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
        "FSDP_BACKWARD_PREFETCH": "BACKWARD_POST",
        "FSDP_MIN_NUM_PARAMS": "7",
        "FSDP_TRANSFORMER_CLS_TO_WRAP": "A",
        "FSDP_IGNORED_MODULES": "x",
        "PARALLELISM_CONFIG_CP_COMM_STRATEGY": "alltoall",
        "PARALLELISM_CONFIG_SP_ATTN_IMPLEMENTATION": "flash_attention_2",
        "PARALLELISM_CONFIG_CP_BACKEND": "other",
        "PARALLELISM_CONFIG_SP_BACKEND": "other",
        "PARALLELISM_CONFIG_SP_SEQ_LENGTH": "64",
    }
    default = READ[name][1]
    value = values.get(name, {"true": "false", "false": "true"}.get(str(default), "2"))
    base = {**PLAIN, switch: "true"}

    def trace(environ: dict[str, str]) -> tuple[Any, ...]:
        try:
            loaded = load_config(None, environ=environ)
        except ConfigError as error:
            return tuple(d.render() for d in error.diagnostics)
        return loaded.config.to_json(), tuple(
            n.what for n in loaded.notes if n.code != "launch.options_taken"
        )

    assert trace({**base, name: value}) != trace(base)


WRONG = (
    "",
    " ",
    "maybe",
    "²",
    "9" * 5000,
    "-1",
    "0",
    "1e999",
    "nan",
    "9" * 50,
    "{",
    "[1,",
    "{}",
    "null",
    "\u2028",
    "a,b,,",
    "true",
    "/nowhere/x.json",
    "é" * 300,
    "0x10",
    "1_0",
)


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_no_value_of_a_variable_crashes_and_every_refusal_names_it(name: str) -> None:
    """Whatever stands in a variable, what comes is a config or a refusal that names a variable of the
    launcher's.
    """
    from paceline.config.load import load_config
    from paceline.core.errors import ConfigError

    block = READ[name][0].partition(".")[0] if name in READ else ""
    switches = [s for s, (owner, _) in SWITCHES.items() if owner == block]
    for value in WRONG:
        environ = {**PLAIN, **dict.fromkeys(switches, "true"), name: value}
        try:
            load_config(None, environ=environ)
        except ConfigError as error:
            for found in error.diagnostics:
                assert any(known in found.render() for known in KNOWN), (name, value, found.render())


# --- what each means


def test_nothing_asked_is_nothing_set_but_the_precision(load: Load) -> None:
    loaded = load("training: {}\n", environ=PLAIN)
    t = loaded.config.training
    assert (t.mixed_precision, t.distributed_strategy, t.torch_compile) == ("no", "auto", False)
    assert loaded.provenance["training.mixed_precision"].place() == "environment ACCELERATE_MIXED_PRECISION"
    assert not notes(loaded, "launch.options_taken")
    said = load("training:\n  bf16: true\n", environ=PLAIN)
    assert said.config.training.mixed_precision == "bf16"
    (note,) = notes(said, "launch.option_overridden")
    assert "config.yaml:2" in note


@pytest.mark.parametrize(
    "yaml", ["training: {}\n", "training:\n  mixed_precision: auto\n  distributed_strategy: auto\n"]
)
def test_fsdp_and_bf16(load: Load, yaml: str) -> None:
    environ = {
        **FSDP,
        "ACCELERATE_MIXED_PRECISION": "bf16",
        "FSDP_OFFLOAD_PARAMS": "true",
        "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
        "FSDP_TRANSFORMER_CLS_TO_WRAP": "LlamaDecoderLayer",
    }
    loaded = load(yaml, environ=environ)
    t = loaded.config.training
    assert (t.distributed_strategy, t.mixed_precision, t.fsdp) == ("fsdp", "bf16", "full_shard")
    assert t.fsdp_config["cpu_offload"] and t.fsdp_config["transformer_layer_cls_to_wrap"] == [
        "LlamaDecoderLayer"
    ]
    assert "min_num_params" not in t.fsdp_config
    assert loaded.provenance["training.distributed_strategy"].place() == "environment ACCELERATE_USE_FSDP"
    (taken,) = notes(loaded, "launch.options_taken")
    assert (
        "training.mixed_precision: bf16 (ACCELERATE_MIXED_PRECISION)" in taken
        and "FSDP_OFFLOAD_PARAMS" in taken
    )
    assert not notes(loaded, "launch.option_wins")


@pytest.mark.parametrize(
    ("version", "name", "value", "sharding"),
    [
        ("1", "FSDP_SHARDING_STRATEGY", "SHARD_GRAD_OP", "shard_grad_op"),
        ("1", "FSDP_SHARDING_STRATEGY", "4", "hybrid_shard"),
        ("2", "FSDP_RESHARD_AFTER_FORWARD", "false", "shard_grad_op"),
        ("2", "FSDP_RESHARD_AFTER_FORWARD", "true", "full_shard"),
    ],
)
def test_each_version_reads_its_own_sharding(
    load: Load, version: str, name: str, value: str, sharding: str
) -> None:
    loaded = load("training: {}\n", environ={**FSDP, "FSDP_VERSION": version, name: value})
    assert loaded.config.training.fsdp == sharding
    assert not [n for n in loaded.notes if n.severity is not Severity.NOTE]


def test_deepspeed(load: Load) -> None:
    environ = {
        **ZERO,
        "ACCELERATE_MIXED_PRECISION": "bf16",
        "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3",
        "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "cpu",
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4",
        "ACCELERATE_GRADIENT_CLIPPING": "0.5",
    }
    loaded = load("training:\n  gradient_accumulation_steps: 2\n", environ=environ)
    t = loaded.config.training
    assert (t.distributed_strategy, t.mixed_precision) == ("deepspeed", "bf16")
    assert (t.gradient_accumulation_steps, t.max_grad_norm) == (4, 0.5)
    assert t.deepspeed["zero_optimization"] == {"stage": 3, "offload_optimizer": {"device": "cpu"}}
    (wins,) = notes(loaded, "launch.option_wins")
    assert "gradient_accumulation_steps is 4" in wins and "config.yaml:2 sets 2" in wins


def test_deepspeed_alone_is_stage_2_as_in_accelerate_and_leaves_a_short_form_alone(load: Load) -> None:
    assert load("training: {}\n", environ=ZERO).config.training.deepspeed["zero_optimization"] == {"stage": 2}
    t = load("training:\n  distributed_strategy: zero3\n", environ=ZERO).config.training
    assert (t.distributed_strategy, t.deepspeed["zero_optimization"]) == ("zero3", {"stage": 3})
    staged = load(
        "training:\n  distributed_strategy: zero2\n", environ={**ZERO, "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"}
    )
    assert staged.config.training.distributed_strategy == "deepspeed"
    assert notes(staged, "launch.option_wins")


def test_a_deepspeed_file_of_the_launcher_wins_over_the_yamls(load: Load, tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(
        '{"zero_optimization": {"stage": 1}, "gradient_clipping": "auto", "bf16": {"enabled": "auto"}}'
    )
    theirs = tmp_path / "theirs.json"
    theirs.write_text(
        '{"zero_optimization": {"stage": 3}, "gradient_clipping": 0.25, "bf16": {"enabled": "auto"}}'
    )
    environ = {**ZERO, "ACCELERATE_DEEPSPEED_CONFIG_FILE": str(theirs)}
    loaded = load("training:\n  deepspeed: mine.json\n", environ=environ)
    t = loaded.config.training
    assert (t.deepspeed["zero_optimization"]["stage"], t.max_grad_norm) == (3, 0.25)
    (wins,) = notes(loaded, "launch.option_wins")
    assert "theirs.json" in wins and "mine.json" in wins


def test_options_go_into_the_yamls_own_block_and_a_difference_is_said(load: Load) -> None:
    yaml = (
        "training:\n  deepspeed:\n    zero_optimization: {stage: 2, overlap_comm: true}\n    bf16: {enabled:"
        " auto}\n    gradient_clipping: auto\n"
    )
    loaded = load(
        yaml,
        environ={
            **ZERO,
            "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3",
            "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": "cpu",
        },
    )
    zero = loaded.config.training.deepspeed["zero_optimization"]
    assert zero == {"stage": 3, "overlap_comm": True, "offload_param": {"device": "cpu"}}
    (wins,) = notes(loaded, "launch.option_wins")
    assert "zero_optimization.stage is 3" in wins and "config.yaml:3 sets 2" in wins
    fsdp = load(
        "training:\n  fsdp: shard_grad_op\n  fsdp_config: {cpu_offload: false, forward_prefetch: true}\n",
        environ={**FSDP, "FSDP_OFFLOAD_PARAMS": "true"},
    )
    t = fsdp.config.training
    assert (t.fsdp, t.fsdp_config["cpu_offload"], t.fsdp_config["forward_prefetch"]) == (
        "shard_grad_op",
        True,
        True,
    )
    (wins,) = notes(fsdp, "launch.option_wins")
    assert "FSDP_OFFLOAD_PARAMS" in next(n.where for n in fsdp.notes if n.code == "launch.option_wins")
    assert "cpu_offload" in wins or "offload_params" in wins


def test_a_yamls_other_strategy_gives_way_with_a_warning(load: Load) -> None:
    loaded = load("training:\n  distributed_strategy: ddp\n", environ=FSDP)
    assert loaded.config.training.distributed_strategy == "fsdp"
    (found,) = [n for n in loaded.notes if n.code == "launch.option_wins"]
    assert found.severity is Severity.WARNING and "config.yaml:2 sets ddp" in found.what
    assert found.where == "environment ACCELERATE_USE_FSDP"


def test_our_own_variables_and_the_command_line_win_over_the_launcher(load: Load) -> None:
    environ = {**PLAIN, "ACCELERATE_MIXED_PRECISION": "bf16"}
    loaded = load("training: {}\n", "training.mixed_precision=no", environ=environ)
    assert loaded.config.training.mixed_precision == "no"
    assert notes(loaded, "launch.option_overridden")
    loaded = load("training: {}\n", environ={**environ, "PACELINE_TRAINING__MIXED_PRECISION": "fp16"})
    assert loaded.config.training.mixed_precision == "fp16"


def test_megatron_mesh_dynamo_and_eight_bits(load: Load) -> None:
    megatron = {
        **PLAIN,
        "ACCELERATE_USE_MEGATRON_LM": "true",
        "MEGATRON_LM_TP_DEGREE": "2",
        "MEGATRON_LM_PP_DEGREE": "2",
        "MEGATRON_LM_GRADIENT_CLIPPING": "1.0",
    }
    t = load("training: {}\n", environ=megatron).config.training
    assert (t.distributed_strategy, t.parallelism.tp_size, t.parallelism.pp_size) == ("pipeline", 2, 2)
    mesh = {
        **FSDP,
        "FSDP_VERSION": "2",
        "ACCELERATE_USE_PARALLELISM_CONFIG": "true",
        "PARALLELISM_CONFIG_DP_SHARD_SIZE": "2",
        "PARALLELISM_CONFIG_TP_SIZE": "2",
        "PARALLELISM_CONFIG_CP_SIZE": "1",
        "PARALLELISM_CONFIG_CP_BACKEND": "torch",
    }
    p = load("training: {}\n", environ=mesh).config.training.parallelism
    assert (p.dp_shard_size, p.tp_size, p.cp_size) == (2, 2, 1)
    dynamo = {**PLAIN, "ACCELERATE_DYNAMO_BACKEND": "INDUCTOR", "ACCELERATE_DYNAMO_MODE": "max-autotune"}
    t = load("training: {}\n", environ=dynamo).config.training
    assert (t.torch_compile, t.torch_compile_backend, t.torch_compile_mode) == (
        True,
        "inductor",
        "max-autotune",
    )
    eight = load(
        "training: {}\n",
        environ={**PLAIN, "ACCELERATE_MIXED_PRECISION": "fp8", "ACCELERATE_FP8_BACKEND": "TE"},
    )
    assert eight.config.training.mixed_precision == "bf16"
    assert [n for n in eight.notes if n.severity is Severity.WARNING and "8-bit" in n.what]


def test_what_sets_nothing_is_named_and_what_cannot_be_is_refused(load: Load, refuse: Any) -> None:
    said = {
        "ACCELERATE_CPU_AFFINITY": "1",
        "ACCELERATE_DEBUG_MODE": "true",
        "ACCELERATE_USE_IPEX": "true",
        "MLU_VISIBLE_DEVICES": "0",
        "ACCELERATE_NEW_IN_2": "x",
    }
    loaded = load("training: {}\n", environ={**PLAIN, **said})
    where = {n.where for n in loaded.notes}
    assert {f"environment {name}" for name in said} <= where
    idle = load("training: {}\n", environ={**PLAIN, "FSDP_OFFLOAD_PARAMS": "true"})
    assert "no effect without ACCELERATE_USE_FSDP" in notes(idle, "launch.no_effect")[0]
    found = refuse("training: {}\n", environ={**PLAIN, "ACCELERATE_IN_TPU_POD": "1"}).diagnostics
    assert [d.code for d in found] == ["accelerate.not_built"]


def test_the_names_of_older_accelerates(load: Load) -> None:
    old = {
        "TORCHELASTIC_RUN_ID": "none",
        "MIXED_PRECISION": "bf16",
        "USE_DEEPSPEED": "true",
        "DEEPSPEED_ZERO_STAGE": "3",
        "GRADIENT_ACCUMULATION_STEPS": "2",
        "GRADIENT_CLIPPING": "0.5",
    }
    assert set(old) - {"TORCHELASTIC_RUN_ID"} <= set(OLD)
    t = load("training: {}\n", environ=old).config.training
    assert (t.mixed_precision, t.distributed_strategy, t.gradient_accumulation_steps) == (
        "bf16",
        "deepspeed",
        2,
    )
    half = {**PLAIN, "ACCELERATE_USE_DEEPSPEED": "true", "DEEPSPEED_ZERO_STAGE": "1"}
    assert load("training: {}\n", environ=half).config.training.deepspeed["zero_optimization"]["stage"] == 1
    assert (
        load("training: {}\n", environ={"MIXED_PRECISION": "bf16"}).config.training.mixed_precision == "auto"
    )


def test_without_accelerate_nothing_is_read(load: Load) -> None:
    loaded = load("training: {}\n", environ={"FSDP_OFFLOAD_PARAMS": "true", "OMP_NUM_THREADS": "2"})
    assert loaded.config.training.fsdp is None and not loaded.notes


def test_an_accelerate_files_block_that_gives_way_is_said(load: Load, tmp_path: Path) -> None:
    (tmp_path / "acc.yaml").write_text(
        "distributed_type: FSDP\nmixed_precision: bf16\nfsdp_config: {fsdp_offload_params: true}\n"
    )
    loaded = load("training:\n  accelerate_config: acc.yaml\n  fsdp: shard_grad_op\n")
    assert [n for n in loaded.notes if "the Accelerate file's setting is ignored" in n.what]


@pytest.mark.parametrize(
    "yaml", ["", "  mixed_precision: auto\n", "  mixed_precision: bf16\n", "  bf16: true\n"]
)
@pytest.mark.parametrize("word", ["bf16", "fp16", "no", None])
def test_two_doors_of_one_accelerate_file_agree(tmp_path: Path, word: str | None, yaml: str) -> None:
    """`auto` leaves the choice to the file; beside a precision in the YAML the doors rank as documented."""
    file = tmp_path / "acc.yaml"
    file.write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nnum_processes: 2\n"
        + (f"mixed_precision: '{word}'\n" if word else "")
    )
    found = []
    environ = {"ACCELERATE_MIXED_PRECISION": word or "no"}
    for key, variables in ((f"  accelerate_config: {file}\n", {}), ("", environ)):
        (tmp_path / "a.yaml").write_text(f"training:\n  seed: 1\n{yaml}{key}")
        found.append(load_config(str(tmp_path / "a.yaml"), environ=variables).config.training.mixed_precision)
    named = "bf16" if "bf16" in yaml else word or "no"
    assert found == [named, "fp16" if word == "fp16" else named]


@pytest.mark.parametrize(
    ("block", "precision"),
    [("bf16", "bf16"), ("fp16", "fp16"), (None, "auto")],
)
def test_auto_leaves_the_precision_to_deepspeeds_file(
    tmp_path: Path, block: str | None, precision: str
) -> None:
    data = {"zero_optimization": {"stage": 2}} | ({block: {"enabled": True}} if block else {})
    (tmp_path / "ds.json").write_text(json.dumps(data))
    (tmp_path / "a.yaml").write_text("training:\n  mixed_precision: auto\n  deepspeed: ds.json\n")
    assert load_config(str(tmp_path / "a.yaml")).config.training.mixed_precision == precision
