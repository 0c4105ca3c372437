"""What a window may cost on an accelerator: waits of the host, kernels, bytes. Who adds one sees it here."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from device_steps import LLAMA, micro_batches, planned, prepared, train
from emulated_device import emulated

from paceline.generation.sampling.noise import gumbel
from paceline.models.heads.chunked_cross_entropy import CHUNK_BYTES, FusedNll, HeadShape
from paceline.plan.model.kernels import head_chunk_bytes
from paceline.protocols.batch import IGNORE_INDEX, Batch
from paceline.protocols.roles import Role
from paceline.runtime.device.device import device_memory
from paceline.strategies.window.runner import make_runner

ALGORITHMS = ("sft", "reward", "dpo")
FUSED_WAITS, OTHER_WAITS = 0, 1  # of a window: what is reported is read a step late; whether to step


@pytest.mark.parametrize(
    ("algorithm", "precision"),
    [
        pytest.param(algorithm, precision, marks=() if (i + j) % 3 == 0 else pytest.mark.full)
        for i, algorithm in enumerate(ALGORITHMS)
        for j, precision in enumerate(("no", "bf16", "fp16"))
    ],
)
def test_a_window_and_a_micro_batch_wait_for_nothing(algorithm: str, precision: str) -> None:
    options = {"training": {"algorithm": algorithm}}
    few, more = (train("cuda", precision, accumulation=n, **options) for n in (1, 3))
    assert few.waits == more.waits
    assert sum(few.waits.values()) <= FUSED_WAITS, few.waits


@pytest.mark.parametrize("learns", [True, False])
def test_among_several_ranks_only_one_without_labels_waits(
    learns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has to hear whether the others have any. The sums are this rank's own: the others have none."""
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda *_: None)
    config, plan = planned(LLAMA, "bf16", (9, 0))
    batches = micro_batches(2, 1)
    if not learns:
        batches = [replace(b, labels=torch.full_like(b.labels, IGNORE_INDEX), places=None) for b in batches]
    found = []
    for ranks in (1, 2):
        with emulated() as machine:
            strategy, handles, algorithm = prepared(config, plan, machine.device)
            strategy.world.world_size, strategy.world.backend = ranks, "nccl"
            machine.forget()
            unread = make_runner(strategy).start_window(
                handles, batches, algorithm, lr=1e-3, max_grad_norm=1.0
            )
            expected = 0 if learns or ranks == 1 else 2  # whether any, and the numbers then
            assert sum(machine.waits.values()) == expected, machine.waits
            assert unread.under_way == learns
            found.append(unread.read())
            assert unread.read() is found[-1], "what was read is not summed up again"
            seconds = unread.seconds()
            assert (seconds is not None and seconds > 0) == learns, "by the device's clock"
            assert sum(machine.waits.values()) == expected, machine.waits
    assert found[0] == found[1] and (found[0].skipped is None) == learns


def test_an_optimizer_that_cannot_skip_costs_one_wait_more() -> None:
    waits = train("cuda", "bf16", training={"optim": "rmsprop"}).waits
    assert FUSED_WAITS < sum(waits.values()) <= OTHER_WAITS, waits


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_step_of_gradients_that_are_not_finite_is_skipped_on_the_device(precision: str) -> None:
    config, plan = planned(LLAMA, precision, (9, 0))
    with emulated() as machine:
        strategy, handles, _ = prepared(config, plan, machine.device)
        handle = handles[Role.POLICY]
        before = [p.detach().clone() for p in handle.parameters()]
        for value, moves in ((torch.inf, False), (torch.nan, False), (1e-3, True)):
            if handle.scaler is not None:
                handle.scaler.scale(torch.ones((), device="cuda"))
            for p in handle.parameters():
                p.grad = torch.full_like(p, value)
            machine.forget()
            outcome = strategy.finish(handle, lr=1e-2, max_grad_norm=1.0)
            assert not machine.waits
            moved = [not torch.equal(p, b) for p, b in zip(handle.parameters(), before, strict=True)]
            assert moved == [moves] * len(moved)
            assert bool(outcome.grad_norm.isfinite()) == moves
            if handle.scaler is not None and outcome.loss_scale is not None:
                assert outcome.loss_scale.item() == handle.scaler.get_scale()
        steps = {float(s["step"]) for s in handle.stepper.state.values()}
        assert steps == {1.0}  # the skipped ones were not counted


def test_gradients_are_clipped_by_the_optimizers_own_kernel() -> None:
    """As ``clip_grad_norm_`` and the same optimizer; no pass over the gradients, and none below the limit."""
    config, plan = planned(LLAMA, "no", (9, 0))
    for norm in (0.5, 1e9):
        with emulated() as machine:
            strategy, handles, _ = prepared(config, plan, machine.device)
            handle = handles[Role.POLICY]
            clones = [p.detach().cpu().clone().requires_grad_() for p in handle.parameters()]
            for p, clone in zip(handle.parameters(), clones, strict=True):
                clone.grad = torch.randn(clone.shape)
                p.grad = clone.grad.to("cuda")
            torch.nn.utils.clip_grad_norm_(clones, norm)
            theirs = [{**g, "params": []} for g in handle.stepper.param_groups]
            by_id = {id(p): clone for p, clone in zip(handle.parameters(), clones, strict=True)}
            for group, own in zip(theirs, handle.stepper.param_groups, strict=True):
                group["params"] = [by_id[id(p)] for p in own["params"]]
            adamw = torch.optim.AdamW(theirs)
            for group in adamw.param_groups:
                group["lr"] = 1e-2
            adamw.step()
            machine.forget()
            strategy.finish(handle, lr=1e-2, max_grad_norm=norm)
            assert not {"_foreach_mul_", "mul_"} & set(machine.kernels)
            for p, clone in zip(handle.parameters(), clones, strict=True):
                assert torch.allclose(p.cpu(), clone, rtol=1e-6, atol=1e-7)


