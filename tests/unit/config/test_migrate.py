"""``paceline migrate``: folders as people have them become jobs, file by file; hostile ones harm nothing."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from folder_shapes import SHAPES

from paceline.api.proving import prove
from paceline.cli.main import dispatch
from paceline.config.import_export.folders.find_starts import find_starts
from paceline.config.import_export.folders.form_jobs import FolderJob, MigratedFolder, migrate_folder
from paceline.config.import_export.folders.list_files import list_folder
from paceline.config.import_export.import_config import import_data
from paceline.config.import_export.verdicts import KeyVerdict, flat
from paceline.config.import_export.write_yaml import accepted
from paceline.config.load import load_config
from paceline.core.errors import ConfigError
from paceline.plan.model.model_catalogue import named_config
from paceline.rules import of_config
from paceline.verify.peer_proof import PeerProof, cannot_be_proven, for_ours, peer_task

#: shape → job → (system, algorithm, nodes, processes of a node, files with a part, words of our command)
EXPECTED: dict[str, dict[str, tuple[str, str, int, int | None, set[str], str]]] = {
    "llamafactory": {
        "sft": (
            "LLaMA-Factory",
            "sft",
            2,
            8,
            {"run.sbatch", "sft.yaml", "ds_z3.json", "data/dataset_info.json"},
            "NCCL_P2P_DISABLE=1 srun torchrun --nnodes 2 --nproc_per_node 8 --rdzv_id $SLURM_JOB_ID"
            " --rdzv_backend c10d --rdzv_endpoint $MASTER_ADDR:29500 -m paceline train sft.yaml",
        )
    },
    "axolotl": {
        "a": (
            "axolotl",
            "sft",
            1,
            4,
            {"run.sh", "conf/a.yaml", "acc.yaml", "data/rows.jsonl"},
            "paceline train a.yaml --nproc 4 --launcher accelerate",
        )
    },
    "trainjob": {"dpo": ("TRL", "dpo", 2, 4, {"k8s/job.yaml"}, "torchrun -m paceline train dpo.yaml")},
    "pytorchjob": {
        "sft": (
            "LLaMA-Factory",
            "sft",
            4,
            8,
            {"job.yaml"},
            "torchrun --nnodes=4 --nproc_per_node=8 --node_rank=$RANK --master_addr=$MASTER_ADDR"
            " -m paceline train sft.yaml",
        )
    },
    "swift": {
        "train": (
            "ms-swift",
            "sft",
            1,
            2,
            {"scripts/train.sh", "data/rows.jsonl"},
            "CUDA_VISIBLE_DEVICES=0,1 paceline train train.yaml --nproc 2",
        )
    },
    "makefile": {
        "sft": ("TRL", "sft", 1, None, {"Makefile"}, "paceline train sft.yaml"),
        "dpo": (
            "TRL",
            "dpo",
            1,
            4,
            {"Makefile", "acc.yaml"},
            "HF_HUB_OFFLINE=1 paceline train dpo.yaml --nproc 4 --launcher accelerate",
        ),
    },
    "deepspeed": {
        "train": (
            "LLaMA-Factory",
            "sft",
            2,
            8,
            {"scripts/all.sh", "scripts/train.sh", "src/train.py", "conf/ds.json", "conf/hostfile"},
            "deepspeed --hostfile conf/hostfile --master_port 29501 --module paceline.cli.main train"
            " train.yaml",
        )
    },
    "mixed": {
        "b": ("axolotl", "sft", 1, None, {"docker/Dockerfile", "ax/b.yaml"}, "paceline train b.yaml"),
        "sft": (
            "LLaMA-Factory",
            "sft",
            1,
            None,
            {"lf/run.sh", "lf/sft.yaml", "lf/ds_z3.json"},
            "paceline train sft.yaml",
        ),
        "a": ("axolotl", "sft", 1, None, {"ax/a.yaml"}, "paceline train a.yaml"),
        "conf": ("", "", 1, None, {"verl/conf.yaml"}, ""),
    },
}


def made(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


def migrated(folder: Path, files: dict[str, str]) -> MigratedFolder:
    return migrate_folder(made(folder, files), of_config)


def value(job: FolderJob, path: str, default: Any = None) -> Any:
    setting = job.imported.settings.get(path) if job.imported else None
    return setting.value if setting else default


@pytest.mark.parametrize("shape", SHAPES)
def test_a_folder_becomes_its_jobs(
    shape: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, to = made(tmp_path / "theirs", SHAPES[shape]), tmp_path / "ours"
    monkeypatch.chdir(folder)
    code = dispatch_code(["migrate", ".", "--json"])
    report = json.loads(capsys.readouterr().out)
    expected = EXPECTED[shape]
    assert {job["name"] for job in report["jobs"]} == {*expected}
    assert code == int(report["loses"]) == int(any(job["loses"] for job in report["jobs"]))
    for job in report["jobs"]:
        system, algorithm, nodes, processes, files, command = expected[job["name"]]
        assert (job["system"] or "") == system and {file["file"] for file in job["files"]} == files
        if not system:
            assert job["yaml"] is None and "not imported" in job["problems"][0]["what"]
            continue
        assert job["command"]["text"].rpartition(" && ")[2] == command
        file = made(to, {f"{job['name']}.yaml": job["yaml"]}) / f"{job['name']}.yaml"
        loaded = load_config(str(file), rules=of_config).config
        assert (loaded.training.algorithm, loaded.launch.nnodes, loaded.launch.nproc) == (
            algorithm,
            nodes,
            processes,
        )


def dispatch_code(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as stop:
        dispatch(arguments)
    return int(stop.value.code or 0)


def test_the_report_names_each_file_and_the_script_for_slurm_keeps_its_directives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, to = made(tmp_path / "theirs", SHAPES["llamafactory"]), tmp_path / "ours"
    assert dispatch_code(["migrate", str(folder), "--to", str(to)]) == 0
    text = capsys.readouterr().out
    assert "sft.yaml: config of LLaMA-Factory: 15 kept, 0 differ, 0 lost" in text
    assert "ds_z3.json: file of DeepSpeed: 3 kept" in text and "data/dataset_info.json: data sets" in text
    assert "WANDB_API_KEY is a secret: set it yourself" in text and "abcdefghijk" not in text
    script = (to / "sft.sbatch").read_text()
    assert "#SBATCH --nodes=2\n#SBATCH --gpus-per-node=8\n" in script and "abcdefghijk" not in script
    assert script.endswith(f"-m paceline train {os.path.relpath(to / 'sft.yaml', folder)}\n")
    before = (to / "sft.yaml").read_text()
    (to / "sft.yaml").write_text("mine: true\n")
    with pytest.raises(ConfigError, match="exist already"):
        dispatch(["migrate", str(folder), "--to", str(to)])
    assert (to / "sft.yaml").read_text() == "mine: true\n"
    assert dispatch_code(["migrate", str(folder), "--to", str(to), "--force"]) == 0
    assert (to / "sft.yaml").read_text() == before


def test_what_is_lost_is_said_and_ends_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lossy = {"a.yaml": SHAPES["axolotl"]["conf/a.yaml"] + "rl: gdpo\n"}
    assert dispatch_code(["migrate", str(made(tmp_path, lossy))]) == 1
    assert "lost: a.yaml:12: rl: gdpo" in capsys.readouterr().out


@pytest.mark.parametrize("files", [{}, {"README.md": "# x\n"}, {"run.sh": "python tools/convert.py\n"}])
def test_a_folder_without_a_training_is_refused(tmp_path: Path, files: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="nothing here starts a training"):
        migrated(tmp_path, files)


def test_the_makefile_s_commands_are_those_of_make(tmp_path: Path) -> None:
    made(tmp_path, SHAPES["makefile"])
    run = ["make", "-n", "-C", str(tmp_path), "--no-print-directory", "sft", "dpo"]
    printed = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    asked = [line.split() for line in printed.replace("\\\n", " ").splitlines()]
    ours = [list(start.words) for start in find_starts(list_folder(tmp_path)).found if start.command]
    assert len(ours) == 2 and all(words in asked for words in ours)


def test_scripts_that_start_scripts_pass_their_arguments_and_variables_as_bash_does(tmp_path: Path) -> None:
    files = {
        "bin/trl": '#!/bin/bash\nprintf "%s\\n" "$@" > "$SEEN"\n',
        "run.sh": "export LR=3e-4\nSIZE=big bash inner/train.sh 'two words' 8\n",
        "inner/train.sh": 'OUT="out/$1"\ntrl sft --model_name_or_path m --learning_rate $LR'
        ' --output_dir "$OUT" --num_train_epochs ${2:-1} --run_name ${SIZE:-small}\n',
    }
    folder = made(tmp_path / "theirs", files)
    (folder / "bin" / "trl").chmod(0o755)
    environment = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "SEEN": str(tmp_path / "seen")}
    subprocess.run(["bash", "run.sh"], cwd=folder, env=environment, check=True)
    (start,) = find_starts(list_folder(folder)).found
    assert list(start.words[1:]) == (tmp_path / "seen").read_text().splitlines()
    assert start.place() == "run.sh -> inner/train.sh:2"


def test_a_hostile_folder_harms_nothing_and_each_file_left_out_is_said(tmp_path: Path) -> None:
    folder = made(tmp_path / "theirs", SHAPES["axolotl"])
    (tmp_path / "secret.yaml").write_text("base_model: secret\ndatasets: []\n")
    os.mkfifo(folder / "pipe.yaml")
    (folder / "out.yaml").symlink_to(tmp_path / "secret.yaml")
    (folder / "round").symlink_to(folder)
    (folder / "round.yaml").symlink_to(folder / "round.yaml")
    (folder / "large.yaml").write_bytes(b"a: 1\n" * (1 << 18))
    (folder / "binary.json").write_bytes(b"\x00\x01" * 64)
    made(folder, {".git/hooks/run.sh": "trl sft\n", "venv/pyvenv.cfg": "", "venv/a.yaml": "base_model: x\n"})
    made(
        folder,
        {"runs.sh": f"touch {tmp_path / 'ran'}; bash runs.sh; trl sft --x $(touch {tmp_path / 'ran'})\n"},
    )
    made(folder, {"bomb.yaml": "a: &a [1]\n" + "".join(f"b{n}: &b{n} [*a,*a]\n" for n in range(9))})
    made(folder, {"open.sh": "trl sft --model 'x\n", "Makefile": "A = $(B)\nB = $(A)\nx:\n\ttrl sft $(A)\n"})
    made(folder, {f"many/{number}.json": "{}" for number in range(400)})
    migration = migrate_folder(folder, of_config)
    skipped = migration.listed.skipped
    assert skipped["pipe.yaml"] == "a FIFO, not a file" and "leaves the folder" in skipped["out.yaml"]
    assert {"round/", "round.yaml", "large.yaml", "binary.json", ".git/", "venv/"} <= {*skipped}
    assert not (tmp_path / "ran").exists()
    assert [job.name for job in migration.jobs if not job.not_read] == ["a"]
    assert all(job.not_read[0].what for job in migration.jobs if job.name != "a")


def test_one_file_is_read_as_the_folder_is(tmp_path: Path) -> None:
    folder = made(tmp_path, SHAPES["axolotl"])
    (job,) = migrate_folder(folder / "conf" / "a.yaml", of_config).jobs
    assert job.imported is not None and job.imported.system == "axolotl"


def test_a_program_of_one_s_own_is_named_and_what_the_yaml_lacks(tmp_path: Path) -> None:
    """As in public repositories: modules, a loop over evaluations, a trainer that names its model itself."""
    files = {
        "module.sh": "accelerate launch -m scripts.train_stage1 --config a.yaml\n",
        "infer.sh": "for p in a b; do python infer.py --prompt $p; done\n",
        "own.sh": "torchrun train.py --output_dir o --learning_rate 1e-4 --per_device_train_batch_size 2\n",
        "broken.sh": "echo 'open\n",
    }
    migration = migrated(tmp_path, files)
    jobs = {job.name: job for job in migration.jobs}
    assert {*jobs} == {"module", "own"} and "scripts.train_stage1 is a program of its own" in (
        jobs["module"].not_read[0].what
    )
    assert jobs["own"].lacks == ["model.name_or_path", "data.train"] and jobs["own"].loses
    assert {place.partition(":")[0] for place in migration.beside} == {"infer.sh", "broken.sh"}


SCRIPT = """import sys
from trl import DPOConfig, DPOTrainer
arguments = DPOConfig(output_dir="out", learning_rate={}, beta=0.2, max_length=64)
DPOTrainer("gpt2", args=arguments).train()
"""


def test_python_scripts_are_read_as_what_starts_them_or_alone(tmp_path: Path) -> None:
    """By their literals: what only running one would tell is lost, with its line."""
    files = {
        "a/dpo.py": SCRIPT.format("float(sys.argv[1])"),
        "a/run.sh": "torchrun --nproc_per_node=2 dpo.py 1e-4\n",
        "alone.py": SCRIPT.format("2e-5"),
        "helper.py": "print(1)\n",
    }
    migration = migrated(tmp_path, files)
    jobs = {job.name: job for job in migration.jobs}
    assert {*jobs} == {"run", "alone"} and "helper.py" not in migration.beside
    started, alone = jobs["run"].imported, jobs["alone"].imported
    assert started is not None and alone is not None
    assert started.settings["training.dpo.beta"].value == 0.2 == alone.settings["training.dpo.beta"].value
    assert started.settings["launch.nproc"].value == 2
    assert alone.settings["training.learning_rate"].value == 2e-5
    assert [(f.key, f.line) for f in jobs["run"].of(KeyVerdict.LOST)] == [("learning_rate", 3)]
    assert jobs["run"].files["a/dpo.py"] == "the program" == jobs["alone"].files["alone.py"]


@pytest.mark.parametrize(
    ("shape", "system", "trainer", "named"),
    [
        ("llamafactory", "llamafactory", "sft", {"adapter_name_or_path", "dataset_dir", "lora_rank"}),
        ("axolotl", "axolotl", "sft", {"datasets", "learning_rate", "micro_batch_size"}),
        ("makefile", "trl", "sft", {"dataset_name", "packing", "model_name_or_path"}),
    ],
)
def test_a_proof_replaces_model_and_data_alone(
    tmp_path: Path, shape: str, system: str, trainer: str, named: set[str]
) -> None:
    """What both programs train keeps the person's other keys; our import of it is a whole YAML."""
    job = migrated(tmp_path / "theirs", SHAPES[shape]).jobs[0]
    task = peer_task(system, job.given, job.trainer, named_config("gpt2"), tmp_path)
    assert task.trainer == trainer and named <= {*task.keys}
    model = "base_model" if system == "axolotl" else "model_name_or_path"
    assert task.keys[model] == str(tmp_path / "model") and task.keys["max_steps"] == 3
    for name, text in task.files.items():
        (tmp_path / name).write_text(text)
    keys = for_ours(task)
    imported = import_data(keys, dict.fromkeys(flat(keys), 1), "given.yaml", system, trainer)
    composed, problems = accepted(imported, "small", of_config)
    assert problems == [] and str(tmp_path / "model") in composed.text
    assert {finding.key for finding in imported.of(KeyVerdict.LOST)} == set()


