#!/usr/bin/env python
"""Run a trainer of TRL on the keys in FOLDER/given.json: `trl_losses.py TRAINER FOLDER` prints its losses."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main() -> None:
    """Parse the keys as TRL's own script does, train, and print the logged losses as JSON."""
    trainer, folder = sys.argv[1], Path(sys.argv[2])
    import trl
    from datasets import load_dataset
    from transformers import AutoTokenizer

    arguments = {
        "sft": trl.SFTConfig,
        "dpo": trl.DPOConfig,
        "reward": trl.RewardConfig,
        "kto": trl.KTOConfig,
    }[trainer]
    parser = trl.TrlParser((trl.ScriptArguments, arguments, trl.ModelConfig))
    given = json.loads((folder / "given.json").read_text())
    parser.set_defaults_with_config(**given)
    script, training, model = parser.parse_args_and_config(args=[])[:3]
    training.model_init_kwargs = {"attn_implementation": model.attn_implementation, "dtype": model.dtype}
    rows = load_dataset("json", data_files=script.dataset_name, split="train", cache_dir=str(folder / "hf"))
    made = {"sft": trl.SFTTrainer, "dpo": trl.DPOTrainer, "reward": trl.RewardTrainer, "kto": trl.KTOTrainer}[
        trainer
    ](
        model=model.model_name_or_path,
        args=training,
        train_dataset=rows,
        processing_class=AutoTokenizer.from_pretrained(model.model_name_or_path),
        peft_config=trl.get_peft_config(model),
    )
    made.train()
    print(json.dumps([entry["loss"] for entry in made.state.log_history if "loss" in entry]))


if __name__ == "__main__":
    main()
