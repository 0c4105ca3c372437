"""What accelerate's command line says and its environment does not; what other launchers' variables come
to.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline.config.import_export.commands.launchers import ACCELERATE_SWITCHES
from paceline.core.diagnostics import Severity
from paceline.launch.environment import guide_variables
from paceline.launch.environment.guide_variables import NEEDS, NOT_HANDED_ON, translate

SET = {"ACCELERATE_MIXED_PRECISION": "no"}


def told(line: str) -> dict[str, str | None]:
    return dict(guide_variables.accelerate_options([shlex.split(line)]))


@pytest.fixture(autouse=True)
def no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No config file of accelerate's in the home of whoever runs this."""
    monkeypatch.setattr(guide_variables, "DEFAULT_FILE", tmp_path / "none.yaml")


@pytest.mark.parametrize(
    "line",
    [
        (
            "accelerate launch --multi_gpu --gradient_accumulation_steps 4 main.py --config c.yaml"
            " --gradient_accumulation_steps 9"
        ),
        "/venv/bin/python /venv/bin/accelerate launch --multi_gpu --gradient-accumulation-steps=4 main.py",
        (
            "/venv/bin/python /venv/bin/accelerate-launch --multi_gpu --gradient_accumulation_steps=4 -m"
            " paceline train c.yaml"
        ),
        "python -m accelerate.commands.launch --multi_gpu --gradient_accumulation_steps 4 main.py",
        (
            "python -m accelerate.commands.accelerate_cli launch --multi_gpu --gradient_accumulation_steps 4"
            " main.py"
        ),
    ],
)
def test_the_options_before_the_script(line: str) -> None:
    options = told(line)
    assert (options["gradient_accumulation_steps"], options["multi_gpu"]) == ("4", None)
    assert not {"config"} & set(options)


@pytest.mark.parametrize(
    "line", ["torchrun --nproc_per_node 2 main.py", "bash -c accelerate", "accelerate config", "vi launch.py"]
)
def test_another_command_says_nothing(line: str) -> None:
    assert told(line) == {}


def test_the_switches_are_accelerates() -> None:
    """An option without a value that a new version brings is found here: the word after it would be taken
    for its value.
    """
    pytest.importorskip("accelerate")
    from accelerate.commands.launch import launch_command_parser

    actions = launch_command_parser()._actions
    plain = {a.dest for a in actions if a.option_strings and a.nargs == 0}
    spelled = {
        word.lstrip("-").replace("-", "_") for a in actions if a.nargs == 0 for word in a.option_strings
    }
    assert {name for name in plain | spelled if len(name) > 1} - ACCELERATE_SWITCHES - {
        "tpu_use_cluster"
    } == set()
    known = {a.dest for a in actions}
    assert set(NOT_HANDED_ON) <= known
    assert all(any(name.startswith(start) for name in known) for start in NEEDS)


def test_what_is_not_handed_on_is_put_into_the_environment() -> None:
    line = (
        "accelerate launch --multi_gpu --gradient_accumulation_steps 4 --offload_param_nvme_path /x main.py"
    )
    found = translate(SET, [shlex.split(line)])
    assert found.variables == {
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4",
        "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH": "/x",
    }
    assert found.environ(SET)["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] == "4"
    given = {**SET, "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "2"}
    assert (
        translate(given, [shlex.split(line)]).environ(given)["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] == "2"
    )
    assert translate({}, [shlex.split(line)]).variables == {}  # a shell of its own below accelerate


def test_what_accelerate_throws_away_is_said(tmp_path: Path) -> None:
    line = "accelerate launch --multi_gpu --zero_stage 3 --fsdp_offload_params true main.py"
    notes = translate(SET, [shlex.split(line)]).notes
    assert {n.found for n in notes} == {"--zero_stage", "--fsdp_offload_params"}
    assert all(n.severity is Severity.WARNING and n.hint in ("--use_deepspeed", "--use_fsdp") for n in notes)
    for kept in ("--use_deepspeed", "--config_file x.yaml"):  # a file may say use_deepspeed
        assert not translate(SET, [shlex.split(f"accelerate launch {kept} --zero_stage 3 main.py")]).notes


@pytest.mark.parametrize("environ", [{}, {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}])
def test_one_process_where_several_were_asked_for_is_said(environ: dict[str, str]) -> None:
    simple = {**SET, "ACCELERATE_USE_CPU": "True", **environ}
    line = shlex.split("accelerate launch --cpu --num_processes 2 main.py") if not environ else []
    (note,) = translate(simple, [line]).notes
    assert note.code == "launch.one_process" and note.severity is Severity.WARNING
    assert "but started one" in note.what and "--multi_gpu" in note.hint
    several = {**simple, "RANK": "0", "WORLD_SIZE": "2"}
    assert not translate(several, [line]).notes
    assert not translate(
        {**SET, "ACCELERATE_USE_CPU": "True"}, [shlex.split("accelerate launch --cpu main.py")]
    ).notes


def test_the_ancestors_of_a_process_are_read(tmp_path: Path) -> None:
    """A process below another, whose command line it finds."""
    if not Path("/proc/self/cmdline").exists():
        pytest.skip("no /proc")
    inner = (
        "from paceline.launch.environment.guide_variables import ancestors;"
        " print(any('marker-7' in w for w in sum(ancestors(), [])))"
    )
    outer = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}], check=True)  # marker-7"
    )
    done = subprocess.run([sys.executable, "-c", outer], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


@pytest.mark.parametrize(("value", "seconds"), [("30", "1800"), ("1", "60")])
def test_deepspeeds_timeout_in_minutes(value: str, seconds: str) -> None:
    assert translate({"DEEPSPEED_TIMEOUT": value}, []).overrides == {"training.ddp_timeout": seconds}
    both = translate({"DEEPSPEED_TIMEOUT": value, "NCCL_TIMEOUT": "77"}, [])
    assert both.overrides == {"training.ddp_timeout": "77"}


def test_a_deepspeed_timeout_that_is_none_is_an_error() -> None:
    (note,) = translate({"DEEPSPEED_TIMEOUT": "soon"}, []).notes
    assert (note.code, note.severity) == ("launch.deepspeed_timeout", Severity.ERROR)


@pytest.mark.parametrize(
    ("environ", "taken"),
    [
        (
            {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29511"},
            {"launch.master_addr": "10.0.0.1", "launch.master_port": "29511"},
        ),
        ({"MASTER_ADDR": "gpu0"}, {"launch.master_addr": "gpu0"}),
        ({"MASTER_ADDR": "localhost", "MASTER_PORT": "29511"}, {}),
        ({"MASTER_PORT": "29511"}, {}),
        ({"MASTER_ADDR": "gpu0", "RANK": "0", "WORLD_SIZE": "2"}, {}),
    ],
)
def test_an_address_of_ones_own_is_where_the_nodes_meet(
    environ: dict[str, str], taken: dict[str, Any]
) -> None:
    assert translate(environ, []).overrides == taken
