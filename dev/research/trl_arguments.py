#!/usr/bin/env python
"""Print how TRL 1.16.0 itself parses files: `trl_arguments.py FILE`, a JSON list of [trainer, file].

    pip install --no-deps --target TRL trl==1.16.0
    PYTHONPATH=TRL python dev/research/trl_arguments.py files.json

One JSON object a file: the fields of its script, trainer and model arguments, or the error.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
from pathlib import Path


def main() -> None:
    """Parse each file as `trl TRAINER --config FILE` does."""
    import trl

    configs = {
        "sft": (trl.ScriptArguments, trl.SFTConfig),
        "dpo": (trl.ScriptArguments, trl.DPOConfig),
        "kto": (trl.ScriptArguments, trl.KTOConfig),
        "reward": (trl.ScriptArguments, trl.RewardConfig),
        "grpo": (_scripts("grpo"), trl.GRPOConfig),
        "rloo": (_scripts("rloo"), trl.RLOOConfig),
    }
    found: list[dict[str, object]] = []
    for trainer, given in json.loads(Path(sys.argv[1]).read_text()):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "given.yaml"
            file.write_text(json.dumps({**given, "output_dir": folder, "use_cpu": True}))
            parser = trl.TrlParser((*configs[trainer], trl.ModelConfig))
            try:
                parsed = parser.parse_args_and_config(["--config", str(file)])
            except (ValueError, TypeError, SystemExit) as exc:
                found.append({"error": str(exc) or type(exc).__name__})
                continue
            found.append({key: value for part in parsed for key, value in _plain(part).items()})
            found[-1]["trainer"] = trainer
    print(json.dumps(found, default=str))


def _scripts(trainer: str) -> type:
    import importlib

    module = importlib.import_module(f"trl.scripts.{trainer}")
    found: type = getattr(module, f"{trainer.upper()}ScriptArguments")
    return found


def _plain(arguments: object) -> dict[str, object]:
    values = {field.name: getattr(arguments, field.name, None) for field in dataclasses.fields(arguments)}  # type: ignore[arg-type]
    return {
        name: getattr(value, "value", value)
        if isinstance(getattr(value, "value", value), (bool, int, float, str, list, dict, type(None)))
        else str(value)
        for name, value in values.items()
    }


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
