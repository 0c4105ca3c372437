"""Launchers' options in an imported command: none is left out. argparse and Accelerate are the judges."""

from __future__ import annotations

import argparse
import random
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.config.import_export.commands.command_line import read_command
from paceline.config.import_export.commands.launchers import launch_of
from paceline.config.import_export.import_config import import_command, import_data
from paceline.config.import_export.verdicts import Imported, KeyVerdict
from paceline.config.import_export.write_yaml import accepted
from paceline.config.load import load_config
from paceline.rules import of_config

PROGRAM = [
    "sft.py",
    "--model_name_or_path",
    "m",
    "--dataset_name",
    "d",
    "--output_dir",
    "o",
    "--bf16",
    "False",
]


def accelerates() -> argparse.ArgumentParser:
    from accelerate.commands.launch import launch_command_parser

    return launch_command_parser()


def torchs() -> argparse.ArgumentParser:
    from torch.distributed.run import get_args_parser

    return get_args_parser()


def deepspeeds() -> argparse.ArgumentParser:
    from deepspeed.launcher import runner

    found: list[argparse.ArgumentParser] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", lambda parser, args: found.append(parser))
        runner.parse_args([])
    return found[0]


PARSERS: dict[str, Callable[[], argparse.ArgumentParser]] = {
    "accelerate launch": accelerates,
    "torchrun": torchs,
    "deepspeed": deepspeeds,
}
SAMPLES = {
    "mixed_precision": "bf16",
    "num_processes": "2",
    "nnodes": "2",
    "nproc_per_node": "2",
    "include": "localhost:0,1",
    "i": "localhost:0,1",
    "rdzv_endpoint": "h:29500",
    "autotuning": "tune",
    "log_level": "error",
    "zero_stage": "3",
    "fsdp_sharding_strategy": "FULL_SHARD",
}


def written(action: argparse.Action, name: str, draw: random.Random) -> list[str]:
    """An option as a user writes it."""
    if action.nargs == 0:
        return [name]
    choices = [str(choice) for choice in action.choices or ()]
    plain = "1" if action.type in (int, float, bool) else "true"
    value = SAMPLES.get(action.dest, choices[-1] if choices else plain)
    return [f"{name}={value}"] if name.startswith("--") and draw.random() < 0.3 else [name, value]


def options(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if action.option_strings and action.dest != "help"]


@pytest.mark.parametrize("launcher", list(PARSERS))
def test_every_option_has_a_verdict(launcher: str) -> None:
    draw = random.Random(1)
    for action in options(PARSERS[launcher]()):
        words = [*launcher.split(), *written(action, draw.choice(action.option_strings), draw), *PROGRAM]
        command = read_command(words)
        assert (command.system, command.algorithm, len(command.data)) == ("trl", "sft", 4), words
        found = import_command(command).findings
        ours = [key for key in found if key.startswith(f"{launcher} --")]
        assert len(ours) == 1 and found[ours[0]].line == 1 + len(launcher.split()), words
        spelled = {one.lstrip("-").replace("-", "_") for one in action.option_strings}
        assert ours[0].removeprefix(f"{launcher} --") in spelled


@pytest.mark.parametrize("launcher", list(PARSERS))
def test_the_program_begins_where_the_launcher_says(launcher: str) -> None:
    parser, draw = PARSERS[launcher](), random.Random(2)
    every = options(parser)
    for _ in range(60):
        given = [(a, draw.choice(a.option_strings)) for a in draw.sample(every, draw.randrange(6))]
        before = [word for action, name in given for word in written(action, name, draw)]
        words = [*launcher.split(), *before, "x/t.py", "--a", "b"]
        theirs = vars(parser.parse_args(words[len(launcher.split()) :]))
        launch = launch_of(words, [1] * len(words))
        assert words[launch.program :] == [
            theirs.get("training_script") or theirs["user_script"],
            *(theirs.get("training_script_args") or theirs["user_args"]),
        ]
        for (action, _), option in zip(given, launch.options, strict=True):
            assert (
                action.nargs == 0
                or str(theirs[action.dest]) in (str(option.value), str([option.value]))
                or (action.type not in (None, str, int))
            ), words


ENGINES: dict[str, tuple[str, tuple[str, ...]]] = {
    "--use_deepspeed": (
        "zero_stage",
        (
            *("--offload_optimizer_device cpu", "--offload_param_device none", "--zero3_init_flag true"),
            *("--zero3_save_16bit_model true", "--deepspeed_moe_layer_cls_names A,B"),
        ),
    ),
    "--use_fsdp": (
        "fsdp_sharding_strategy",
        (
            *("--fsdp_offload_params true", "--fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP"),
            *(
                "--fsdp_transformer_layer_cls_to_wrap LlamaDecoderLayer",
                "--fsdp_state_dict_type SHARDED_STATE_DICT",
            ),
            *("--fsdp_activation_checkpointing true", "--fsdp_use_orig_params false"),
            "--fsdp_backward_prefetch BACKWARD_PRE",
        ),
    ),
    "--multi_gpu": ("", ("--dynamo_backend inductor",)),
}


