"""Folders that users have beside Trainer's plain one: Accelerate's, adapters among an engine's tensors,
frozen parameters, reward models. Each is converted with its moments, or refused by name.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from foreign_samples import CONFIG, stepped, tiny_llama, write_trainer_folder
from safetensors.torch import save_file
from test_zero_folders import MODEL, MODEL_3, edit, parts, write

from paceline.checkpoint.convert.convert import convert
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.core.errors import CheckpointError

LORA = {"r": 2, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj"], "lora_dropout": 0.0}


def held(report: Any, role: str = "policy") -> Iterator[tuple[str, str, torch.Tensor]]:
    with CheckpointReader(report.written.path) as found:
        for name in found.names():
            assert name.role == role
            yield name.name, name.kind, found.read(name.role, name.name, name.kind)


def moments_of(named: Any, optimizer: torch.optim.Optimizer) -> dict[tuple[str, str], torch.Tensor]:
    return {(n, kind): value for n, p in named for kind, value in optimizer.state[p].items()}


def same(report: Any, named: Any, optimizer: torch.optim.Optimizer, role: str = "policy") -> bool:
    named = list(named)
    expected = {(n, "param"): p.detach() for n, p in named} | moments_of(named, optimizer)
    found = {(name, kind): value for name, kind, value in held(report, role)}
    return set(found) == set(expected) and all(torch.equal(found[at], expected[at]) for at in found)


def adapted() -> tuple[Any, torch.optim.AdamW, list[tuple[str, torch.nn.Parameter]]]:
    """peft's model with an optimizer that has made two steps, and what is trained by our names."""
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(tiny_llama(), LoraConfig(**LORA, task_type="CAUSAL_LM"))  # type: ignore[arg-type]
    torch.manual_seed(1)
    trained = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW([p for _, p in trained], lr=1e-2)
    for _ in range(2):
        optimizer.zero_grad()
        model(input_ids=torch.arange(8)[None], labels=torch.arange(8)[None]).loss.backward()
        optimizer.step()
    plain = [(n.removeprefix("base_model.model.").replace(".default", ""), p) for n, p in trained]
    return model, optimizer, plain


def test_what_accelerate_saves_goes_on(tmp_path: Path) -> None:
    """``save_state`` itself; the step is the optimizer's."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    try:
        accelerator = Accelerator(cpu=True)
        model = tiny_llama()
        optimizer = stepped(model)
        model, prepared = accelerator.prepare(model, optimizer)
        accelerator.save_state(str(tmp_path / "theirs"))
    finally:
        AcceleratorState._reset_state(True)
        GradientState._reset_state()
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(model.config.to_json_string())
    report = convert(tmp_path / "theirs", tmp_path / "ours", model=tmp_path / "model")
    assert report.written.step == 2 and "Accelerate" in report.form
    assert same(report, model.named_parameters(), optimizer)
    left = " ".join(one.what for one in report.left)
    assert "random states" in left and "--step" not in left
    (tmp_path / "theirs/model_1.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"several models[\s\S]*model_1.safetensors"):
        convert(tmp_path / "theirs", tmp_path / "more", model=tmp_path / "model")


def test_a_reward_model_keeps_its_part(tmp_path: Path) -> None:
    """As TRL's RewardTrainer saves it: a class with a head of one score."""
    from transformers import LlamaConfig, LlamaForSequenceClassification

    folder = tmp_path / "checkpoint-2"
    write_trainer_folder(folder)
    torch.manual_seed(0)
    model: Any = LlamaForSequenceClassification(LlamaConfig(**CONFIG, num_labels=1, pad_token_id=0))
    named = list(model.named_parameters())
    decayed = [p for n, p in named if "norm" not in n], [p for n, p in named if "norm" in n]
    optimizer = torch.optim.AdamW([{"params": group} for group in decayed], lr=1e-2)
    model(input_ids=torch.arange(8)[None]).logits.sum().backward()
    optimizer.step()
    save_file({n: p.detach() for n, p in named}, folder / "model.safetensors", {"format": "pt"})
    torch.save(optimizer.state_dict(), folder / "optimizer.pt")
    model.config.architectures = ["LlamaForSequenceClassification"]
    (folder / "config.json").write_text(model.config.to_json_string())
    assert same(convert(folder, tmp_path / "ours"), named, optimizer, role="reward")


