"""Rollouts: greedy as Transformers', sampled alike in any company, log-probabilities as in training, ranks
that end together.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from paceline.config.sections.model import ModelSection
from paceline.generation.engine import Completion, Request, RolloutSampling
from paceline.generation.local import LocalEngine, score_texts
from paceline.generation.sampling.noise import gumbel, mixed, stream_of, top_bits
from paceline.generation.sampling.sample import choose, keep_likeliest, largest
from paceline.models.factory import HFModelFactory
from paceline.models.role_module import RoleModule
from paceline.protocols.batch import IGNORE_INDEX, Batch
from paceline.protocols.roles import Output

VOCAB, PAD, STOP = 61, 0, 2
PLAIN = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": VOCAB,
    "max_position_embeddings": 64,
    "initializer_range": 0.4,
    "pad_token_id": PAD,
    "bos_token_id": 1,
    "eos_token_id": STOP,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **PLAIN},
    "qwen3": {"model_type": "qwen3", **PLAIN, "head_dim": 16},
    "mistral": {"model_type": "mistral", **PLAIN, "sliding_window": 4},
    "gemma3": {"model_type": "gemma3_text", **PLAIN, "head_dim": 8, "sliding_window": 4},
    "gpt2": {
        "model_type": "gpt2",
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 64,
        "vocab_size": VOCAB,
        "initializer_range": 0.4,
        "pad_token_id": PAD,
        "bos_token_id": 1,
        "eos_token_id": STOP,
    },
}
GREEDY = RolloutSampling(temperature=0.0)


def build(
    family: str = "llama", dtype: torch.dtype = torch.float32, temperature: float = 1.0, **changed: Any
) -> RoleModule:
    model = ModelSection.model_validate({"config": {**FAMILIES[family], **changed}})
    return HFModelFactory(model, master_dtype=dtype, compute_dtype=dtype, temperature=temperature)().eval()


def prompts(count: int, seed: int = 0) -> list[tuple[int, ...]]:
    g = torch.Generator().manual_seed(seed)
    return [
        tuple(torch.randint(3, VOCAB, (int(torch.randint(1, 9, (1,), generator=g)),), generator=g).tolist())
        for _ in range(count)
    ]


def wanted(count: int, samples: int = 1, max_tokens: int = 12) -> list[Request]:
    return [
        Request(p, stream_of(7, i, k), max_tokens)
        for i, p in enumerate(prompts(count))
        for k in range(samples)
    ]


def engine(root: RoleModule, **options: Any) -> LocalEngine:
    return LocalEngine(root.hf, **{"pad_id": PAD, "stop_ids": (STOP,), "rows": 64, **options})


def same(one: list[Completion], other: list[Completion]) -> None:
    assert [c.tokens for c in one] == [c.tokens for c in other]
    assert [c.ended for c in one] == [c.ended for c in other]
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(
            a.logprobs, b.logprobs, rtol=0, atol=1e-10 if a.logprobs.dtype == torch.float64 else 1e-5
        )


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_is_what_transformers_generates(family: str) -> None:
    root = build(family)
    found = engine(root, rows=5).generate(wanted(9), GREEDY)
    for prompt, completion in zip(prompts(9), found, strict=True):
        ids = torch.tensor([prompt])
        made = root.hf.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=12,
            do_sample=False,
            use_cache=True,
            pad_token_id=PAD,
            eos_token_id=STOP,
        )
        assert list(completion.tokens) == made[0, len(prompt) :].tolist()
        assert completion.ended == (completion.tokens[-1] == STOP)
    assert (
        len({c.tokens for c in found}) > 3
        and any(c.ended for c in found) != all(c.ended for c in found)
        or family != "llama"
    )


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2"])
def test_an_answer_does_not_depend_on_its_company(family: str) -> None:
    root, sampling = build(family, torch.float64), RolloutSampling(0.9, 0.95, 40)
    requests = wanted(6, samples=3)
    together = engine(root).generate(requests, sampling)
    same(together, engine(root, rows=1).generate(requests, sampling))
    same(together[::-1], engine(root, rows=4).generate(requests[::-1], sampling))
    same(together[5:9], engine(root).generate(requests[5:9], sampling))
    assert len({c.tokens for c in together[:3]}) == 3  # samples of one prompt differ
    shorter = engine(root).generate([Request(r.prompt, r.stream, 4) for r in requests], sampling)
    assert [c.tokens for c in shorter] == [c.tokens[:4] for c in together]


def trained_logprobs(
    root: RoleModule, requests: list[Request], found: list[Completion], ask: Output
) -> list[torch.Tensor]:
    """What the root module says in training of the sampled tokens, all answers in one flat batch."""
    rows = [(r.prompt + c.tokens, len(r.prompt)) for r, c in zip(requests, found, strict=True)]
    ids, labels, positions, ends = [], [], [], [0]
    for tokens, start in rows:
        ids += tokens
        labels += [
            tokens[i + 1] if start <= i + 1 < len(tokens) else IGNORE_INDEX for i in range(len(tokens))
        ]
        positions += range(len(tokens))
        ends.append(ends[-1] + len(tokens))
    batch = Batch(
        torch.tensor([ids]),
        torch.tensor([labels]),
        torch.tensor([positions]),
        torch.tensor(ends, dtype=torch.int32),
        max(len(t) for t, _ in rows),
        torch.arange(len(rows)),
        len(rows),
    )
    with torch.no_grad():
        out = root(batch, frozenset({ask}))[ask.value]
    return list(out.split([len(c.tokens) for c in found]))


@pytest.mark.parametrize("temperature", [0.0, 1.0, 0.7])
@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
def test_logprobs_at_sampling_are_those_of_training(family: str, temperature: float) -> None:
    root = build(family, temperature=temperature or 1.0, initializer_range=0.2)
    requests = wanted(7, samples=2)
    found = engine(root, rows=6).generate(
        requests, RolloutSampling(temperature, top_k=9 if temperature == 0.7 else 0)
    )
    for sampled, trained in zip(found, trained_logprobs(root, requests, found, Output.LOGPROBS), strict=True):
        torch.testing.assert_close(sampled.logprobs, trained, rtol=0, atol=1e-5)


def test_edges() -> None:
    root = build()
    run = engine(root)
    assert run.generate([], GREEDY) == []
    none = run.generate([Request((5, 6), 1, 0)], GREEDY)[0]
    assert none.tokens == () and none.logprobs.shape == (0,) and not none.ended
    mixed = run.generate([Request((5, 6), 1, 0), Request((5, 6), 1, 1), Request((7,), 1, 3)], GREEDY)
    assert [len(c.tokens) for c in mixed][:2] == [0, 1] and len(mixed[2].tokens) <= 3
    # a tokenizer without an end: the length ends it
    endless = engine(root, stop_ids=()).generate(wanted(6), GREEDY)
    assert all(len(c.tokens) == 12 and not c.ended for c in endless)
    long = Request(tuple(range(3, 3 + 56)), 1, 8)  # up to the model's last position
    assert len(run.generate([long], GREEDY)[0].tokens) <= 8


def test_ranks_end_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every forward is a collective, ranks with less to do, or nothing, make as many forwards as the
    busiest.
    """
    root = build()
    work = [wanted(6, 3), wanted(1, max_tokens=3), []]
    alone = [engine(root, rows=4).generate(requests, GREEDY) for requests in work]
    counts: list[int] = []
    for requests in work:
        calls: list[int] = []
        monkeypatch.setattr(LocalEngine, "forward", counting(LocalEngine.forward, calls))
        engine(root, rows=4).generate(requests, GREEDY)
        monkeypatch.undo()
        counts.append(len(calls))
    assert counts[2] == 0 and counts[0] > counts[1] > 0
    left = [max(counts)]

    def agree(mine: bool) -> bool:
        left[0] -= 1
        return left[0] >= 0

    for requests, expected in zip(work, alone, strict=True):
        left[0], calls = max(counts), []
        monkeypatch.setattr(LocalEngine, "forward", counting(LocalEngine.forward, calls))
        same(engine(root, rows=4, agree=agree).generate(requests, GREEDY), expected)
        monkeypatch.undo()
        assert len(calls) == max(counts)


