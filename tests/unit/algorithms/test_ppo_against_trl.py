"""PPO's rewards, advantages, losses, gradients and statistics beside those of TRL's PPOTrainer on one batch
of the same four models.

PPO left TRL after 1.10: ``pip install trl==1.10.0`` in an environment of its own beside Paceline, then
``pytest tests/unit/algorithms/test_ppo_against_trl.py``; skipped without. Its ``train`` is run for one step
on given answers, with an older policy's log-probabilities and an older value model's values, so that ratios
and values are clipped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from rollout_batches import alone
from torch import Tensor

from paceline.algorithms.on_policy.base import with_tokens
from paceline.algorithms.on_policy.ppo import PPO
from paceline.protocols.roles import Output, Role
from paceline.training.rollout.answer_batches import Answer, answer_batch

pytest.importorskip("trl.experimental.ppo", reason="needs trl 1.10, which is no dependency")
pytestmark = pytest.mark.filterwarnings("ignore")
BOUND = 1e-5
ROWS, WIDE, LONG, VOCAB = 8, 5, 6, 320
CASES: list[dict[str, Any]] = [
    {"kl_estimator": "k1", "kl_coef": 0.05},
    {"kl_estimator": "k3", "kl_coef": 0.2, "whiten_rewards": True, "vf_coef": 0.5},
    {"gamma": 0.9, "lam": 0.8, "cliprange": 0.1, "cliprange_value": 0.05, "missing_eos_penalty": 1.0},
]
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "pad_token_id": 0,
}
SAME = {
    "kl_answer": "objective/kl",
    "score": "objective/scores",
    "policy": "loss/policy_avg",
    "value_loss": "loss/value_avg",
    "value_clip": "val/clipfrac_avg",
    "approx_kl": "policy/approxkl_avg",
    "entropy": "policy/entropy_avg",
    "ratio": "val/ratio",
    "clip": "policy/clipfrac_avg",
}


class Given:
    """Prompts, their answers, and how far the older policy and values were from the present ones; found
    again by the prompt's last token.
    """

    def __init__(self) -> None:
        drawn = torch.Generator().manual_seed(1)
        # the last token differs
        self.prompts = [list(range(20 + i, 20 + i - 2 - i % 4, -1)) for i in range(ROWS)]
        for i, prompt in enumerate(self.prompts):
            prompt[-1] = 100 + i
        self.answers = torch.randint(5, 300, (ROWS, LONG), generator=drawn)
        self.logit_noise = torch.randn(ROWS, LONG, VOCAB, generator=drawn) * 0.3
        self.value_noise = torch.randn(ROWS, LONG, generator=drawn) * 0.2

    def row(self, queries: Tensor) -> Tensor:
        return queries[:, -1] - 100


def forwards(models: dict[str, Any], given: Given) -> dict[str, Tensor]:
    """logits of policy and reference [8, LONG, V], values [8, LONG], scores [8]: each row by itself,
    unpadded.
    """
    found: dict[str, list[Tensor]] = {"policy": [], "reference": [], "values": [], "scores": []}
    for i, prompt in enumerate(given.prompts):
        ids = torch.tensor([prompt + given.answers[i].tolist()])
        for name in ("policy", "reference"):
            found[name].append(models[name](ids).logits[0, len(prompt) - 1 : -1])
        hidden = models["value"].model(ids).last_hidden_state[0]
        found["values"].append(models["value"].score(hidden)[len(prompt) - 1 : -1, 0])
        found["scores"].append(
            models["reward"].score(models["reward"].model(ids).last_hidden_state[0, -1])[0]
        )
    return {name: torch.stack(values) for name, values in found.items()}


def theirs(
    models: dict[str, Any], given: Given, options: dict[str, Any], folder: Path, tokenizer: Path, patch: Any
) -> tuple[dict[str, float], dict[str, list[Tensor]]]:
    """(metrics, gradients by model) of TRL's one step."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl.experimental.ppo import PPOConfig, PPOTrainer, ppo_trainer

    def generated(model: Any, queries: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        rows = given.row(queries)
        whole = torch.cat([queries, given.answers[rows]], 1)
        out = ppo_trainer.forward(model, whole, 0)
        return whole, out.logits[:, WIDE - 1 : -1] + given.logit_noise[rows]

    plain = ppo_trainer.get_reward

    def rewarded(model: Any, whole: Tensor, pad: int, length: int) -> Any:
        logits, final, lengths = plain(model, whole, pad, length)
        if model is models["value"]:
            logits = logits.clone()
            logits[:, length - 1 : -1, 0] += given.value_noise[given.row(whole[:, :length])]
        return logits, final, lengths

    patch.setattr(ppo_trainer, "batch_generation", generated)
    patch.setattr(ppo_trainer, "get_reward", rewarded)
    spoken = AutoTokenizer.from_pretrained(tokenizer, padding_side="left", pad_token=None)
    spoken.pad_token = spoken.convert_ids_to_tokens(0)
    config = PPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=ROWS,
        gradient_accumulation_steps=1,
        num_mini_batches=1,
        num_ppo_epochs=1,
        total_episodes=ROWS,
        response_length=LONG,
        temperature=1.0,
        stop_token=None,
        num_sample_generations=0,
        local_rollout_forward_batch_size=ROWS,
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        gradient_checkpointing=False,
        **{"missing_eos_penalty": None, **options},
    )
    trainer: Any = PPOTrainer(
        args=config,
        processing_class=spoken,
        model=models["policy"],
        ref_model=models["reference"],
        reward_model=models["reward"],
        value_model=models["value"],
        train_dataset=Dataset.from_list([{"input_ids": p} for p in given.prompts]),
        eval_dataset=Dataset.from_list([{"input_ids": p} for p in given.prompts]),
    )
    seen: dict[str, float] = {}
    gradients: dict[str, list[Tensor]] = {}
    patch.setattr(trainer, "log", lambda metrics, *_: seen.update(metrics))

    def keep(*_: Any) -> None:
        for name in ("policy", "value"):
            gradients[name] = [p.grad.clone() for p in models[name].parameters()]

    trainer.optimizer.optimizer.register_step_pre_hook(keep)
    before = {name: {k: v.clone() for k, v in model.state_dict().items()} for name, model in models.items()}
    trainer.train()
    for name, model in models.items():
        model.load_state_dict(before[name])
        model.zero_grad()
    return seen, gradients


