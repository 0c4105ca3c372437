#!/usr/bin/env python
"""Print how ms-swift 4.6.0 itself resolves commands: `swift_arguments.py FILE`, a JSON list of them.

    python -m venv SW && SW/bin/pip install torch==2.13.0 && SW/bin/pip install ms-swift==4.6.0
    SW/bin/python dev/research/swift_arguments.py commands.json

A command is a list of words (``["sft", "--model", …]``). One JSON object a command: its arguments and those
of its trainer (``training``), or the error.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
from pathlib import Path


def main() -> None:
    """Resolve each command as `swift` does before it trains."""
    from swift.arguments import PretrainArguments, RLHFArguments, SftArguments
    from swift.utils import parse_args

    classes = {"sft": SftArguments, "pt": PretrainArguments, "rlhf": RLHFArguments}
    found: list[dict[str, object]] = []
    for name, *words in json.loads(Path(sys.argv[1]).read_text()):
        with tempfile.TemporaryDirectory() as folder:
            try:
                more = ["--use_cpu", "true", "--add_version", "false", "--output_dir", folder]
                arguments, left = parse_args(classes[name], [*words, *more])
            except (ValueError, AssertionError, SystemExit) as exc:
                found.append({"error": str(exc) or type(exc).__name__})
                continue
            found.append({**_plain(arguments), "training": _plain(arguments.training_args), "left": left})
    print(json.dumps(found))


def _plain(arguments: object) -> dict[str, object]:
    values = {field.name: getattr(arguments, field.name, None) for field in dataclasses.fields(arguments)}  # type: ignore[arg-type]
    return {
        name: value.value
        if hasattr(value, "value")
        else value
        if isinstance(value, (bool, int, float, str, list, dict, type(None)))
        else str(value)
        for name, value in values.items()
    }


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
