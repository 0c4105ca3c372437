"""Reward models and DPO through the whole program: trained on two processes, resumed bit for bit,
exported, scored by Transformers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import Run, write_pairs, write_yaml

from paceline.checkpoint.export.hf_export import export_hf
from paceline.config.load import load_config
from paceline.core.rundir import RunDir
from paceline.data.prepare.prepare import prepare
from paceline.data.rows.kinds.preference_pairs import PAIRS
from paceline.data.token_table import decode_labels
from paceline.runlog.events import Eval, Step, read_events

pytestmark = [pytest.mark.integration]
Tiny = Callable[..., dict[str, Any]]
Paceline = Callable[..., Run]
Program = Callable[..., tuple[list[Step], list[Eval], str]]


@pytest.fixture
def program(tiny: Tiny, paceline: Paceline, tmp_path: Path) -> Program:
    """Run ``paceline train`` on preference pairs, 24 of them held out; steps, evaluations and what was
    printed.
    """
    train, held_out = (
        write_pairs(tmp_path / "pairs.json", 48),
        write_pairs(tmp_path / "held_out.json", 24, seed=5),
    )

    def run(name: str, nproc: int, **training: Any) -> tuple[list[Step], list[Eval], str]:
        accumulation = {"gradient_accumulation_steps": 4 // nproc, "per_device_train_batch_size": 2}
        made = tiny(
            output_dir=str(tmp_path / name),
            max_steps=6,
            save_strategy="steps",
            save_steps=3,
            eval_strategy="steps",
            eval_steps=3,
            learning_rate=5e-3,
            **accumulation,
            **training,
        )
        made["data"] = {
            "train": str(train),
            "eval": str(held_out),
            "max_length": 96,
            "cache_dir": str(tmp_path / "cache"),
        }
        config = write_yaml(tmp_path / f"{name}.yaml", made)
        done = paceline("train", str(config), "--nproc", str(nproc), "--verbose")
        assert done.code == 0, done.out[-2000:] + done.err
        events = [r.event for r in read_events(RunDir.at(tmp_path / name).events(0))]
        return (
            [e for e in events if isinstance(e, Step)],
            [e for e in events if isinstance(e, Eval)],
            done.out,
        )

    return run


def facts(steps: list[Step]) -> list[tuple[Any, ...]]:
    return [(s.step, s.loss, s.grad_norm, s.lr, s.sample_digest, dict(s.extras)) for s in steps]


def tensors(checkpoint: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return {
        f"{f.name} {name}": t
        for f in sorted(checkpoint.glob("*.safetensors"))
        for name, t in load_file(f).items()
    }


def same_tensors(one: Path, other: Path) -> int:
    """How many tensors both checkpoints hold, bit for bit."""
    a, b = tensors(one), tensors(other)
    assert a.keys() == b.keys() and all(torch.equal(t, b[name]) for name, t in a.items())
    return len(a)


def held_out_answers(config: Path, folder: Path) -> list[list[int]]:
    """Token ids of chosen, rejected, chosen, … as the run prepared them."""
    c = load_config(str(config)).config
    table = prepare(c.data, c.model, seed=c.training.seed, cache_dir=folder / "cache", kind=PAIRS).eval
    assert table is not None
    return [decode_labels(table.coded(i))[0].tolist() for i in range(len(table.lengths))]


def test_an_exported_reward_model_scores_in_transformers_as_in_its_run(
    program: Program, tmp_path: Path
) -> None:
    from transformers import AutoModelForSequenceClassification

    options = {
        "algorithm": "reward",
        "reward": {"center_rewards_coefficient": 0.01},
        "metric_for_best_model": "accuracy",
    }
    steps, evaluations, _ = program("whole", 2, **options)
    assert steps[-1].loss < steps[0].loss - 0.1 and set(steps[0].losses) == {"pairs", "center"}
    assert {"accuracy", "margin", "reward_chosen", "reward_rejected", "reward_mean", "reward_std"} == set(
        steps[0].extras
    )
    assert export_hf(tmp_path / "whole/checkpoints/step-00000006", tmp_path / "exported").kind == "model"
    load: Any = AutoModelForSequenceClassification.from_pretrained
    model = load(tmp_path / "exported").eval()
    assert model.config.num_labels == 1
    answers = held_out_answers(tmp_path / "whole.yaml", tmp_path)
    assert len(answers) == 48
    padded = torch.full((48, max(map(len, answers))), model.config.pad_token_id)
    for row, answer in zip(padded, answers, strict=True):
        row[: len(answer)] = torch.tensor(answer)
    with torch.no_grad():
        scores = model(padded, attention_mask=(padded != model.config.pad_token_id).long()).logits[:, 0]
    gap, told = scores[::2] - scores[1::2], evaluations[-1].metrics
    assert (
        told["eval_accuracy"] == pytest.approx(float((gap > 0).double().mean()))
        and told["eval_accuracy"] > 0.8
    )
    assert told["eval_margin"] == pytest.approx(float(gap.mean()), abs=1e-5)
    assert told["eval_reward_mean"] == pytest.approx(float(scores.mean()), abs=1e-5)
    assert told["eval_reward_std"] == pytest.approx(float(scores.double().std(correction=0)), abs=1e-5)
    assert 0 <= told["eval_calibration_error"] < 0.5


def test_dpo_asks_its_reference_once_and_goes_on_with_the_same_answers(
    program: Program, tmp_path: Path
) -> None:
    options = {"algorithm": "dpo", "dpo": {"beta": 0.3, "precompute_ref_log_probs": True}}
    steps, evaluations, said = program("whole", 2, **options)
    assert "answers computed" in said and steps[0].extras["rewards/margins"] == pytest.approx(0.0, abs=1e-4)
    assert steps[-1].loss < steps[0].loss - 0.1 and steps[-1].extras["rewards/margins"] > 0.1
    middle = tmp_path / "whole/checkpoints/step-00000003"
    again, held_out, said = program("part", 2, **options, resume_from_checkpoint=str(middle))
    assert "answers computed" not in said and "reference log-probabilities of 144 answers from" in said
    assert facts(again) == facts(steps[3:]) and held_out[-1].metrics == evaluations[-1].metrics
    assert (
        same_tensors(
            tmp_path / "whole/checkpoints/step-00000006", tmp_path / "part/checkpoints/step-00000006"
        )
        > 20
    )

    live, told, said = program("live", 1, algorithm="dpo", dpo={"beta": 0.3})
    assert "answers computed" not in said and "answers from" not in said
    assert [s.loss for s in live] == pytest.approx([s.loss for s in steps], abs=5e-6)
    for name, value in evaluations[-1].metrics.items():
        assert told[-1].metrics[name] == pytest.approx(value, rel=1e-4, abs=1e-4), name
