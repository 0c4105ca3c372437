"""Verbs that take a URL where they take a run: list, verify and export read the object store themselves."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checkpoint_samples import OneRank
from test_objects import save

from paceline.checkpoint.export.main import main as export
from paceline.checkpoint.main import main
from paceline.checkpoint.object_store.background_upload import open_uploads
from paceline.checkpoint.object_store.obstore_backend import ObstoreStore
from paceline.checkpoint.save.retention import RetentionRule
from paceline.core.errors import ExitCode
from paceline.core.rundir import RunDir

MODEL = Path(__file__).parent / "version_1" / "checkpoints" / "step-00000002"


def uploaded(tmp_path: Path, *paths: Path) -> str:
    url, run = f"file://{tmp_path}/store", RunDir.at(tmp_path / "a")
    run.root.mkdir(exist_ok=True)
    for path in paths:
        uploads = open_uploads(url, run, OneRank(), RetentionRule(None))
        uploads.published(path)
        assert uploads.end()
    return url


@pytest.fixture
def url(tmp_path: Path) -> str:
    return uploaded(tmp_path, *(save(RunDir.at(tmp_path / "a"), step) for step in (1, 2)))


def answer(capsys: pytest.CaptureFixture[str], *argv: str, code: int = 0) -> list[dict[str, Any]]:
    assert main([*argv, "--json"]) == code
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["checkpoints"]
    return found


def flip(tmp_path: Path, step: int, name: str) -> None:
    (path,) = (tmp_path / "store/data").glob(f"step-{step:08d}.*/{name}")
    whole = path.read_bytes()
    path.write_bytes(whole[:-2] + bytes([whole[-2] ^ 1]) + whole[-1:])


def test_list_reads_the_commit_record_and_nothing_else(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read, get = list[str](), ObstoreStore.get
    monkeypatch.setattr(ObstoreStore, "get", lambda self, name: read.append(name) or get(self, name))
    old, new = answer(capsys, "list", url)
    assert read == ["commits/00000002.json"]
    assert (new["path"], new["step"], new["marks"]) == (f"{url}/step-00000002", 2, ["latest"])
    assert old["verdict"] == "committed" and old["age_seconds"] is None and new["age_seconds"] >= 0
    assert old["bytes"] > 100 and [one["step"] for one in answer(capsys, "list", f"{url}/step-00000001")] == [
        1
    ]
    assert main(["list", url]) == 0 and "step-00000002 (latest)" in capsys.readouterr().out
    assert main(["list", f"{url}-none"]) == ExitCode.CONFIG


@pytest.mark.parametrize("name", ["shard-00000-of-00001.safetensors", "state.json", "hf/config.json"])
def test_verify_compares_every_hash_as_it_arrives(
    tmp_path: Path, url: str, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert [one["sound"] for one in answer(capsys, "verify", url)] == [True, True]
    flip(tmp_path, 2, name)
    old, new = answer(capsys, "verify", url, code=1)
    assert old["sound"] and not new["sound"] and new["path"] == f"{url}/step-00000002"
    assert name in new["found"][0]["what"] + new["found"][0]["found"]
    assert main(["verify", url, "--checkpoint", "step-00000001"]) == 0
    assert main(["verify", f"{url}/step-00000001"]) == 0 and "every hash is right" in capsys.readouterr().out
    assert main(["verify", url, "--checkpoint", "latest"]) == 1 and "NOT sound" in capsys.readouterr().out
    assert main(["verify", f"{url}/step-00000007"]) == 1 and "no such checkpoint" in capsys.readouterr().err
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == before, "nothing was kept"


def test_export_brings_it_beside_and_removes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url, out = uploaded(tmp_path, MODEL), tmp_path / "exports"
    assert export(["export", str(MODEL), "--to", str(out / "plain")]) == 0
    for name, of in (("a", [f"{url}/step-00000002"]), ("b", [url, "--checkpoint", "step-2"])):
        assert export(["export", *of, "--to", str(out / name)]) == 0, capsys.readouterr().err
        weights = [(out / one / "model.safetensors").read_bytes() for one in ("plain", name)]
        assert weights[0] == weights[1]
    assert sorted(path.name for path in out.iterdir()) == ["a", "b", "plain"]


def test_an_export_that_cannot_be_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url, out = uploaded(tmp_path, MODEL), tmp_path / "exports"
    (out / "full").mkdir(parents=True)
    (out / "full/file").touch()
    assert export(["export", url, "--to", str(out / "full")]) == ExitCode.CONFIG, "before anything is brought"
    assert export(["export", url, "--checkpoint", "best", "--to", str(out / "x")]) == ExitCode.CONFIG
    assert "a URL has the newest, or a step" in capsys.readouterr().err
    assert export(["export", "hdfs://host/run", "--to", str(out / "x")]) == ExitCode.CONFIG
    flip(tmp_path, 2, "shard-00000*.safetensors")
    assert export(["export", url, "--to", str(out / "x")]) == ExitCode.FAILED
    assert "checkpoint.damaged" in capsys.readouterr().err
    assert [path.name for path in out.iterdir()] == ["full"]


def test_the_disk_is_asked_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, read = uploaded(tmp_path, MODEL), list[str]()
    monkeypatch.setattr("os.statvfs", lambda path: SimpleNamespace(f_bavail=1, f_frsize=1))
    monkeypatch.setattr(ObstoreStore, "get_range", lambda self, name, *_: read.append(name))
    assert export(["export", url, "--to", str(tmp_path / "x")]) == ExitCode.FAILED
    assert "checkpoint.disk_full" in capsys.readouterr().err and not read


@pytest.mark.parametrize("argv", [["diff"], ["prune", "--keep", "1"], ["average", "--to", "x"]])
def test_other_verbs_name_the_command_that_brings_it(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    urls = ["s3://bucket/run", "s3:/bucket/other"][: 1 if argv[0] == "prune" else 2]
    assert main([argv[0], *urls, *argv[1:]]) == ExitCode.CONFIG
    err = capsys.readouterr().err
    assert "s3://bucket/run" in err and "paceline checkpoints fetch s3://… --to DIR" in err
