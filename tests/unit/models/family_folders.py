"""Columns of the family matrix about whole folders and losses beside the language model's: what is carried,
the balance loss, and the towers of models that hold a language model.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from family_sweep import copy_of
from model_families import Source, spread_out
from safetensors.torch import load_file, save_file
from test_composite import (
    same_bytes,
    trained_checkpoint,
)
from test_composite import (
    test_an_export_is_the_whole_with_the_language_model_trained as export_of_the_whole,
)
from test_composite import (
    test_logits_of_a_text_are_those_of_the_whole as logits_of_the_whole,
)
from test_router_loss import batch_with_filler, built, by_document, by_micro_batch, gradients, ours
from tiny_families import tiny_config

from paceline.checkpoint.export.hf_export import export_hf
from paceline.models.factory import HFModelFactory
from paceline.plan.model.family import family_of

EXTRA = {
    "unheard_of.weight": torch.full((3,), float("nan")),
    "model.layers.97.eh_proj.weight": torch.arange(8.0).reshape(2, 4).to(torch.float8_e4m3fn),
}


def carried(kind: str) -> str:
    """What is wrong with an export of a trained folder that had tensors more than the class knows."""
    module = HFModelFactory(Source(config=tiny_config(kind)))()
    spread_out(module)
    with tempfile.TemporaryDirectory() as scratch:
        base, out = Path(scratch) / "base", Path(scratch) / "out"
        copy_of(module.hf).save_pretrained(base)
        file = base / "model.safetensors"
        save_file({**load_file(file), **EXTRA}, file, metadata={"format": "pt"})
        report = export_hf(trained_checkpoint(base, Path(scratch) / "run"), out)
        before, after = load_file(file), load_file(out / "model.safetensors")
    if before.keys() != after.keys():
        return f"other names: {sorted(before.keys() ^ after.keys())[:2]}"
    if report.num_carried != len(EXTRA) or not report.load_checked:
        return f"{report.num_carried} of {len(EXTRA)} tensors were carried"
    still = {name for name in before if same_bytes(before[name], after[name])}
    if not EXTRA.keys() <= still:
        return f"changed: {sorted(EXTRA.keys() - still)}"
    numbers = {n for n, t in before.items() if t.is_floating_point()} - EXTRA.keys()
    return f"not trained: {sorted(numbers & still)[:2]}" if numbers & still else ""


def balanced(kind: str) -> tuple[str, float]:
    """(what is wrong with the balance loss and its gradients in both scopes, the largest relative gap)."""
    module, batch = built(kind), batch_with_filler()
    clean, gap = copy_of(module.hf), 0.0
    for scope, expected in (("document", by_document), ("micro_batch", by_micro_batch)):
        loss, found = ours(module, batch, scope)
        clean.zero_grad()
        theirs = expected(clean, batch)
        theirs.backward()
        gap = max(gap, abs(loss / float(theirs.detach()) - 1))
        for name, grad in gradients(clean).items():
            close = (
                torch.allclose(found[name], grad, rtol=1e-3, atol=2e-5) if name in found else not grad.any()
            )
            if not close:
                return f"its gradient is another ({name}, {scope})", gap
    return "", gap


def has_balance_loss(kind: str) -> bool:
    """Whether Transformers' class computes one."""
    return family_of(kind).balance_loss is not None


def tower(kind: str) -> str:
    """What is wrong with a model with a tower whose language model is trained."""
    for check in (logits_of_the_whole, export_of_the_whole):
        with tempfile.TemporaryDirectory() as scratch:
            try:
                check(kind, Path(scratch))
            except AssertionError as error:
                return " ".join(str(error).split())[:160] or check.__name__
    return ""
