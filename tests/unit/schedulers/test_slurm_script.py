"""The batch script of Slurm, run by bash with programs that only record what they receive."""

from __future__ import annotations

import json
import re
import stat
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from rendered_jobs import job, random_value

from paceline.core.errors import ConfigError, ExitCode
from paceline.launch.supervision.exit_codes import AFTER, After
from paceline.schedulers.job import ArrayTask, ClusterJob
from paceline.schedulers.slurm.job import slurm_job
from paceline.schedulers.write_files import write_job

#: What a step of two nodes reports: codes by node (None: the node was lost), and srun's own.
_SRUN = """#!{python}
import json, os, sys
from pathlib import Path
folder = Path(__file__).parent
with (folder / "calls").open("a") as file:
    file.write(json.dumps({{"argv": sys.argv[1:], "env": dict(os.environ)}}) + "\\n")
plan = json.loads((folder / "step").read_text())
for node, code in enumerate(plan["nodes"]):
    if code is not None:
        (Path(os.environ["PACELINE_EXIT_CODES"]) / str(node)).write_text(f"{{code}}\\n")
sys.exit(plan["srun"])
"""
_OTHERS = {
    "scontrol": 'case "$*" in *hostnames*) echo host1; echo host2 ;;'
    ' *"show node"*) echo "NodeName=host1 NodeAddr=192.0.2.7 x=y" ;;'
    ' *) echo "$*" >> {folder}/scontrol-calls ;; esac',
    "squeue": "cat {folder}/state",
    "module": 'printf "%s\\\\n" "$*" >> {folder}/modules',
}


@dataclass(frozen=True)
class Outcome:
    """What the script has done: its code, the calls of srun, and what it has asked scontrol for."""

    code: int
    argv: list[str]
    env: dict[str, str]
    requeued: bool
    out: str


def run_script(
    of: ClusterJob,
    folder: Path,
    nodes: tuple[int | None, ...] = (0, 0),
    srun: int = 0,
    *,
    state: str = "RUNNING",
    task: int = 0,
) -> Outcome:
    """Run the job's script as Slurm would on its first node."""
    programs = folder / "programs"
    programs.mkdir(exist_ok=True)
    texts = {name: "#!/bin/bash\n" + text.format(folder=programs) for name, text in _OTHERS.items()}
    texts["srun"] = _SRUN.format(python=sys.executable)
    for name, text in texts.items():
        (programs / name).write_text(text)
        (programs / name).chmod(stat.S_IRWXU)
    (programs / "step").write_text(json.dumps({"nodes": nodes, "srun": srun}))
    (programs / "state").write_text(state + "\n")
    for name in ("calls", "scontrol-calls"):
        (programs / name).unlink(missing_ok=True)
    (script,) = write_job(of.out, slurm_job(of), "private")
    env = {
        "PATH": f"{programs}:/usr/bin:/bin",
        "SLURM_JOB_ID": "77",
        "SLURM_JOB_NODELIST": "host[1-2]",
        "HOME": str(folder),
    }
    done = subprocess.run(
        ["bash", str(script)],
        env={**env, "SLURM_ARRAY_TASK_ID": str(task)},
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
    )
    calls = programs / "calls"
    call = json.loads(calls.read_text().splitlines()[-1]) if calls.is_file() else {"argv": [], "env": {}}
    requeued = (programs / "scontrol-calls").is_file() and "requeue 77" in (
        programs / "scontrol-calls"
    ).read_text()
    return Outcome(done.returncode, call["argv"], call["env"], requeued, done.stdout + done.stderr)


def test_every_value_reaches_the_ranks_as_it_was_written(tmp_path: Path) -> None:
    """200 values with blanks, quotes, $(...) and line breaks; nothing of them is run."""
    values = [random_value(seed) for seed in range(200)]
    env = {f"V{number}": value for number, value in enumerate(values[:100])}
    settings = tuple(f"training.run_name={value}" for value in values[100:])
    done = run_script(job(tmp_path, env=env, overrides=settings), tmp_path)
    assert done.code == 0, done.out
    assert {name: done.env[name] for name in env} == env
    start = done.argv.index("paceline")
    assert done.argv[start:] == [
        *("paceline", "train", str(tmp_path / "c.yaml"), *settings, "launch.max_restarts=0"),
        *("--nnodes", "2", "--nproc", "1", "--resume", "auto", "--master-port", str(29500 + 77)),
    ]
    assert not Path("/tmp/hit").exists()


