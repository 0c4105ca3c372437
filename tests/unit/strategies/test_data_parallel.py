"""DataParallel: on one device it is ``single`` to the bit; on several the parts of a micro-batch add up to
the whole.
"""

from __future__ import annotations

import importlib
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_parts import MemoryReader, TinyObjective, TinyRoot, make_batch, plan, window
from torch import nn
from transformers import LlamaConfig, LlamaModel

from paceline.core.errors import ConfigError
from paceline.plan.plan import OptimizerSpec
from paceline.plan.strategy_options import ThreadOptions
from paceline.protocols.roles import Role
from paceline.runtime.process_group.world import World
from paceline.strategies.data_parallel import DataParallel, ParallelInference, scatter, side_by_side
from paceline.strategies.registry import make_strategy
from paceline.strategies.strategy import Single, Strategy
from paceline.strategies.window.runner import make_runner

EXAMPLES = Path(__file__).parents[3] / "examples"
SPEC = OptimizerSpec(learning_rate=1e-2, weight_decay=0.1)


class OnTwo(DataParallel):
    """Two devices that are both the CPU: the arithmetic of two without needing them."""

    def devices_of(self, count: int) -> list[torch.device]:
        return [torch.device("cpu")] * 2


def plan_of(**training: Any) -> Any:
    made = plan(**training)
    made.engine = ThreadOptions(1)
    return made


def ten_steps(strategy: Strategy, dtype: torch.dtype = torch.float64) -> dict[str, Any]:
    device = strategy.world.device
    handle = strategy.prepare(Role.POLICY, lambda options=None: TinyRoot(dtype).to(device), SPEC)
    steps = [
        make_runner(strategy).train_window(
            {Role.POLICY: handle}, window(step, 0, 1), TinyObjective(), lr=1e-2, max_grad_norm=0.5
        )
        for step in range(10)
    ]
    evaluated = make_runner(strategy).eval_window(
        {Role.POLICY: handle}, [make_batch([1, 2, 3]), make_batch([-1])], TinyObjective()
    )
    assert handle.optimizer is not None
    return {
        "losses": [s.losses["nll"] for s in steps],
        "norms": [s.grad_norm for s in steps],
        "eval": (dict(evaluated.sums), dict(evaluated.weights), evaluated.rows),
        "parameters": {n: p.detach().cpu() for n, p in handle.root.named_parameters()},
        "moments": [v["exp_avg_sq"].cpu() for v in handle.optimizer.state.values()],
        "handle": handle,
    }


def test_on_one_device_it_is_single_bit_for_bit() -> None:
    alone = ten_steps(Single(World.single(), plan_of()), torch.float32)
    found = ten_steps(make_strategy("data_parallel", World.single(), plan_of()), torch.float32)
    assert found["losses"] == alone["losses"] and found["losses"][-1] < 0.9 * found["losses"][0]
    assert found["norms"] == alone["norms"] and found["eval"] == alone["eval"]
    assert all(torch.equal(found["parameters"][n], p) for n, p in alone["parameters"].items())
    assert all(map(torch.equal, found["moments"], alone["moments"]))


def assert_equal_to_single(found: dict[str, Any], bound: float) -> None:
    alone = ten_steps(Single(World.single(), plan_of()))
    assert max(abs(a - b) for a, b in zip(alone["losses"], found["losses"], strict=True)) < bound
    assert max(abs(a - b) for a, b in zip(alone["norms"], found["norms"], strict=True)) < bound
    assert (
        max(float((found["parameters"][n] - p).abs().max()) for n, p in alone["parameters"].items()) < bound
    )
    assert found["eval"][1:] == alone["eval"][1:]
    assert found["eval"][0]["nll"] == pytest.approx(alone["eval"][0]["nll"], abs=bound)
    assert found["eval"][0]["correct/nll"] == alone["eval"][0]["correct/nll"]
    handle = found["handle"]
    for replica in handle.replicas:
        for own, its in zip(handle.root.parameters(), replica.parameters(), strict=True):
            assert torch.equal(own.cpu(), its.cpu()) and its.grad is None


def test_on_two_devices_the_parts_add_up() -> None:
    assert_equal_to_single(ten_steps(OnTwo(World.single(), plan_of())), 1e-12)


