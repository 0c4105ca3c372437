"""Whole models with images: the loss and gradients of a packed row are Transformers' own, one document at a
time.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from model_families import Source
from vision_batches import InDouble, VisionRows, loss_alone
from vision_models import FAMILIES, write_vision_folder

from paceline.models.factory import HFModelFactory
from paceline.plan.features.freezing import Freezing
from paceline.protocols.model import BuildOptions
from paceline.protocols.roles import Output

ALL = Freezing(unfreeze=("^",))  # the tower too


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
@pytest.mark.parametrize("kind", FAMILIES)
def test_a_packed_row_is_its_documents_alone(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    from transformers import AutoModelForImageTextToText

    folder = write_vision_folder(tmp_path, kind)
    alone = AutoModelForImageTextToText.from_pretrained(folder, attn_implementation="sdpa").to(dtype)
    module = HFModelFactory(Source(name_or_path=str(folder)), vision=True, freezing=ALL, master_dtype=dtype)()
    rows = VisionRows(folder, alone)
    documents = [rows.document(n) for n in (0, 1, 3, 0)]
    with InDouble() if dtype == torch.float64 else nullcontext():
        out = module.train()(rows.batch(documents, dtype), frozenset({Output.NLL}))
        expected = loss_alone(alone.train(), documents)
    near = 2e-6 if dtype == torch.float32 else 1e-10
    torch.testing.assert_close(out["nll"], expected, rtol=near, atol=near)
    out["nll"].backward()
    expected.backward()
    theirs = dict(alone.named_parameters())
    names = [name for name, p in module.plain_named_parameters() if p.requires_grad]
    scale = max(float(p.grad.abs().max()) for p in theirs.values() if p.grad is not None)
    for name, parameter in module.plain_named_parameters():
        grad = theirs[name].grad
        if grad is None:
            assert parameter.grad is None, name
            continue
        assert name in names
        torch.testing.assert_close(
            parameter.grad, grad, rtol=near, atol=near * scale, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("gathers", [False, True])
@pytest.mark.parametrize("kind", FAMILIES)
def test_a_row_without_images_touches_every_parameter(kind: str, gathers: bool, tmp_path: Path) -> None:
    folder = write_vision_folder(tmp_path, kind)
    build = HFModelFactory(Source(name_or_path=str(folder)), vision=True, freezing=ALL)
    module = build(BuildOptions(in_step=gathers))
    rows = VisionRows(folder, module.hf)
    documents = [rows.document(0), rows.document(0)]
    out = module.train()(rows.batch(documents), frozenset({Output.NLL}))
    torch.testing.assert_close(out["nll"], loss_alone(module.hf, documents), rtol=2e-6, atol=2e-6)
    out["nll"].backward()
    reached = {name for name, p in module.plain_named_parameters() if p.grad is not None}
    module.zero_grad()
    module(rows.batch([rows.document(1)]), frozenset({Output.NLL}))["nll"].backward()
    with_image = {name for name, p in module.plain_named_parameters() if p.grad is not None}
    assert reached >= with_image
    if gathers:
        assert reached == with_image
