"""Whole models with images: the loss and gradients of a packed row are Transformers' own, one document at a
time.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from model_families import Source
from support import swept
from torch import Tensor
from vision_batches import InDouble, VisionRows, hidden_alone, loss_alone
from vision_models import FAMILIES, write_vision_folder

from paceline.models.factory import HFModelFactory
from paceline.models.heads.sequence_classification import Classes
from paceline.models.role_module import RoleModule
from paceline.plan.features.freezing import Freezing
from paceline.plan.model.family import composites
from paceline.plan.plan import AdapterSpec
from paceline.protocols.model import BuildOptions
from paceline.protocols.roles import Output, Role

NLL = frozenset({Output.NLL})
EVERY = Freezing(unfreeze=("^",))  # the tower, too
HEADS = {
    Role.REWARD: (Output.SCORES, None),
    Role.CLASSIFIER: (Output.CLASSES, Classes(("bad", "fair", "good"))),
}
SEEN = (0, 1, 3, 0)  # images of each document


def whole(folder: Path, **options: Any) -> RoleModule:
    """The folder's model with its tower, all of it trained."""
    options = {"freezing": EVERY} | options
    return HFModelFactory(Source(name_or_path=str(folder)), vision=True, **options)().train()


def alone(folder: Path, dtype: torch.dtype) -> Any:
    """Transformers' own model."""
    from transformers import AutoModelForImageTextToText

    auto: Any = AutoModelForImageTextToText
    how = {"attn_implementation": "sdpa", "experts_implementation": "eager"}
    return auto.from_pretrained(folder, **how).to(dtype).train()


def gradients(model: torch.nn.Module) -> dict[str, Tensor]:
    """By the names of the folder."""
    return {n.removeprefix("hf."): p.grad for n, p in model.named_parameters() if p.grad is not None}


def assert_near(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], near: float) -> None:
    """The same names, and values near each other by the largest gradient of all."""
    assert set(ours) == set(theirs)
    largest = max(float(grad.abs().max()) for grad in theirs.values())
    for name, grad in theirs.items():
        far = float((ours[name] - grad).abs().max())
        assert far <= near * largest, f"{name}: {far / largest:.1e} of the largest gradient"


def test_every_family_that_sees_images_is_tried() -> None:
    assert {kind for kind, composite in composites().items() if composite.pixels} == set(FAMILIES)


@pytest.mark.parametrize("kind", swept(FAMILIES, 3))
def test_a_packed_row_is_its_documents_alone(kind: str, tmp_path: Path) -> None:
    compared(write_vision_folder(tmp_path, kind), torch.float64, 1e-10)


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("gemma3", "no image reaches model.vision_tower.head: 11 tensors frozen"),
        (
            "llava",
            "no image reaches model.vision_tower.encoder.layers.2, model.vision_tower.post_layernorm: 18"
            " tensors frozen",
        ),
        ("internvl", ""),
        ("mistral3", ""),
        ("mistral3 -2", "no image reaches model.vision_tower.transformer.layers.1: 9 tensors frozen"),
    ],
)
def test_parameters_that_no_image_reaches_are_named(kind: str, named: str, tmp_path: Path) -> None:
    name, _, layer = kind.partition(" ")
    module = whole(
        write_vision_folder(tmp_path, name, **({"vision_feature_layer": int(layer)} if layer else {}))
    )
    assert module.notes().get("vision", "") == named


@pytest.mark.parametrize("way", ["trained", "text alone", "adapters", "reference"])
def test_a_pooling_head_that_nothing_reads_is_not_computed(way: str, tmp_path: Path) -> None:
    """ZeRO-3 lost count of its parameters, which torch's attention reads without a call."""
    options: dict[str, dict[str, Any]] = {
        "text alone": {"freezing": Freezing(("projector",))},
        "adapters": {"adapter": AdapterSpec(r=2, alpha=4.0, target_modules=("all-linear",))},
        "reference": {"frozen": True},
    }
    module = whole(write_vision_folder(tmp_path, "gemma3"), **options.get(way, {}))
    names = [name for name, _ in module.hf.named_modules() if name.endswith("vision_tower.head")]
    module.hf.get_submodule(names[0]).register_forward_hook(lambda *_: pytest.fail("called"))
    rows = VisionRows(tmp_path, module.hf)
    module(rows.batch([rows.document(1)]), NLL)


def test_an_adapter_where_no_image_reaches_is_frozen(tmp_path: Path) -> None:
    spec = AdapterSpec(r=2, alpha=4.0, target_modules=(r".*\.q_proj",))
    module = whole(write_vision_folder(tmp_path, "llava"), adapter=spec)
    assert "layers.2: 2 tensors" in module.notes()["vision"]
    rows = VisionRows(tmp_path, module.hf)
    module(rows.batch([rows.document(1)]), NLL)["nll"].backward()
    trained = {n.removeprefix("hf."): p.grad for n, p in module.named_parameters() if p.requires_grad}
    assert all(grad is not None for grad in trained.values()) and any("vision_tower" in n for n in trained)


@pytest.mark.full
@pytest.mark.parametrize("kind", FAMILIES)
def test_it_is_so_in_float32(kind: str, tmp_path: Path) -> None:
    compared(write_vision_folder(tmp_path, kind), torch.float32, 2e-6)


