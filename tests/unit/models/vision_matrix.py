"""The columns of the family matrix about images: what holds of each family's whole model, in small.

Each check is a test of ``test_vision_forward``, run anew for a family.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from model_families import Source
from test_vision_forward import (
    NLL,
    compared,
    gradients,
    test_a_row_without_images_touches_every_parameter,
    test_a_score_is_of_the_document_s_own_last_token,
    test_bfloat16_keeps_the_text_in_its_own_low_precision,
    test_other_ways_of_computing_are_the_packed_row,
)
from vision_batches import VisionRows
from vision_models import write_vision_folder

from paceline.models.factory import HFModelFactory
from paceline.plan.model.family import in_part, parts_of
from paceline.plan.plan import AdapterSpec
from paceline.protocols.roles import Role


def packed(kind: str, folder: Path) -> None:
    """Loss and gradients of documents with 0, 1 and 3 images, in one row and one by one, are Transformers'
    own, in float64 to 1e-10.
    """
    compared(write_vision_folder(folder, kind), torch.float64, 1e-10)


def none(kind: str, folder: Path) -> None:
    """A row without images has the same loss, and gives every trained parameter of the tower a gradient."""
    for gathers in (False, True):
        test_a_row_without_images_touches_every_parameter(kind, gathers, folder)


def padded(kind: str, folder: Path) -> None:
    """One padded row a document computes the same."""
    test_other_ways_of_computing_are_the_packed_row(kind, "padded", folder)


def recomputed(kind: str, folder: Path) -> None:
    """So does recomputation."""
    test_other_ways_of_computing_are_the_packed_row(kind, "recompute", folder)


def bf16(kind: str, folder: Path) -> None:
    """The loss in bf16 is that in float32 to 0.2 %."""
    test_bfloat16_keeps_the_text_in_its_own_low_precision(kind, folder)


def scores(kind: str, folder: Path) -> None:
    """A reward model scores a document's last token."""
    test_a_score_is_of_the_document_s_own_last_token(kind, Role.REWARD, folder)


def adapters(kind: str, folder: Path) -> None:
    """Adapters on the text, the tower and both: the base's loss at first, and a gradient for each."""
    write_vision_folder(folder, kind)
    base = HFModelFactory(Source(name_or_path=str(folder)), vision=True)().train()
    rows = VisionRows(folder, base.hf)
    batch = rows.batch([rows.document(1), rows.document(0)])
    parts = parts_of(kind)
    linear = [name for name, module in base.hf.named_modules() if type(module) is torch.nn.Linear]
    tower = tuple(name for name in linear if in_part(name, parts))
    both = (*tower, *(name for name in linear if name.endswith("layers.0.self_attn.q_proj")))
    for target in (("all-linear",), tower, both):
        spec = AdapterSpec(r=2, alpha=4.0, target_modules=target)
        module = HFModelFactory(Source(name_or_path=str(folder)), vision=True, adapter=spec)().train()
        loss = module(batch, NLL)["nll"]
        torch.testing.assert_close(loss, base(batch, NLL)["nll"], rtol=1e-6, atol=0.0)
        loss.backward()
        trained = {n for n, p in module.hf.named_parameters() if p.requires_grad}
        assert trained and trained == set(gradients(module)), target


IMAGES: dict[str, Callable[[str, Path], None]] = {
    "images": packed,
    "none": none,
    "padded": padded,
    "recomputed": recomputed,
    "bf16 images": bf16,
    "score": scores,
    "adapters": adapters,
}


def seen(kind: str, column: str) -> None:
    """Run one cell. Raises what the check does."""
    with tempfile.TemporaryDirectory() as folder:
        IMAGES[column](kind, Path(folder))
