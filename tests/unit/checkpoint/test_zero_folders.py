"""Folders as DeepSpeed lays them out, made by hand of two ranks: put together, or refused by name. Those that
DeepSpeed itself wrote are in ``tests/integration/test_converted.py``.
"""

from __future__ import annotations

import shutil
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign_samples import stepped, tiny_llama
from test_hostile_files import pickles

from paceline.checkpoint.convert.convert import convert
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.core.errors import CheckpointError

RANKS = 2
MODEL, OPTIMIZER = "mp_rank_00_model_states.pt", "zero_pp_rank_{}_mp_rank_00_optim_states.pt"
MODEL_3 = "zero_pp_rank_{}_mp_rank_00_model_states.pt"


def parts(flat: torch.Tensor) -> list[torch.Tensor]:
    padded = torch.cat([flat, torch.zeros(-len(flat) % RANKS)])
    return list(padded.view(RANKS, -1))


def write(folder: Path, stage: int) -> tuple[Any, torch.optim.AdamW]:
    """Write ``global_step2``; return the model and optimizer that it is of."""
    model = tiny_llama()
    optimizer = stepped(model)
    names = {id(p): name for name, p in model.named_parameters()}
    groups = [group["params"] for group in optimizer.param_groups]
    shapes = [OrderedDict((names[id(p)], p.shape) for p in group) for group in groups]
    inner = folder / "global_step2"
    inner.mkdir(parents=True)
    (folder / "latest").write_text("global_step2")
    (folder / "config.json").write_text(model.config.to_json_string())
    states = {"param_shapes": shapes, "global_steps": 2, "buffer_names": [], "module": {}}
    for rank in range(RANKS):
        torch.save(states, inner / (MODEL_3.format(rank) if stage == 3 else MODEL))

        def flat(kind: str, rank: int = rank) -> list[torch.Tensor]:
            def value(p: torch.Tensor) -> torch.Tensor:
                return (p.detach() if kind == "fp32" else optimizer.state[p][kind]).flatten()

            if stage == 3:
                return [torch.cat([parts(value(p))[rank] for p in group]) for group in groups]
            return [parts(torch.cat([value(p) for p in group]))[rank].clone() for group in groups]

        moments = [
            {"step": torch.tensor(2.0), "exp_avg": a, "exp_avg_sq": b}
            for a, b in zip(flat("exp_avg"), flat("exp_avg_sq"), strict=True)
        ]
        base = {
            "state": dict(enumerate(moments)),
            "param_groups": [{"params": [n]} for n in range(len(groups))],
        }
        named = ("fp32_flat_groups", "optimizer_state_dict")
        if stage < 3:
            named = ("single_partition_of_fp32_groups", "base_optimizer_state")
        saved = {"zero_stage": stage, "partition_count": RANKS, named[0]: flat("fp32"), named[1]: base}
        torch.save({"optimizer_state_dict": saved}, inner / OPTIMIZER.format(rank))
    return model, optimizer


def write_universal(folder: Path, stage: int) -> tuple[Any, torch.optim.AdamW]:
    """As DeepSpeed's own program makes them of stages below 3 (whole tensors) and of 3 (flat ones)."""
    model = tiny_llama()
    optimizer = stepped(model)
    for name, p in model.named_parameters():
        inner = folder / "zero" / name
        inner.mkdir(parents=True)
        state = {"fp32": p.detach(), **optimizer.state[p]}
        for kind in ("fp32", "exp_avg", "exp_avg_sq"):
            if stage == 3:
                torch.save(torch.cat(parts(state[kind].flatten())), inner / f"{kind}.pt")
            else:
                torch.save({"param": state[kind].clone()}, inner / f"{kind}.pt")
        if stage < 3:
            torch.save(state["step"], inner / "step.pt")
    torch.save({"global_steps": 2}, folder / MODEL)
    (folder / "config.json").write_text(model.config.to_json_string())
    return model, optimizer