def counting(forward: Any, calls: list[int]) -> Any:
    def counted(self: Any, *args: Any) -> Any:
        calls.append(1)
        return forward(self, *args)

    return counted


def test_noise_is_gumbel_and_a_function_of_its_place_alone() -> None:
    streams = torch.tensor([stream_of(1, 2, i) for i in range(200)])
    places = torch.arange(200) % 7
    noise = gumbel(streams, places, 500)
    assert torch.equal(noise[17:18], gumbel(streams[17:18].clone(), places[17:18], 500))
    assert torch.equal(noise[:, :40], gumbel(streams, places, 40))
    assert float(noise.mean()) == pytest.approx(0.5772, abs=0.02) and float(noise.var()) == pytest.approx(
        1.6449, abs=0.04
    )
    assert abs(float(torch.corrcoef(noise[:2])[0, 1])) < 0.15
    near = gumbel(streams[:1] + torch.arange(2), places[:1], 4000)  # neighbouring keys
    assert abs(float(torch.corrcoef(near)[0, 1])) < 0.06
    assert not torch.equal(noise[0], gumbel(streams[:1], places[:1] + 1, 500)[0])
    assert stream_of(1, 23) != stream_of(12, 3)


def test_noise_on_a_cpu_has_the_bits_that_a_device_computes() -> None:
    streams = torch.tensor([stream_of(1, 2, i) for i in range(70)] + [0, -1, 2**63 - 1, -(2**63)])
    places, golden = torch.arange(74) % 5, -7046029254386353131
    keys = mixed(streams + (places + 1) * golden)
    for size in (1, 3, 1000):
        bits = top_bits(keys, torch.arange(1, size + 1) * golden)
        assert int(bits.min()) >= 0 and int(bits.max()) < 1 << 24
        uniform = ((bits.float() + 0.5) * 2.0**-24).clamp(max=1 - 2.0**-24)
        assert torch.equal(gumbel(streams, places, size), -torch.log(-torch.log(uniform)))