def test_a_proof_s_verdict_is_the_largest_difference() -> None:
    equal = PeerProof("a", "TRL", (1.0, 0.5), (1.00001, 0.5))
    assert equal.agrees and "largest difference 1.0e-05: equal" in equal.text()
    apart = PeerProof("a", "TRL", (1.0, 0.5), (1.0, 0.6), notes=("left out in both: fsdp",))
    assert not apart.agrees and "they differ" in apart.text() and apart.text().endswith("fsdp")
    assert not PeerProof("a", "TRL", (1.0,), (1.0, 0.5)).agrees
    assert "not proven: why" in PeerProof("a", "TRL", problem="why").text()
    assert "drawn anew" in cannot_be_proven("trl", "grpo") and "not asked yet" in cannot_be_proven(
        "swift", ""
    )


def test_a_proof_needs_the_other_program_s_python(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a proof asks the other program"):
        dispatch(["migrate", str(made(tmp_path, SHAPES["axolotl"])), "--prove"])


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["llamafactory", "makefile"])
def test_the_peer_and_paceline_train_the_same_losses(shape: str, tmp_path: Path) -> None:
    name = {"makefile": "trl"}.get(shape, shape)
    python = Path(os.environ.get("PACELINE_PEERS", "/opt/envs")) / name / "bin/python"
    assert python.exists(), "make it: scripts/test --peers"
    proofs = list(prove(migrated(tmp_path, SHAPES[shape]), python))
    assert proofs and all(proof.agrees for proof in proofs), [proof.text() for proof in proofs]
