"""States in 8 and 4 bits: bit for bit on the same shards, dequantised and quantised anew on others."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from tiny_parts import MemoryReader
from torch import Tensor, nn

from paceline.plan.plan import OptimizerSpec
from paceline.protocols.shard import Shard
from paceline.strategies import replicated_state
from paceline.strategies.optimizers.build import build_optimizer, set_learning_rate
from paceline.strategies.optimizers.quantized_state import codec_of, is_of_shard, shard_suffix

NAMES = ["adamw_bnb_8bit", "lion_8bit", "rmsprop_bnb_8bit", "adamw_torch_8bit", "adamw_torch_4bit"]
SHAPE = (128, 64)


def package(name: str) -> str:
    return pytest.importorskip("torchao" if "torch" in name else "bitsandbytes").__name__


def trained(
    name: str, value: Tensor, steps: Iterable[int] = range(3)
) -> tuple[torch.optim.Optimizer, nn.Parameter]:
    package(name)
    parameter = nn.Parameter(value.clone())
    optimizer = build_optimizer(OptimizerSpec(name=name, weight_decay=0.1), [("w.weight", parameter)])
    go_on(optimizer, parameter, steps)
    return optimizer, parameter


def go_on(optimizer: torch.optim.Optimizer, parameter: nn.Parameter, steps: Iterable[int]) -> None:
    set_learning_rate(optimizer, 1e-3)
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        parameter.grad = torch.randn(SHAPE, generator=generator)[
            : parameter.shape[0], : parameter.shape[1]
        ].clone()
        optimizer.step()


def saved(optimizer: torch.optim.Optimizer, parameter: nn.Parameter, offsets: tuple[int, int]) -> list[Shard]:
    return [
        Shard("policy", "w", kind, tuple(t.shape), (0,) * t.ndim, t.clone())
        for kind, t in replicated_state.saved_moments(optimizer, parameter, offsets).items()
        if is_of_shard(kind) or not any(offsets)
    ]


@pytest.mark.parametrize("name", NAMES)
def test_the_same_shard_goes_on_bit_for_bit(name: str) -> None:
    start = torch.randn(SHAPE, generator=torch.Generator().manual_seed(9))
    optimizer, parameter = trained(name, start)
    reader = MemoryReader(saved(optimizer, parameter, (0, 0)))
    assert any(t.dtype == torch.uint8 for t in reader.tensors.values()), "nothing was quantised"
    other = nn.Parameter(parameter.detach().clone())
    again = build_optimizer(OptimizerSpec(name=name, weight_decay=0.1), [("w.weight", other)])
    assert replicated_state.import_quantised(again, other, (0, 0), reader, "policy", "w")
    assert {s.kind: s.tensor.tolist() for s in saved(again, other, (0, 0))} == {
        key[2]: value.tolist() for key, value in reader.tensors.items()
    }
    go_on(optimizer, parameter, range(3, 6))
    go_on(again, other, range(3, 6))
    assert torch.equal(parameter, other)


@pytest.mark.parametrize("name", NAMES)
def test_other_shards_dequantise_and_join(name: str) -> None:
    """Two ranks' shards are read by one process, and its whole tensor by three ranks: each moment is within
    the rounding of its block.
    """
    start = torch.randn(SHAPE, generator=torch.Generator().manual_seed(9))
    halves = [trained(name, half) for half in start.chunk(2)]
    reader = MemoryReader([s for i, (o, p) in enumerate(halves) for s in saved(o, p, (64 * i, 0))])
    expected = {
        moment: torch.cat([values_of(o, p)[moment] for o, p in halves]) for moment in values_of(*halves[0])
    }
    whole = nn.Parameter(start.clone())
    made = build_optimizer(OptimizerSpec(name=name), [("w.weight", whole)])
    replicated_state.import_quantised(made, whole, (0, 0), reader, "policy", "w")
    bound = 0.15 if "4bit" in name else 0.03
    close(values_of(made, whole), expected, bound)
    onwards = MemoryReader(saved(made, whole, (0, 0)))
    for first, last in ((0, 43), (43, 86), (86, 128)):
        third = nn.Parameter(start[first:last].clone())
        taken = build_optimizer(OptimizerSpec(name=name), [("w.weight", third)])
        replicated_state.import_quantised(taken, third, (first, 0), onwards, "policy", "w")
        whole_values = values_of(made, whole)
        close(values_of(taken, third), {m: v[first:last] for m, v in whole_values.items()}, bound)
        go_on(taken, third, range(3, 4))
        assert taken.state[third]["step"] == 4


def values_of(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> dict[str, Tensor]:
    codec = codec_of(optimizer)
    assert codec is not None
    return codec.values(codec.parts(optimizer.state[parameter]), tuple(parameter.shape))


def close(found: dict[str, Tensor], expected: dict[str, Tensor], bound: float) -> None:
    assert found.keys() == expected.keys()
    for moment, values in expected.items():
        assert float(values.abs().max()) > 0
        assert float((found[moment] - values).abs().max() / values.abs().max()) < bound, moment


@pytest.mark.parametrize("name", NAMES)
def test_the_library_itself_on_the_same_tensors(name: str) -> None:
    """Ours is the library's own optimizer with the config's arguments; torchao's is not compiled here."""
    start = torch.randn(SHAPE, generator=torch.Generator().manual_seed(9))
    _, ours = trained(name, start)
    theirs = nn.Parameter(start.clone())
    if package(name) == "torchao":
        from torchao import optim

        cls = optim.AdamW8bit if "8bit" in name else optim.AdamW4bit
        library = cls([theirs], lr=1e-3, weight_decay=0.1)
        with torch.compiler.set_stance("force_eager"):
            steps(library, theirs)
    else:
        import bitsandbytes.optim as bnb

        cls = {"lion_8bit": bnb.Lion, "rmsprop_bnb_8bit": bnb.RMSprop}.get(name, bnb.AdamW)
        betas = {} if "rmsprop" in name else {"betas": (0.9, 0.999)}
        steps(cls([theirs], lr=1e-3, weight_decay=0.1, optim_bits=8, **betas), theirs)
    assert torch.equal(ours, theirs) and not torch.equal(ours, start)


def steps(library: torch.optim.Optimizer, parameter: nn.Parameter) -> None:
    for step in range(3):
        parameter.grad = torch.randn(SHAPE, generator=torch.Generator().manual_seed(step))
        library.step()


def test_small_tensors_stay_in_fp32_and_others_keep_their_kinds() -> None:
    package("adamw_bnb_8bit")
    optimizer, parameter = trained("adamw_bnb_8bit", torch.randn(64, 32))
    kinds = replicated_state.saved_moments(optimizer, parameter, (0, 0))
    at = shard_suffix((0, 0), (64, 32))
    assert set(kinds) == {f"state1{at}", f"state2{at}", "step.int"}
    assert kinds[f"state1{at}"].dtype == torch.float32
    assert codec_of(torch.optim.AdamW([nn.Parameter(torch.ones(2))])) is None
    lion, parameter = trained("lion_32bit", torch.randn(SHAPE))
    assert set(replicated_state.saved_moments(lion, parameter, (0, 0))) == {"state1", "step.int"}
