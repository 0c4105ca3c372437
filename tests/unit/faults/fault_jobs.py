"""A sound job of a few files, that faults are made in."""

from __future__ import annotations

import json
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from support import write_rows

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.launch.preflight import child_checks
from paceline.launch.preflight.load_config import load
from paceline.launch.preflight.plan_job import planned

Settings = dict[str, Any]


def write_safetensors(path: Path, numbers: int = 4) -> None:
    """A file that holds one float32 tensor."""
    header = json.dumps(
        {"w": {"dtype": "F32", "shape": [numbers], "data_offsets": [0, 4 * numbers]}}
    ).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4 * numbers))


def write_weights(folder: Path) -> None:
    """Write weights of the class that the folder's ``config.json`` names, as Transformers saves them."""
    (folder / "model.safetensors").write_bytes(_weights_of((folder / "config.json").read_text()))


@cache
def _weights_of(config: str) -> bytes:
    from transformers import AutoConfig, AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as folder:
        named = AutoConfig.for_model(**json.loads(config))
        AutoModelForCausalLM.from_config(named).save_pretrained(folder)
        return (Path(folder) / "model.safetensors").read_bytes()


LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 52,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 128,
}
GPT2 = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_embd": 32,
    "n_layer": 4,
    "n_head": 4,
    "vocab_size": 320,
    "n_positions": 128,
}


def tried_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The look and the tries without their process: seconds a fault."""
    from paceline.training.preflight import trial as trial

    def asked(job: dict[str, Any]) -> tuple[dict[str, Any], str]:
        told = dict[str, Any]()
        for told in trial.answers(job):  # noqa: B007
            pass
        return told, ""

    monkeypatch.setattr(child_checks, "run_child", asked)


class Job:
    """A folder with models, rows and a YAML; ``plan`` gives the codes that planning it finds."""

    def __init__(self, root: Path, tokenizer: Path) -> None:
        self.root = root
        for name, config in (("llama", LLAMA), ("gpt2", GPT2)):
            shutil.copytree(tokenizer, root / "models" / name)
            (root / "models" / name / "config.json").write_text(json.dumps(config))
            write_weights(root / "models" / name)
        write_rows(root / "rows.json", 8)
        self.model = root / "models" / "llama"

    def yaml(self, settings: Settings) -> Path:
        """``settings``: values by dotted path, over a sound job."""
        tree: dict[str, Any] = {
            "model": {"name_or_path": str(self.model)},
            "data": {"train": str(self.root / "rows.json"), "max_length": 64},
            "training": {
                "max_steps": 4,
                "report_to": "none",
                "output_dir": str(self.root / "run"),
                "use_cpu": True,
            },
        }
        for path, value in settings.items():
            section, _, name = path.partition(".")
            tree.setdefault(section, {})[name] = value
        file = self.root / "job.yaml"
        file.write_text(json.dumps(tree, indent=1))
        return file

    def found(
        self, settings: Settings | None = None, *overrides: str, **options: Any
    ) -> dict[str, Diagnostic]:
        """Code → finding of the plan, refused or not."""
        return {d.code: d for d in self.all_found(settings, *overrides, **options)}

    def all_found(
        self, settings: Settings | None = None, *overrides: str, **options: Any
    ) -> tuple[Diagnostic, ...]:
        """All findings of the plan, refused or not."""
        try:
            loaded = load(self.yaml(settings or {}), overrides)
            _, said = planned(loaded, **options)
        except ConfigError as error:
            return error.diagnostics
        return said
