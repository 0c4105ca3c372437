"""``paceline checkpoints``: what a run has, whether it is sound, what differs, the mean, and what may go."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_samples import FILES, OneRank, sample_shards, whole
from filelock import FileLock

from paceline.checkpoint.checkpointer import Checkpointer
from paceline.checkpoint.commands.average import AveragedReader
from paceline.checkpoint.load.find_checkpoint import find_checkpoint
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.checkpoint.main import main
from paceline.checkpoint.save.retention import being_read, last_verified, mark_verified
from paceline.core.errors import CheckpointError
from paceline.core.rundir import RunDir
from paceline.plan.features.peft_settings import rank_of, scale_of
from paceline.plan.plan import AdapterSpec
from paceline.plan.plan_json import from_json
from paceline.protocols.shard import Shard

Save = Callable[..., Path]
SHARD = "shard-00000-of-00001.safetensors"


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def steps(run: RunDir) -> list[int]:
    return sorted(int(p.name[5:]) for p in run.checkpoints.glob("step-*"))


def answer(capsys: pytest.CaptureFixture[str], *argv: object, code: int = 0) -> dict[str, Any]:
    assert main([*map(str, argv), "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_list_says_step_size_strategy_age_metric_and_verdict(
    run: RunDir, save: Save, capsys: pytest.CaptureFixture[str]
) -> None:
    state = {"train": {"step": 3, "best_step": 3, "best_metric": 0.5}, "strategy": "fsdp"}
    Checkpointer(run, OneRank()).save(3, [whole("w", torch.ones(2))], state, FILES)
    flip_size = save(4) / SHARD
    flip_size.write_bytes(flip_size.read_bytes()[:-1])
    run.events_dir.mkdir(parents=True)
    line = {"time": 1.0, "rank": 0, "kind": "eval", "step": 3, "metrics": {"eval_loss": 2.5}}
    run.events(0).write_text(json.dumps(line) + "\n")
    first, second = answer(capsys, "list", run.root)["checkpoints"]
    assert (first["step"], first["strategy"], first["verdict"]) == (3, "fsdp", "complete")
    assert first["bytes"] > 0 and 0 <= first["age_seconds"] < 600
    assert (first["metric"], first["value"]) in (("eval_loss", 2.5), ("eval_loss", 0.5))
    assert second["step"] == 4 and SHARD in second["verdict"] and second["marks"] == ["latest"]
    assert main(["list", str(run.root)]) == 0
    text = capsys.readouterr().out
    assert "step-00000003" in text and "fsdp × 1" in text and "complete" in text


def test_verify_reads_every_byte_and_marks_what_is_sound(
    run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    def save(step: int) -> Path:
        return Checkpointer(run, OneRank()).save(step, sample_shards(step), {}, {})

    save(1)
    save(2)
    flip(save(3) / SHARD)
    found = answer(capsys, "verify", run.root, code=1)["checkpoints"]
    assert [one["sound"] for one in found] == [True, True, False]
    assert found[2]["found"][0]["code"] == "checkpoint.damaged" and SHARD in found[2]["found"][0]["what"]
    assert last_verified(run.checkpoints) == "step-00000002"
    rows = answer(capsys, "list", run.root)["checkpoints"]
    assert [row["verdict"] for row in rows] == ["complete", "verified", "complete"]
    save(2)  # saved again: the mark was of other bytes
    assert last_verified(run.checkpoints) is None


BAD: dict[str, tuple[list[Shard], str]] = {
    "not_finite": ([whole("w", torch.tensor([1.0, math.nan, math.inf]))], "checkpoint.not_finite"),
    "moment_of_another_shape": (
        [whole("w", torch.ones(3, 4)), whole("w", torch.ones(4, 3), "exp_avg")],
        "checkpoint.wrong_shape",
    ),
    "part_missing": (
        [Shard("policy", "w", "param", (6, 4), (0, 0), torch.ones(3, 4))],
        "checkpoint.tensor_incomplete",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_verify_looks_at_the_numbers(run: RunDir, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    shards, code = BAD[kind]
    path = Checkpointer(run, OneRank()).save(1, shards, {}, {})
    (one,) = answer(capsys, "verify", path, code=1)["checkpoints"]
    assert [d["code"] for d in one["found"]] == [code] and "'w'" in one["found"][0]["what"]
    assert last_verified(run.checkpoints) is None


def test_verify_compares_with_the_architecture_of_the_config(
    run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    fixture = Path(__file__).parent / "version_1" / "checkpoints" / "step-00000002"
    with CheckpointReader(fixture) as reader:
        shards = [
            Shard(n.role, n.name, n.kind, (t := reader.read(n.role, n.name, n.kind)).shape, (0,) * t.ndim, t)
            for n in reader.names()
            if n.kind == "param"
        ]
        files = {name: reader.side_file(name) for name in reader.side_files()}
    sound = Checkpointer(run, OneRank()).save(1, shards, {}, files)
    assert answer(capsys, "verify", sound)["checkpoints"][0]["sound"]
    lacking = Checkpointer(run, OneRank()).save(2, shards[1:], {}, files)
    (one,) = answer(capsys, "verify", lacking, code=1)["checkpoints"]
    assert one["found"][0]["code"] == "export.tensors" and shards[0].name in one["found"][0]["found"]


def test_diff_says_which_tensors_moved_and_how_far(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    saver = Checkpointer(run, OneRank())
    same, old, new = torch.ones(4), torch.tensor([3.0, 4.0]), torch.tensor([3.0, 5.0])
    a = saver.save(1, [whole("s", same), whole("w", old), whole("gone", same)], {"train": {"lr": 1.0}}, {})
    b = saver.save(2, [whole("s", same), whole("w", new), whole("more", same)], {"train": {"lr": 0.5}}, {})
    found = answer(capsys, "diff", a, b)
    assert found["equal"] == 1 and found["state"]["train.lr"] == [1.0, 0.5]
    (change,) = found["changed"]
    assert (change["name"], change["max_abs"], change["relative"]) == ("w", 1.0, 0.2)
    assert found["only_first"] == ["policy|param|gone"] and found["only_second"] == ["policy|param|more"]
    assert main(["diff", str(a), str(a)]) == 0
    assert "3 tensors are equal bit for bit, 0 have other numbers" in capsys.readouterr().out


def test_prune_keeps_the_last_the_best_and_every_kth(
    run: RunDir, save: Save, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in range(1, 10):
        save(step)
    (run.checkpoints / "best").write_text("step-00000002\n")
    found = answer(capsys, "prune", run.root, "--keep", 2, "--every", 5, "--dry-run")
    assert sorted(found["kept"]) == [f"step-{s:08d}" for s in (2, 5, 8, 9)] and steps(run) == list(
        range(1, 10)
    )
    assert answer(capsys, "prune", run.root, "--keep", 2, "--every", 5)["removed"] == found["removed"]
    assert steps(run) == [2, 5, 8, 9] and last_verified(run.checkpoints) == "step-00000009"


def test_prune_never_removes_the_last_sound_one(
    run: RunDir, save: Save, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (1, 2, 3, 4):
        save(step)
    for step in (3, 4):  # of the right size, and damaged
        flip(run.checkpoint(step) / SHARD)
    found = answer(capsys, "prune", run.root, "--keep", 2)
    assert steps(run) == [2, 3, 4] and "damaged" in found["kept"]["step-00000002"]
    flip(run.checkpoint(2) / SHARD)
    before = steps(run)
    assert main(["prune", str(run.root), "--keep", "1"]) == 1
    assert "checkpoint.none_sound" in capsys.readouterr().err and steps(run) == before


def test_retention_of_a_run_keeps_the_last_verified_one_too(run: RunDir, save: Save) -> None:
    mark_verified(save(1))
    for step in (2, 3, 4):
        save(step, keep=1)
    assert steps(run) == [1, 4]
    mark_verified(run.checkpoint(4))
    save(5, keep=1)
    assert steps(run) == [4, 5]


def test_retention_of_a_run_keeps_every_kth_step_too(run: RunDir, save: Save) -> None:
    for step in range(1, 8):
        save(step, keep=1, every=3)
    assert steps(run) == [3, 6, 7]


def test_what_is_being_read_and_what_runs_is_left_alone(
    run: RunDir, save: Save, capsys: pytest.CaptureFixture[str]
) -> None:
    first = save(1)
    with being_read(first):
        for step in (2, 3):
            save(step, keep=1)
        assert steps(run) == [1, 3]
        assert "read" in answer(capsys, "prune", run.root, "--keep", 1)["kept"]["step-00000001"]
    with FileLock(run.lock):
        assert main(["prune", str(run.root), "--keep", "1"]) != 0
    assert "run.in_use" in capsys.readouterr().err and steps(run) == [1, 3]


def means(paths: list[Path], name: str) -> torch.Tensor:
    total = torch.zeros(())
    for path in paths:
        with CheckpointReader(path) as reader:
            total = total + reader.read("policy", name, "param").double()
    return total / len(paths)


def test_the_mean_of_weights(run: RunDir) -> None:
    made = torch.Generator().manual_seed(1)
    saver = Checkpointer(run, OneRank())
    paths = [
        saver.save(s, [whole("w", torch.randn(5, 3, generator=made)), whole("n", torch.tensor([s]))], {}, {})
        for s in (1, 2, 3)
    ]
    with AveragedReader(paths) as reader:
        assert torch.allclose(reader.read("policy", "w", "param").double(), means(paths, "w"), atol=1e-7)
        assert reader.read("policy", "n", "param").tolist() == [1], "whole numbers are the first one's"


@pytest.mark.parametrize("rslora", [False, True])
def test_the_mean_of_adapters_is_the_mean_of_what_they_add(run: RunDir, rslora: bool) -> None:
    made = torch.Generator().manual_seed(2)
    same = {"r": 3, "use_rslora": rslora, "rank_pattern": {"m": 2}, "alpha_pattern": {"m": 8.0, "n": 5.0}}
    spec = {**same, "alpha": 1.0}
    files = {"adapter_config.json": json.dumps({**same, "lora_alpha": 1}).encode()}
    state = {"adapter": spec, "base_model": {"fingerprint": "f"}}
    pairs = [(torch.randn(2, 6, generator=made), torch.randn(4, 2, generator=made)) for _ in range(3)]
    paths = [
        Checkpointer(run, OneRank()).save(
            step, [whole("m.lora_A.weight", a), whole("m.lora_B.weight", b)], state, files
        )
        for step, (a, b) in enumerate(pairs)
    ]

    expected = 8.0 / (math.sqrt(2) if rslora else 2) * sum(b.double() @ a.double() for a, b in pairs) / 3
    with AveragedReader(paths) as reader:
        settings, own = json.loads(reader.side_file("adapter_config.json")), reader.state["adapter"]
        a, b = (reader.read("policy", f"m.lora_{x}.weight", "param") for x in "AB")
        assert a.shape == reader.shape("policy", "m.lora_A.weight", "param") == (6, 6)
    assert isinstance(own, dict)
    wider = from_json(AdapterSpec, own)
    assert rank_of(wider, "m") == 6 and settings["lora_alpha"] == own["alpha"]
    assert torch.allclose(scale_of(wider, "m") * (b.double() @ a.double()), expected, atol=1e-6)
    begun = {**state, "adapter": {**spec, "init_lora_weights": "pissa"}}
    pissa = [Checkpointer(run, OneRank()).save(s, [whole("w", torch.ones(1))], begun, files) for s in (7, 8)]
    with pytest.raises(CheckpointError, match=r"cannot_average[\s\S]*init_lora_weights: pissa") as refused:
        AveragedReader(pissa)
    assert f"paceline export {pissa[0]} --merge --to DIR" in refused.value.diagnostics[0].hint
    other = Checkpointer(run, OneRank()).save(
        9,
        [whole("m.lora_A.weight", a[:2]), whole("m.lora_B.weight", b[:, :2])],
        {**state, "base_model": {"fingerprint": "g"}},
        files,
    )
    with pytest.raises(CheckpointError, match=r"checkpoint\.cannot_average.*bases"):
        AveragedReader([paths[0], other])


def test_weights_of_other_shapes_are_not_averaged(run: RunDir) -> None:
    saver = Checkpointer(run, OneRank())
    paths = [saver.save(s, [whole("w", torch.ones(s, 2))], {}, {}) for s in (1, 2)]
    with pytest.raises(CheckpointError, match="'w' has another shape"):
        AveragedReader(paths)


def test_average_writes_a_folder_that_transformers_loads(
    run: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoModelForCausalLM

    fixture = Path(__file__).parent / "version_1" / "checkpoints" / "step-00000002"
    with CheckpointReader(fixture) as reader:
        names = [n for n in reader.names() if n.kind == "param"]
        weights = {n.name: reader.read(n.role, n.name, n.kind) for n in names}
        files = {name: reader.side_file(name) for name in reader.side_files()}
    saver = Checkpointer(run, OneRank())
    for step, factor in ((1, 1.0), (2, 3.0)):
        saver.save(step, [whole(n, t * factor) for n, t in weights.items()], {"train": {"step": step}}, files)
    argv = ["average", str(run.root), "--last", "2", "--to", str(tmp_path / "mean")]
    assert main(argv) == 0 and "mean of" in capsys.readouterr().out
    model = AutoModelForCausalLM.from_pretrained(str(tmp_path / "mean"))
    assert all(torch.allclose(p, 2 * weights[n]) for n, p in model.named_parameters() if n in weights)


# --- links and copies


def test_a_link_within_the_checkpoint_is_followed_and_one_that_leads_out_is_not(
    save: Save, tmp_path: Path
) -> None:
    path = save(1)
    (path / SHARD).rename(path / "blob")
    (path / SHARD).symlink_to("blob")
    CheckpointReader(path).close()
    (path / "blob").rename(tmp_path / "outside")
    (path / SHARD).unlink()
    (path / SHARD).symlink_to(tmp_path / "outside")
    with pytest.raises(CheckpointError, match="leads outside of the checkpoint"):
        CheckpointReader(path)


def test_a_folder_in_it_that_is_a_link_outside_is_refused(save: Save, tmp_path: Path) -> None:
    path = save(1)
    (path / "hf").rename(tmp_path / "hf")
    (path / "hf").symlink_to(tmp_path / "hf")
    with pytest.raises(CheckpointError, match="leads outside of the checkpoint"):
        CheckpointReader(path)


def test_a_snapshot_of_the_hugging_face_cache_is_read_through_its_blobs(save: Save, tmp_path: Path) -> None:
    repository = tmp_path / "hub" / "models--me--mine"
    snapshot, blobs = repository / "snapshots" / ("0" * 40) / "run", repository / "blobs"
    blobs.mkdir(parents=True)
    shutil.copytree(save(1), snapshot)
    for i, file in enumerate(sorted(p for p in snapshot.rglob("*") if p.is_file())):
        file.rename(blobs / f"{i:064x}")
        file.symlink_to(os.path.relpath(blobs / f"{i:064x}", file.parent))
    with CheckpointReader(snapshot) as reader:
        assert reader.step == 1 and reader.side_file("config.json") == FILES["config.json"]
    # another repository's blobs are outside
    (snapshot / SHARD).unlink()
    elsewhere = tmp_path / "hub" / "models--you--yours" / "blobs"
    elsewhere.mkdir(parents=True)
    (elsewhere / "x").write_bytes(b"x")
    (snapshot / SHARD).symlink_to(elsewhere / "x")
    with pytest.raises(CheckpointError, match="leads outside"):
        CheckpointReader(snapshot)


def test_hard_links_are_judged_by_their_bytes(run: RunDir, save: Save, tmp_path: Path) -> None:
    path = save(1)
    os.link(path / SHARD, tmp_path / "other-name")
    assert find_checkpoint("latest", run) == path
    flip(tmp_path / "other-name")
    with pytest.raises(CheckpointError, match=SHARD):
        find_checkpoint("latest", run)


def test_a_sparse_copy_is_whole_and_a_hole_in_the_place_of_bytes_is_not(run: RunDir, tmp_path: Path) -> None:
    big = torch.zeros(512, 1024)
    big[-1] = 1
    path = Checkpointer(run, OneRank()).save(1, [whole("w", big)], {}, {})
    shutil.copytree(path, tmp_path / "copy")
    subprocess.run(["cp", "--sparse=always", path / SHARD, tmp_path / "copy" / SHARD], check=True)
    with CheckpointReader(tmp_path / "copy") as reader:
        assert torch.equal(reader.read("policy", "w", "param"), big)
    size = (path / SHARD).stat().st_size
    with open(path / SHARD, "r+b") as file:
        file.truncate(size - 4096)
        file.truncate(size)  # a hole of zeros where ones were
    with pytest.raises(CheckpointError, match=r"checkpoint\.damaged"):
        CheckpointReader(path)