def test_noise_is_finite_where_the_hash_is_at_its_highest() -> None:
    """Stream 61 has all 24 bits set at word 34,349. Without a bound that word's noise was infinite, and it
    was drawn whatever its logit; one token in a hundred, of 152 k words, came so.
    """
    stream, place = torch.tensor([61]), torch.tensor([0])
    bits = top_bits(mixed(stream - 7046029254386353131), torch.arange(34349, 34352) * -7046029254386353131)
    assert int(bits.max()) == (1 << 24) - 1
    noise = gumbel(stream, place, 40000)
    assert int(noise.argmax()) == 34349 and float(noise.max()) == pytest.approx(16.6355, abs=1e-3)
    logits = torch.zeros(1, 40000)
    logits[0, 34349] = -30.0
    for top_k in (0, 5):
        tokens, logprobs = choose(logits, RolloutSampling(1.0, top_k=top_k), stream, place)
        assert int(tokens) != 34349 and float(logprobs) > -11


def test_the_first_of_the_largest_is_taken() -> None:
    scores = torch.tensor([[1.0, 3.0, 3.0], [-torch.inf, -torch.inf, -torch.inf], [0.0, torch.nan, 5.0]])
    for dtype in (torch.float32, torch.float64):
        assert largest(scores.to(dtype)).tolist() == scores.argmax(-1).tolist() == [1, 0, 1]


def test_draws_follow_the_distribution() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0, -torch.inf]]).expand(20000, 5)
    streams = torch.tensor([stream_of(3, i) for i in range(20000)])
    tokens, logprobs = choose(logits, RolloutSampling(2.0), streams, torch.zeros_like(streams))
    expected = torch.softmax(logits[0] / 2.0, 0)
    found = Counter(tokens.tolist())
    assert [found[i] / 20000 for i in range(5)] == pytest.approx(expected.tolist(), abs=0.012)
    torch.testing.assert_close(logprobs, expected.log()[tokens], rtol=0, atol=1e-6)


@pytest.mark.parametrize(("top_k", "top_p"), [(3, 1.0), (0, 0.6), (4, 0.5), (99, 0.999), (1, 0.1)])
def test_filters_are_those_of_transformers(top_k: int, top_p: float) -> None:
    from transformers.generation.logits_process import TopKLogitsWarper, TopPLogitsWarper

    logits = torch.randn(50, 11, generator=torch.Generator().manual_seed(1)) * 2
    expected = TopKLogitsWarper(top_k)(None, logits) if top_k else logits
    expected = TopPLogitsWarper(top_p)(None, expected) if top_p < 1 else expected
    assert torch.equal(keep_likeliest(logits, RolloutSampling(1.0, top_p, top_k)), expected)


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
def test_given_tokens_have_the_log_probabilities_of_sampling(family: str) -> None:
    root = build(family)
    (request, *_) = wanted(3)
    (answer,) = engine(root).generate([request], GREEDY)
    text = (*request.prompt, *answer.tokens)
    found = score_texts(root.hf, [text, text], len(request.prompt), root.computing)
    torch.testing.assert_close(found, answer.logprobs.expand_as(found), rtol=0, atol=1e-4)
