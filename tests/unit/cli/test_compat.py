"""The guide's commands: what each of them comes to."""

from __future__ import annotations

import runpy
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from paceline.cli import compat
from paceline.launch.process_spec import LaunchOptions

ROOT = Path(__file__).resolve().parents[3]
LAUNCHER_VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "TORCHELASTIC_RUN_ID",
    "OMPI_COMM_WORLD_RANK",
    "SLURM_PROCID",
    "SLURM_STEP_ID",
)


class Seen:
    """What would have been started."""

    def __init__(self) -> None:
        self.started: tuple[Path, list[str], LaunchOptions] | None = None
        self.one_process = False
        self.became: list[str] | None = None
        self.prepared: tuple[Path, list[str]] | None = None


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    seen = Seen()

    def start(
        config: Path, overrides: Sequence[str], asked: LaunchOptions, *, one_process: bool = False
    ) -> int:
        seen.started, seen.one_process = (config, list(overrides), asked), one_process
        return 0

    def become(module: str, *arguments: str) -> None:
        seen.became = [module, *arguments]
        raise SystemExit(0)

    def prepare_data(config: Path, overrides: Sequence[str], cache: Path | None = None) -> int:
        seen.prepared = (config, list(overrides))
        return 0

    monkeypatch.setattr(compat, "start", start)
    monkeypatch.setattr("paceline.cli.process.become", become)
    monkeypatch.setattr("paceline.cli.training.prepare_data", prepare_data)
    for name in LAUNCHER_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return seen


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], int]:
    """Runs a command line of the guide in this process and answers its exit code."""

    def call(line: str) -> int:
        script, *arguments = shlex.split(line)
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        monkeypatch.setattr(sys, "path", list(sys.path))
        with pytest.raises(SystemExit) as stop:
            runpy.run_path(str(ROOT / script), run_name="__main__")
        return int(stop.value.code or 0)

    return call


def test_alone_main_starts_one_process(run: Callable[[str], int], seen: Seen) -> None:
    assert run("main.py --config config.yaml --mode train --algorithm sft") == 0
    assert seen.started == (Path("config.yaml"), [], LaunchOptions(algorithm="sft"))
    assert seen.one_process and seen.became is None


def test_overrides_and_resume(run: Callable[[str], int], seen: Seen) -> None:
    assert run("main.py --config c.yaml training.seed=1 --resume latest model.dtype=float32") == 0
    assert seen.started == (
        Path("c.yaml"),
        ["training.seed=1", "model.dtype=float32"],
        LaunchOptions(resume="latest"),
    )


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"},
        {"TORCHELASTIC_RUN_ID": "none", "RANK": "0", "WORLD_SIZE": "1"},
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"},
        {"SLURM_PROCID": "3", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "4"},
    ],
)
def test_under_a_launcher_main_becomes_a_worker(
    variables: dict[str, str], run: Callable[[str], int], seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert run("main.py --mode train --config c.yaml --algorithm sft training.seed=3") == 0
    assert seen.started is None
    assert seen.became == [
        "paceline.training.rank",
        "--config",
        "c.yaml",
        "--set",
        "training.seed=3",
        "--set",
        "training.algorithm=sft",
    ]


@pytest.mark.parametrize("spelling", ["--local-rank=1", "--local_rank=1", "--local-rank 1", "--local_rank 1"])
def test_both_spellings_of_local_rank(
    spelling: str, run: Callable[[str], int], seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert run(f"main.py {spelling} --mode train --config c.yaml") == 0
    assert seen.became is not None and seen.became[-2:] == ["--local-rank", "1"]


def test_a_batch_script_of_slurm_is_no_rank(
    run: Callable[[str], int], seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv("SLURM_NTASKS", "8")
    assert run("main.py --config c.yaml") == 0
    assert seen.started is not None


def test_the_launcher_script(run: Callable[[str], int], seen: Seen) -> None:
    assert (
        run(
            "scripts/run_distributed.py --nproc_per_node 4 --config config_distributed_example.yaml"
            " --algorithm sft"
        )
        == 0
    )
    assert seen.started == (Path("config_distributed_example.yaml"), [], LaunchOptions(4, algorithm="sft"))
    assert not seen.one_process


def test_the_launcher_script_on_two_nodes_with_torchrun(run: Callable[[str], int], seen: Seen) -> None:
    line = (
        "--use_torchrun --nproc_per_node 4 --nnodes 2 --node_rank 1 --master_addr 192.168.1.100 --master_port"
        " 29500 --config c.yaml"
    )
    assert run(f"scripts/run_distributed.py {line}") == 0
    assert seen.started == (
        Path("c.yaml"),
        [],
        LaunchOptions(4, 2, 1, "192.168.1.100", 29500, launcher="torchrun"),
    )


def test_preparing(run: Callable[[str], int], seen: Seen) -> None:
    assert run("prepare_datasets.py --config config.yaml data.max_length=64") == 0
    assert seen.prepared == (Path("config.yaml"), ["data.max_length=64"])


@pytest.mark.parametrize("flag", ["--deepspeed_config ", "--deepspeed ", "--deepspeed="])
def test_a_deepspeed_file_is_a_setting(flag: str, run: Callable[[str], int], seen: Seen) -> None:
    assert run(f"main.py --config c.yaml {flag}configs/deepspeed/zero2_with_profiling.json") == 0
    assert seen.started is not None and seen.started[1] == [
        "training.deepspeed=configs/deepspeed/zero2_with_profiling.json"
    ]
    assert run("main.py --config c.yaml --deepspeed training.seed=1") == 0
    assert seen.started[1] == ["training.seed=1"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("main.py --mode eval", "cli.mode"),
        ("main.py --algoritm sft", "--algorithm"),
        ("main.py --config c.yaml --template qwen", "model.chat_template"),
        ("main.py --config c.yaml --learning_rate 1e-4 --bf16", "training.learning_rate=1e-4"),
        ("scripts/run_distributed.py --nproc 4", "--nproc_per_node"),
        ("scripts/run_distributed.py --nproc_per_node four", "--nproc_per_node"),
    ],
)
def test_flags_misspelt(
    line: str, message: str, run: Callable[[str], int], seen: Seen, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(line) == 2
    assert message in capsys.readouterr().err
    assert seen.started is None and seen.became is None


@pytest.mark.parametrize("script", ["main.py", "prepare_datasets.py", "scripts/run_distributed.py"])
def test_the_shims_stay_thin(script: str) -> None:
    assert len((ROOT / script).read_text().splitlines()) <= 15


@pytest.mark.parametrize("launched", [False, True])
def test_main_takes_the_flags_of_llamafactory(
    launched: bool,
    run: Callable[[str], int],
    seen: Seen,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    if launched:
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
    line = "main.py --stage pt --do_train --model_name_or_path m --dataset d --output_dir o training.seed=2"
    assert run(f"{line} --local_rank=1" if launched else line) == 0
    (file,) = (tmp_path / "imported").iterdir()
    if launched:
        rank = ["--config", str(file), "--set", "training.seed=2", "--local-rank", "1"]
        assert seen.became == ["paceline.training.rank", *rank]
    else:
        assert seen.started == (file, ["training.seed=2"], LaunchOptions()) and seen.one_process


def test_flags_that_cannot_be_kept_start_nothing(
    run: Callable[[str], int], seen: Seen, capsys: pytest.CaptureFixture[str]
) -> None:
    line = "main.py --stage sft --do_train --model_name_or_path m --dataset d --output_dir o --use_badam"
    assert run(line) == 2
    assert seen.started is None and "error[cli.flag_not_kept] main.py, argument 10" in capsys.readouterr().err
