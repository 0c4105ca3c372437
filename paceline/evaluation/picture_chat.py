"""Pictures in a chat: they belong to the conversation's first prompt, and are read as those of a row."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from paceline.config.schema import Config
from paceline.core.errors import ConfigError
from paceline.core.files import read_bytes
from paceline.core.json_types import JsonObject, as_object
from paceline.data.rows.kinds.prompts import PROMPTS
from paceline.data.token_table import decode_labels
from paceline.evaluation import codes
from paceline.evaluation.file_rows import read_file
from paceline.evaluation.pictures import forward_arguments, picture_loader, stored_options, write_pictures
from paceline.generation.answer import Message
from paceline.generation.settings import run_of, stored_config
from paceline.models.vision.whole_model import sees_images

if TYPE_CHECKING:
    from paceline.protocols.model import HFModel

MARK = "<image>"
_LONGEST = 1 << 24  # tokens: the model's positions are what limits a prompt
_OF_THE_RUN = ("image_min_pixels", "image_max_pixels", "image_refuse_pixels")


@dataclass
class PictureChat:
    """Renders conversations about ``pictures``. ``run``: the user's name for the model in ``folder``;
    ``scratch``: an empty folder; ``given``: what the model reads beside the last conversation's tokens.
    """

    hf: HFModel
    folder: Path
    run: Path
    scratch: Path
    pictures: Sequence[Path]
    given: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not sees_images(self.hf):
            found, remedy = str(self.hf.config.model_type), "a model with a vision tower, or no --image"
            raise ConfigError(codes.EVALUATION_JOB("this model reads text alone", "--image", found, remedy))
        self._names = [f"{n}{picture.suffix}" for n, picture in enumerate(self.pictures)]
        for name, picture in zip(self._names, self.pictures, strict=True):
            try:
                (self.scratch / name).write_bytes(read_bytes(picture))
            except OSError as error:
                why = error.strerror or str(error)
                raise ConfigError(
                    codes.EVALUATION_JOB("this picture cannot be read", "--image", f"{picture}: {why}")
                ) from error

    def render(self, messages: Sequence[Message]) -> list[int]:
        """Return the token ids of a conversation up to the assistant's message. Raises PacelineError."""
        marked = [dict(message) for message in messages]
        first = next(message for message in marked if message["role"] == "user")
        first["content"] = MARK * len(self._names) + first["content"]
        rows = self.scratch / "rows.jsonl"
        row = {"messages": marked, "images": self._names}
        rows.write_text(json.dumps(row) + "\n", encoding="utf-8")
        config = self._config(rows)
        read = read_file(config.data, config.model, PROMPTS)
        table = self.scratch / "pictures"
        write_pictures(table, read.pictures)
        ids = decode_labels(read.documents[0])[0]
        loader = picture_loader(stored_options(config), self.folder, table)
        self.given = forward_arguments(self.hf, loader, 0, ids)
        return np.asarray(ids).tolist()

    def _config(self, rows: Path) -> Config:
        known = run_of(self.run)
        stored: JsonObject = {} if known is None else stored_config(known)
        data, model = as_object(stored.get("data")), as_object(stored.get("model"))
        options = as_object(model.get("processor_kwargs"))
        return Config.from_json(
            {
                "model": {"name_or_path": str(self.folder), "vision": True, "processor_kwargs": options},
                "data": {
                    "train": [{"path": str(rows)}],
                    "max_length": _LONGEST,
                    **{key: data[key] for key in _OF_THE_RUN if key in data},
                },
            }
        )