def accelerate_command(draw: random.Random) -> list[str]:
    engine = draw.choice(list(ENGINES))
    first, more = ENGINES[engine]
    value = draw.choice(["0", "1", "2", "3"] if "zero" in first else ["FULL_SHARD", "SHARD_GRAD_OP"])
    words = [engine, "--num_processes", "4", *([f"--{first}", value] if first else [])]
    for option in draw.sample(more, draw.randrange(len(more) + 1)):
        words += option.split()
    return words + draw.choice([[], ["--mixed_precision", "bf16"], ["--mixed_precision=no"]])


def environment(words: list[str]) -> dict[str, str]:
    """What ``accelerate launch`` hands to its program."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils import launch

    arguments = launch_command_parser().parse_args([*words, "t.py"])
    arguments = _validate_launch_command(arguments)[0]
    if arguments.use_deepspeed:
        arguments.deepspeed_fields_from_accelerate_config = ""
        return dict(launch.prepare_deepspeed_cmd_env(arguments)[1])
    return dict(launch.prepare_multi_gpu_env(arguments))


DEFAULTS = {
    **dict.fromkeys(("use_orig_params", "cpu_ram_efficient_loading", "sync_module_states"), True),
    **dict.fromkeys(("cpu_offload", "forward_prefetch"), False),
}


def acting(value: Any) -> Any:
    """A block without what is so by default: the launcher hands on all of its defaults."""
    if not isinstance(value, dict):
        return value
    inner = {
        key: acting(item) for key, item in value.items() if DEFAULTS.get(key) != item or key not in DEFAULTS
    }
    return {key: item for key, item in inner.items() if item != {"device": "none"}}


def config_of(found: Imported, folder: Path, environ: dict[str, str]) -> dict[str, Any]:
    made, problems = accepted(found, "test", of_config)
    assert problems == []
    file = folder / "ours.yaml"
    file.write_text(made.text)
    training = load_config(str(file), environ=environ).config.to_json()["training"]
    names = ("mixed_precision", "deepspeed", "fsdp", "fsdp_config", "torch_compile", "gradient_checkpointing")
    (training["fsdp_config"] or {}).pop("activation_checkpointing", None)  # gradient_checkpointing says it
    return {name: acting(training[name]) for name in (*names, "distributed_strategy")}


@pytest.mark.parametrize("seed", range(20))
def test_a_run_is_what_it_is_behind_accelerate(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The options in an imported YAML are what the same options come to by Accelerate's own variables."""
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    words = accelerate_command(random.Random(seed))
    theirs = config_of(import_command(read_command(["python", *PROGRAM])), tmp_path, environment(words))
    theirs |= {"distributed_strategy": "ddp"} if "--multi_gpu" in words else {}  # no variable says it
    found = import_command(read_command(["accelerate", "launch", *words, *PROGRAM]))
    assert config_of(found, tmp_path, {}) == theirs, words
    assert found.settings["launch.nproc"].value == 4
    assert not found.of(KeyVerdict.LOST)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "torchrun --nnodes 2 --node_rank 1 --master_addr h --master_port 5 --nproc_per_node 4",
            (4, 2, 1, "h", 5),
        ),
        ("torchrun --nnodes=2:2 --rdzv-endpoint=h:5 --nproc-per-node=4", (4, 2, None, "h", 5)),
        ("torchrun --nnodes=3:4 --rdzv-endpoint=h:5 --nproc-per-node=4", (4, 4, None, "h", 5)),
        ("torchrun", (1, None, None, None, None)),
        ("deepspeed --include localhost:4,5", (2, None, None, None, None)),
        ("deepspeed -i a:0,1,2@b:0,1,2 --master_port=5", (3, 2, None, None, 5)),
        ("deepspeed --hostfile HOSTS --num_nodes 2", (4, 2, None, None, None)),
        ("CUDA_VISIBLE_DEVICES=2,3,4 deepspeed", (3, None, None, None, None)),
        ("srun -N 2 --ntasks-per-node=4 python", (4, 2, None, None, None)),
        ("srun -N2 -n8 python", (4, 2, None, None, None)),
        ("srun -N2 --ntasks-per-node=1 torchrun --nnodes 2 --nproc_per_node 8", (8, 2, None, None, None)),
        ("mpirun -np 8 -H a:4,b:4 -x A=1 --mca x y python", (4, 2, None, None, None)),
        (
            "accelerate launch --num_machines 2 --machine_rank 1 --num_processes 8 --main_process_ip h",
            (4, 2, 1, "h", None),
        ),
        ("conda run -n e --no-capture-output torchrun --nproc_per_node 2", (2, None, None, None, None)),
        ("CUDA_VISIBLE_DEVICES=0,1,2,3 accelerate launch --num_processes 2", (2, None, None, None, None)),
        ("CUDA_VISIBLE_DEVICES=0,1,2 accelerate launch --mixed_precision bf16", (3, None, None, None, None)),
        ("srun -N 4 accelerate launch --num_machines 2 --num_processes 4", (2, 2, None, None, None)),
        ("nohup timeout -s INT 10h env A=1 python -u", (None, None, None, None, None)),
    ],
)
def test_processes_and_nodes(tmp_path: Path, line: str, expected: tuple[object, ...]) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("a slots=4\nb slots=4\n")
    found = import_command(read_command([*shlex.split(line.replace("HOSTS", str(hosts))), *PROGRAM]))
    keys = ("nproc", "nnodes", "node_rank", "master_addr", "master_port")
    values = [found.settings.get(f"launch.{key}") for key in keys]
    assert tuple(value and value.value for value in values) == expected
    assert not found.of(KeyVerdict.LOST)


