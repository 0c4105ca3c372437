"""Decoding on an accelerator: the CPU's answers, a captured step, no wait of the host, few kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any
from unittest import mock

import pytest
import torch
from emulated_device import emulated
from emulated_machine import Machine

from paceline.config.sections.model import ModelSection
from paceline.generation.decoding.key_value_cache import StaticBuffers
from paceline.generation.decoding.request_batch import WrittenAnswers
from paceline.generation.decoding.static_decoding import LOOK, StaticPool
from paceline.generation.engine import Completion, Request, RolloutSampling
from paceline.generation.local import LocalEngine
from paceline.generation.sampling.kernels import why_no_kernels
from paceline.generation.sampling.noise import stream_of
from paceline.generation.sampling.sample import choose
from paceline.models.factory import HFModelFactory
from paceline.models.role_module import RoleModule

VOCAB, PAD, STOP = 61, 0, 2
STOPS = (STOP, 7, 11, 23, 40)
PLAIN: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": VOCAB,
    "max_position_embeddings": 96,
    "initializer_range": 0.4,
    "pad_token_id": PAD,
    "bos_token_id": 1,
    "eos_token_id": STOP,
}
UNTIED = {**PLAIN, "tie_word_embeddings": False}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", **PLAIN},
    "qwen3": {"model_type": "qwen3", **PLAIN, "head_dim": 16},
    "mistral": {"model_type": "mistral", **PLAIN, "sliding_window": 4},
    "gemma2": {"model_type": "gemma2", **UNTIED, "head_dim": 8, "sliding_window": 6},
    "gemma3": {"model_type": "gemma3_text", **UNTIED, "head_dim": 8, "sliding_window": 4},
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
SAMPLED = RolloutSampling(0.9, 0.95, 40)


def build(
    family: str, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32, **changed: Any
) -> RoleModule:
    model = ModelSection.model_validate({"config": {**FAMILIES[family], **changed}})
    return HFModelFactory(model, device=device, compute_dtype=dtype)().eval()


def asked(max_tokens: Sequence[int] = (3, 9, 6, 13)) -> list[Request]:
    """Two answers to each of four prompts of unequal length, of unequal room."""
    g = torch.Generator().manual_seed(1)
    made = []
    for i in range(4):
        length = int(torch.randint(1, 9, (1,), generator=g))
        prompt = tuple(torch.randint(3, VOCAB, (length,), generator=g).tolist())
        made += [Request(prompt, stream_of(5, i, k), max_tokens[(i + k) % len(max_tokens)]) for k in range(2)]
    return made


def decoded(
    root: RoleModule, requests: list[Request], sampling: RolloutSampling, **options: Any
) -> tuple[list[Completion], str | None]:
    options = {"pad_id": PAD, "stop_ids": STOPS, "rows": 5, "computing": root.computing, **options}
    account: list[str] = []
    made = LocalEngine(root.hf, note=account.append, **options).generate(requests, sampling)
    return made, account[-1] if account else None


@cache
def of_cpu(family: str, sampling: RolloutSampling) -> list[Completion]:
    return decoded(build(family), asked(), sampling)[0]


def same(here: list[Completion], there: list[Completion]) -> None:
    assert [c.tokens for c in here] == [c.tokens for c in there]
    assert [c.ended for c in here] == [c.ended for c in there]
    for a, b in zip(here, there, strict=True):
        torch.testing.assert_close(a.logprobs, b.logprobs, rtol=0, atol=2e-5)


@pytest.mark.parametrize(
    ("family", "sampling"),
    [
        ("llama", RolloutSampling(0.0)),
        *(
            pytest.param(name, SAMPLED, marks=() if name in ("llama", "gemma3") else pytest.mark.full)
            for name in FAMILIES
        ),
    ],
)
def test_a_captured_step_writes_the_cpus_answers(family: str, sampling: RolloutSampling) -> None:
    requests = asked()
    here = of_cpu(family, sampling)
    assert any(c.ended for c in here)
    with emulated() as machine:
        there, account = decoded(build(family, machine.device), requests, sampling)
    same(here, there)
    assert account is not None and account.startswith("captured in"), account


@pytest.mark.parametrize("kind", ["cuda", pytest.param("xpu", marks=pytest.mark.full)])
def test_a_step_that_is_not_captured_writes_them_too(kind: str) -> None:
    requests = asked()
    here = of_cpu("gemma3", SAMPLED)
    with emulated(kind=kind) as machine:
        root = build("gemma3", machine.device)
        why = "a reason" if kind == "cuda" else None
        there, account = decoded(root, requests, SAMPLED, no_graphs=why)
    same(here, there)
    expected = why or "torch has no graphs for xpu"
    assert account is not None and account.startswith(f"with fixed buffers, not captured: {expected}")


def counted(machine: Machine, tokens: int, **changed: Any) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """(operations that the host started, its waits, kernels in the last graph) for 64 answers in bf16."""
    graphs: list[Any] = []
    made = torch.cuda.CUDAGraph

    def graph() -> Any:
        graphs.append(made())
        return graphs[-1]

    root = build("llama", machine.device, torch.bfloat16, **changed)
    requests = [Request((4, 5 + i % 40), i, tokens) for i in range(64)]
    machine.forget()
    with mock.patch.object(torch.cuda, "CUDAGraph", graph):
        decoded(root, requests, RolloutSampling(1.0), rows=64, stop_ids=())
    return Counter(machine.kernels), Counter(machine.waits), graphs[-1].kernels


def test_the_host_starts_one_graph_a_token_and_waits_for_none() -> None:
    few, more = 2 * LOOK, 6 * LOOK
    with emulated() as machine:
        started, waits, _ = counted(machine, few)
        later, later_waits, _ = counted(machine, more)
    assert waits == later_waits  # those of a batch: prompts, a graph, the answers
    assert later - started == {"graph": more - few, "sum": 4, "_to_copy": 4}  # a look every LOOK tokens


#: kernels of a token for 64 answers as of November 2026: a smaller number is written here
A_LAYER, BESIDE = 25, 24
SAMPLING = 20  # with what is kept of a token; a nucleus is one kernel, a draw two


def test_a_token_runs_no_more_kernels_than_it_did() -> None:
    with emulated() as machine, mock.patch("paceline.runtime.device.device.triton_obstacle", lambda: ""):
        *_, two = counted(machine, 2 * LOOK, num_hidden_layers=2)
        *_, four = counted(machine, 2 * LOOK, num_hidden_layers=4)
    layer = (sum(four.values()) - sum(two.values())) / 2
    assert layer <= A_LAYER, four - two
    assert sum(two.values()) - 2 * layer <= BESIDE, two


@pytest.mark.parametrize("sampling", [RolloutSampling(0.0), RolloutSampling(1.0), SAMPLED], ids=str)
def test_sampling_64_rows_starts_few_kernels(sampling: RolloutSampling) -> None:
    rows = 64
    with emulated() as machine, mock.patch("paceline.runtime.device.device.triton_obstacle", lambda: ""):
        stops = torch.tensor(STOPS, device=machine.device)
        answers = WrittenAnswers(rows, 4, stops, torch.float32, machine.device)
        answers.begin([Request((4, 5), i, 4) for i in range(rows)], rows)
        logits = torch.zeros(rows, 3000, dtype=torch.bfloat16).to(machine.device)
        assert why_no_kernels(machine.device) is None
        machine.forget()
        answers.append(*choose(logits, sampling, answers.streams, answers.place.expand(rows), kernels=True))
        assert not machine.waits
        kernels = machine.kernels
    assert kernels["draw"] == 1 and kernels["nucleus"] == (sampling is SAMPLED)
    assert sum(kernels.values()) + kernels["draw"] <= SAMPLING, kernels


@pytest.mark.parametrize("sampling", [RolloutSampling(0.0), SAMPLED], ids=str)
def test_kernels_draw_the_cpus_answers(sampling: RolloutSampling) -> None:
    requests = asked()
    here = of_cpu("llama", sampling)
    with emulated() as machine, mock.patch("paceline.runtime.device.device.triton_obstacle", lambda: ""):
        there, account = decoded(build("llama", machine.device), requests, sampling)
    same(here, there)
    assert account is not None and "without kernels" not in account


def test_rows_leave_at_the_borders_of_buckets_alone() -> None:
    """Eight answers that end one by one: a graph for 8, 4, 2 and 1 rows, whatever ends when."""
    keys: list[tuple[int, int]] = []
    requests = [Request((4, 5 + i), i, n) for i, n in enumerate((3, 4, 6, 7, 9, 12, 15, 26))]
    here, _ = decoded(build("llama"), requests, SAMPLED, rows=8, stop_ids=())
    step = StaticPool.step

    def noted(pool: StaticPool, rows: int, needed: int, last: bool) -> None:
        keys.append((rows, pool.slots(needed)))
        step(pool, rows, needed, last)

    with emulated() as machine, mock.patch.object(StaticPool, "step", noted):
        there, account = decoded(build("llama", machine.device), requests, SAMPLED, rows=8, stop_ids=())
    same(here, there)
    assert list(dict.fromkeys(keys)) == [(8, 64), (4, 64), (2, 64), (1, 64)]
    assert account is not None and account.startswith("captured in 4 graphs")
    alive = [sum(r.max_tokens > place for r in requests) for place in range(1, len(keys) + 1)]
    late = [rows for (rows, _), count in zip(keys, alive, strict=True) if rows >= 2 * count and rows > 1]
    assert 0 < len(late) <= 3 * 2 * LOOK  # the host learns it up to two looks later


def test_a_forward_in_which_the_host_reads_is_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = asked()
    here = of_cpu("llama", SAMPLED)

    def reading(module: Any, inputs: Any) -> None:
        inputs[0].sum().item()

    with emulated() as machine:
        root = build("llama", machine.device)
        root.hf.model.layers[1].register_forward_pre_hook(reading)
        there, account = decoded(root, requests, SAMPLED)
    same(here, there)
    assert account is not None and "the host takes part in its forward (_local_scalar_dense)" in account


def test_a_capture_that_fails_leaves_the_answers_right() -> None:
    requests = asked()
    here = of_cpu("llama", SAMPLED)
    calls = [0]

    def sometimes(module: Any, inputs: Any) -> None:
        calls[0] += 1
        if torch.cuda.is_available() and machine.graph is not None:
            raise RuntimeError("operation not permitted\nmore")

    with emulated() as machine:
        root = build("llama", machine.device)
        root.hf.model.layers[1].register_forward_pre_hook(sometimes)
        there, account = decoded(root, requests, SAMPLED)
    same(here, there)
    assert calls[0] and account is not None
    assert account.startswith("with fixed buffers, not captured: its capture failed: operation not permitted")


def test_a_model_that_computes_something_else_with_fixed_buffers_keeps_a_growing_cache() -> None:
    requests = asked()
    here = of_cpu("llama", SAMPLED)
    with emulated() as machine, mock.patch.object(StaticBuffers, "show", lambda *_: None):
        there, account = decoded(build("llama", machine.device), requests, SAMPLED)
    same(here, there)
    assert account == "with a growing cache: its logits are others with them"


def test_where_every_forward_is_a_collective_the_host_reads_once_a_token() -> None:
    requests = asked((8,))
    here, _ = decoded(build("llama"), requests, SAMPLED, rows=64, stop_ids=())
    agree: Callable[[bool], bool] = lambda mine: mine  # noqa: E731
    with emulated() as machine:
        root = build("llama", machine.device)
        found = []
        for tokens in (8, 12):
            wanted = asked((tokens,))
            machine.forget()
            there, _ = decoded(root, wanted, SAMPLED, rows=64, stop_ids=(), agree=agree)
            found.append(sum(machine.waits.values()))
            if tokens == 8:
                same(here, there)
    assert found[1] - found[0] == 4, machine.waits


def test_keys_and_values_take_what_the_plan_counts() -> None:
    """Rows at full length, as ``plan.cost.peak`` has it, rounded up to 64 tokens."""
    rows, length = 16, 126
    config = {"max_position_embeddings": 512, "hidden_size": 256, "head_dim": 64}
    with emulated() as machine:
        root = build("llama", machine.device, torch.bfloat16, **config)
        requests = [Request((4,) * (length - 6) + (5 + i, 4), i, 4) for i in range(rows)]
        held = []
        advance = StaticPool.step

        def noted(pool: StaticPool, rows: int, needed: int, last: bool) -> None:
            held.append(machine.live)
            advance(pool, rows, needed, last)

        before = machine.live
        with mock.patch.object(StaticPool, "step", noted):
            decoded(root, requests, RolloutSampling(1.0), rows=rows, stop_ids=())
    planned = 2 * 2 * PLAIN["num_hidden_layers"] * PLAIN["num_key_value_heads"] * 64 * 128 * rows
    assert planned <= held[0] - before <= planned * 1.05