@pytest.mark.parametrize("options", CASES)
def test_losses_gradients_and_statistics(
    options: dict[str, Any], tmp_path: Path, tokenizer_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

    torch.manual_seed(0)
    models: dict[str, Any] = {
        name: LlamaForCausalLM(LlamaConfig(**SHAPE)) for name in ("policy", "reference")
    }
    models |= {
        n: LlamaForSequenceClassification(LlamaConfig(**SHAPE, num_labels=1)) for n in ("value", "reward")
    }
    given = Given()
    seen, gradients = theirs(models, given, options, tmp_path / "trl", tokenizer_dir, monkeypatch)

    ppo = PPO(**options)
    out = forwards(models, given)
    picked = {
        n: out[n].log_softmax(-1).gather(2, given.answers[:, :, None]).squeeze(2)
        for n in ("policy", "reference")
    }
    older = (
        (out["policy"] + given.logit_noise).log_softmax(-1).gather(2, given.answers[:, :, None]).squeeze(2)
    )
    scores, _ = ppo.compute_advantages(
        out["scores"].detach().double(), torch.arange(ROWS), torch.zeros(ROWS, dtype=torch.bool)
    )
    rows = [
        Answer(i, tuple(p), tuple(given.answers[i].tolist()), torch.zeros(LONG), float(scores[i]), True, True)
        for i, p in enumerate(given.prompts)
    ]
    batch = answer_batch(rows, 0, torch.float32)
    fields = {"old": older, "values": out["values"] + given.value_noise, "reference": picked["reference"]}
    for name, values in fields.items():
        batch = with_tokens(batch, name, values.detach().flatten())
    ((batch,),), told = ppo.finalize_rollout([[batch]], alone())
    whole = out["policy"].log_softmax(-1)
    outputs = {
        Output.LOGPROBS.value: picked["policy"].flatten(),
        Output.VALUES.value: out["values"].flatten(),
        Output.ENTROPY.value: -(whole.exp() * whole).sum(-1).flatten(),
    }
    count = int(ppo.weights(batch)["policy"])
    policy = ppo.losses(Role.POLICY, outputs, batch)["policy"] / count
    (policy + ppo.losses(Role.VALUE, outputs, batch)["value"] / count).backward()
    for name, expected in gradients.items():
        for found, wanted in zip((p.grad for p in models[name].parameters()), expected, strict=True):
            torch.testing.assert_close(found, wanted, rtol=0, atol=BOUND)
    sums = {**ppo.metrics(Role.POLICY, outputs, batch), **ppo.metrics(Role.VALUE, outputs, batch)}
    mine = ppo.summary({n.rpartition("/")[0]: float(v) / count for n, v in sums.items()}) | dict(told)
    mine |= {"policy": float(policy.detach()), "clip": mine["clip_low"] + mine["clip_high"]}
    # something is clipped, not everything
    assert 0.05 < mine["clip"] < 0.95 and 0.05 < mine["value_clip"] < 0.95
    for name, their in SAME.items():
        assert mine[name] == pytest.approx(seen[their], abs=BOUND), name