def test_each_option_of_a_block_has_its_own_verdict(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}}')
    line = f"--zero_stage 3 --gradient_accumulation_steps 8 --deepspeed_config_file {tmp_path}/ds.json"
    words = ["accelerate", "launch", "--use_deepspeed", *line.split(), *PROGRAM]
    found = import_command(read_command(words)).findings
    verdicts = {
        key.rpartition(" --")[2]: f.verdict for key, f in found.items() if key.startswith("accelerate")
    }
    assert verdicts == {
        "use_deepspeed": KeyVerdict.MAPPED,
        "zero_stage": KeyVerdict.NO_EFFECT,
        "gradient_accumulation_steps": KeyVerdict.LOST,
        "deepspeed_config_file": KeyVerdict.MAPPED,
    }


def test_accelerates_variables_act_beside_another_launcher() -> None:
    line = "ACCELERATE_USE_DEEPSPEED=true ACCELERATE_DEEPSPEED_ZERO_STAGE=3 FSDP_VERSION=2 torchrun"
    found = import_command(read_command([*line.split(), *PROGRAM]))
    deepspeed = found.settings["training.deepspeed"].value
    assert isinstance(deepspeed, dict) and deepspeed["zero_optimization"] == {"stage": 3}
    names = ("ACCELERATE_USE_DEEPSPEED", "ACCELERATE_DEEPSPEED_ZERO_STAGE", "FSDP_VERSION")
    mapped = [found.findings[name].verdict is KeyVerdict.MAPPED for name in names]
    assert mapped == [True, True, False]


def test_accelerates_file_is_read_with_its_lines(tmp_path: Path) -> None:
    file = tmp_path / "zero3.yaml"
    file.write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config:\n  zero_stage: 3\n"
        "  gradient_accumulation_steps: 1\nmixed_precision: bf16\n"
    )
    words = f"accelerate launch --config_file={file} --num_processes 4"
    found = import_command(read_command([*words.split(), *PROGRAM]))
    assert (
        found.settings["launch.nproc"].value == 4
        and found.settings["training.mixed_precision"].value == "bf16"
    )
    assert found.findings[f"{file}:3 deepspeed_config"].to == ("training.deepspeed",)
    assert found.findings[f"{file}:5 gradient_accumulation_steps"].verdict is KeyVerdict.MAPPED
    file.unlink()
    assert import_command(read_command([*words.split(), *PROGRAM])).of(KeyVerdict.LOST)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, (1, None, None)),
        ({"NPROC_PER_NODE": "4"}, (4, None, None)),
        (
            {"NPROC_PER_NODE": "2", "NNODES": "2", "MASTER_ADDR": "h", "CUDA_VISIBLE_DEVICES": "0,1"},
            (2, 2, "h"),
        ),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, (1, None, None)),
    ],
)
def test_processes_of_ms_swift_in_a_command_and_a_file(
    variables: dict[str, str], expected: tuple[object, ...]
) -> None:
    """Without NPROC_PER_NODE it starts one process, also where there are several devices."""
    words = [*(f"{name}={value}" for name, value in variables.items()), "swift", "sft", "--model", "m"]
    command = import_command(read_command([*words, "--dataset", "d"]))
    data: dict[str, Any] = {"model": "m", "dataset": "d", "tuner_type": "lora", "ENV": dict(variables)}
    for found in (command, import_data(data, dict.fromkeys(data, 1), "a.yaml", "swift")):
        values = [found.settings.get(f"launch.{key}") for key in ("nproc", "nnodes", "master_addr")]
        assert tuple(value and value.value for value in values) == expected
