"""Three steps by another program, run by the Python of its environment: ``SYSTEM GIVEN ANSWER``.

This file imports nothing of Paceline: the other environment has none. ``GIVEN`` is a JSON file with the keys
(TRL: [trainer, keys]), ``ANSWER`` the file for its losses, or for ``{"error": …}``.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

Keys = dict[str, float | str | bool | None]
Log = list[dict[str, float]]


def llamafactory(given: Keys, folder: str) -> Log:
    """Train as ``llamafactory-cli train`` does; return the trainer's log."""
    tuner = importlib.import_module("llamafactory.train.tuner")
    tuner.run_exp(args={**given, "output_dir": folder})
    state = json.loads((Path(folder) / "trainer_state.json").read_text(encoding="utf-8"))
    log: Log = state["log_history"]
    return log


def axolotl(given: Keys, folder: str) -> Log:
    """Train as ``axolotl train`` does; return the trainer's log."""
    train = importlib.import_module("axolotl.train").train
    config = importlib.import_module("axolotl.cli.config")
    datasets = importlib.import_module("axolotl.common.datasets")
    file = Path(folder) / "given.yaml"
    places = {"output_dir": f"{folder}/out", "dataset_prepared_path": f"{folder}/prepared"}
    file.write_text(json.dumps({**given, **places}), encoding="utf-8")
    cfg = config.load_cfg(str(file))
    rows = (datasets.load_preference_datasets if cfg.rl else datasets.load_datasets)(cfg=cfg)
    _, _, trainer = train(cfg=cfg, dataset_meta=rows)
    log: Log = trainer.state.log_history
    return log


def trl(given: tuple[str, Keys], folder: str) -> Log:
    """Train as TRL's own script does; return the trainer's log."""
    library, transformers = importlib.import_module("trl"), importlib.import_module("transformers")
    name, keys = given[0].upper(), given[1]
    classes = (library.ScriptArguments, getattr(library, f"{name}Config"), library.ModelConfig)
    file = Path(folder) / "given.yaml"
    file.write_text(json.dumps({**keys, "output_dir": folder}), encoding="utf-8")
    parsed = library.TrlParser(classes).parse_args_and_config(["--config", str(file)])
    script, training, model = parsed[:3]
    training.model_init_kwargs = {"attn_implementation": model.attn_implementation, "dtype": model.dtype}
    load = importlib.import_module("datasets").load_dataset
    rows = load("json", data_files=script.dataset_name, split="train", cache_dir=f"{folder}/hf")
    trainer = getattr(library, f"{name}Trainer")(
        model=model.model_name_or_path,
        args=training,
        train_dataset=rows,
        processing_class=transformers.AutoTokenizer.from_pretrained(model.model_name_or_path),
    )
    trainer.train()
    log: Log = trainer.state.log_history
    return log


PROGRAMS: dict[str, Callable[..., Log]] = {
    "llamafactory": llamafactory,
    "axolotl": axolotl,
    "trl": trl,
}


def main() -> None:
    """Train, and write the losses of the steps."""
    system, given, answer = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        try:
            log = PROGRAMS[system](json.loads(Path(given).read_text(encoding="utf-8")), folder)
            found: list[float] | dict[str, str] = [float(entry["loss"]) for entry in log if "loss" in entry]
        except (Exception, SystemExit) as error:  # whatever the program refuses is its answer
            found = {"error": f"{type(error).__name__}: {error}"[-800:]}
    Path(answer).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
