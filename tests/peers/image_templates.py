#!/usr/bin/env python
"""Twenty rows with pictures under each template of LLaMA-Factory that a family here shares: ids and labels.

    PACELINE_PEERS=/opt/envs python tests/peers/image_templates.py [NAME …] [--write]

``--write`` records a digest of each row's ids and labels, which ``tests/unit/data/test_image_templates.py``
replays.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import of_llamafactory  # noqa: E402
import ours  # noqa: E402
from small import template_tokens, turn, write_lines  # noqa: E402
from templates import Document, digests, documents, first_difference  # noqa: E402

RECORDED = HERE / "recorded" / "image_templates.json"
#: template → type of the model that reads it
PAIRS: Mapping[str, str] = {
    "qwen2_vl": "qwen2_5_vl",
    "qwen3_vl": "qwen3_vl",
    "qwen3_vl_nothink": "qwen3_vl",
    "qwen3_5": "qwen3_5",
    "qwen3_5_nothink": "qwen3_5",
    "gemma3": "gemma3",
    "gemma4": "gemma4",
    "intern_vl": "internvl",
    "llava": "llava",
    "llava_next": "llava_next",
    "llava_next_mistral": "llava_next",
    "llava_next_qwen": "llava_next",
    "mistral_small": "mistral3",
    "glm4v": "glm4v",
    "glm4_5v": "glm4v_moe",
}
_SIZES = ((56, 56), (60, 90), (120, 33), (200, 180), (31, 45), (300, 40))
_PIXELS = 30_000  # a bound that two of the sizes exceed


def write_inputs(folder: Path, kind: str) -> dict[str, object]:
    """Write a tiny folder of a family, six pictures and twenty rows; return the keys without the template."""
    import numpy as np
    from PIL import Image
    from transformers import AutoTokenizer
    from vision_models import write_vision_folder

    model = write_vision_folder(folder / "model", kind)
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.add_tokens(template_tokens(), special_tokens=True)
    tokenizer.save_pretrained(model)
    draws = np.random.default_rng(0)
    for number, (width, height) in enumerate(_SIZES):
        pixels = draws.integers(0, 255, (height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    write_lines(folder / "rows.jsonl", rows())
    columns = {"messages": "messages", "images": "images"}
    tags = {"role_tag": "role", "content_tag": "content", "user_tag": "user"}
    tags |= {"assistant_tag": "assistant", "system_tag": "system"}
    info = {"rows": {"file_name": "rows.jsonl", "formatting": "sharegpt", "columns": columns, "tags": tags}}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    keys = {"stage": "sft", "do_train": True, "finetuning_type": "full", "dataset": "rows"}
    keys |= {"dataset_dir": str(folder), "media_dir": str(folder), "model_name_or_path": str(model)}
    sizes = {"cutoff_len": 4096, "max_samples": 100, "max_steps": -1, "image_max_pixels": _PIXELS}
    return {**of_llamafactory.REPLACED, **keys, **sizes}


def rows() -> list[dict[str, Any]]:
    """Return twenty conversations of none to three pictures, at any turn, at any place of it."""
    made = []
    for number in range(20):
        turns = [turn("system", f"You are helper {number}.")] if number % 4 == 0 else []
        images = []
        for which in range(1 + number % 3):
            text = f"{number}: what is in there?"
            for place in range((number + which) % 3):
                images.append(f"{(number + which + place) % len(_SIZES)}.png")
                text = f"<image>{text}" if place % 2 == 0 else f"{text} and in <image>\n"
            turns += [turn("user", text), turn("assistant", f"Squares ({which}).")]
        made.append({"messages": turns, "images": images})
    return made


def compared(name: str, kind: str) -> dict[str, Any]:
    """Ask LLaMA-Factory and ourselves for a template's rows."""
    from ask import ask, torchvision

    with tempfile.TemporaryDirectory(prefix="paceline-images-") as place:
        folder = Path(place)
        question = {**write_inputs(folder, kind), "template": name}
        answer = ask("llamafactory", "tokens", [question], folder, variables=torchvision("llamafactory"))[0]
        if isinstance(answer, dict):
            return {"error": answer["error"][-300:]}
        theirs = documents(answer)
        mine, said = of_ours(question, folder)
        equal = sum(a == b for a, b in zip(digests(theirs), digests(mine), strict=False))
        found: dict[str, Any] = {"digests": digests(theirs), "equal": equal}
        if said:
            found["said"] = said
        if equal < len(theirs):
            print(first_difference(theirs, mine, folder))
        return found


def of_ours(keys: dict[str, object], folder: Path) -> tuple[list[Document], dict[str, str]]:
    """Return our documents of the imported keys, and what the import says of them."""
    made = ours.imported("llamafactory", keys)
    said = {key: says for key, says in made.said.items() if key.partition(" ")[0] in ("template", "dataset")}
    return ours.tokens(made, folder), said


def main() -> None:
    """Compare, print, and write what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    found = {}
    for name in options.names or PAIRS:
        try:
            found[name] = compared(name, PAIRS[name])
        except Exception as error:  # noqa: BLE001  (whatever ours refuses is a row of the table)
            found[name] = {"refused": str(error)[:600]}
        print(name, {k: v for k, v in found[name].items() if k != "digests"}, flush=True)
    if options.write:
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in found.items())
        RECORDED.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