@pytest.mark.parametrize(
    ("make", "stage"), [(write, 2), (write, 3), (write_universal, 2), (write_universal, 3)]
)
def test_every_tensor_is_put_together(
    tmp_path: Path, make: Callable[[Path, int], tuple[Any, torch.optim.AdamW]], stage: int
) -> None:
    model, optimizer = make(tmp_path / "theirs", stage)
    report = convert(tmp_path / "theirs", tmp_path / "ours")
    assert report.written.step == 2
    with CheckpointReader(report.written.path) as found:
        for name, parameter in model.named_parameters():
            assert torch.equal(found.read("policy", name, "param"), parameter)
            for kind, value in optimizer.state[parameter].items():
                assert torch.equal(found.read("policy", name, kind), value), (name, kind)


def edit(path: Path, change: Callable[[Any], None]) -> None:
    saved = torch.load(path, weights_only=True)
    change(saved)
    torch.save(saved, path)


def cut(saved: Any) -> None:
    flats = saved["optimizer_state_dict"]["single_partition_of_fp32_groups"]
    flats[0] = flats[0][:-40].clone()


LIES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a rank is missing": (lambda f: (f / OPTIMIZER.format(1)).unlink(), "1 of 2"),
    "a part is short": (lambda f: edit(f / OPTIMIZER.format(1), cut), "shorter"),
    "giant shapes": (
        lambda f: edit(
            f / MODEL, lambda s: s["param_shapes"][0].update({"model.embed_tokens.weight": (1 << 50,)})
        ),
        "shorter",
    ),
    "tensor parallel": (
        lambda f: shutil.copy(f / OPTIMIZER.format(1), f / "zero_pp_rank_1_mp_rank_01_optim_states.pt"),  # type: ignore[arg-type,return-value]
        "universal",
    ),
    "another stage": (
        lambda f: edit(f / OPTIMIZER.format(1), lambda s: s["optimizer_state_dict"].update(zero_stage=7)),
        "stage",
    ),
    "no parameters": (lambda f: edit(f / MODEL, lambda s: s.update(param_shapes=[])), "which parameters"),
}


@pytest.mark.parametrize("kind", LIES)
def test_parts_that_do_not_fit_are_refused(tmp_path: Path, kind: str) -> None:
    write(tmp_path / "theirs", 2)
    change, words = LIES[kind]
    change(tmp_path / "theirs/global_step2")
    with pytest.raises(CheckpointError, match=words) as error:
        convert(tmp_path / "theirs", tmp_path / "ours")
    assert error.value.diagnostics[0].code in ("convert.misfit", "convert.incomplete")


@pytest.mark.parametrize("slot", [MODEL, OPTIMIZER.format(0), OPTIMIZER.format(1)])
def test_a_pickle_that_calls_something_is_refused(tmp_path: Path, slot: str) -> None:
    write(tmp_path / "theirs", 2)
    canary = tmp_path / "canary"
    (tmp_path / "theirs/global_step2" / slot).write_bytes(pickles(canary)["zip"])
    with pytest.raises(CheckpointError, match=r"convert\.refused") as error:
        convert(tmp_path / "theirs", tmp_path / "ours")
    assert slot in str(error.value) and "open'" in str(error.value) and not canary.exists()


@pytest.mark.parametrize("slot", ["fp32.pt", "exp_avg.pt", "step.pt"])
def test_one_of_a_universal_folder_is_refused(tmp_path: Path, slot: str) -> None:
    write_universal(tmp_path / "theirs", 2)
    canary = tmp_path / "canary"
    (tmp_path / "theirs/zero/model.norm.weight" / slot).write_bytes(pickles(canary)["zip"])
    with pytest.raises(CheckpointError, match=r"convert\.refused") as error:
        convert(tmp_path / "theirs", tmp_path / "ours")
    assert slot in str(error.value) and not canary.exists()


@pytest.mark.parametrize("tag", ["../../elsewhere", "/etc", "..", "a/b"])
def test_a_tag_that_leads_out_of_the_folder_is_not_followed(tmp_path: Path, tag: str) -> None:
    write(tmp_path / "theirs", 2)
    (tmp_path / "theirs/latest").write_text(tag)
    with pytest.raises(CheckpointError, match=r"convert\.unknown"):
        convert(tmp_path / "theirs", tmp_path / "ours")