def test_an_import_reaches_the_copies() -> None:
    strategy = OnTwo(World.single(), plan_of())
    trained = ten_steps(strategy)["handle"]
    reader = MemoryReader(list(strategy.export_state(trained)))
    fresh = strategy.prepare(Role.POLICY, lambda options=None: TinyRoot(), SPEC)
    strategy.import_state(fresh, reader)
    for own, its in zip(trained.root.parameters(), fresh.replicas[0].parameters(), strict=True):
        assert torch.equal(own, its)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_on_two_gpus_the_parts_add_up() -> None:
    made = plan_of()
    made.engine = ThreadOptions(2)
    strategy = DataParallel(World.single("cuda"), made)
    assert len(strategy.devices) == 2
    assert_equal_to_single(ten_steps(strategy), 1e-9)


def test_more_processes_are_refused() -> None:
    world = World.single()
    world.world_size = 2
    with pytest.raises(ConfigError, match="one process"):
        DataParallel(world, plan_of())


@pytest.mark.parametrize(
    ("rows", "count"), [([1, 2, 3, 4, 5], 2), ([1, 2, 3, 4, 5], 3), ([4], 2), ([-1], 2), ([1, 2], 8)]
)
def test_scattering_keeps_documents_whole_and_loses_nothing(rows: list[int], count: int) -> None:
    batch = make_batch(rows)
    batch = replace(batch, tokens={"place": torch.arange(batch.input_ids.shape[1])[None]})
    parts = scatter(batch, count)
    assert 1 <= len(parts) <= min(count, len(rows))
    for name in ("input_ids", "labels", "position_ids"):
        assert torch.equal(torch.cat([getattr(p, name) for p in parts], dim=1), getattr(batch, name))
    assert torch.equal(torch.cat([p.tokens["place"] for p in parts], dim=1), batch.tokens["place"])
    assert torch.equal(torch.cat([p.document_ids for p in parts]), batch.document_ids)
    assert sum(p.num_rows for p in parts) == batch.num_rows
    assert sum(p.num_tokens for p in parts) == batch.num_tokens
    for part in parts:
        lengths = part.cu_seqlens[1:] - part.cu_seqlens[:-1]
        assert part.cu_seqlens[0] == 0 and part.cu_seqlens[-1] == part.input_ids.shape[1]
        assert int(lengths.max()) == part.max_seqlen and len(lengths) == len(part.document_ids)
        assert part.position_ids[0, 0] == 0
    if count == 2 and len(rows) > 2:  # nearly equal tokens
        assert abs(parts[0].input_ids.shape[1] - parts[1].input_ids.shape[1]) <= 9


def test_inference_copies_once_and_answers_in_order() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))
    inputs = [torch.randn(2, 4) for _ in range(5)]
    parallel = ParallelInference(model, ["cpu", "cpu"])
    with torch.no_grad():
        expected = [model(x) for x in inputs]
    for _ in range(2):
        found = parallel(inputs)
        assert all(map(torch.equal, found, expected)) and not any(f.requires_grad for f in found)
    with torch.no_grad():
        model[0].weight.add_(1.0)
    assert torch.equal(parallel(inputs[:1])[0], expected[0])  # a copy is a copy
    parallel.refresh()
    assert torch.equal(parallel(inputs[:1])[0], model(inputs[0]))


def test_a_corpus_is_embedded_in_order_whatever_the_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The example: texts of unequal length, more batches than devices, against one text by itself."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    example = importlib.import_module("embed_corpus")
    config = LlamaConfig(
        vocab_size=1024, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2
    )
    torch.manual_seed(0)
    LlamaModel(config).save_pretrained(tmp_path)
    for file in (EXAMPLES / "tokenizer").iterdir():
        shutil.copy(file, tmp_path)
    monkeypatch.setattr(example, "ROWS", 2)
    texts = [f"the number {'very ' * n}{n}" for n in range(7)]
    found = example.embed(str(tmp_path), texts, ["cpu", "cpu"])
    assert found.shape == (7, 16)
    for number, text in enumerate(texts):
        assert torch.allclose(found[number], example.embed(str(tmp_path), [text], ["cpu"])[0], atol=1e-6)
    assert not torch.allclose(found[0], found[6], atol=1e-2)


def test_an_error_in_a_thread_is_the_caller_s() -> None:
    def fails() -> int:
        raise ZeroDivisionError("in the second")

    with pytest.raises(ZeroDivisionError, match="in the second"):
        side_by_side([lambda: 1, fails], [torch.device("cpu")] * 2)