def test_llama_factory_s_own_files_are_no_part_of_it(tmp_path: Path) -> None:
    """A training's log and board lie there; a value head, which has a bias, is refused by name."""
    folder = tmp_path / "checkpoint-2"
    model, optimizer = write_trainer_folder(folder)
    (folder / "trainer_log.jsonl").write_text('{"loss": 1}\n')
    (folder / "llamaboard_config.yaml").write_text("top.lang: en\n")
    (folder / "README.md").write_text("# a card")
    assert same(convert(folder, tmp_path / "ours"), model.named_parameters(), optimizer)
    head = {"v_head.summary.weight": torch.zeros(1, 8), "v_head.summary.bias": torch.zeros(1)}
    save_file(head, folder / "value_head.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"value_head.safetensors[\s\S]*model.name_or_path"):
        convert(folder, tmp_path / "more")


@pytest.mark.parametrize("numbered", [True, False])
def test_an_adapter_in_a_folder_of_dcp_goes_on(tmp_path: Path, numbered: bool) -> None:
    import warnings

    from torch.distributed.checkpoint.state_dict import get_state_dict

    model, optimizer, plain = adapted()
    weights, by_name = get_state_dict(model, optimizer)
    state = {"model": weights, "optim": optimizer.state_dict() if numbered else by_name}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp.save(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    (tmp_path / "dcp/config.json").write_text(json.dumps({"model_type": "llama", **CONFIG}))
    with pytest.raises(CheckpointError, match=r"holds an adapter[\s\S]*adapter_config.json"):
        convert(tmp_path / "dcp", tmp_path / "none")
    model.peft_config["default"].save_pretrained(str(tmp_path / "dcp"))
    report = convert(tmp_path / "dcp", tmp_path / "ours")
    assert report.written.step == 2 and same(report, plain, optimizer)


def zero_of(folder: Path, trained: list[tuple[str, torch.nn.Parameter]], optimizer: Any, stage: int) -> None:
    """Replace what ``write`` has put into ``folder``'s files by these parameters, in one group."""
    inner = folder / "global_step2"
    for rank in range(2):
        shapes = [OrderedDict((n, p.shape) for n, p in trained)]

        def models(saved: Any, shapes: Any = shapes) -> None:
            saved["param_shapes"] = shapes

        if stage == 3 or rank == 0:
            edit(inner / (MODEL_3.format(rank) if stage == 3 else MODEL), models)

        def flat(kind: str, rank: int = rank) -> torch.Tensor:
            values = [
                (p.detach() if kind == "fp32" else optimizer.state[p][kind]).flatten() for _, p in trained
            ]
            cut = [parts(v)[rank] for v in values] if stage == 3 else [parts(torch.cat(values))[rank]]
            return torch.cat(cut).clone()

        def states(saved: Any, flat: Any = flat) -> None:
            inside = saved["optimizer_state_dict"]
            word = "fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups"
            base = "optimizer_state_dict" if stage == 3 else "base_optimizer_state"
            inside[word] = [flat("fp32")]
            moments = {
                "step": torch.tensor(2.0),
                "exp_avg": flat("exp_avg"),
                "exp_avg_sq": flat("exp_avg_sq"),
            }
            inside[base] = {"state": {0: moments}, "param_groups": [{"params": [0]}]}

        edit(inner / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt", states)


@pytest.mark.parametrize("stage", [2, 3])
def test_an_adapter_under_deepspeed_goes_on(tmp_path: Path, stage: int) -> None:
    """Named as in peft's model; the frozen base lies beside it and is not brought over."""
    write(tmp_path / "theirs", stage)
    model, optimizer, plain = adapted()
    zero_of(
        tmp_path / "theirs",
        [(n, p) for n, p in model.named_parameters() if p.requires_grad],
        optimizer,
        stage,
    )
    with pytest.raises(CheckpointError, match=r"holds an adapter[\s\S]*adapter_config.json"):
        convert(tmp_path / "theirs", tmp_path / "none")
    model.peft_config["default"].save_pretrained(str(tmp_path / "theirs"))
    assert same(convert(tmp_path / "theirs", tmp_path / "ours"), plain, optimizer)


@pytest.mark.parametrize("stage", [2, 3])
def test_frozen_parameters_of_deepspeed(tmp_path: Path, stage: int) -> None:
    """Their weights go on; moments that all need are missing, which is said; left out, they are asked for."""
    folder = tmp_path / "theirs"
    model, optimizer = write(folder, stage)
    named = dict(model.named_parameters())
    frozen = {n: p.detach() for n, p in named.items() if "embed" in n}
    zero_of(folder, [(n, p) for n, p in named.items() if n not in frozen], optimizer, stage)
    with pytest.raises(CheckpointError, match=r"exclude_frozen_parameters[\s\S]*embed_tokens"):
        convert(folder, tmp_path / "none")
    for rank in range(2 if stage == 3 else 1):

        def add(saved: Any, rank: int = rank) -> None:
            saved["frozen_param_shapes"] = OrderedDict((n, p.shape) for n, p in frozen.items())
            whole = {n: parts(p.flatten())[rank] if stage == 3 else p for n, p in frozen.items()}
            saved["frozen_param_fragments"] = OrderedDict((n, p.clone()) for n, p in whole.items())

        edit(folder / "global_step2" / (MODEL_3.format(rank) if stage == 3 else MODEL), add)
    with pytest.raises(CheckpointError, match=r"no moments of them[\s\S]*embed_tokens[\s\S]*--weights-only"):
        convert(folder, tmp_path / "moments")
    report = convert(folder, tmp_path / "ours", moments=False)
    found = {name: value for name, kind, value in held(report) if kind == "param"}
    assert set(found) == set(named) and all(torch.equal(found[n], p) for n, p in named.items())
