"""GRPO's loss, gradient and statistics beside those of TRL's GRPOTrainer (1.16) on one batch of the same
model.

TRL is no dependency: ``pip install trl==1.16.0`` beside Paceline, then
``pytest tests/unit/algorithms/test_grpo_against_trl.py``; skipped without.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.algorithms.on_policy.advantages import group_advantages
from paceline.algorithms.on_policy.base import with_tokens
from paceline.algorithms.on_policy.grpo import GRPO
from paceline.protocols.roles import Output, Role
from paceline.training.rollout.answer_batches import Answer, answer_batch

pytest.importorskip("trl", reason="needs trl 1.16, which is no dependency")
pytestmark = pytest.mark.filterwarnings("ignore")
BOUND = 1e-5
PROMPTS, ANSWERS = [2, 2, 2, 2, 5, 5, 5, 5], [3, 6, 1, 4, 6, 2, 5, 6]  # tokens
WIDE, LONG = max(PROMPTS), max(ANSWERS)
# what both are given: the keys are TRL's
CASES: list[dict[str, Any]] = [
    {"loss_type": "dapo", "beta": 0.0},
    {"loss_type": "grpo", "beta": 0.1, "use_bias_correction_kl": False},
    {"loss_type": "grpo", "beta": 0.1, "use_bias_correction_kl": True},
    {
        "loss_type": "dr_grpo",
        "beta": 0.04,
        "epsilon_high": 0.28,
        "use_bias_correction_kl": False,
        "scale_rewards": "none",
    },
    {"loss_type": "grpo", "importance_sampling_level": "sequence", "beta": 0.0},
    {"loss_type": "dapo", "delta": 1.3, "beta": 0.0},
    {"loss_type": "cispo", "epsilon_high": 1.2, "beta": 0.0},
    {"loss_type": "cispo", "epsilon_high": 1.1, "beta": 0.1, "use_bias_correction_kl": True},
]


class Padded:
    """A batch as TRL takes it, padded on both sides, with log-probabilities of an older policy and of a
    reference.
    """

    def __init__(self, model: Any, scale: str) -> None:
        self.model = model
        drawn = torch.Generator().manual_seed(1)
        self.prompts, self.seen = (
            torch.zeros(8, WIDE, dtype=torch.long),
            torch.zeros(8, WIDE, dtype=torch.long),
        )
        self.answers, self.mask = (
            torch.zeros(8, LONG, dtype=torch.long),
            torch.zeros(8, LONG, dtype=torch.long),
        )
        for i, (p, n) in enumerate(zip(PROMPTS, ANSWERS, strict=True)):
            self.prompts[i, WIDE - p :], self.seen[i, WIDE - p :] = torch.arange(5, 5 + p) + i // 4, 1
            self.answers[i, :n], self.mask[i, :n] = torch.randint(5, 320, (n,), generator=drawn), 1
        rewards = torch.tensor([1.0, 0.0, 0.5, 2.0, 0.3, 0.3, 1.0, 0.0])
        self.advantages, _ = group_advantages(rewards, torch.arange(8) // 4, scale=scale)
        with torch.no_grad():
            base = self.logprobs().gather(2, self.answers[:, :, None]).squeeze(2)
        self.old, self.reference = (base + torch.randn(8, LONG, generator=drawn) * 0.3 for _ in range(2))

    def logprobs(self) -> Tensor:
        """[8, LONG, V]."""
        ids, mask = torch.cat([self.prompts, self.answers], 1), torch.cat([self.seen, self.mask], 1)
        places = (mask.cumsum(1) - 1).clamp(min=0)
        logits: Tensor = self.model(ids, attention_mask=mask, position_ids=places).logits[:, WIDE - 1 : -1]
        return logits.log_softmax(-1)

    def theirs(self) -> dict[str, Any]:
        return {
            "prompt_ids": self.prompts,
            "prompt_mask": self.seen,
            "completion_ids": self.answers,
            "completion_mask": self.mask,
            "advantages": self.advantages,
            "old_per_token_logps": self.old,
            "ref_per_token_logps": self.reference,
            "num_items_in_batch": self.mask.sum(),
        }

    def ours(self) -> Any:
        rows = [
            Answer(
                i,
                tuple(self.prompts[i, WIDE - p :].tolist()),
                tuple(self.answers[i, :n].tolist()),
                torch.zeros(n),
                float(self.advantages[i]),
                True,
                True,
            )
            for i, (p, n) in enumerate(zip(PROMPTS, ANSWERS, strict=True))
        ]
        batch, real = answer_batch(rows, 0, torch.float32), self.mask.bool()
        return with_tokens(with_tokens(batch, "old", self.old[real]), "reference", self.reference[real])


@pytest.mark.parametrize("options", CASES)
def test_loss_gradient_and_statistics(options: dict[str, Any], tmp_path: Path, tokenizer_dir: Path) -> None:
    from datasets import Dataset
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    torch.manual_seed(0)
    shape = {
        "vocab_size": 320,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    LlamaForCausalLM(
        LlamaConfig(**shape, max_position_embeddings=64, initializer_range=0.2, pad_token_id=0)
    ).save_pretrained(tmp_path)
    model: Any = LlamaForCausalLM.from_pretrained(tmp_path)
    batch = Padded(model, options.get("scale_rewards", "group"))
    config = GRPOConfig(
        output_dir=str(tmp_path / "trl"),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=LONG,
        use_cpu=True,
        report_to=[],
        bf16=False,
        num_iterations=2,
        gradient_checkpointing=False,
        **options,
    )
    rows = Dataset.from_list([{"prompt": "a"}] * 8)
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_dir)
    trainer: Any = GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        processing_class=tokenizer,
        train_dataset=rows,
        args=config,
    )
    trainer.current_gradient_accumulation_steps = 1
    trainer._metrics = {"train": defaultdict(list), "eval": defaultdict(list)}
    trainer.model.train()
    theirs = trainer._compute_loss(trainer.model, batch.theirs())
    theirs.backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()

    own = {k: v for k, v in options.items() if k != "scale_rewards"}
    grpo, made = GRPO(**own, num_iterations=2, max_completion_length=LONG), batch.ours()
    whole, real = batch.logprobs(), batch.mask.bool()
    outputs = {
        Output.LOGPROBS.value: whole.gather(2, batch.answers[:, :, None]).squeeze(2)[real],
        Output.ENTROPY.value: -(whole.exp() * whole).sum(-1)[real],
    }
    weight = grpo.weights(made)["policy"]
    ours = grpo.losses(Role.POLICY, outputs, made)["policy"] / weight
    ours.backward()
    assert float(ours.detach()) == pytest.approx(float(theirs.detach()), abs=BOUND)
    for found, wanted in zip((p.grad for p in model.parameters()), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=BOUND)
    sums = grpo.metrics(Role.POLICY, outputs, made)
    told = grpo.summary(
        {name.rpartition("/")[0]: float(value.detach()) / int(weight) for name, value in sums.items()}
    )
    seen = {name: values[0] for name, values in trainer._metrics["train"].items()}
    same = {"entropy": "entropy"}
    if options["loss_type"] == "cispo":
        same["clip_high"] = "cispo_clip_ratio"
    elif options.get("importance_sampling_level") != "sequence":  # there TRL counts answers, not tokens
        same |= {"clip_low": "clip_ratio/low_mean", "clip_high": "clip_ratio/high_mean"}
    if options["beta"] and not options["use_bias_correction_kl"]:  # else TRL shows the weighted KL
        same["kl"] = "kl"
    for mine, name in same.items():
        assert told[mine] == pytest.approx(float(seen[name]), abs=BOUND), mine
