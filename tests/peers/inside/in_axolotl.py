"""axolotl 0.19.0 in its own environment: what it resolves, tokenizes and computes of a file's keys."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import children


class _Made(Exception):
    """The arguments are made: nothing else of the builder is wanted."""


def arguments(given: dict[str, object], folder: str) -> dict[str, object]:
    """Return its validated config as on a machine of one H100, its trainer's arguments (``training``), its
    adapter's config (``lora``), and the tokens of the first row that have loss (``labelled``).
    """
    import axolotl.cli.config as cli
    import axolotl.utils.config as resolving
    import torch.distributed as dist

    init = dist.init_process_group  # DeepSpeed's argument class asks for NCCL
    dist.init_process_group = lambda *_, **__: init("gloo", store=dist.HashStore(), rank=0, world_size=1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    os.environ["DS_ACCELERATOR"] = "cpu"
    capable = {"bf16": True, "fp8": True, "tf32": True, "n_gpu": 1, "compute_capability": "sm_90"}
    cli.gpu_capabilities = lambda: (capable, {"torch_version": "2.13.0"})  # type: ignore[attr-defined]
    resolving.is_torch_bf16_gpu_available = lambda: True  # type: ignore[attr-defined]
    file = Path(folder) / "given.yaml"
    file.write_text(json.dumps({**given, "output_dir": folder}))
    return _resolved(str(file))


def tokens(given: dict[str, object], folder: str) -> list[dict[str, object]]:
    """Return the columns of its training rows."""
    cfg, rows = _rows(given, folder)
    return [{key: children.plain(value) for key, value in row.items()} for row in rows.train_dataset]


def losses(given: dict[str, object], folder: str) -> list[float]:
    """Train as `axolotl train` does; return the logged losses."""
    from axolotl.train import train

    if given.pop("quantize_moe_experts", False):
        _quantize_experts()
    cfg, rows = _rows(given, folder)
    _, _, trainer = train(cfg=cfg, dataset_meta=rows)
    return children.losses_of(trainer.state.log_history)


def _quantize_experts() -> None:
    """Round experts after they are loaded, as axolotl does meanwhile on a GPU alone (``moe_quant.py``)."""
    from axolotl.loaders import ModelLoader
    from bitsandbytes.nn.parametrize import replace_parameter_4bit

    load = ModelLoader.load

    def loaded(loader: Any) -> Any:
        model, config = load(loader)
        for name, parameter in list(model.named_parameters()):
            place, _, last = name.rpartition(".")
            if parameter.ndim >= 3 and "expert" in name:
                replace_parameter_4bit(model.get_submodule(place), last, True, "nf4")
        return model, config

    ModelLoader.load = loaded


def _rows(given: dict[str, object], folder: str) -> Any:
    from axolotl.cli.config import load_cfg
    from axolotl.common.datasets import load_datasets, load_preference_datasets

    file = Path(folder) / "given.yaml"
    made = {"output_dir": f"{folder}/out", "dataset_prepared_path": f"{folder}/prepared"}
    file.write_text(json.dumps({**given, **made}))
    cfg = load_cfg(str(file))
    return cfg, (load_preference_datasets if cfg.rl else load_datasets)(cfg=cfg)


def _resolved(file: str) -> dict[str, object]:
    from axolotl.cli.config import load_cfg
    from axolotl.loaders.adapter import _build_peft_lora_config
    from transformers import AutoModelForCausalLM, AutoTokenizer

    cfg = load_cfg(file)
    model = AutoModelForCausalLM.from_config(_config_of(cfg.base_model))
    tokenizer = AutoTokenizer.from_pretrained(cfg.base_model)
    answer = {key: children.plain(value) for key, value in cfg.items()}
    answer["training"] = _arguments(cfg, model, tokenizer)
    if cfg.adapter:
        answer["lora"] = {
            key: children.plain(value) for key, value in vars(_build_peft_lora_config(model, cfg)).items()
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
    return {key: children.plain(value) for key, value in vars(kept[0]).items()}


def _labelled(cfg: Any, tokenizer: Any) -> object:
    from axolotl.prompt_strategies import load

    data = cfg.datasets[0]
    strategy = load(data["type"], tokenizer, cfg, data)
    made = strategy.tokenize_prompt(json.loads(Path(data["path"]).read_text().splitlines()[0]))
    return tokenizer.convert_ids_to_tokens([label for label in made["labels"] if label != -100])


if __name__ == "__main__":
    import axolotl.train  # noqa: F401 - once, before the children

    children.answer(arguments=arguments, tokens=tokens, losses=losses)
