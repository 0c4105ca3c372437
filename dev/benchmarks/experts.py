"""A mixture of experts packed, as Paceline trains it, and with rows padded to the longest document, as
Transformers' collator makes them: real tokens a second of CPU time, paired in one process.

    OMP_NUM_THREADS=1 python dev/benchmarks/experts.py [--rounds 5]

The model is a Qwen3-MoE (hidden 256, 4 layers, 16 experts of 256, 2 a token, vocab 4,096), fp32, forward and
backward with the balance loss; 16 documents of 24 to 384 tokens, whose mean is 0.3 of the longest. The padded
side is Transformers' own class with its attention mask; all times are CPU time of this one-thread process, so
that they hold on a shared machine. Sides alternate; the ratio is that of medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from paceline.algorithms.algorithm import WithBalanceLoss
from paceline.algorithms.supervised.sft import SFT
from paceline.models.factory import HFModelFactory
from paceline.models.loading.list_parameters import ClassRequest
from paceline.plan.features.experts import RouterLoss
from paceline.protocols.batch import IGNORE_INDEX, Batch
from paceline.protocols.roles import Role

LENGTHS = (384, 384, 24, 40, 56, 64, 72, 80, 88, 96, 96, 104, 104, 112, 64, 75)  # mean 115.2 = 0.3 · 384
COEFFICIENT = 0.001
MODEL = {
    "model_type": "qwen3_moe",
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "moe_intermediate_size": 256,
    "intermediate_size": 256,
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "vocab_size": 4096,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "router_aux_loss_coef": COEFFICIENT,
}


def make_batch() -> Batch:
    """The documents end to end, every token labelled but the first of each."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, MODEL["vocab_size"], (1, sum(LENGTHS)), generator=generator)
    ends = torch.tensor(LENGTHS).cumsum(0)
    labels = torch.cat([ids[:, 1:], ids.new_full((1, 1), IGNORE_INDEX)], dim=1)
    labels[0, ends - 1] = IGNORE_INDEX
    positions = torch.cat([torch.arange(n) for n in LENGTHS])[None]
    bounds = torch.cat([torch.zeros(1, dtype=torch.long), ends]).int()
    documents = torch.arange(len(LENGTHS))
    return Batch(ids, labels, positions, bounds, max(LENGTHS), documents, len(LENGTHS))


def padded(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """(ids, attention mask, labels), a row a document."""
    shape = len(LENGTHS), max(LENGTHS)
    ids, mask = (torch.zeros(shape, dtype=torch.long) for _ in range(2))
    for row, (start, length) in enumerate(zip(batch.cu_seqlens.tolist(), LENGTHS, strict=False)):
        ids[row, :length] = batch.input_ids[0, start : start + length]
        mask[row, :length] = 1
    return ids, mask, ids.masked_fill(mask == 0, IGNORE_INDEX)


def seconds(step: Callable[[], Tensor], model: torch.nn.Module) -> tuple[float, float]:
    """(CPU seconds of forward and backward, the loss)."""
    model.zero_grad()
    start = time.process_time()
    loss = step()
    loss.backward()
    return time.process_time() - start, float(loss.detach())


def measured(rounds: int) -> tuple[float, float, float, float]:
    """Median CPU seconds of a step, ours and padded, and the losses of both."""
    module = HFModelFactory(ClassRequest(config=MODEL))().train()
    plain = type(module.hf)._from_config(type(module.hf.config).from_dict(module.hf.config.to_dict())).train()
    plain.load_state_dict(module.hf.state_dict())
    batch = make_batch()
    ids, mask, labels = padded(batch)
    algorithm = WithBalanceLoss(SFT(), RouterLoss(COEFFICIENT, "micro_batch"))

    def ours() -> Tensor:
        outputs = module(batch, algorithm.required_outputs(Role.POLICY, training=True))
        weights = algorithm.weights(batch)
        terms = algorithm.losses(Role.POLICY, outputs, batch)
        return torch.stack([terms[name] / weights[name] for name in terms]).sum()

    def theirs() -> Tensor:
        loss: Tensor = plain(
            input_ids=ids, attention_mask=mask, labels=labels, use_cache=False, output_router_logits=True
        ).loss
        return loss

    found: list[tuple[tuple[float, float], tuple[float, float]]] = []
    for _ in range(rounds + 1):
        found.append((seconds(ours, module), seconds(theirs, plain)))
    times = [statistics.median(pair[side][0] for pair in found[1:]) for side in (0, 1)]
    return times[0], times[1], found[0][0][1], found[0][1][1]


def main() -> None:
    """Print both rates and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    torch.set_num_threads(1)
    own, other, loss, expected = measured(parser.parse_args().rounds)
    tokens = sum(LENGTHS)
    share = tokens / len(LENGTHS) / max(LENGTHS)
    print(f"mean length {share:.2f} of the longest; loss {loss:.5f}, Transformers' {expected:.5f}")
    print(f"packed {tokens / own:,.0f} tokens/s, padded {tokens / other:,.0f}: {other / own:.2f} x")


if __name__ == "__main__":
    main()
