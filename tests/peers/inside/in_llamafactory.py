"""LLaMA-Factory 0.9.5 in its own environment: what it parses, tokenizes and computes of a file's keys."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import children
from image_trl import declare_operators


def arguments(given: dict[str, object], folder: str) -> dict[str, object]:
    """Return its model, data, finetuning, generating and training arguments, as on a GPU with bfloat16."""
    from llamafactory.hparams import get_train_args, parser

    parser.is_torch_bf16_gpu_available = lambda: True

    parsed = get_train_args({**given, "output_dir": folder, "use_cpu": True})
    return {key: value for part in parsed for key, value in children.fields(part).items()}


def tokens(given: dict[str, object], folder: str) -> list[dict[str, object]]:
    """Return the columns of its training rows."""
    from llamafactory.data import get_dataset, get_template_and_fix_tokenizer
    from llamafactory.hparams import get_train_args
    from llamafactory.model import load_tokenizer

    wanted = {**given, "output_dir": folder, "use_cpu": True}
    model, data, training, finetuning, _ = get_train_args(wanted)
    module = load_tokenizer(model)
    template = get_template_and_fix_tokenizer(module["tokenizer"], data)
    made = get_dataset(template, model, data, training, stage=finetuning.stage, **module)
    return [dict(row) for row in made["train_dataset"]]


def losses(given: dict[str, Any], folder: str) -> list[float]:
    """Train as `llamafactory-cli train` does; return the logged losses."""
    if "train_dataset" in given:
        return _losses_of_version_1(given)
    from llamafactory.extras import misc
    from llamafactory.train.tuner import run_exp

    if given.pop("as_on_a_device", False):  # one that computes in bfloat16
        misc._is_bf16_available = True
    run_exp(args={"output_dir": folder, **given})
    state = json.loads((Path(given.get("output_dir", folder)) / "trainer_state.json").read_text())
    return children.losses_of(state["log_history"])


def _losses_of_version_1(given: dict[str, Any]) -> list[float]:
    """Train a file of version 1; one that the release does not know by newer sources (``ask.SOURCES``)."""
    if given.get("optim_config") or dict(given.get("dist_config") or {}).get("name") == "fsdpturbo":
        _take_newer_sources()
    from llamafactory.v1.trainers.sft_trainer import run_sft

    run_sft(given)
    logged = Path(str(given["output_dir"]), "trainer_log.jsonl").read_text().splitlines()
    return [float(json.loads(line)["loss"]) for line in logged]


def _take_newer_sources() -> None:
    """Import the newer sources from now on, in this child alone."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "llamafactory"]:
        del sys.modules[name]
    sys.path.insert(0, f"{os.environ['PACELINE_SOURCES']}/LLaMA-Factory/src")
    # FSDPTurbo is no package of an index; with one process nothing of it is called
    for name in ("expert_fully_shard_parallel", "expert_parallel"):
        sys.modules[f"fsdp_turbo.distributed.expert_parallel.{name}"] = MagicMock()
    sys.modules |= {"fsdp_turbo.fsdp_turbo_config": MagicMock(), "fsdp_turbo.utils.str_match": MagicMock()}


if __name__ == "__main__":
    if importlib.util.find_spec("torchvision") is not None:
        declare_operators()
    import llamafactory.train.tuner  # noqa: F401 - once, before the children

    children.answer(arguments=arguments, tokens=tokens, losses=losses)
