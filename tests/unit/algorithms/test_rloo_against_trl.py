"""RLOO's advantages, loss, gradient and statistics beside those of TRL's RLOOTrainer (1.16), which scores and
trains on the same answers.

TRL is no dependency: ``pip install trl==1.16.0`` beside Paceline, then
``pytest tests/unit/algorithms/test_rloo_against_trl.py``; skipped without.
"""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from rollout_batches import alone
from torch import Tensor

from paceline.algorithms.on_policy.base import with_tokens
from paceline.algorithms.on_policy.rloo import RLOO
from paceline.protocols.roles import Output, Role
from paceline.training.rollout.answer_batches import Answer, answer_batch

pytest.importorskip("trl", reason="needs trl 1.16, which is no dependency")
pytestmark = pytest.mark.filterwarnings("ignore")
BOUND = 1e-5
LENGTHS, END = [3, 6, 1, 4, 6, 2, 5, 6], 2
SCORES = [1.0, 0.0, 0.5, 2.0, 0.3, math.nan, 1.0, -3.0]
# what both are given: the keys are TRL's
CASES: list[dict[str, Any]] = [
    {},
    {"beta": 0.0, "normalize_advantages": True},
    {"beta": 0.2, "epsilon": 0.05, "epsilon_high": 0.1},
    {"beta": 0.1, "reward_clip_range": [-1.0, 1.5], "normalize_advantages": True, "epsilon_high": 0.28},
    {"beta": 0.1, "mask_truncated_completions": True},
]


def moved(model: Any, seed: int, scale: float) -> Any:
    """A copy with noise on its weights."""
    found, draw = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in found.parameters():
            p += torch.randn(p.shape, generator=draw) * scale
    return found


def tokens() -> list[list[int]]:
    """Answers of two prompts; the ones of six tokens were cut off."""
    draw = torch.Generator().manual_seed(1)
    drawn = [torch.randint(5, 320, (n,), generator=draw).tolist() for n in LENGTHS]
    return [ids if len(ids) == 6 else [*ids[:-1], END] for ids in drawn]


def logprobs(model: Any, prompts: list[list[int]], answers: list[list[int]]) -> list[tuple[Tensor, Tensor]]:
    """(of each answer's tokens, entropy there)."""
    found = []
    for prompt, answer in zip(prompts, answers, strict=True):
        whole = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        found.append(
            (whole.gather(1, torch.tensor(answer)[:, None]).squeeze(1), -(whole.exp() * whole).sum(-1))
        )
    return found


