#!/usr/bin/env python
"""Print how axolotl 0.19.0 itself resolves files: `axolotl_arguments.py FILE`, a JSON list of them.

    python -m venv AX && AX/bin/pip install torch==2.13.0 && AX/bin/pip install axolotl==0.19.0
    AX/bin/python dev/research/axolotl_arguments.py files.json

One JSON object a file: its validated config, its trainer's arguments (``training``), its adapter's config
(``lora``), and the tokens of ``rows.jsonl``'s first row that have loss (``labelled``), or the error.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any


class _Made(Exception):
    """The arguments are made: nothing else of the builder is wanted."""


def main() -> None:
    """Resolve each file as `axolotl train` does before it loads a model, on a machine of one H100."""
    import axolotl.cli.config as cli
    import axolotl.utils.config as resolving
    import torch.distributed as dist

    capable = {"bf16": True, "fp8": True, "tf32": True, "n_gpu": 1, "compute_capability": "sm_90"}
    cli.gpu_capabilities = lambda: (capable, {"torch_version": "2.13.0"})  # type: ignore[attr-defined]
    resolving.is_torch_bf16_gpu_available = lambda: True  # type: ignore[attr-defined]
    init = dist.init_process_group  # DeepSpeed's argument class asks for NCCL
    dist.init_process_group = lambda *_, **__: init("gloo", store=dist.HashStore(), rank=0, world_size=1)
    files = json.loads(Path(sys.argv[1]).read_text())
    with multiprocessing.get_context("fork").Pool(
        1, maxtasksperchild=1
    ) as pool:  # it sets variables and patches
        found = pool.map(_answer, files, chunksize=1)
    print(json.dumps(found, default=str))


def _answer(given: dict[str, object]) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "given.yaml"
        file.write_text(json.dumps({**given, "output_dir": folder}))
        try:
            return _resolved(str(file))
        except (Exception, SystemExit) as exc:  # whatever it refuses
            return {"error": str(exc) or type(exc).__name__}


def _resolved(file: str) -> dict[str, object]:
    from axolotl.cli.config import load_cfg
    from axolotl.loaders.adapter import _build_peft_lora_config
    from transformers import AutoModelForCausalLM, AutoTokenizer

    cfg = load_cfg(file)
    model = AutoModelForCausalLM.from_config(_config_of(cfg.base_model))
    tokenizer = AutoTokenizer.from_pretrained(cfg.base_model)
    answer = {key: _plain(value) for key, value in cfg.items()}
    answer["training"] = _arguments(cfg, model, tokenizer)
    if cfg.adapter:
        answer["lora"] = {
            key: _plain(value) for key, value in vars(_build_peft_lora_config(model, cfg)).items()
        }
    if not cfg.rl and not cfg.reward_model and cfg.datasets[0]["type"] != "completion":
        answer["labelled"] = _labelled(cfg, tokenizer)
    return answer


def _config_of(folder: str) -> Any:
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(folder)


def _arguments(cfg: Any, model: Any, tokenizer: Any) -> dict[str, object]:
    from axolotl.core.builders.causal import HFCausalTrainerBuilder
    from axolotl.core.builders.rl import HFRLTrainerBuilder

    kept: list[Any] = []

    def made(arguments: Any) -> Any:
        kept.append(arguments)
        raise _Made

    builder: Any = (HFRLTrainerBuilder if cfg.rl else HFCausalTrainerBuilder)(cfg, model, tokenizer)
    base = builder._set_base_training_args

    def on_a_cpu(total_num_steps: int | None) -> Any:  # Transformers asks the real device
        made, more = base(total_num_steps)
        made.pop("tf32")
        return {**made, "use_cpu": True}, more

    builder._set_base_training_args = on_a_cpu
    builder.eval_dataset = SimpleNamespace() if cfg.val_set_size or cfg.test_datasets else None
    steps = cfg.max_steps or None
    if cfg.rl:
        kept.append(builder._build_training_arguments(total_num_steps=steps)[0])
    else:
        builder.hook_post_create_training_args = made
        with contextlib.suppress(_Made):
            builder.build(steps)
    return {key: _plain(value) for key, value in vars(kept[0]).items()}


def _labelled(cfg: Any, tokenizer: Any) -> object:
    from axolotl.prompt_strategies import load

    data = cfg.datasets[0]
    strategy = load(data["type"], tokenizer, cfg, data)
    made = strategy.tokenize_prompt(json.loads(Path(data["path"]).read_text().splitlines()[0]))
    return tokenizer.convert_ids_to_tokens([label for label in made["labels"] if label != -100])


def _plain(value: object) -> object:
    value = getattr(value, "value", value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if isinstance(value, (bool, int, float, str, type(None))):
        return value
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, (list, tuple)) else str(value)


if __name__ == "__main__":
    os.environ.update(AXOLOTL_DO_NOT_TRACK="1", HF_HUB_OFFLINE="1", ACCELERATE_USE_CPU="true")
    os.environ.update(
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="0",
        RANK="0",
        WORLD_SIZE="1",
        LOCAL_RANK="0",
        DS_ACCELERATOR="cpu",
    )
    main()
