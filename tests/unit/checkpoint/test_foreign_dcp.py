"""Folders of torch.distributed.checkpoint: read as torch wrote them, and written so that torch reads them."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from foreign_samples import stepped, tiny_llama
from torch.distributed.checkpoint.state_dict import get_state_dict

from paceline.checkpoint.convert.convert import convert
from paceline.checkpoint.convert.dcp_export import write_dcp
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.core.errors import CheckpointError

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def by_name(model: Any, optimizer: Any) -> dict[str, Any]:
    weights, state = get_state_dict(model, optimizer)
    return {"model": weights, "optim": state}


def by_number(model: Any, optimizer: Any) -> dict[str, Any]:
    return {"app": {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "epoch": 3}


def write(folder: Path, form: Callable[..., dict[str, Any]] = by_name) -> tuple[Any, Any]:
    model = tiny_llama()
    optimizer = stepped(model)
    dcp.save(form(model, optimizer), checkpoint_id=folder, no_dist=True)
    (folder / "config.json").write_text(model.config.to_json_string())
    return model, optimizer


@pytest.mark.parametrize("form", [by_name, by_number])
def test_a_folder_is_read_as_torch_wrote_it(tmp_path: Path, form: Callable[..., dict[str, Any]]) -> None:
    model, optimizer = write(tmp_path / "theirs", form)
    report = convert(tmp_path / "theirs", tmp_path / "ours")
    assert report.written.step == 2
    for said in ("epoch", "order is taken to be that of model.parameters()"):
        assert any(said in one.what for one in report.left) == (form is by_number)
    with CheckpointReader(report.written.path) as found:
        for name, parameter in model.named_parameters():
            assert torch.equal(found.read("policy", name, "param"), parameter)
            for kind, value in optimizer.state[parameter].items():
                assert torch.equal(found.read("policy", name, kind), value), (name, kind)


def test_accelerates_two_folders_are_one_checkpoint(tmp_path: Path) -> None:
    model = tiny_llama()
    weights, state = get_state_dict(model, stepped(model))
    dcp.save({"model": weights}, checkpoint_id=tmp_path / "c/pytorch_model_fsdp_0", no_dist=True)
    dcp.save({"optimizer": state}, checkpoint_id=tmp_path / "c/optimizer_0", no_dist=True)
    (tmp_path / "c/config.json").write_text(model.config.to_json_string())
    for source in (tmp_path / "c", tmp_path / "c/pytorch_model_fsdp_0"):
        report = convert(source, tmp_path / "ours")
        assert (report.written.step, report.written.num_moments) == (2, 3 * len(list(model.parameters())))
    shutil.rmtree(tmp_path / "c/optimizer_0")
    left = convert(tmp_path / "c", tmp_path / "ours").left
    assert any("moments" in one.what for one in left) and any("--step" in one.what for one in left)


def test_ours_becomes_a_folder_that_a_plain_state_dict_reads(tmp_path: Path) -> None:
    model, optimizer = write(tmp_path / "theirs")
    path = convert(tmp_path / "theirs", tmp_path / "ours").written.path
    report = write_dcp(path, tmp_path / "out")
    assert report.num_tensors == 4 * len(list(model.parameters()))
    names = [name for name, _ in model.named_parameters()]
    fresh: dict[str, Any] = {
        "model": {name: torch.zeros_like(p) for name, p in model.named_parameters()},
        "optim": {"state": {name: {"exp_avg": torch.zeros_like(p)} for name, p in model.named_parameters()}},
        "step": torch.tensor(0),
    }
    dcp.load(fresh, checkpoint_id=tmp_path / "out", no_dist=True)
    assert int(fresh["step"]) == 2
    for name in names:
        parameter = model.get_parameter(name)
        assert torch.equal(fresh["model"][name], parameter)
        assert torch.equal(fresh["optim"]["state"][name]["exp_avg"], optimizer.state[parameter]["exp_avg"])
    again = convert(tmp_path / "out", tmp_path / "back", model=tmp_path / "theirs")
    with CheckpointReader(again.written.path) as back, CheckpointReader(path) as first:
        assert set(back.names()) == set(first.names())
        for n in first.names():
            assert torch.equal(back.read(n.role, n.name, n.kind), first.read(n.role, n.name, n.kind))


def forged(folder: Path, change: Callable[[Any], None]) -> None:
    path = folder / ".metadata"
    with path.open("rb") as file:
        metadata = pickle.load(file)  # noqa: S301
    change(metadata)
    path.write_bytes(pickle.dumps(metadata))


class System:
    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.canary}",)


def first_place(metadata: Any, name: str = "norm") -> Any:
    return next(place for index, place in metadata.storage_data.items() if name in index.fqn)


def first_tensor(metadata: Any) -> Any:
    return next(
        one for name, one in metadata.state_dict_metadata.items() if name == "model.model.norm.weight"
    )


def set_field(thing: Any, **fields: Any) -> None:
    for name, value in fields.items():
        object.__setattr__(thing, name, value)


FORGED: dict[str, tuple[Callable[[Any], None], str]] = {
    "a path out of the folder": (
        lambda m: set_field(first_place(m), relative_path="../../secret"),
        "'../../secret'",
    ),
    "an absolute path": (lambda m: set_field(first_place(m), relative_path="/etc/passwd"), "'/etc/passwd'"),
    "a giant tensor": (
        lambda m: (
            set_field(first_tensor(m), size=torch.Size([1 << 50])),
            set_field(first_tensor(m).chunks[0], sizes=torch.Size([1 << 50])),
        )[0],
        "norm.weight",
    ),
    "beyond the file": (lambda m: set_field(first_place(m), offset=1 << 40), "norm"),
    "a chunk outside": (
        lambda m: set_field(first_tensor(m).chunks[0], offsets=torch.Size([4])),
        "lies outside",
    ),
    "no chunk": (lambda m: first_tensor(m).chunks.clear(), "chunks of"),
    "another tensor's bytes": (
        lambda m: set_field(first_place(m), offset=first_place(m, "embed").offset),
        "__0_0.distcp",
    ),
    "a transform": (lambda m: set_field(first_place(m), transform_descriptors=["zstd"]), "transform"),
}


@pytest.mark.parametrize("kind", FORGED)
def test_metadata_that_lies_is_refused(tmp_path: Path, kind: str) -> None:
    write(tmp_path / "theirs")
    change, words = FORGED[kind]
    forged(tmp_path / "theirs", change)
    with pytest.raises(CheckpointError) as error:
        convert(tmp_path / "theirs", tmp_path / "ours")
    assert error.value.diagnostics[0].code in ("convert.refused", "convert.incomplete")
    assert words in str(error.value)


@pytest.mark.parametrize("where", ["planner_data", "state_dict_metadata", "whole"])
def test_metadata_that_names_os_system_is_refused_by_name(tmp_path: Path, where: str) -> None:
    write(tmp_path / "theirs")
    canary = tmp_path / "canary"
    if where == "whole":
        (tmp_path / "theirs/.metadata").write_bytes(pickle.dumps(System(canary)))
    else:
        forged(tmp_path / "theirs", lambda m: getattr(m, where).update({"x": System(canary)}))
    with pytest.raises(CheckpointError, match=r"convert\.refused.*") as error:
        convert(tmp_path / "theirs", tmp_path / "ours")
    assert f"'{os.system.__module__}.system'" in str(error.value) and not canary.exists()
    os.system(f"touch {canary}")  # noqa: S605
    assert canary.exists(), "the canary can be set"


def test_a_tensors_bytes_that_are_a_pickle_with_a_call_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "theirs")
    canary = tmp_path / "canary"
    torch.save(System(canary), tmp_path / "theirs/__9_9.distcp")
    size = (tmp_path / "theirs/__9_9.distcp").stat().st_size
    forged(
        tmp_path / "theirs",
        lambda m: set_field(first_place(m), relative_path="__9_9.distcp", offset=0, length=size),
    )
    with pytest.raises(CheckpointError, match="system"):
        convert(tmp_path / "theirs", tmp_path / "ours")
    assert not canary.exists()


def test_numbers_take_the_names_beside_them(tmp_path: Path) -> None:
    """In whatever order the optimizer was given them; nothing is taken for granted, so nothing is said."""
    model = tiny_llama()
    given = list(model.named_parameters())[::-1]
    optimizer = stepped(model, torch.optim.AdamW(given, lr=1e-2))
    dcp.save(by_number(model, optimizer), checkpoint_id=tmp_path / "theirs", no_dist=True)
    (tmp_path / "theirs/config.json").write_text(model.config.to_json_string())
    report = convert(tmp_path / "theirs", tmp_path / "ours")
    assert not any("order is taken" in one.what for one in report.left)
    with CheckpointReader(report.written.path) as found:
        for name, parameter in given:
            assert torch.equal(found.read("policy", name, "exp_avg"), optimizer.state[parameter]["exp_avg"])