def test_folders_with_any_name_work(tmp_path: Path) -> None:
    folder = tmp_path / "a b'c$(id)\"d%j;e"
    folder.mkdir()
    done = run_script(job(folder), folder)
    assert done.code == 0, done.out
    assert str(folder / "c.yaml") in done.argv
    assert (folder / "out" / "exit-codes-77-0" / "0").is_file()


@pytest.mark.parametrize(
    ("nodes", "srun", "answer", "follows"),
    [
        ((0, 0), 0, 0, After.DONE),
        ((70, 0), 70, 0, After.DONE),  # the result is safe
        ((75, 75), 75, 75, After.RESUME),
        ((75, None), 137, 75, After.RESUME),  # all that report have saved together
        ((76, 2), 76, 2, After.FAIL),  # the node that failed by itself decides, not its peer
        ((76, 137), 137, 137, After.COUNT),
        ((77, 76), 77, 77, After.COUNT),
        ((1, 76), 76, 1, After.COUNT),
        ((76, 76), 76, 76, After.COUNT),
        ((76, None), 143, 143, After.COUNT),  # a machine went away
        ((0, None), 137, 137, After.COUNT),
        ((None, None), 1, 1, After.COUNT),  # srun itself failed
        ((130, 76), 130, 130, After.FAIL),
    ],
)
def test_the_node_that_failed_decides_what_follows(
    tmp_path: Path, nodes: tuple[int | None, ...], srun: int, answer: int, follows: After
) -> None:
    done = run_script(job(tmp_path), tmp_path, nodes, srun)
    assert (done.code, done.requeued) == (answer, follows in (After.RESUME, After.COUNT)), done.out
    counted = (tmp_path / "out/failures-77").is_file()
    assert counted == (follows is After.COUNT)


