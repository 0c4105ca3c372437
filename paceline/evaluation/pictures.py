"""Rows with pictures in an evaluation: Transformers' own forward and ``generate`` of the whole model, row by
row.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.config.schema import Config
from paceline.config.sections.model import ModelSection
from paceline.core.errors import PacelineError
from paceline.core.json_types import JsonObject, as_object
from paceline.data.images.decide import config_of, images_in_rows, media_folders, settings_of
from paceline.data.images.load import ImageLoader
from paceline.data.images.processor import ImageMarks, ImageProcessor
from paceline.data.images.table import ImageBlock, ImageTable, ImageTableWriter
from paceline.data.tokenizer.load import TokenizerSpec, open_tokenizer
from paceline.evaluation.scores.row_losses import RowLoss, row_loss
from paceline.generation.sampling.noise import stream_of
from paceline.models.special_tokens import end_tokens
from paceline.plan.model.family import image_family

if TYPE_CHECKING:
    from paceline.config.sections.data import DataSection
    from paceline.evaluation.processes.work_folder import WorkSettings
    from paceline.protocols.model import HFModel

_TYPES = ("token_type_ids", "mm_token_type_ids")  # 1 at tokens of pictures; each class reads one of them


def sees_rows(data: DataSection, model: ModelSection) -> bool:
    """Whether rows have pictures that the model can see."""
    if model.vision is False:
        return False
    with suppress(PacelineError):  # the model itself is loaded later, and says it
        known = image_family(str(config_of(model).get("model_type"))) is not None
        return known and images_in_rows(data, imports=True) is True
    return False


def stored_options(config: Config) -> JsonObject:
    """Return what a process needs to make pixels, beside the model's folder and the pictures' table."""
    data = config.data
    keys = {"image_min_pixels", "image_max_pixels", "image_refuse_pixels"}
    return {
        "model": {"processor_kwargs": dict(config.model.processor_kwargs)},
        "data": {key: getattr(data, key) for key in keys},
        "folders": list(media_folders(data)),
    }


def write_pictures(folder: Path, blocks: Sequence[ImageBlock] | None) -> None:
    """Write the table of the pictures of all rows, in their order; None: there are none."""
    if blocks is None:
        return
    folder.mkdir(exist_ok=True)
    writer = ImageTableWriter(folder)
    for block in blocks:
        writer.write(block, 0, train=True)
    writer.close()


def picture_loader(options: JsonObject, model: Path, table: Path) -> ImageLoader:
    """Return the loader of the pictures in ``table`` for the model in a folder. Raises PacelineError."""
    section = Config.from_json(
        {
            "model": {"name_or_path": str(model), **as_object(options["model"])},
            "data": {"train": ["rows"], **as_object(options["data"])},
        }
    )
    settings = settings_of(section.data, section.model)
    marks = ImageMarks(settings.family, open_tokenizer(TokenizerSpec(str(model))))
    folders = options["folders"]
    held = ImageTable(table, [str(folder) for folder in folders] if isinstance(folders, list) else [])
    return ImageLoader(
        held,
        ImageProcessor(settings),
        config_of(section.model),
        marks.token_id,
        section.data.image_refuse_pixels,
    )


def forward_arguments(
    hf: HFModel, loader: ImageLoader, row: int, ids: NDArray[np.int32]
) -> dict[str, Tensor]:
    """Return what ``hf`` reads beside the ``ids`` of a row with pictures; nothing without pictures."""
    images = loader.images([loader.table.of(row)], [ids])
    if images is None:
        return {}
    weights, names = next(hf.parameters()), inspect.signature(type(hf).forward).parameters
    types = torch.from_numpy(ids == loader.token_id)[None].long()
    inputs = {**images.inputs, **{name: types for name in _TYPES if name in names}}
    return {
        name: value.to(weights.device, weights.dtype if value.is_floating_point() else None)
        for name, value in inputs.items()
    }


@dataclass
class WholeModelRows:
    """Computes rows of a whole model, each alone. ``loader``: of the rows' pictures; None: they have none."""

    hf: HFModel
    settings: WorkSettings
    loader: ImageLoader | None = None

    def given(self, row: int, ids: NDArray[np.int32]) -> dict[str, Tensor]:
        """Return the arguments of a forward about the pictures of a row."""
        return {} if self.loader is None else forward_arguments(self.hf, self.loader, row, ids)

    @torch.no_grad()
    def loss(self, row: int, ids: NDArray[np.int32], labels: NDArray[np.int32]) -> RowLoss:
        """Return the loss of one row, as ``RowLosses`` does."""
        device = next(self.hf.parameters()).device
        tokens = torch.from_numpy(ids.astype(np.int64)).to(device)[None]
        logits = self.hf(input_ids=tokens, use_cache=False, **self.given(row, ids)).logits[0, :-1].float()
        return row_loss(logits, torch.from_numpy(labels.astype(np.int64)).to(device)[1:])

    @torch.no_grad()
    def answers(self, row: int, ids: NDArray[np.int32], number: int) -> list[tuple[list[int], bool]]:
        """Return the tokens of ``settings.samples`` answers, and whether the model ended each. The noise of
        an answer depends on seed, row and sample alone.
        """
        settings, device = self.settings, next(self.hf.parameters()).device
        stops = end_tokens(self.hf, settings.stop_ids)
        prompt = torch.from_numpy(ids.astype(np.int64)).to(device)[None]
        sampled, answers = settings.temperature > 0, []
        for sample in range(settings.samples):
            torch.manual_seed(stream_of(settings.seed, number, sample))
            tokens = self.hf.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=settings.max_new_tokens,
                do_sample=sampled,
                temperature=settings.temperature if sampled else None,
                top_p=settings.top_p if sampled else None,
                top_k=settings.top_k if sampled else None,
                repetition_penalty=1.0,
                pad_token_id=settings.pad_id,
                eos_token_id=[*stops] or None,
                **self.given(row, ids),
            )[0, prompt.shape[1] :].tolist()
            answers.append((tokens, bool(tokens) and tokens[-1] in stops))
        return answers
