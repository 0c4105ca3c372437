"""Losses and statistics of TRL's own trainers (1.16) on one batch of the same model, from the same rows
through each side's tokenisation.

TRL is no dependency: ``pip install trl==1.16.0`` beside Paceline, then
``pytest tests/unit/algorithms/test_against_trl.py``; skipped without.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support import preference_rows, write_pairs
from trl_job import trl_job

from paceline.algorithms.preference.dpo import DPO
from paceline.algorithms.preference.reward_model import Reward
from paceline.models.factory import HFModelFactory
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Role

pytest.importorskip("trl", reason="needs trl 1.16, which is no dependency")
pytestmark = pytest.mark.filterwarnings("ignore")
PAIRS, BOUND = 12, 1e-5


@pytest.fixture
def job(tmp_path: Path, tokenizer_dir: Path) -> SimpleNamespace:
    """As ``trl_job``, and our batch of all pairs."""
    rows = [
        {
            "prompt": [{"role": "user", "content": row["prompt"]}],
            "chosen": [{"role": "assistant", "content": row["chosen"]}],
            "rejected": [{"role": "assistant", "content": row["rejected"]}],
            "margin": float(str(row["margin"])),
        }
        for row in preference_rows(PAIRS)
    ]
    file = write_pairs(tmp_path / "pairs.json", PAIRS)
    made = trl_job(tmp_path, tokenizer_dir, "dpo", "pairs", file, rows)
    made.batch = made.source.batch(0, list(range(PAIRS)))
    return made


def module(job: SimpleNamespace, role: Role, folder: str) -> Any:
    return HFModelFactory(job.config.model.model_copy(update={"name_or_path": folder}), role)().eval()


def arguments(kind: type, job: SimpleNamespace, **options: Any) -> Any:
    return kind(
        output_dir=job.out,
        use_cpu=True,
        bf16=False,
        report_to="none",
        per_device_train_batch_size=PAIRS,
        gradient_checkpointing=False,
        max_length=128,
        **options,
    )


def collated(trainer: Any) -> dict[str, torch.Tensor]:
    return dict(trainer.data_collator([trainer.train_dataset[i] for i in range(PAIRS)]))


def same_tokens(inputs: dict[str, torch.Tensor], batch: Batch) -> None:
    """TRL's padded rows (all chosen, then all rejected) are our documents (chosen, rejected, …)."""
    bounds = batch.cu_seqlens.tolist()
    for d in range(2 * PAIRS):
        ours = batch.input_ids[0, bounds[d] : bounds[d + 1]].tolist()
        row = d // 2 + (d % 2) * PAIRS
        assert inputs["input_ids"][row][inputs["attention_mask"][row].bool()].tolist() == ours


def means(algorithm: Any, role: Role, outputs: dict[str, torch.Tensor], batch: Batch) -> dict[str, float]:
    """Our loss and statistics, each sum over its weight."""
    weights = {name: int(value) for name, value in algorithm.weights(batch).items()}
    found = {"loss": sum(float(v) / weights[n] for n, v in algorithm.losses(role, outputs, batch).items())}
    metrics = {n: float(v) / weights["pairs"] for n, v in algorithm.metrics(role, outputs, batch).items()}
    return found | algorithm.summary({name.removesuffix("/pairs"): value for name, value in metrics.items()})


def close(ours: dict[str, float], loss: Any, metrics: dict[str, list[float]], names: dict[str, str]) -> None:
    gap = abs(ours["loss"] - float(loss.detach()))
    print(f"loss {ours['loss']:.7f}, TRL's {float(loss.detach()):.7f}, apart {gap:.1e}")
    assert gap <= BOUND * max(1.0, abs(ours["loss"]))
    for mine, theirs in names.items():
        assert ours[mine] == pytest.approx(metrics[theirs][-1], rel=BOUND, abs=BOUND), mine


@pytest.mark.parametrize("center", [None, 0.05])
def test_reward_trainer(job: SimpleNamespace, center: float | None) -> None:
    from transformers import AutoModelForSequenceClassification
    from trl import RewardConfig, RewardTrainer

    ours = module(job, Role.REWARD, job.folders[0])
    ours.hf.save_pretrained(f"{job.out}-start")  # a fresh head is drawn at random: both sides take ours
    theirs: Any = AutoModelForSequenceClassification.from_pretrained(f"{job.out}-start", dtype=torch.float32)
    theirs.config.pad_token_id = job.tokenizer.pad_token_id
    options = arguments(RewardConfig, job, center_rewards_coefficient=center)
    trainer = RewardTrainer(
        model=theirs, args=options, train_dataset=job.rows, processing_class=job.tokenizer
    )
    inputs = collated(trainer)
    same_tokens(inputs, job.batch)
    theirs.eval()
    loss = trainer.compute_loss(theirs, inputs)
    algorithm = Reward(center_rewards_coefficient=center or 0.0)
    with torch.no_grad():
        outputs = ours(job.batch, algorithm.required_outputs(Role.REWARD, training=True))
    names = {"accuracy": "accuracy", "margin": "margin", "reward_mean": "mean_reward"}
    close(means(algorithm, Role.REWARD, outputs, job.batch), loss, trainer._metrics["eval"], names)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({}, {"loss_type": ["sigmoid"]}),
        ({"loss_type": "hinge"}, {"loss_type": ["hinge"]}),
        ({"loss_type": "ipo", "length_normalized": True}, {"loss_type": ["ipo"]}),
        ({"loss_type": "robust", "label_smoothing": 0.1}, {"loss_type": ["robust"], "label_smoothing": 0.1}),
        ({"loss_type": "apo_zero"}, {"loss_type": ["apo_zero"]}),
        ({"loss_type": "apo_down"}, {"loss_type": ["apo_down"]}),
        ({"length_normalized": True}, {"loss_type": ["sigmoid_norm"]}),
        ({"rpo_alpha": 0.3}, {"loss_type": ["sigmoid", "sft"], "loss_weights": [1.0, 0.3]}),
    ],
    ids=lambda options: ", ".join(map(str, options.values())) or "sigmoid",
)
def test_dpo_trainer(job: SimpleNamespace, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    from transformers import AutoModelForCausalLM
    from trl import DPOConfig, DPOTrainer

    load: Any = AutoModelForCausalLM.from_pretrained
    policy, reference = (load(folder, dtype=torch.float32) for folder in job.folders)
    options = arguments(DPOConfig, job, beta=0.2, **theirs)
    trainer = DPOTrainer(
        model=policy,
        ref_model=reference,
        args=options,
        train_dataset=job.rows,
        processing_class=job.tokenizer,
    )
    inputs = collated(trainer)
    same_tokens(inputs, job.batch)
    policy.eval()
    loss = trainer._compute_loss(policy, inputs, False)
    algorithm = DPO(beta=0.2, **ours)
    ask = algorithm.required_outputs(Role.POLICY, training=True)
    with torch.no_grad():
        batch = algorithm.attach_outputs(
            Role.REFERENCE, module(job, Role.REFERENCE, job.folders[1])(job.batch, ask), job.batch
        )
        outputs = module(job, Role.POLICY, job.folders[0])(batch, ask)
    names = {name.removesuffix("/pairs"): name.removesuffix("/pairs") for name in algorithm.train_metrics}
    close(means(algorithm, Role.POLICY, outputs, batch), loss, trainer._metrics["eval"], names)
