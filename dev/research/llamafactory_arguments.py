#!/usr/bin/env python
"""Print how LLaMA-Factory 0.9.5 itself parses files: `llamafactory_arguments.py FILE`, a JSON list of them.

    python -m venv LF && LF/bin/pip install torch==2.13.0 && LF/bin/pip install llamafactory==0.9.5
    LF/bin/python dev/research/llamafactory_arguments.py files.json

One JSON object a file: the fields of its model, data, finetuning and generating arguments and of its trainer.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
from pathlib import Path


def main() -> None:
    """Parse each file as `llamafactory-cli train` does."""
    from llamafactory.hparams import get_train_args

    found: list[dict[str, object]] = []
    for given in json.loads(Path(sys.argv[1]).read_text()):
        with tempfile.TemporaryDirectory() as folder:
            try:
                parsed = get_train_args({**given, "output_dir": folder, "use_cpu": True})
            except (ValueError, AssertionError, SystemExit, ImportError) as exc:
                found.append({"error": str(exc) or type(exc).__name__})
                continue
            found.append({key: value for part in parsed for key, value in _plain(part).items()})
    print(json.dumps(found, default=str))


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
    os.environ.setdefault("DISABLE_VERSION_CHECK", "1")
    main()
