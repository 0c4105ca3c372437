"""Rows with pictures for tests: tiny folders of a family, files of several shapes, prepared data."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from image_judges import image_folder
from PIL import Image

from paceline.config.schema import Config
from paceline.data.images.load import ImageLoader, image_loader
from paceline.data.packed_source import PackedSource
from paceline.data.prepare.prepare import Prepared, prepare
from paceline.data.rows.kinds.base import row_kind

TEMPLATE = (
    "{% for m in messages %}{{ '<s>' + m['role'] + ':' }}{% if m['content'] is string %}{{ m['content'] }}"
    "{% else %}{% for p in m['content'] %}{% if p['type'] == 'image' %}{{ 'MARK' }}{% else %}{{ p['text'] }}"
    "{% endif %}{% endfor %}{% endif %}{{ '</s>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s>assistant:' }}{% endif %}"
)
#: What a chat template of the family writes for a picture
MARKS = {
    "qwen2_vl": "<|vision_start|><|image_pad|><|vision_end|>",
    "gemma3": "<start_of_image>",
    "llava_onevision": "<image>",
    "idefics3": "<image>",
    "mistral3": "[IMG]",
}
SIZES = {"a.png": (64, 48), "b.png": (30, 90), "c.png": (128, 40), "d.png": (56, 56)}


def png(size: tuple[int, int], seed: int = 0) -> bytes:
    rng = np.random.default_rng(seed)
    stream = io.BytesIO()
    Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), np.uint8), "RGB").save(stream, format="PNG")
    return stream.getvalue()


def write_pictures(folder: Path) -> None:
    for number, (name, size) in enumerate(SIZES.items()):
        (folder / name).write_bytes(png(size, number))


def config_for(
    rows: Sequence[Mapping[str, Any]] | Path, folder: Path, kind: str = "qwen2_vl", **data: Any
) -> Config:
    """The config of rows (or of their file) for a tiny folder of a family, with pictures beside them."""
    if not (model := folder / "model").exists():
        image_folder(kind, model)
        (model / "chat_template.jinja").write_text(TEMPLATE.replace("MARK", MARKS[kind]))
        write_pictures(folder)
    file = rows if isinstance(rows, Path) else folder / "rows.jsonl"
    if not isinstance(rows, Path):
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    section = {"train": [{"path": str(file)}], "max_length": 2000, **data}
    return Config.from_json({"model": {"name_or_path": str(model), "vision": True}, "data": section})


def prepared_of(config: Config, folder: Path, rows_of: str = "documents", **more: Any) -> Prepared:
    kind = row_kind(rows_of)
    return prepare(config.data, config.model, seed=0, cache_dir=folder / "cache", kind=kind, **more)


def loader_of(prepared: Prepared, config: Config) -> ImageLoader:
    table = prepared.train
    assert table.images is not None and prepared.images is not None
    return image_loader(table.images, prepared.images, config, prepared.path)


def source_of_rows(prepared: Prepared, config: Config, **options: Any) -> PackedSource:
    given = {"seq_len": 2000, "packing": True, "seed": 0, "pad_token_id": 0, "shuffle": False, **options}
    return PackedSource(prepared.train, images=loader_of(prepared, config), **given)


def turns(question: Any, answer: Any = "yes", **more: Any) -> dict[str, Any]:
    asked = {"role": "user", "content": question}
    return {"messages": [asked, {"role": "assistant", "content": answer}], **more}