def test_advantages_loss_gradient_and_statistics(tmp_path: Path, tokenizer_dir: Path) -> None:
    from datasets import Dataset
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM
    from trl import RLOOConfig, RLOOTrainer

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
        LlamaConfig(
            **shape, max_position_embeddings=64, initializer_range=0.2, pad_token_id=0, eos_token_id=END
        )
    ).save_pretrained(tmp_path)
    prompts, answers = [[5, 6]] * 4 + [[7, 8, 9, 10, 11]] * 4, tokens()
    rows = Dataset.from_list([{"prompt": "a"}] * 8)
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_dir)
    for options in CASES:
        model: Any = LlamaForCausalLM.from_pretrained(tmp_path)
        reference, later = moved(model, 2, 0.02), moved(model, 3, 0.01)
        config = RLOOConfig(
            output_dir=str(tmp_path / "trl"),
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=6,
            use_cpu=True,
            report_to=[],
            bf16=False,
            num_iterations=2,
            gradient_checkpointing=False,
            **{k: tuple(v) if isinstance(v, list) else v for k, v in options.items()},
        )
        trainer: Any = RLOOTrainer(
            model=model,
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            processing_class=tokenizer,
            train_dataset=rows,
            args=config,
        )
        trainer.eos_token_ids = [END]
        if trainer.ref_model is not None:
            trainer.ref_model.load_state_dict(reference.state_dict())
        trainer._generate = lambda _: (prompts, answers, [""] * 8)
        trainer._calculate_rewards = lambda *_: torch.tensor(SCORES)[:, None]
        trainer.model.train()
        theirs = trainer._generate_and_score_completions([{"prompt": "a"}] * 8)
        trainer.model.load_state_dict(later.state_dict())  # an update lies between answers and step
        loss = trainer._compute_loss(trainer.model, theirs)
        loss.backward()
        expected = {name: p.grad.clone() for name, p in trainer.model.named_parameters()}
        statistics = {name: values[0] for name, values in trainer._metrics["train"].items()}
        trainer.model.zero_grad()

        given = options | {"reward_clip_range": options.get("reward_clip_range")}
        rloo = RLOO(**given, num_iterations=2)
        with torch.no_grad():
            before = LlamaForCausalLM.from_pretrained(tmp_path)
            old, ref = (logprobs(m, prompts, answers) for m in (before, reference))
        now = logprobs(trainer.model, prompts, answers)
        learnt = [not (options.get("mask_truncated_completions") and ids[-1] != END) for ids in answers]
        judged = [not math.isnan(score) for score in SCORES]
        groups = torch.arange(8) // 4
        advantages, _ = rloo.compute_advantages(
            torch.tensor(SCORES, dtype=torch.float64),
            groups,
            torch.tensor([ids[-1] == END for ids in answers]),
        )
        made = [
            Answer(
                i,
                tuple(prompts[i]),
                tuple(answers[i]),
                torch.zeros(LENGTHS[i]),
                float(advantages[i]),
                judged[i],
                judged[i] and learnt[i],
            )
            for i in range(8)
        ]
        with_loss = [i for i in range(8) if made[i].has_loss]
        batch = answer_batch(made, 0, torch.float32)
        for name, values in (("old", old), ("reference", ref)):
            batch = with_tokens(batch, name, torch.cat([values[i][0] for i in with_loss]))
        known = {"advantages": advantages, "groups": groups, "is_scored": torch.tensor(judged)}
        ((batch,),), told = rloo.finalize_rollout([[batch]], alone(places=[torch.arange(8)], **known))
        mine = {
            i: float(a) for i, a in zip(with_loss, _each(batch, [LENGTHS[i] for i in with_loss]), strict=True)
        }
        for i, advantage in mine.items():
            assert advantage == pytest.approx(float(theirs["advantages"][i]), abs=BOUND), (options, i)
        outputs = {
            Output.LOGPROBS.value: torch.cat([now[i][0] for i in with_loss]),
            Output.ENTROPY.value: torch.cat([now[i][1] for i in with_loss]).detach(),
        }
        ours = rloo.losses(Role.POLICY, outputs, batch)["policy"]
        # TRL divides by all answers, those without a score and those that were masked too (a constant to
        # them: ratio 1)
        masked = sum(float(theirs["advantages"][i]) for i in range(8) if not learnt[i])
        assert float(ours.detach()) / 8 == pytest.approx(float(loss.detach()) + masked / 8, abs=BOUND)
        (ours / 8).backward()
        assert int(rloo.weights(batch)["policy"]) == 7
        for name, p in trainer.model.named_parameters():
            torch.testing.assert_close(p.grad, expected[name], rtol=0, atol=BOUND)
        sums = rloo.metrics(Role.POLICY, outputs, batch)
        seen = rloo.summary({name.rpartition("/")[0]: float(value) for name, value in sums.items()})
        if all(learnt):  # else TRL counts answers that are masked
            for name, key in {"clip_low": "clip_ratio/low_mean", "clip_high": "clip_ratio/high_mean"}.items():
                assert seen[name] * 7 == pytest.approx(statistics[key] * 8, abs=BOUND), name
        if options.get("beta", 0.05):
            unjudged = float((old[5][0] - ref[5][0]).sum())  # TRL's mean counts the answer without a score
            length = sum(n for n, own in zip(LENGTHS, learnt, strict=True) if own)
            assert told["kl"] * (length - 2) + unjudged == pytest.approx(
                statistics["kl"] * length, abs=BOUND * length
            )


def _each(batch: Any, lengths: list[int]) -> list[Tensor]:
    """The advantage of each answer, the same at all of its tokens."""
    found = batch.at_labels("advantage").split(lengths)
    assert all(bool((each == each[0]).all()) for each in found)
    return [each[0] for each in found]