def test_each_code_of_the_table_is_followed_as_it_says(tmp_path: Path) -> None:
    for number, (code, follows) in enumerate(AFTER.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        done = run_script(job(folder), folder, (int(code), int(code)), int(code))
        again = follows in (After.RESUME, After.COUNT)
        assert (done.code, done.requeued) == (0 if follows is After.DONE else int(code), again), code
        assert (folder / "out/failures-77").is_file() == (follows is After.COUNT), code


def test_failures_count_until_the_limit(tmp_path: Path) -> None:
    limited = job(tmp_path, launch={"max_restarts": 2})
    assert [run_script(limited, tmp_path, (1, 76), 76).requeued for _ in range(4)] == [
        True,
        True,
        False,
        False,
    ]
    assert run_script(limited, tmp_path, (75, 75), 75).requeued  # a stop that saved does not count


@pytest.mark.parametrize("state", ["CANCELLED", "COMPLETING", "TIMEOUT", ""])
def test_what_slurm_ends_itself_is_not_started_again(tmp_path: Path, state: str) -> None:
    assert not run_script(job(tmp_path), tmp_path, (75, 75), 75, state=state).requeued
    assert not run_script(job(tmp_path), tmp_path, (143, 143), 143, state=state).requeued
    assert not (tmp_path / "out/failures-77").exists()  # it was no failure of the run


def test_a_deliberate_stop_is_final(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    request = tmp_path / "run/stop-request.json"
    request.write_text(json.dumps({"job": "77", "host": "login", "at": 0.0}, indent=1) + "\n")
    assert not run_script(job(tmp_path), tmp_path, (75, 75), 75).requeued
    assert not run_script(job(tmp_path), tmp_path, (143, 143), 143).requeued  # before the first step
    request.write_text(
        json.dumps({"job": "5", "host": "login", "at": 0.0}, indent=1) + "\n"
    )  # of another job
    assert run_script(job(tmp_path), tmp_path, (75, 75), 75).requeued


def test_secrets_are_read_on_the_node_and_stand_in_no_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hush-hush-hush")
    done = run_script(job(tmp_path, secrets={"HF_TOKEN": str(tmp_path / "token")}), tmp_path)
    assert done.env["HF_TOKEN"] == "hush-hush-hush"
    secret = Path(done.env["PACELINE_STORE_SECRET_FILE"])
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600 and len(secret.read_text()) == 64
    written = {
        path: path.read_text() for path in (tmp_path / "out").rglob("*") if path.is_file() and path != secret
    }
    assert not any("hush" in text or secret.read_text() in text for text in written.values())
    again = run_script(job(tmp_path), tmp_path)  # a second launch keeps the secret of the first one's jobs
    assert Path(again.env["PACELINE_STORE_SECRET_FILE"]).read_text() == secret.read_text()


def test_the_first_node_is_resolved_before_the_ranks_start(tmp_path: Path) -> None:
    assert run_script(job(tmp_path), tmp_path).env["MASTER_ADDR"] == "192.0.2.7"


def test_each_task_of_an_array_runs_its_own_settings(tmp_path: Path) -> None:
    tasks = tuple(
        ArrayTask(
            f"t{n}",
            (f"training.learning_rate={n}e-4", f"training.output_dir={tmp_path}/r {n}"),
            f"{tmp_path}/r {n}",
        )
        for n in (1, 2)
    )
    swept = job(tmp_path, tasks=tasks, launch={"array_limit": 1})
    assert '#SBATCH --array="0-1%1"' in slurm_job(swept).files["job.sbatch"]
    done = run_script(swept, tmp_path, task=1)
    assert done.argv[-2:] == list(tasks[1].settings)


@pytest.mark.parametrize("name", ["partition", "account", "qos", "constraint", "reservation", "memory"])
def test_a_value_that_a_line_cannot_hold_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError) as refused:
        slurm_job(job(tmp_path, launch={name: "a\n#SBATCH --uid=0"}))
    (finding,) = refused.value.diagnostics
    assert finding.code == "schedulers.value" and finding.where == f"--{'mem' if name == 'memory' else name}"


def test_a_time_that_is_over_at_its_start_is_refused(tmp_path: Path) -> None:
    """The ranks would save at once and be requeued, again and again."""
    for seconds in (30, 180):
        with pytest.raises(ConfigError, match="launch.time_limit"):
            slurm_job(job(tmp_path, time_limit=seconds))
    assert slurm_job(job(tmp_path, time_limit=240)).files


def test_everything_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    wrong = job(
        tmp_path,
        launch={"partition": "a\nb", "account": "c\rd", "container": "pyxis", "sbatch_options": ["x y=1"]},
    )
    with pytest.raises(ConfigError) as refused:
        slurm_job(wrong)
    assert len(refused.value.diagnostics) == 4


def test_containers(tmp_path: Path) -> None:
    pyxis = job(
        tmp_path, gpus=8, launch={"container": "pyxis", "image": "a b.sqsh", "mounts": ["/data:/data"]}
    )
    argv = run_script(pyxis, tmp_path).argv
    binds = f"/data:/data,{tmp_path}:{tmp_path},{tmp_path}/out:{tmp_path}/out"
    assert {"--container-image=a b.sqsh", f"--container-mounts={binds}"} <= {*argv[: argv.index("bash")]}
    apptainer = replace(pyxis, site=pyxis.site.model_copy(update={"container": "apptainer"}))
    argv = run_script(apptainer, tmp_path).argv
    inside = argv[argv.index("apptainer") : argv.index("paceline")]
    assert (
        inside[:3] == ["apptainer", "exec", "--nv"] and inside[-1] == "a b.sqsh" and "/data:/data" in inside
    )


def test_no_name_of_the_exit_codes_is_left_out() -> None:
    assert {int(code) for code in ExitCode} - AFTER.keys() == {int(ExitCode.FAILED)}  # 1 counts, as any other


def test_the_script_is_what_it_was(tmp_path: Path) -> None:
    """The whole text once, for those who read it."""
    launch = {
        "partition": "gpu",
        "account": "lab",
        "time_limit": "12h",
        "modules": ["cuda/13"],
        "interface": "ib0",
    }
    text = slurm_job(job(tmp_path, gpus=8, nproc=8, time_limit=43200, launch=launch)).files["job.sbatch"]
    golden = Path(__file__).parents[2] / "golden/job.sbatch"
    shown = text.replace(str(tmp_path), "/home/me")
    assert shown == golden.read_text()
    assert re.findall(r"^#SBATCH --(\S+?)=", text, re.MULTILINE)[:6] == [
        "job-name",
        "nodes",
        "ntasks-per-node",
        "gpus-per-node",
        "time",
        "partition",
    ]
