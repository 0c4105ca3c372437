"""The emulated device refuses what an accelerator refuses, and counts what costs there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import emulated_machine
import pytest
import torch
import torch.nn.functional as F
from device_steps import micro_batches, train
from emulated_device import emulated
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from torch.utils._device import _device_constructors

from paceline.models.attention.sequence_info import PackedSequenceInfo
from paceline.plan.features.experts import experts_wait
from paceline.plan.hardware.device_kinds import XPU
from paceline.protocols.batch import Batch

KINDS = ("cuda", "xpu", "mps")


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_say_where_they_are_and_hold_real_numbers(kind: str) -> None:
    with emulated(kind=kind, count=2, index=1):
        made = torch.arange(6, device=kind).reshape(2, 3) * 2
        assert (made.device, made.is_cuda, made.is_cpu) == (torch.device(kind, 1), kind == "cuda", False)
        assert made.sum().item() == 30 and made.cpu().device.type == "cpu"
        assert made.to(kind) is made and torch.ones(3).to(made).device == made.device
        assert torch.tensor([1.5], device=kind).tolist() == [1.5]
        layer = torch.nn.Linear(3, 2).to(kind)
        layer(made.float()).sum().backward()
        assert layer.weight.grad is not None and layer.weight.grad.device == made.device


def test_a_context_of_a_device_acts_on_tensors_after_an_emulation_that_had_the_first() -> None:
    _device_constructors.cache_clear()  # as in a process where nobody has asked yet
    with emulated(), torch.device("meta"):
        torch.empty(1)
    with torch.device("meta"):  # Transformers asks so whether it builds without values
        assert torch.tensor([]).device.type == "meta"


def test_host_and_device_do_not_mix() -> None:
    with emulated():
        here, there = torch.ones(3), torch.ones(3, device="cuda")
        with pytest.raises(RuntimeError, match="same device"):
            there + here
        with pytest.raises(RuntimeError, match="same device"):
            torch.searchsorted(here, there)
        with pytest.raises(RuntimeError, match="same device as the tensor"):
            here[torch.zeros(2, dtype=torch.int64, device="cuda")]
        with pytest.raises(TypeError, match="numpy"):
            there.numpy()
        assert (there * torch.tensor(2.0)).tolist() == [2.0] * 3  # a number of the host is an argument


def test_a_card_s_norms_and_fused_steps_are_narrower_than_a_cpu_s() -> None:
    """Seen on an H100: a CPU normalises 16 bits by fp32 weights, and its fused step counts on the host."""
    with emulated():
        x, weight = torch.ones(2, 4, device="cuda", dtype=torch.bfloat16), torch.ones(4, device="cuda")
        with pytest.raises(RuntimeError, match="scalar type"):
            F.layer_norm(x, (4,), weight, weight)
        assert F.layer_norm(x.float(), (4,), weight, weight).sum().item() == 8
        p = torch.nn.Parameter(torch.ones(3, device="cuda"))
        p.grad = torch.ones_like(p)
        optimizer = torch.optim.AdamW([p], fused=True)
        optimizer.step()
        optimizer.state[p]["step"] = optimizer.state[p]["step"].cpu()
        with pytest.raises(RuntimeError, match="same device"):
            optimizer.step()


def test_grouped_products_wait_but_for_one_kernel() -> None:
    for capability, dtype, waits in (
        ((9, 0), torch.bfloat16, 0),
        ((9, 0), torch.float16, 1),
        ((8, 0), torch.bfloat16, 1),
    ):
        with emulated(capability) as machine:
            rows = torch.ones(8, 16, device="cuda", dtype=dtype)
            weights = torch.ones(2, 16, 16, device="cuda", dtype=dtype)
            ends = torch.arange(4, 12, 4, dtype=torch.int32).to("cuda")
            machine.forget()
            F.grouped_mm(rows, weights, offs=ends)
            assert (
                sum(machine.waits.values())
                == waits
                == experts_wait(float("{}.{}".format(*capability)), str(dtype).removeprefix("torch."))
            )


def test_waits_are_reads_sizes_by_value_and_copies_that_block() -> None:
    with emulated() as machine:
        x = torch.ones(4, device="cuda")

        def waits(action: Any) -> int:
            machine.forget()
            action()
            return sum(machine.waits.values())

        host = torch.ones(4)
        assert waits(lambda: (x + 1).mean()) == 0
        for action in (
            x[0].item,
            x.cpu,
            x.tolist,
            x.nonzero,
            lambda: bool(x[0] > 0),
            lambda: x[x > 0],
            lambda: host.to("cuda"),
            lambda: x.copy_(host),
            lambda: torch.tensor([1.0], device="cuda"),
            lambda: x[torch.zeros(2, dtype=torch.int64)],
        ):
            assert waits(action) == 1, action
        assert waits(lambda: host.to("cuda", non_blocking=True)) == 0 and sum(machine.pageable.values()) == 1
        pinned = host.pin_memory()
        assert waits(lambda: pinned.to("cuda", non_blocking=True)) == 0 and not machine.pageable


def test_bytes_are_those_of_the_storages_that_live() -> None:
    with emulated() as machine:
        x = torch.zeros(256, device="cuda")
        y = x.view(16, 16)
        assert machine.live == 1024
        z = x + y.flatten()
        assert (machine.live, machine.peak) == (2048, 2048)
        del x, z
        assert machine.live == 1024  # a view holds its storage
        machine.forget()
        assert machine.peak == 1024
        del y
        assert machine.live == 0


@pytest.mark.parametrize(
    ("capability", "dtype", "width", "bounds", "message"),
    [
        ((7, 5), torch.float16, 16, torch.int32, "Ampere"),
        ((9, 0), torch.float32, 16, torch.int32, "fp16 and bf16"),
        ((9, 0), torch.bfloat16, 12, torch.int32, "multiple of 8"),
        ((9, 0), torch.bfloat16, 264, torch.int32, "at most 256"),
        ((9, 0), torch.bfloat16, 16, torch.int64, "int32"),
    ],
)
def test_flash_exists_by_capability_dtype_and_head_size(
    capability: tuple[int, int], dtype: torch.dtype, width: int, bounds: torch.dtype, message: str
) -> None:
    with emulated(capability):
        q = torch.randn(5, 2, width, dtype=dtype, device="cuda")
        cu = torch.tensor([0, 3, 5], dtype=bounds, device="cuda")
        with pytest.raises(RuntimeError, match=message):
            varlen_attn(q, q, q, cu, cu, 3, 3, window_size=(-1, 0))


@pytest.mark.parametrize("window", [(-1, 0), (2, 0), (-1, -1)])
def test_flash_is_attention_a_document_with_its_gradient(window: tuple[int, int]) -> None:
    """Against plain scores in fp64; two query heads share one key."""
    draw = torch.Generator().manual_seed(3)
    given = [torch.randn(9, h, 8, generator=draw).bfloat16() for h in (4, 2, 2)]

    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        pieces = []
        for start, end in ((0, 4), (4, 9)):
            a, b, c = (x[start:end].transpose(0, 1) for x in (q, k, v))
            b, c = b.repeat_interleave(2, 0), c.repeat_interleave(2, 0)
            ahead = torch.arange(end - start)[None, :] - torch.arange(end - start)[:, None]
            seen = (ahead <= 0) if window[1] == 0 else torch.ones_like(ahead, dtype=torch.bool)
            seen = seen & (-ahead <= window[0]) if window[0] >= 0 else seen
            scores = (a @ b.mT / 8**0.5).masked_fill(~seen, float("-inf"))
            pieces.append((scores.softmax(-1) @ c).transpose(0, 1))
        return torch.cat(pieces)

    wide = [x.double().requires_grad_() for x in given]
    expected = plain(*wide)
    expected.square().sum().backward()
    with emulated():
        low = [x.to("cuda").requires_grad_() for x in given]
        cu = torch.tensor([0, 4, 9], dtype=torch.int32, device="cuda")
        out = varlen_attn(*low, cu, cu, 5, 5, window_size=window, enable_gqa=True)
        out.float().square().sum().backward()
        for found, reference in zip(
            [out, *(x.grad for x in low)], [expected, *(x.grad for x in wide)], strict=True
        ):
            assert torch.allclose(found.cpu().double(), reference.detach(), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("window", [None, 3])
def test_one_call_under_a_mask_is_attention_with_its_gradient(window: int | None) -> None:
    """Against torch's own in fp64, with inputs of 16 bits; two query heads share one key."""
    draw = torch.Generator().manual_seed(3)
    given = [torch.randn(2, h, 9, 8, generator=draw).bfloat16() for h in (4, 2, 2)]
    mask = None if window is None else torch.ones(9, 9, dtype=torch.bool).tril().triu(1 - window)

    def attend(x: list[Tensor], mask: Tensor | None) -> Tensor:
        return F.scaled_dot_product_attention(*x, attn_mask=mask, is_causal=mask is None, enable_gqa=True)

    wide = [x.double().requires_grad_() for x in given]
    expected = attend(wide, mask)
    expected.square().sum().backward()
    with emulated(kind="xpu") as machine:
        low = [x.to("xpu").requires_grad_() for x in given]
        machine.forget()
        out = attend(low, None if mask is None else mask.to("xpu", non_blocking=True))
        assert sum(machine.kernels.values()) == 1 and out.dtype == torch.bfloat16
        out.float().square().sum().backward()
        pairs = zip([out, *(x.grad for x in low)], [expected, *(x.grad for x in wide)], strict=True)
        for found, reference in pairs:
            assert torch.allclose(found.cpu().double(), reference.detach(), rtol=0.05, atol=0.05)


