"""Start exported files in their own programs: ``starts.py QUESTION ANSWER``, in the program's environment.

QUESTION is JSON: ``program``, ``verb`` (``parse`` or ``train``: three steps) and ``files``, [trainer, file]
each. ANSWER gets, for each file, ``{"parsed": true}``, ``{"losses": […]}`` or ``{"error": …}``.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

#: what all children share
ONCE = {
    "trl": "trl.trainer.sft_trainer",
    "llamafactory": "llamafactory.train.tuner",
    "axolotl": "axolotl.train",
}
STEPS = {"max_steps": 3, "logging_steps": 1, "save_strategy": "no"}


def record(losses: list[float]) -> None:
    """Note the losses that Transformers' Trainer logs from now on."""
    import transformers

    log = transformers.Trainer.log

    def noted(self: Any, logs: dict[str, Any], *rest: Any, **more: Any) -> Any:
        if "loss" in logs:
            losses.append(float(logs["loss"]))
        return log(self, logs, *rest, **more)

    transformers.Trainer.log = noted


def trl(trainer: str, file: str, train: bool) -> None:
    """Parse a file as ``trl TRAINER --config FILE`` does, unknown keys being errors; run its script."""
    script = importlib.import_module(f"trl.scripts.{trainer}")
    words = ["--config", file, "--output_dir", f"{file}.out", "--report_to", "none"]
    words += [word for key, value in STEPS.items() for word in (f"--{key}", str(value))] if train else []
    sys.path.insert(0, str(Path(file).parent))
    parsed = script.make_parser().parse_args_and_config(words)
    if train:
        script.main(*parsed)


def llamafactory(trainer: str, file: str, train: bool) -> None:
    """Read a file as ``llamafactory-cli train FILE`` does."""
    import yaml
    from llamafactory.hparams import get_train_args
    from llamafactory.train.tuner import run_exp

    given = yaml.safe_load(Path(file).read_text())
    given |= {"report_to": "none", "output_dir": f"{file}.out", "overwrite_cache": True}
    if train:
        run_exp(given | STEPS | {"plot_loss": False})
    else:
        get_train_args(given)


def axolotl(trainer: str, file: str, train: bool) -> None:
    """Validate a file as ``axolotl train FILE`` does, unknown keys being errors; train it."""
    from axolotl.cli.config import load_cfg
    from axolotl.common.datasets import load_datasets, load_preference_datasets
    from axolotl.utils.schemas.config import AxolotlInputConfig

    more = {"use_tensorboard": False, "output_dir": f"{file}.out", "dataset_prepared_path": f"{file}.rows"}
    import yaml

    unknown = set(yaml.safe_load(Path(file).read_text())) - set(AxolotlInputConfig.model_fields)
    if unknown:
        raise ValueError(f"axolotl has no {sorted(unknown)}")
    steps = {"max_steps": 3, "logging_steps": 1, "save_strategy": None, "save_steps": 1000} if train else {}
    cfg = load_cfg(file, **more, **steps)
    if train:
        from axolotl.cli.args import TrainerCliArgs
        from axolotl.train import train as run

        load = load_preference_datasets if cfg.rl else load_datasets
        run(cfg=cfg, dataset_meta=load(cfg=cfg, cli_args=TrainerCliArgs()))


def main() -> None:
    """Answer each file in a child of its own, so that none sees what another one left."""
    question = json.loads(Path(sys.argv[1]).read_text())
    importlib.import_module(ONCE[question["program"]])
    start, train = globals()[question["program"]], question["verb"] == "train"
    answers = []
    for trainer, file in question["files"]:
        out = Path(f"{sys.argv[2]}.one")
        child = os.fork()
        if child == 0:
            losses: list[float] = []
            try:
                record(losses)
                start(trainer, file, train)
                out.write_text(json.dumps({"losses": losses} if train else {"parsed": True}))
            except BaseException as exc:  # what the program says is the answer
                traceback.print_exc()
                out.write_text(json.dumps({"error": f"{type(exc).__name__}: {exc}"[:600]}))
            os._exit(0)
        os.waitpid(child, 0)
        answers.append(json.loads(out.read_text()))
        out.unlink()
        print(file, answers[-1], flush=True)
    Path(sys.argv[2]).write_text(json.dumps(answers))


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
