"""The balance loss of a mixture's experts against Transformers' own, for every family that it computes one
for.
"""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from family_sweep import copy_of
from model_families import Source, make_batch, spread_out
from tiny_families import tiny_config
from torch import Tensor

from paceline.algorithms.algorithm import TERM, WithBalanceLoss
from paceline.algorithms.supervised.sft import SFT
from paceline.models.activation_checkpointing import enable_recompute
from paceline.models.factory import HFModelFactory
from paceline.models.role_module import RoleModule
from paceline.plan.features.experts import RouterLoss
from paceline.plan.model.family import families
from paceline.plan.model.shape import config_coefficient
from paceline.protocols.batch import IGNORE_INDEX, Batch
from paceline.protocols.roles import Output, Role

LENGTHS = (5, 12, 3, 9)
DEFAULTS = {kind: one.balance_loss for kind, one in families().items() if one.balance_loss is not None}
SUPPORTED = [kind for kind in sorted(DEFAULTS) if families()[kind].trained]
FEW = ("mixtral", "qwen3_moe", "granitemoehybrid", "jetmoe")  # one a kind: rows, and two routers a layer
CASES = [kind if kind in FEW else pytest.param(kind, marks=pytest.mark.slow) for kind in SUPPORTED]
NOT_DENSE: dict[str, dict[str, Any]] = {"flint": {"mlp_only_layers": []}}


def built(kind: str) -> RoleModule:
    module = HFModelFactory(Source(config={**tiny_config(kind), **NOT_DENSE.get(kind, {})}))()
    spread_out(module)
    return module.eval()  # PhiMoE's router draws at random in training


def batch_with_filler() -> Batch:
    """Four documents, the third a filler: no labels, id -1."""
    batch = make_batch(LENGTHS, labels="some")
    start, end = batch.cu_seqlens.tolist()[2:4]
    batch.labels[0, start:end] = IGNORE_INDEX
    batch.document_ids[2] = -1
    return batch


def ours(module: RoleModule, batch: Batch, scope: str) -> tuple[float, dict[str, Tensor]]:
    """(the term over its weight, its gradients)."""
    algorithm = WithBalanceLoss(SFT(), RouterLoss(1.0, scope))
    outputs = module(batch, algorithm.required_outputs(Role.POLICY, training=True))
    loss = algorithm.losses(Role.POLICY, outputs, batch)[TERM] / algorithm.weights(batch)[TERM]
    module.zero_grad()
    loss.backward()
    return float(loss.detach()), gradients(module.hf)


def gradients(hf: Any) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in hf.named_parameters() if p.grad is not None}


def balance_of(clean: Any, ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """Transformers' own."""
    found = clean(input_ids=ids, attention_mask=mask, use_cache=False, output_router_logits=True)
    aux: Tensor = found.aux_loss
    return aux


def by_document(clean: Any, batch: Batch) -> Tensor:
    """The mean over labelled tokens of each document's own balance loss."""
    total, weight = torch.zeros(()), 0
    bounds = batch.cu_seqlens.tolist()
    for start, end in zip(bounds, bounds[1:], strict=False):
        labels = int((batch.labels[0, start:end] != IGNORE_INDEX).sum())
        if labels:
            total = total + labels * balance_of(clean, batch.input_ids[:, start:end])
            weight += labels
    return total / weight


def by_micro_batch(clean: Any, batch: Batch) -> Tensor:
    """All real documents in one padded micro-batch, as a collator makes it."""
    bounds = batch.cu_seqlens.tolist()
    pairs = [p for i, p in enumerate(zip(bounds, bounds[1:], strict=False)) if batch.document_ids[i] >= 0]
    longest = max(end - start for start, end in pairs)
    ids, mask = (torch.zeros(len(pairs), longest, dtype=torch.long) for _ in range(2))
    for row, (start, end) in enumerate(pairs):
        ids[row, : end - start] = batch.input_ids[0, start:end]
        mask[row, : end - start] = 1
    return balance_of(clean, ids, mask)


@pytest.mark.parametrize("kind", CASES)
def test_the_balance_loss_is_transformers_own_in_both_scopes(kind: str) -> None:
    module, batch = built(kind), batch_with_filler()
    clean = copy_of(module.hf)
    for scope, expected in (("document", by_document), ("micro_batch", by_micro_batch)):
        loss, found = ours(module, batch, scope)
        clean.zero_grad()
        theirs = expected(clean, batch)
        theirs.backward()
        assert loss == pytest.approx(float(theirs.detach()), rel=1e-5), scope
        same(found, gradients(clean))


def same(found: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> None:
    assert any(grad.abs().max() > 1e-5 for grad in theirs.values())
    for name, grad in theirs.items():
        if name in found:
            assert torch.allclose(found[name], grad, rtol=1e-3, atol=2e-5), name
        else:
            assert not grad.any(), name  # such as the head, which only Transformers' class runs


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.full)])
def test_every_family_that_computes_it_is_listed_with_its_coefficient(every: int) -> None:
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    found, asked = {}, dict(list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items())[::every])
    for kind, name in asked.items():
        if kind.startswith(("dbrx", "gemma4_assistant")) or kind in ("qwen3_5_moe", "qwen4_exp"):
            continue  # no class that runs, or a text model within one that reads images
        cls = getattr(transformers, name)
        if "load_balancing_loss_func(" not in inspect.getsource(importlib.import_module(cls.__module__)):
            continue
        if "load_balancing_loss_func(" in inspect.getsource(cls):
            config = CONFIG_MAPPING[kind]()
            found[kind] = getattr(config, "router_aux_loss_coef", getattr(config, "aux_loss_coef", None))
    known = {**DEFAULTS, "doge": 0.001}  # whose mixtures are refused
    assert found == {kind: value for kind, value in known.items() if kind in asked} and found


def test_recomputed_and_shared_prompts_give_the_same_gradients() -> None:
    module, batch = built("qwen3_moe").train(), batch_with_filler()
    plain = ours(module, batch, "document")
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)  # a name that Transformers will remove
        enable_recompute(module.hf, module.slot)
    again = ours(module, batch, "document")
    assert again[0] == plain[0]
    for name, grad in plain[1].items():
        assert torch.equal(again[1][name], grad), name


def test_the_coefficient_is_the_configs_only_where_it_asks_for_the_loss() -> None:
    asks = {"model_type": "mixtral", "output_router_logits": True}
    assert config_coefficient(asks) == 0.001
    assert config_coefficient({**asks, "router_aux_loss_coef": 0.02}) == 0.02
    assert config_coefficient({**asks, "output_router_logits": False}) == 0
    assert config_coefficient({"model_type": "llama", "output_router_logits": True}) == 0


def test_evaluation_leaves_it_out() -> None:
    algorithm = WithBalanceLoss(SFT(), RouterLoss(0.1, "document"))
    assert Output.ROUTER not in algorithm.required_outputs(Role.POLICY, training=False)
    assert Output.ROUTER not in algorithm.required_outputs(Role.VALUE, training=True)