def test_float64_is_refused_where_it_does_not_exist() -> None:
    with emulated(kind="mps"):
        there = torch.ones(3, device="mps")
        for action in (
            there.double,
            lambda: torch.zeros(2, dtype=torch.float64, device="mps"),
            lambda: torch.ones(2, dtype=torch.float64).to("mps"),
            lambda: there / torch.ones(3, dtype=torch.float64, device="mps"),
        ):
            with pytest.raises(TypeError, match="float64"):
                action()
        assert (there * torch.tensor(2.0, dtype=torch.float64)).dtype == torch.float32


def test_float64_is_not_sent_where_the_backend_does_not_sum_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on ``npu``, a name that torch knows only after ``torch_npu`` was imported."""
    monkeypatch.setitem(emulated_machine.KINDS, "xpu", replace(XPU, wire_float64=False))
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        with emulated(kind="xpu"):
            torch.distributed.all_reduce(torch.ones(2, device="xpu"))
            with pytest.raises(RuntimeError, match="does not transfer"):
                torch.distributed.all_reduce(torch.ones(2, dtype=torch.float64, device="xpu"))
    finally:
        torch.distributed.destroy_process_group()


# --- defects that a CPU does not show


def test_boundaries_left_on_the_host_are_found() -> None:
    def owners(batch: Batch) -> Tensor:
        return torch.searchsorted(batch.cu_seqlens.long(), batch.position_ids[0], right=True)

    batch = micro_batches(1, 0)[0]
    assert owners(batch).numel() == 24
    with emulated() as machine, pytest.raises(RuntimeError, match="same device"):
        owners(batch.to(machine.device))


def test_numbers_read_past_the_device_are_found() -> None:
    batch = micro_batches(1, 0)[0]
    assert batch.labels.numpy().shape == (1, 24)
    with emulated() as machine, pytest.raises(TypeError, match="numpy"):
        batch.to(machine.device).labels.numpy()


def test_boundaries_of_another_integer_type_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = PackedSequenceInfo.of

    def wrong(batch: Batch, shared: Any = None, **more: Any) -> PackedSequenceInfo:
        made = right(batch, shared, **more)
        return replace(made, cu_seqlens=made.cu_seqlens.long())

    monkeypatch.setattr(PackedSequenceInfo, "of", staticmethod(wrong))
    train("cpu", "bf16", windows=1)
    with pytest.raises(RuntimeError, match="int32"):
        train("cuda", "bf16", windows=1)


def test_a_weight_that_was_freed_shows() -> None:
    from torch.distributed.fsdp._fully_shard import _fsdp_param

    with emulated():
        weight = torch.ones(4, device="cuda")
        _fsdp_param.free_storage(weight)
        assert bool(weight.isnan().all())