def compared(folder: Path, dtype: torch.dtype, near: float, **options: Any) -> None:
    """Compare a packed row, and the documents one by one through us, with Transformers' own forward."""
    theirs, ours = alone(folder, dtype), whole(folder, master_dtype=dtype, **options)
    rows = VisionRows(folder, theirs)
    documents = [rows.document(n) for n in SEEN]
    with InDouble() if dtype == torch.float64 else nullcontext():
        expected = loss_alone(theirs, documents)
        expected.backward()
        for rows_of in ([documents], [[document] for document in documents]):
            ours.zero_grad()
            losses = [ours(rows.batch(some, dtype), NLL)["nll"] for some in rows_of]
            torch.testing.assert_close(torch.stack(losses).sum(), expected, rtol=near, atol=near)
            torch.stack(losses).sum().backward()
            # of a sum of hundreds of tokens: float32's own rounding is 3e-6 of the largest
            assert_near(gradients(ours), gradients(theirs), 2 * near)


@pytest.mark.parametrize(("kind", "gathers"), swept([(k, g) for k in FAMILIES for g in (True, False)], 5))
def test_a_row_without_images_touches_every_parameter(kind: str, gathers: bool, tmp_path: Path) -> None:
    folder = write_vision_folder(tmp_path, kind)
    build = HFModelFactory(Source(name_or_path=str(folder)), vision=True, freezing=EVERY)
    module = build(BuildOptions(fused=not gathers)).train()
    rows = VisionRows(folder, module.hf)
    documents = [rows.document(0), rows.document(0)]
    out = module(rows.batch(documents), NLL)["nll"]
    torch.testing.assert_close(out, loss_alone(module.hf, documents), rtol=2e-6, atol=2e-6)
    out.backward()
    reached = set(gradients(module))
    module.zero_grad()
    module(rows.batch([rows.document(1)]), NLL)["nll"].backward()
    assert reached == set(gradients(module))


WAYS: dict[str, dict[str, Any]] = {
    "recompute": {"recompute": True},
    "padded": {"attention": "sdpa"},
    "compiled": {"compile": True, "compile_options": {"backend": "eager"}},
}
CASES = [(kind, way) for kind in FAMILIES for way in WAYS if way != "compiled" or kind == "gemma3"]


@pytest.mark.parametrize(("kind", "way"), swept(CASES, 9, 3))
def test_other_ways_of_computing_are_the_packed_row(kind: str, way: str, tmp_path: Path) -> None:
    folder = write_vision_folder(tmp_path, kind)
    plain, other = whole(folder), whole(folder, **WAYS[way])
    rows = VisionRows(folder, plain.hf)
    batch = rows.batch([rows.document(n) for n in SEEN])
    losses = [module(batch, NLL)["nll"] for module in (plain, other)]
    torch.testing.assert_close(*losses, rtol=2e-6, atol=0.0)
    for loss in losses:
        loss.backward()
    assert_near(gradients(other), gradients(plain), 4e-6)


@pytest.mark.parametrize("kind", swept(FAMILIES, 6, 4))
def test_bfloat16_keeps_the_text_in_its_own_low_precision(kind: str, tmp_path: Path) -> None:
    folder = write_vision_folder(tmp_path, kind)
    wide, low = whole(folder), whole(folder, compute_dtype=torch.bfloat16)
    rows = VisionRows(folder, wide.hf)
    batch = rows.batch([rows.document(n) for n in SEEN])
    losses = [module(batch, NLL)["nll"] for module in (wide, low)]
    torch.testing.assert_close(losses[1], losses[0], rtol=2e-3, atol=0.0)
    losses[1].backward()
    assert set(gradients(low)) == {n for n, p in low.plain_named_parameters() if p.requires_grad}
    assert "Conv" not in low.notes()["precision"] or low.carries_state


@pytest.mark.parametrize(("kind", "role"), swept([(k, r) for k in FAMILIES for r in HEADS], 8))
def test_a_score_is_of_the_document_s_own_last_token(kind: str, role: Role, tmp_path: Path) -> None:
    folder, (output, classes) = write_vision_folder(tmp_path, kind), HEADS[role]
    theirs, ours = alone(folder, torch.float32), whole(folder, role=role, classes=classes)
    rows = VisionRows(folder, theirs)
    documents = [rows.document(n) for n in SEEN]
    scores = ours(rows.batch(documents), frozenset({output}))[output.value]
    weight = ours.hf.get_submodule("score").weight
    with torch.no_grad():
        expected = torch.stack([hidden_alone(theirs, document)[-1] @ weight.T for document in documents])
    torch.testing.assert_close(scores.view_as(expected), expected, rtol=2e-6, atol=2e-6)
    scores.sum().backward()
    assert set(gradients(ours)) == {n for n, p in ours.plain_named_parameters() if p.requires_grad}


@pytest.mark.parametrize("kind", swept(("qwen3_vl_moe", "qwen3_5_moe", "glm4v_moe"), 3))
def test_experts_are_counted_by_document(kind: str, tmp_path: Path) -> None:
    folder = write_vision_folder(tmp_path, kind)
    module = whole(folder)
    rows = VisionRows(folder, module.hf)
    documents = [rows.document(n) for n in SEEN]
    wanted = frozenset({Output.ROUTER})
    together, *apart = (
        module(rows.batch(some), wanted)["router"]
        for some in (documents, *([document] for document in documents))
    )
    torch.testing.assert_close(together, torch.cat(apart, dim=1), rtol=1e-6, atol=1e-6)
