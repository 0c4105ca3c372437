"""PPO and a reward model as judge through the program: four models, the same losses sharded as alone,
ranks without prompts, resume in mid-epoch.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import Run, write_yaml
from test_grpo_program import events_of, numbers, train
from test_train import tensors_of

from paceline.runlog.events import Eval, Step

pytestmark = [pytest.mark.integration]


@pytest.fixture
def judge(tiny: Callable[..., dict[str, Any]], tmp_path: Path, tokenizer_dir: Path) -> Path:
    """A reward model's folder as an export leaves it: another model than the policy's, the same tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForSequenceClassification

    torch.manual_seed(3)
    sizes = {**tiny()["model"]["config"], "num_hidden_layers": 1, "initializer_range": 0.3}
    folder = tmp_path / "judge"
    LlamaForSequenceClassification(LlamaConfig(**sizes, num_labels=1)).save_pretrained(folder)
    shutil.copytree(tokenizer_dir, folder, dirs_exist_ok=True)
    return folder


@pytest.fixture
def ppo(tiny: Callable[..., dict[str, Any]], tmp_path: Path, judge: Path) -> Callable[..., dict[str, Any]]:
    rows = [{"question": "say red " * (1 + i % 5) + str(i), "answer": "red"} for i in range(10)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rewards = [
        {"name": "regex", "options": {"pattern": "[a-m]"}},
        {"name": "model", "weight": 0.5, "options": {"model": str(judge)}},
    ]

    def make(name: str, ranks: int, dtype: str = "float64", **training: Any) -> dict[str, Any]:
        learnt = {
            "ppo": {
                "num_ppo_epochs": 2,
                "adap_kl_ctrl": True,
                "target": 0.05,
                "horizon": 100,
                "whiten_rewards": True,
                "missing_eos_penalty": 0.2,
            },
            "grpo": {"beta": 0.05},
        }
        algorithm = training.pop("algorithm", "ppo")
        config = tiny(
            algorithm=algorithm,
            output_dir=str(tmp_path / name),
            learning_rate=5e-3,
            max_steps=training.pop("max_steps", 4),
            per_device_train_batch_size=8 // ranks,
            rollout={
                "rewards": rewards,
                "num_generations": 1 if algorithm == "ppo" else 4,
                "max_completion_length": 8,
                "temperature": 0.9,
            },
            eval_strategy="steps",
            eval_steps=4,
            **{algorithm: learnt[algorithm]},
            **training,
        )
        config["data"] |= {"train": str(tmp_path / "prompts.jsonl"), "max_length": 96, "validation_split": 1}
        config["model"]["dtype"] = dtype
        config["model"]["config"]["initializer_range"] = 0.2
        return config

    return make


def test_sharded_over_ranks_of_which_one_has_no_prompts_as_alone(
    ppo: Callable[..., dict[str, Any]], paceline: Callable[..., Run], tmp_path: Path
) -> None:
    """Nine prompts: the second rollout has one answer, so that rank 1 has fillers alone; one held-out
    prompt: there it has none at all.
    """
    config = ppo("alone", 1)
    config["training"]["rollout"]["old_logprobs"] = "recompute"  # the other takes sampling's
    alone = train(paceline, config, tmp_path, 1)
    sharded = train(paceline, ppo("sharded", 2, distributed_strategy="fsdp"), tmp_path, 2)
    assert [s.extras.get("completion_length") is not None for s in alone] == [True, False, True, False]
    assert alone[2].tokens < alone[0].tokens / 4 and alone[1].extras["kl"] != 0.0
    assert abs(alone[0].extras["reward/model"]) > 1e-3 and alone[0].extras["reward_std/model"] > 0.0
    assert alone[2].extras["kl_coef"] != alone[0].extras["kl_coef"] == 0.05
    for one, two in zip(alone, sharded, strict=True):
        assert numbers(two) == pytest.approx(numbers(one), abs=1e-10), one.step
        assert set(two.losses) == {"policy", "value"} and two.sample_digest == one.sample_digest
    mine, theirs = (
        next(e for e in events_of(tmp_path / name) if isinstance(e, Eval)).metrics
        for name in ("alone", "sharded")
    )
    assert mine == pytest.approx(theirs, abs=1e-10) and {"eval_reward", "eval_reward/model"} <= set(mine)


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("zero3", marks=pytest.mark.slow)])
def test_resume_in_the_middle_of_a_ppo_epoch_is_bit_exact(
    strategy: str, ppo: Callable[..., dict[str, Any]], paceline: Callable[..., Run], tmp_path: Path
) -> None:
    kept = {"distributed_strategy": strategy, "save_strategy": "steps", "save_steps": 3, "max_steps": 6}
    whole = train(paceline, ppo("whole", 2, "float32", **kept), tmp_path, 2)
    kept["resume_from_checkpoint"] = str(tmp_path / "whole/checkpoints/step-00000003")
    part = train(paceline, ppo("part", 2, "float32", **kept), tmp_path, 2)
    assert [s.step for s in part] == [4, 5, 6]
    assert [numbers(s) for s in part] == [numbers(s) for s in whole[3:]]
    one, other = (tensors_of(tmp_path / name / "checkpoints/step-00000006") for name in ("whole", "part"))
    assert one == other and any("value" in name for name in one)


@pytest.mark.full
def test_grpo_is_judged_by_a_reward_model(
    ppo: Callable[..., dict[str, Any]], paceline: Callable[..., Run], tmp_path: Path
) -> None:
    alone = train(paceline, ppo("alone", 1, algorithm="grpo"), tmp_path, 1)
    other = train(
        paceline, ppo("zero", 2, "float32", algorithm="grpo", distributed_strategy="zero3"), tmp_path, 2
    )
    for one, two in zip(alone, other, strict=True):
        assert isinstance(two, Step) and numbers(two) == pytest.approx(numbers(one), rel=2e-3, abs=1e-4)


def test_refused_before_it_is_loaded(
    ppo: Callable[..., dict[str, Any]], judge: Path, paceline: Callable[..., Run], tmp_path: Path
) -> None:
    config = ppo("run", 1)
    (judge / "tokenizer.json").unlink()
    (judge / "config.json").write_text(
        (judge / "config.json").read_text().replace("LlamaForSequenceClassification", "LlamaForCausalLM")
    )
    done = paceline("train", str(write_yaml(tmp_path / "run.yaml", config)))
    assert done.code == 2 and "rewards.model" in done.err and "algorithm: reward" in done.err
