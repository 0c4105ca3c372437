"""TRL 1.16.0 in its own environment: what it parses, tokenizes and computes of [trainer, keys]."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import children

Given = tuple[str, dict[str, Any]]
_TRAINERS = {"sft": "SFT", "dpo": "DPO", "kto": "KTO", "reward": "Reward", "grpo": "GRPO", "rloo": "RLOO"}


def arguments(given: Given, folder: str) -> dict[str, object]:
    """Return its script, trainer and model arguments, as ``trl TRAINER --config FILE`` has them."""
    parsed = _parsed(given, folder, {"output_dir": folder, "use_cpu": True})
    found = {key: value for part in parsed for key, value in children.fields(part).items()}
    return {**found, "trainer": given[0]}


def _parsed(given: Given, folder: str, more: dict[str, object]) -> Any:
    import trl

    trainer, keys = given
    scripts: type = trl.ScriptArguments
    if trainer in ("grpo", "rloo"):
        module = importlib.import_module(f"trl.scripts.{trainer}")
        scripts = getattr(module, f"{trainer.upper()}ScriptArguments")
    parser = trl.TrlParser((scripts, getattr(trl, f"{_TRAINERS[trainer]}Config"), trl.ModelConfig))
    file = Path(folder) / "given.yaml"
    file.write_text(json.dumps({**keys, **more}))
    return parser.parse_args_and_config(["--config", str(file)])


def losses(given: Given, folder: str) -> list[float]:
    """Train as TRL's own script does; return the logged losses."""
    made = _trainer(given, folder)
    made.train()
    return children.losses_of(made.state.log_history)


def tokens(given: Given, folder: str) -> list[dict[str, object]]:
    """Return the columns of its training rows, and the labels that its collator makes."""
    made = _trainer(given, folder)
    rows = [dict(row) for row in made.train_dataset]
    for row in rows:
        batch = made.data_collator([row])
        row["labels"] = batch["labels"][0].tolist() if "labels" in batch else None
    return rows


def _trainer(given: Given, folder: str) -> Any:
    import trl
    from datasets import load_dataset
    from transformers import AutoTokenizer

    script, training, model = _parsed(given, folder, {})[:3]
    training.model_init_kwargs = {"attn_implementation": model.attn_implementation, "dtype": model.dtype}
    rows = load_dataset("json", data_files=script.dataset_name, split="train", cache_dir=f"{folder}/hf")
    return getattr(trl, f"{_TRAINERS[given[0]]}Trainer")(
        model=model.model_name_or_path,
        args=training,
        train_dataset=rows,
        processing_class=AutoTokenizer.from_pretrained(model.model_name_or_path),
        peft_config=trl.get_peft_config(model),
    )


if __name__ == "__main__":
    import trl

    assert [
        getattr(trl, f"{name}Trainer") for name in _TRAINERS.values()
    ]  # imports all, once, before the children

    children.answer(arguments=arguments, tokens=tokens, losses=losses)
