"""A lock that a killed build left is found before the start and named; one that a build holds is waited
for.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest
import yaml

from paceline.config.load import load_config
from paceline.core.errors import ConfigError
from paceline.launch.environment.deepspeed_build_locks import (
    await_build,
    build_locks,
    op_lock_problems,
    owner_of,
)
from paceline.launch.preflight.plan_job import planned

VERSION = f"py{sys.version_info.major}{sys.version_info.minor}_cpu"


def left(folder: Path) -> Path:
    lock = folder / "torch_extensions" / VERSION / "async_io" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    return lock


def test_where_torch_builds_is_where_locks_are_looked_for(tmp_path: Path) -> None:
    cpp_extension = pytest.importorskip("torch.utils.cpp_extension")
    lock = left(tmp_path)
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    assert build_locks(environ) == [lock] and build_locks({"HOME": str(tmp_path)}) == []
    own = tmp_path / "own" / "async_io"
    own.mkdir(parents=True)
    (own / "lock").touch()
    assert build_locks({"TORCH_EXTENSIONS_DIR": str(tmp_path / "own")}) == [own / "lock"]
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "own"))
        assert Path(cpp_extension._get_build_directory("async_io", False)) == own
        patched.delenv("TORCH_EXTENSIONS_DIR")
        patched.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert (
            Path(cpp_extension._get_build_directory("async_io", False)).parent.parent
            == tmp_path / "torch_extensions"
        )


def test_torch_s_own_lock_is_held_by_its_process_and_an_empty_one_by_nobody(tmp_path: Path) -> None:
    baton = pytest.importorskip("torch.utils.file_baton").FileBaton(str(tmp_path / "lock"))
    assert baton.try_acquire() and owner_of(tmp_path / "lock") == os.getpid()
    baton.release()
    assert owner_of(tmp_path / "lock") is None
    lock = left(tmp_path)
    (found,) = op_lock_problems({"XDG_CACHE_HOME": str(tmp_path)})
    assert found.code == "launch.op_lock" and str(lock) in found.hint and found.hint.startswith("rm ")


def test_a_run_does_not_wait_for_a_lock_that_nobody_holds(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    assert await_build(environ) == ""
    lock = left(tmp_path)
    assert f"rm {lock}" in await_build(environ, patience=60.0)


def test_a_run_waits_for_a_build_that_goes_on_and_not_without_end(tmp_path: Path) -> None:
    environ, lock = {"XDG_CACHE_HOME": str(tmp_path)}, left(tmp_path)
    with lock.open() as held:
        assert "has held" in await_build(environ, patience=0.05, pause=0.01)
        ends = threading.Timer(0.1, lock.unlink)
        ends.start()
        assert await_build(environ, patience=60.0, pause=0.01) == "" and not held.closed
        ends.join()


def test_the_plan_names_it_where_the_job_needs_the_op(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = left(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    model = {
        "model_type": "llama",
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "vocab_size": 32,
        "max_position_embeddings": 32,
    }
    for device, codes in (("nvme", ["launch.op_lock"]), ("cpu", [])):
        (tmp_path / "rows.jsonl").write_text('{"text": "a b c"}\n')
        block = {"device": device} | ({"nvme_path": str(tmp_path)} if device == "nvme" else {})
        values = {
            "model": {"config": model, "tokenizer": str(tmp_path)},
            "data": {"train": str(tmp_path / "rows.jsonl"), "max_length": 16},
            "training": {
                "use_cpu": True,
                "output_dir": str(tmp_path / "o"),
                "deepspeed": {"zero_optimization": {"stage": 3, "offload_param": block}},
            },
            "launch": {"nproc": 2},
        }
        path = tmp_path / "c.yaml"
        path.write_text(yaml.safe_dump(values))
        try:
            planned(load_config(str(path)))
            found = []
        except ConfigError as error:
            found = [
                d.code for d in error.diagnostics if d.code.startswith("launch.op") and str(lock) in d.hint
            ]
        assert found == codes
