"""TRL's losses of rows with pictures: ``SFTTrainer`` on prompts, completions and images, three steps.

``python tests/peers/image_losses.py --write`` asks TRL in its own environment and records the losses;
``tests/unit/training/test_image_losses.py`` replays them. TRL tokenizes a prompt and its completion apart, so
the templates here end a prompt where a tokenizer never joins it to what follows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
RECORDED = HERE / "recorded" / "image_losses.json"
#: Families, and whether TRL's processor of it asks for torchvision.
FAMILIES = {"gemma3": False, "idefics3": False, "llava": False, "qwen2_5_vl": True}
STEPS, RATE = 3, 1e-2
#: Sizes at which no family's processor here resizes by anything but Pillow.
_SIZES = ((56, 56), (56, 84), (84, 56), (112, 56))
_ANSWERS = ("red", "dark green", "blue", "a light yellow one")


def write_inputs(folder: Path, kind: str) -> None:
    """Write a tiny folder of a family, four pictures and the rows that name them."""
    import numpy as np
    from PIL import Image
    from vision_models import write_vision_folder

    model = write_vision_folder(folder / kind, kind)
    template = model / "chat_template.jinja"
    template.write_text(template.read_text().replace(': "', ':"'))
    draws = np.random.default_rng(0)
    rows = []
    for number, (size, answer) in enumerate(zip(_SIZES, _ANSWERS, strict=True)):
        name = f"{number}.png"
        pixels = draws.integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / name)
        prompt = [{"role": "user", "content": "what " * (number + 1) + "colour is it?"}]
        rows.append(
            {
                "prompt": prompt,
                "completion": [{"role": "assistant", "content": answer}],
                "images": [name],
            }
        )
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def ours(folder: Path, kind: str) -> dict[str, Any]:
    """The config of the same training by Paceline."""
    training = {
        "output_dir": str(folder / "run"),
        "per_device_train_batch_size": len(_SIZES),
        "num_train_epochs": STEPS,
        "learning_rate": RATE,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 1.0,
        "unfreeze": ["^"],
        "logging_steps": 1,
        "save_strategy": "no",
    }
    data = {"train": str(folder / "rows.jsonl"), "packing": False, "max_length": 512}
    return {"model": {"name_or_path": str(folder / kind)}, "data": data, "training": training}


def asked() -> dict[str, list[float]]:
    """Return TRL's losses by family."""
    from ask import VARIABLES, interpreter, torchvision

    python = interpreter("trl")
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", "Pillow"], check=True)
    losses = {}
    for kind, needs_torchvision in FAMILIES.items():
        with tempfile.TemporaryDirectory() as name:
            write_inputs(Path(name), kind)
            path = torchvision("trl") if needs_torchvision else {}
            environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | VARIABLES | path
            script = str(HERE / "inside" / "image_trl.py")
            words = [python, script, kind, str(STEPS), str(RATE)]
            done = subprocess.run(
                words, env=environment, cwd=name, capture_output=True, text=True, check=True
            )
            losses[kind] = json.loads(done.stdout.splitlines()[-1])
    return losses


if __name__ == "__main__":
    made = asked()
    print(json.dumps(made, indent=1))
    if "--write" in sys.argv:
        RECORDED.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
