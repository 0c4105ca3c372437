"""Packed rows with images for the tiny models of ``vision_models``, and Transformers' own forward over them,
one document at a time.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.overrides import TorchFunctionMode

from paceline.models.vision.positions import VisionPositions
from paceline.plan.model.family import image_family
from paceline.protocols.batch import IGNORE_INDEX, Batch
from paceline.protocols.images import Images

SIZES = ((70, 42), (30, 90), (56, 56), (20, 24))  # width, height of drawn pictures
LOW = 60  # ids of words begin behind the special tokens


def pictures(count: int, seed: int = 0) -> list[Image.Image]:
    """Pictures of random pixels and unequal sizes."""
    drawn = np.random.default_rng(seed)
    sizes = [SIZES[i % len(SIZES)] for i in range(count)]
    return [Image.fromarray(drawn.integers(0, 256, (h, w, 3), dtype=np.uint8)) for w, h in sizes]


@dataclass(frozen=True)
class Document:
    """``ids`` int64 [n] with each image's tokens; ``inputs``: what the tower reads (None: no image)."""

    ids: Tensor
    inputs: Mapping[str, Tensor] | None
    counts: tuple[int, ...]


class VisionRows:
    """Documents of one folder, made with its own image processor (Transformers' PIL backend)."""

    def __init__(self, folder: Path, hf: Any, seed: int = 0) -> None:
        from transformers import AutoImageProcessor

        self.processor: Any = AutoImageProcessor.from_pretrained(folder, backend="pil")
        self.hf, self.config = hf, hf.config
        self.random = torch.Generator().manual_seed(seed)
        self.positions = VisionPositions.of(hf.config.to_dict())
        self.seed = seed
        record = image_family(hf.config.model_type)
        self.joined = 0 if record is None else record.joined

    def document(self, images: int, words: int = 7) -> Document:
        """Words, then each image's tokens between further words."""
        text = [self._words(words) for _ in range(images + 1)]
        if not images:
            return Document(text[0], None, ())
        self.seed += 1
        drawn = pictures(images, self.seed)
        made = self.processor(images=[drawn] if self.joined else drawn, return_tensors="pt")
        taken = inspect.signature(self.hf.base_model.get_image_features).parameters
        inputs = {k: torch.as_tensor(v) for k, v in made.items() if k in taken}
        with torch.no_grad():
            counts = self._counts(inputs)
        token = self.config.image_token_id
        parts = [text[0]]
        for i, count in enumerate(counts):
            parts += [torch.full((count,), token), text[1 + i % images]]
        return Document(torch.cat(parts), inputs, counts)

    def _words(self, count: int) -> Tensor:
        top = self.config.get_text_config().vocab_size
        return torch.randint(LOW, top, (count,), generator=self.random)

    def _counts(self, inputs: Mapping[str, Tensor]) -> tuple[int, ...]:
        dtype = next(self.hf.parameters()).dtype
        given = {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs.items()}
        features = self.hf.base_model.get_image_features(**given, return_dict=True).pooler_output
        return tuple(x.shape[0] for x in features)

    def batch(self, documents: Sequence[Document], dtype: torch.dtype = torch.float32) -> Batch:
        """The packed row of ``documents``; image tokens carry no loss."""
        ids = torch.cat([d.ids for d in documents])
        lengths = [len(d.ids) for d in documents]
        bounds = torch.tensor([0, *lengths]).cumsum(0)
        labels = torch.cat([torch.cat([d.ids[1:], torch.tensor([IGNORE_INDEX])]) for d in documents])
        labels[labels == self.config.image_token_id] = IGNORE_INDEX
        return Batch(
            ids[None],
            labels[None],
            torch.cat([torch.arange(n) for n in lengths])[None],
            bounds.int(),
            max(lengths),
            torch.arange(len(lengths)),
            len(lengths),
            images=self._images(documents, ids, dtype),
        )

    def _images(self, documents: Sequence[Document], ids: Tensor, dtype: torch.dtype) -> Images | None:
        with_images = [d.inputs for d in documents if d.inputs is not None]
        if not with_images:
            return None
        inputs = {name: joined([x[name] for x in with_images], self.joined) for name in with_images[0]}
        inputs = {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs.items()}
        places = (ids == self.config.image_token_id).nonzero().squeeze(1)
        positions = None
        if self.positions is not None:
            none = torch.zeros(0, 3, dtype=torch.int64)
            grids = [(d.inputs or {}).get("image_grid_thw", none).numpy() for d in documents]
            each = [self.positions(d.ids.numpy(), grid) for d, grid in zip(documents, grids, strict=True)]
            positions = torch.from_numpy(np.concatenate(each, axis=1))[:, None]
        return Images.of(inputs, places, tuple(c for d in documents for c in d.counts), positions)


def joined(parts: Sequence[Tensor], dim: int) -> Tensor:
    """The tensors along ``dim``, padded with zeros to the largest of them in the other dimensions."""
    if parts[0].dim() == 1:
        return torch.cat(list(parts))
    size = [max(x.shape[d] for x in parts) for d in range(parts[0].dim())]
    padded = []
    for x in parts:
        wanted = [x.shape[d] if d == dim else n for d, n in enumerate(size)]
        new = x.new_zeros(wanted)
        new[tuple(slice(n) for n in x.shape)] = x
        padded.append(new)
    return torch.cat(padded, dim)


def arguments_alone(hf: Any, document: Document) -> dict[str, Tensor]:
    """The document as Transformers' own forward takes it."""
    dtype, ids = next(hf.parameters()).dtype, document.ids[None]
    inputs = {k: v.to(dtype) if v.is_floating_point() else v for k, v in (document.inputs or {}).items()}
    types, names = (ids == hf.config.image_token_id).long(), inspect.signature(type(hf).forward).parameters
    inputs |= {n: types for n in ("token_type_ids", "mm_token_type_ids") if n in names}
    return {"input_ids": ids, "use_cache": False, **inputs}


def hidden_alone(hf: Any, document: Document) -> Tensor:
    """The last hidden states [n, H] by ``hf``'s own forward."""
    states: Tensor = hf(**arguments_alone(hf, document), output_hidden_states=True).hidden_states[-1][0]
    return states


def loss_alone(hf: Any, documents: Sequence[Document]) -> Tensor:
    """The sum of -log p over the labels, by ``hf``'s own forward of each document."""
    total = torch.zeros((), dtype=next(hf.parameters()).dtype)
    for document in documents:
        logits = hf(**arguments_alone(hf, document)).logits[0]
        labels = torch.cat([document.ids[1:], torch.tensor([IGNORE_INDEX])])
        labels[labels == hf.config.image_token_id] = IGNORE_INDEX
        total = total + torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
    return total


class InDouble(TorchFunctionMode):
    """Casts to float32 that a class does by itself (norms, softmax, rotary angles) go to float64 instead, so
    that what is compared is the model and not its rounding.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call ``func`` with float64 in place of float32."""
        given = {k: torch.float64 if v is torch.float32 else v for k, v in (kwargs or {}).items()}
        if func is Tensor.float:
            return args[0].double()
        return func(*(torch.float64 if x is torch.float32 else x for x in args), **given)
