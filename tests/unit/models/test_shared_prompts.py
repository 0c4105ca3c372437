"""What documents begin with in common is computed once, and nothing else changes: numbers, gradients,
recomputation.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from paceline.config.sections.model import ModelSection
from paceline.models.factory import HFModelFactory
from paceline.models.role_module import RoleModule
from paceline.models.shared_prefix import SharedPrompts
from paceline.protocols.batch import IGNORE_INDEX, MIN_SHARED_TOKENS, Batch, with_prefixes
from paceline.protocols.roles import Output, Role

VOCAB = 61
PLAIN = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": VOCAB,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "pad_token_id": 0,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **PLAIN},
    "mistral": {"model_type": "mistral", **PLAIN, "sliding_window": 5},
    "gemma2": {"model_type": "gemma2", **PLAIN, "head_dim": 8, "sliding_window": 4},
    "gpt2": {
        "model_type": "gpt2",
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 64,
        "vocab_size": VOCAB,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "initializer_range": 0.3,
    },
}
ASK = frozenset({Output.LOGPROBS, Output.ENTROPY})


def build(family: str = "llama", role: Role = Role.POLICY, **options: Any) -> RoleModule:
    changed = options.pop("changed", {})
    model = ModelSection.model_validate({"config": {**FAMILIES[family], **changed}})
    return HFModelFactory(
        model, role=role, **{"master_dtype": torch.float64, "compute_dtype": torch.float64, **options}
    )()


def flat(documents: list[list[int]], learnt_from: list[int]) -> Batch:
    ids = [t for d in documents for t in d]
    labels = [
        IGNORE_INDEX if i + 1 < first or i + 1 == len(d) else d[i + 1]
        for d, first in zip(documents, learnt_from, strict=True)
        for i in range(len(d))
    ]
    ends = torch.tensor([0, *(len(d) for d in documents)]).cumsum(0)
    return Batch(
        torch.tensor([ids]),
        torch.tensor([labels]),
        torch.tensor([[i for d in documents for i in range(len(d))]]),
        ends.to(torch.int32),
        max(map(len, documents)),
        torch.arange(len(documents)),
        len(documents),
    )


def alike(seed: int = 0) -> Batch:
    """Two prompts: three answers to the first (one twice over), two to the second, and a document of its
    own.
    """
    g = torch.Generator().manual_seed(seed)

    def some(n: int) -> list[int]:
        return torch.randint(3, VOCAB, (n,), generator=g).tolist()

    one, two, answer = some(11), some(9), some(6)
    documents = [one + some(4), one + answer, one + answer, two + some(3), two + some(7), some(10)]
    return flat(documents, [len(one)] * 3 + [len(two)] * 2 + [1])


def gradients(
    root: RoleModule, batch: Batch, ask: frozenset[Output] = ASK
) -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
    root.zero_grad()
    out = root(batch, ask)
    weights = torch.Generator().manual_seed(5)
    loss = sum(
        (value * torch.randn(value.shape, generator=weights, dtype=value.dtype)).sum()
        for _, value in sorted(out.items())
    )
    loss.backward()
    return {k: v.detach() for k, v in out.items()}, [
        p.grad.clone() for p in root.parameters() if p.grad is not None
    ]


def seen_tokens(root: RoleModule, batch: Batch) -> int:
    seen: list[int] = []
    hook = root.hf.base_model.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    root(batch, ASK)
    hook.remove()
    return seen[0]


def test_what_is_shared() -> None:
    batch = with_prefixes(alike())
    assert batch.shared == (0, 11, 11, 0, 9, 0)
    same = [5] * (MIN_SHARED_TOKENS + 2)
    assert with_prefixes(
        flat([same, same, same[:MIN_SHARED_TOKENS], same[: MIN_SHARED_TOKENS - 1]], [1] * 4)
    ).shared == (0, MIN_SHARED_TOKENS + 2, MIN_SHARED_TOKENS, 0)
    assert with_prefixes(flat([[1, 2, 3], [1, 2, 4]], [1, 1])).shared == ()


@pytest.mark.parametrize("family", FAMILIES)
def test_numbers_and_gradients_are_those_of_whole_documents(family: str) -> None:
    root, batch = build(family), alike()
    whole, expected = gradients(root, batch)
    shared = with_prefixes(batch)
    assert seen_tokens(root, shared) == batch.input_ids.shape[1] - 11 - 11 - 9
    found, grads = gradients(root, shared)
    for name, value in whole.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-12)
    assert len(grads) == len(expected) and max(float(g.abs().max()) for g in grads) > 1e-3
    for one, other in zip(grads, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


def test_scores_recomputation_and_equal_documents() -> None:
    reward, batch = build(role=Role.REWARD), alike(3)
    ask = frozenset({Output.SCORES})
    whole, expected = gradients(reward, batch, ask)
    found, grads = gradients(reward, with_prefixes(batch), ask)
    torch.testing.assert_close(found["scores"], whole["scores"], rtol=0, atol=1e-12)
    for one, other in zip(grads, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)
    twice = with_prefixes(flat([[7] * 12, [7] * 12], [1, 1]))
    assert twice.shared == (0, 12)
    scores = reward(twice, ask)["scores"]
    assert torch.equal(scores[0], scores[1])
    again = build(recompute=True)
    _, plain = gradients(build(), with_prefixes(batch))
    _, repeated = gradients(again, with_prefixes(batch))
    assert all(torch.equal(one, other) for one, other in zip(plain, repeated, strict=True))


def test_copies_get_their_gradients_in_a_fixed_order() -> None:
    shared = SharedPrompts.of(with_prefixes(alike()))
    assert shared is not None and SharedPrompts.of(alike()) is None
    x = torch.randn(1, 2, len(shared.keep), 3, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(1, 2, len(shared.expand), 3, dtype=torch.float64)
    full = shared.full(x, 2)
    assert torch.equal(full, x.index_select(2, shared.expand)) and torch.equal(shared.kept(full, 2), x)
    (full * weights).sum().backward()
    expected = torch.zeros_like(x).index_add(2, shared.expand, weights)
    torch.testing.assert_close(x.grad, expected, rtol=0, atol=1e-14)


def test_where_something_is_dropped_at_random_nothing_is_shared() -> None:
    batch = with_prefixes(alike())
    assert seen_tokens(build("gpt2", changed={"resid_pdrop": 0.1}), batch) == batch.input_ids.shape[1]
    assert seen_tokens(build(changed={"attention_dropout": 0.1}), batch) == batch.input_ids.shape[1]
    assert seen_tokens(build(), replace(batch, shared=())) == batch.input_ids.shape[1]