def test_a_layer_starts_no_more_kernels_than_it_did() -> None:
    """Forward and backward of a layer and micro-batch in bf16, without the optimizer's."""
    counts = {
        (layers, n): sum(
            train("cuda", "bf16", {**LLAMA, "num_hidden_layers": layers}, accumulation=n).kernels.values()
        )
        for layers in (1, 3)
        for n in (1, 2)
    }
    a_micro_batch = {layers: counts[layers, 2] - counts[layers, 1] for layers in (1, 3)}
    assert (a_micro_batch[3] - a_micro_batch[1]) / 2 <= 50


def test_places_of_labels_are_found_before_the_move() -> None:
    [batch] = micro_batches(1, 3)
    with emulated() as machine:
        for host in (batch, batch.pinned()):
            machine.forget()
            moved: Batch = host.to(machine.device)
            assert torch.equal(moved.label_places().cpu(), batch.label_places())
            assert list(machine.waits) == ["copy to the host elsewhere"]
        assert not machine.pageable  # of the pinned one


def test_a_loss_beyond_the_smallest_probability_is_exact_and_costs_no_wait() -> None:
    """The label's logit is 200 below the best: its probability is 0 in fp32."""
    hidden, weight = torch.eye(4), torch.zeros(5, 4)
    weight[1] = 200.0
    labels = torch.tensor([0, 1, 2, 3])
    found = []
    for kind in ("cpu", "cuda"):
        with emulated() as machine:
            h, w = (x.clone().to(kind).requires_grad_() for x in (hidden, weight))
            wanted = labels.to(kind)
            machine.forget()
            nll, hits = FusedNll.apply(h, w, None, wanted, HeadShape(), True)
            nll.backward()
            assert not machine.waits
            found.append([x.detach().cpu() for x in (nll, hits, h.grad, w.grad)])
    assert float(found[0][0]) == pytest.approx(600.0)
    for here, there in zip(*found, strict=True):
        assert torch.allclose(here, there, rtol=1e-6, atol=1e-30)


def test_chunks_of_the_head_grow_with_the_device() -> None:
    """Each chunk is a pass over the gradient [V, H]: at 64 MiB a fifth of a small model's step."""
    gib = 1 << 30
    sizes = {n: head_chunk_bytes(n * gib) >> 20 for n in (0, 15, 23.6, 79.2, 140)}
    assert sizes == {0: 64, 15: 128, 23.6: 128, 79.2: 512, 140: 512}
    with emulated() as machine:
        assert device_memory(torch.device("cpu")) == 0 and head_chunk_bytes(0) == CHUNK_BYTES
        assert device_memory(machine.device) == machine.memory_bytes


def test_noise_is_the_hosts_and_made_for_all_rows_at_once() -> None:
    streams = torch.arange(64) * 7919 - 5
    places = torch.arange(64) % 5
    expected = gumbel(streams.clone(), places, 300)
    kernels = []
    with emulated() as machine:
        for rows in (1, 64):
            given = streams[:rows].to(machine.device), places[:rows].to(machine.device)
            machine.forget()
            noise = gumbel(*given, 300)
            kernels.append(sum(machine.kernels.values()))
            assert not machine.waits
            assert torch.equal(noise.cpu(), expected[:rows])
    assert kernels[0] == kernels[1] <= 36, kernels  # 1,366 before, for 64 rows and 128 k words


def test_the_plan_counts_the_heads_chunks() -> None:
    large = {
        **LLAMA,
        "vocab_size": 128256,
        "hidden_size": 512,
        "head_dim": 128,
        "max_position_embeddings": 8192,
    }
    long = {"data": {"train": "none.jsonl", "max_length": 8192}}
    from paceline.plan.cost.from_plan import predicted_plan
    from paceline.plan.hardware.device_catalogue import cluster_of

    found = {}
    for card, capability in (("A10G", (8, 6)), ("H100", (9, 0))):
        _, plan = planned(large, "bf16", capability, **long)
        candidate = predicted_plan(plan, cluster_of(f"1x{card}").hardware())
        assert candidate is not None
        found[card] = candidate.peak.logits
    assert found["H100"] - found["A10G"] == 2 * (512 - 128) * 2**20


WIDE = {**LLAMA, "hidden_size": 128, "intermediate_size": 344, "vocab_size": 2048}


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_before_the_first_step_the_device_holds_the_planned_weights(precision: str) -> None:
    config, plan = planned(WIDE, precision, (9, 0))
    assert plan.memory is not None and plan.memory.largest is not None
    with emulated() as machine:
        held = prepared(config, plan, machine.device)
        assert machine.peak == pytest.approx(plan.memory.largest.parameters, rel=0.05), held


def test_before_the_first_step_an_adapters_base_takes_what_is_planned() -> None:
    config, plan = planned(WIDE, "bf16", (9, 0), lora={"r": 4})
    assert plan.memory is not None and plan.memory.largest is not None
    with emulated() as machine:
        held = prepared(config, plan, machine.device)
        assert machine.peak == pytest.approx(plan.memory.largest.parameters, rel=0.05), held
