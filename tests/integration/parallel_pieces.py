"""Scenarios of tensor and context parallelism on models and functions, without a strategy; see
``parallel_worker``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from model_families import FAMILIES, Source, make_batch, spread_out
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from paceline.core.errors import ConfigError
from paceline.models.attention.context_parallel import ContextParallel, check_context_parallel
from paceline.models.attention.context_parallel_attention import context_attention
from paceline.models.attention.packed_attention import document_attention
from paceline.models.attention.reference_attention import AttentionOptions
from paceline.models.attention.sequence_info import PackedSequenceInfo
from paceline.models.factory import HFModelFactory
from paceline.models.heads.chunked_cross_entropy import HeadInputs, HeadShape
from paceline.models.heads.token_logprobs import RequiredStats
from paceline.models.heads.vocab_parallel import VocabularyPart
from paceline.models.parallel.tensor_parallel import apply_tensor_parallel
from paceline.models.parallel.tp_regions import all_reduced, block_of
from paceline.models.role_module import RoleModule
from paceline.protocols.batch import Batch
from paceline.protocols.model import BuildOptions
from paceline.protocols.roles import Output
from paceline.runtime.process_group.world import World

NLL = frozenset({Output.NLL, Output.CORRECT})
EVERYTHING = frozenset(Output) - {
    Output.SCORES,
    Output.VALUES,
    Output.HIDDEN,
    Output.DIVERGENCE,
    Output.CLASSES,
    Output.ROUTER,
}
LENGTHS = (5, 12, 3, 9, 1)  # 30 tokens: a multiple of 2
EVEN = {"vocab_size": 98, "num_key_value_heads": 2}  # two ranks can share it
TP_FAMILIES = ("llama_tied", "qwen3", "gemma2", "phi", "phi3", "cohere", "gpt_neox")


def build(family: str, recompute: bool = False, fused: bool = True, **changes: Any) -> RoleModule:
    """In float64, the same on every rank."""
    config = {**FAMILIES[family], **EVEN, **changes}
    factory = HFModelFactory(Source(config=config), master_dtype=torch.float64, recompute=recompute)
    module = factory(BuildOptions(fused=fused))
    spread_out(module)
    return module.train()


def answers(
    module: RoleModule, batch: Batch, ask: frozenset[Output]
) -> tuple[dict[str, list[float]], dict[str, Tensor]]:
    """Values and whole gradients of one forward and backward."""
    module.zero_grad()
    out = module(batch, ask)
    loss = out["nll"] if ask == NLL else (out["logprobs"] * 0.7 + out["entropy"] * 0.3).sum()
    loss.backward()
    grads = {}
    for name, p in module.plain_named_parameters():
        assert p.grad is not None, name
        grads[name] = p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad
    return {k: v.detach().double().flatten().tolist() for k, v in sorted(out.items())}, grads


def apart(a: Any, b: Any) -> float:
    """The largest difference between two answers, gradients relative to their size."""
    values = max(abs(x - y) for k in a[0] for x, y in zip(a[0][k], b[0][k], strict=True))
    grads = max(float((a[1][k] - b[1][k]).abs().max() / (1e-3 + a[1][k].abs().max())) for k in a[1])
    return max(values, grads)


def tensor(world: World) -> dict[str, float]:
    """Every family that has a plan, every combination of sequence and loss parallelism, against the whole
    model in this process.
    """
    mesh = init_device_mesh("cpu", (world.world_size,), mesh_dim_names=("tp",))
    found: dict[str, float] = {}
    for i, family in enumerate(TP_FAMILIES):
        batch = make_batch(LENGTHS, labels="some")
        whole = build(family)
        # EVERYTHING: another kernel of the head
        expected = {ask: answers(whole, batch, ask) for ask in (NLL, EVERYTHING)}
        with torch.no_grad():
            evaluated = whole(batch, NLL)["nll"]
        for sequence, loss in ((False, i % 2 == 1), (True, True), (True, False)):
            module = build(family, recompute=(i + sequence) % 2 == 0, fused=False)
            apply_tensor_parallel(module, mesh, sequence_parallel=sequence, loss_parallel=loss)
            asks = (NLL, EVERYTHING) if loss else (NLL,)
            worst = max(apart(expected[ask], answers(module, batch, ask)) for ask in asks)
            with torch.no_grad():
                worst = max(worst, float((module(batch, NLL)["nll"] - evaluated).abs()))
            found[f"{family} sequence={sequence} loss={loss}"] = worst
            assert "sharded over 2 ranks" in module.notes()["tensor"]
    return found


def refusals(world: World) -> dict[str, Any]:
    """What two ranks cannot share is refused by name."""
    mesh = init_device_mesh("cpu", (world.world_size,), mesh_dim_names=("tp",))
    cases: dict[str, tuple[str, dict[str, Any], dict[str, bool]]] = {
        "kv heads": ("llama", {"num_key_value_heads": 1}, {}),
        "no plan": ("gpt2", {}, {}),
        "vocabulary": ("llama", {"vocab_size": 97}, {"loss_parallel": True}),
        "width": ("llama", {"intermediate_size": 49}, {}),
    }
    found: dict[str, Any] = {}
    for name, (family, changes, options) in cases.items():
        try:
            apply_tensor_parallel(build(family, fused=False, **changes), mesh, **options)
        except ConfigError as error:
            found[name] = [d.code for d in error.diagnostics]
    try:
        check_context_parallel(build("llama"), 3, "ulysses")
    except ConfigError as error:
        found["ulysses heads"] = [d.code for d in error.diagnostics]
    return found


def generation(world: World) -> dict[str, Any]:
    """Greedy tokens of a model cut over the ranks, and of the whole one."""
    mesh = init_device_mesh("cpu", (world.world_size,), mesh_dim_names=("tp",))
    ids = make_batch((6,)).input_ids
    options = {"max_new_tokens": 8, "do_sample": False, "use_cache": True, "pad_token_id": 0}
    whole = build("qwen3").eval()
    module = build("qwen3", fused=False).eval()
    apply_tensor_parallel(module, mesh, sequence_parallel=True, loss_parallel=True)
    with torch.no_grad():
        return {
            "whole": whole.hf.generate(ids, **options)[0].tolist(),
            "cut": module.hf.generate(ids, **options)[0].tolist(),
        }


def head(world: World) -> dict[str, float]:
    """The vocabulary-parallel losses against plain logits: chunks, caps, biases, every gradient; float64."""
    group = init_device_mesh("cpu", (world.world_size,)).get_group()
    generator = torch.Generator().manual_seed(3)
    hidden, weight = (torch.randn(n, 6, generator=generator, dtype=torch.float64) for n in (13, 28))
    labels, mix = (
        torch.randint(0, 28, (13,), generator=generator),
        torch.linspace(-1, 2, 13, dtype=torch.float64),
    )
    hidden[0] *= 60.0  # a label of vanishing probability keeps its loss
    found = {}
    for shape in (HeadShape(chunk_bytes=3 * 28 * 8), HeadShape(2.0, 3.0), HeadShape(0.5, None, 500)):
        for bias in (None, torch.randn(28, generator=generator, dtype=torch.float64)):
            given = [x.clone().requires_grad_() for x in (hidden, weight, *([] if bias is None else [bias]))]
            logits = torch.nn.functional.linear(*given) * shape.scale
            logits = logits if shape.softcap is None else torch.tanh(logits / shape.softcap) * shape.softcap
            logs = torch.log_softmax(logits, -1)
            logp, entropy = logs.gather(1, labels[:, None]).squeeze(1), -(logs.exp() * logs).sum(-1)
            right = (logits.argmax(-1) == labels).sum()
            part = VocabularyPart(group, world.rank * (28 // world.world_size))
            mine = [given[0].detach().clone(), *(block_of(x.detach(), group, 0).clone() for x in given[1:])]
            mine = [x.requires_grad_() for x in mine]
            args = HeadInputs(mine[0], mine[1], mine[2] if bias is not None else None, labels, shape)
            nll, hits = part.nll(args, True)
            stats = part.stats(args, RequiredStats(True, True))
            few = part.stats(args, RequiredStats(True, likeliest=5))[1]
            likeliest = logits.topk(5, -1).values.log_softmax(-1)
            with torch.no_grad():
                again, more_hits = part.nll(args, True)
            nll_error = [(x + logp.sum()).detach().abs() for x in (nll, again)]
            worst = [float(x) for x in nll_error]
            worst += [
                float((a - b).detach().abs().max()) for a, b in zip(stats[:2], (logp, entropy), strict=True)
            ]
            worst.append(float((few + (likeliest.exp() * likeliest).sum(-1)).detach().abs().max()))
            worst += [float((x - right).abs()) for x in (hits, more_hits, stats[2])]
            pairs = [(nll * 0.3, -logp.sum() * 0.3)]
            pairs.append(
                ((stats[0] * mix + stats[1] * mix.flip(0)).sum(), (logp * mix + entropy * mix.flip(0)).sum())
            )
            for ours, theirs in pairs:
                a = torch.autograd.grad(ours, mine, retain_graph=True)
                b = torch.autograd.grad(theirs, given, retain_graph=True)
                b = (b[0], *(block_of(x, group, 0) for x in b[1:]))
                worst += [float((x - y).abs().max()) for x, y in zip(a, b, strict=True)]
            found[f"{shape} bias={bias is not None}"] = max(worst)
    return found


BOUNDS = {  # of 24 tokens: one long document, many, cuts inside and on a boundary, a last one of one token
    "one": (0, 24),
    "cut": (0, 5, 17, 18, 24),
    "even": (0, 6, 12, 13, 24),
    "tails": (0, 1, 2, 23, 24),
}


def attention(world: World) -> dict[str, float]:
    """Both methods against attention in one process: documents, shared heads, windows, caps, sinks;
    outputs and gradients, float64.
    """
    mesh = init_device_mesh("cpu", (world.world_size,), mesh_dim_names=("cp",))
    generator = torch.Generator().manual_seed(5)
    variants: dict[str, dict[str, Any]] = {
        "plain": {},
        "window": {"window": 4},
        "cap": {"softcap": 2.0},
        "sinks": {},
    }
    found: dict[str, float] = {}
    for heads, shared in ((4, 4), (4, 2), (4, 1), (8, 2), (12, 3)):
        for name, options in variants.items():
            for bounds in BOUNDS.values():
                sizes = (heads, shared, shared)
                whole = [torch.randn(1, n, 24, 8, generator=generator, dtype=torch.float64) for n in sizes]
                if name == "sinks":
                    whole.append(torch.randn(heads, generator=generator, dtype=torch.float64))
                weight = torch.randn(1, heads, 24, 8, generator=generator, dtype=torch.float64)
                given = [x.clone().requires_grad_() for x in whole]
                layout = PackedSequenceInfo.over(bounds, torch.device("cpu"))
                out = document_attention(
                    *given[:3], layout, AttentionOptions(0.3, sinks=(*given, None)[3], **options)
                )
                expected = torch.autograd.grad((out * weight).sum(), given)
                for method in ("ulysses", "allgather"):
                    context = ContextParallel(mesh, method)
                    mine = [block_of(x, context.group, 2).clone().requires_grad_() for x in whole[:3]]
                    mine += [x.clone().requires_grad_() for x in whole[3:]]
                    cut = replace(layout, context=context)
                    given_here = AttentionOptions(0.3, sinks=(*mine, None)[3], **options)
                    ours = context_attention(document_attention, *mine[:3], cut, given_here)
                    worst = [float((ours - block_of(out, context.group, 2)).detach().abs().max())]
                    grads = torch.autograd.grad((ours * block_of(weight, context.group, 2)).sum(), mine)
                    for i, (a, b) in enumerate(zip(grads, expected, strict=True)):
                        same = all_reduced(a, context.group) if i == 3 else a
                        worst.append(
                            float((same - (b if i == 3 else block_of(b, context.group, 2))).abs().max())
                        )
                    key = f"{method} {heads}/{shared} {name}"
                    found[key] = max(found.get(key, 0.0), *worst)
    return found


def context(world: World) -> dict[str, float]:
    """Whole models on a share of the tokens, an odd number of them: sums over the ranks against one
    process.
    """
    mesh = init_device_mesh("cpu", (world.world_size,), mesh_dim_names=("cp",))
    found: dict[str, float] = {}
    for i, family in enumerate(("llama_tied", "qwen3", "mistral", "gemma2")):
        for method in ("ulysses", "allgather"):
            batch = make_batch((5, 12, 3, 9), labels="some", seed=i)
            placed = ContextParallel(mesh, method).split(batch)
            assert placed.input_ids.shape[1] * world.world_size >= 29 > placed.input_ids.shape[1]
            assert placed.num_tokens == batch.num_tokens
            expected = answers(build(family), batch, NLL)
            module = build(family, recompute=i % 2 == 0)
            check_context_parallel(module, world.world_size, method)
            ours = answers(module, placed, NLL)
            values = {k: world.all_reduce_sum_float(v) for k, v in ours[0].items()}
            grads = {k: all_reduced(v, mesh.get_group()) for k, v in ours[1].items()}
            found[f"{family} {method}"] = apart(expected, (values, grads))
    return found
