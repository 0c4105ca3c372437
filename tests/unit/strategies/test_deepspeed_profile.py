"""The flops profile of DeepSpeed is that of the model: every product counted once, held against an
independent count; no latency since 1970.
"""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paceline.config.sections.model import ModelSection
from paceline.models.factory import HFModelFactory
from paceline.models.flops import attention_modules
from paceline.plan.model.read_config import shape_from_config
from paceline.protocols.batch import IGNORE_INDEX, Batch
from paceline.protocols.roles import Output, Role
from paceline.strategies.deepspeed.strategy import NOTES_BY_KEY, DeepSpeed, EngineHandle, profiled

COMMON = {"vocab_size": 50, "max_position_embeddings": 64}
LLAMA = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    **COMMON,
}
GPT2 = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 50, "n_positions": 64}
QWEN = {**LLAMA, "model_type": "qwen2", "tie_word_embeddings": True}
MOE = {
    **LLAMA,
    "model_type": "qwen3_moe",
    "head_dim": 8,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
LENGTHS = (7, 12, 5)


def batch() -> Batch:
    total = sum(LENGTHS)
    ids = torch.randint(0, 50, (1, total), generator=torch.Generator().manual_seed(1))
    labels = ids.roll(-1, 1)
    ends = torch.tensor([0, *LENGTHS]).cumsum(0)
    labels[0, ends[1:] - 1] = IGNORE_INDEX
    positions = torch.cat([torch.arange(n) for n in LENGTHS])[None]
    return Batch(ids, labels, positions, ends.to(torch.int32), max(LENGTHS), torch.arange(3), 3)


class Engine(torch.nn.Module):
    """DeepSpeed's engine as a module: it calls the root, and goes backward."""

    def __init__(self, root: torch.nn.Module) -> None:
        super().__init__()
        self.root = root

    def forward(self, *given: Any) -> Any:
        return self.root(*given)

    def backward(self, loss: torch.Tensor, scale_wrt_gas: bool) -> None:
        assert not scale_wrt_gas
        loss.backward()


def engine_of(root: Any, due: bool = True) -> Any:
    """What of DeepSpeed's engine takes part: its profiler, and the hooks of the root that start and stop
    it.
    """
    profiler = pytest.importorskip("deepspeed.profiling.flops_profiler.profiler").FlopsProfiler(root)
    engine = SimpleNamespace(
        flops_profiler=profiler,
        global_rank=0,
        global_steps=5 if due else 4,
        flops_profiler_enabled=lambda: True,
        flops_profiler_profile_step=lambda: 5,
    )
    if due:
        root.register_forward_pre_hook(lambda *_: profiler.start_profile(ignore_list=None))
        root.register_forward_hook(lambda *_: profiler.stop_profile())
    return engine


@pytest.mark.parametrize("config", [LLAMA, GPT2, QWEN, MOE], ids=lambda c: c["model_type"])
def test_the_count_is_two_per_weight_and_token_and_attention_s(
    config: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    root = HFModelFactory(ModelSection(config=config), seed=1)()
    given, matmul = batch(), torch.matmul
    engine = engine_of(root)
    ask = frozenset({Output.NLL})
    with profiled(engine, root, given):
        root(given, ask)[Output.NLL.value].backward()
    assert torch.matmul is matmul, "what the profiler wraps is put back"
    shape = shape_from_config(config)
    head = shape.vocab * shape.hidden_size
    labelled, tokens = int((given.labels != IGNORE_INDEX).sum()), sum(LENGTHS)
    attention = shape.layers * 2 * sum(n * n for n in LENGTHS) * shape.heads * shape.head_dim
    expected = (shape.matmul_parameters - head) * tokens + head * labelled + attention
    profiler = engine.flops_profiler
    assert (profiler.get_total_macs(), profiler.get_total_flops()) == (expected, 2 * expected)
    assert 0 < profiler.get_total_duration() < 60, "no time since 1970"
    assert len(attention_modules(root.hf)) == shape.layers
    assert NOTES_BY_KEY in capsys.readouterr().out
    with contextlib.redirect_stdout(None):
        profiler.print_model_profile(profile_step=5, detailed=False)
    profiler.end_profile()


def test_other_windows_are_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    root = HFModelFactory(ModelSection(config=LLAMA), seed=1)()
    engine = engine_of(root, due=False)
    with profiled(engine, root, batch()):
        root(batch(), frozenset({Output.NLL}))
    assert not engine.flops_profiler.started and NOTES_BY_KEY not in capsys.readouterr().out


def test_a_forward_of_the_engine_begins_the_profile_and_the_backward_ends_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As the program does: nobody else stands around a micro-step."""
    root = HFModelFactory(ModelSection(config=LLAMA), seed=1)()
    engine = Engine(root)
    vars(engine).update(vars(engine_of(root)))
    handle = EngineHandle(Role.POLICY, root, engine)
    handle.start_profiles(1)
    strategy = DeepSpeed.__new__(DeepSpeed)
    loss = engine(batch(), frozenset({Output.NLL}))[Output.NLL.value]
    assert NOTES_BY_KEY not in capsys.readouterr().out
    strategy.backward(handle, loss)
    assert NOTES_BY_KEY in capsys.readouterr().out and engine.flops_profiler.get_total_macs() > 0
    engine.global_steps = 6
    strategy.backward(handle, engine(batch(), frozenset({Output.NLL}))[Output.NLL.value])
    assert NOTES_BY_KEY not in capsys.readouterr().out, "another window is left alone"
    engine.flops_profiler.end_profile()
