"""TRL 1.16.0 in its own environment: what it parses, tokenizes and computes of [trainer, keys]."""

from __future__ import annotations

import ast
import importlib
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import children

Given = tuple[str, dict[str, Any]]
_TRAINERS = {"sft": "SFT", "dpo": "DPO", "kto": "KTO", "reward": "Reward", "grpo": "GRPO", "rloo": "RLOO"}


def arguments(given: Given, folder: str) -> dict[str, object]:
    """Return its script, trainer and model arguments, as ``trl TRAINER --config FILE`` has them."""
    parsed = _parsed(given, folder, {"output_dir": folder, "use_cpu": True})
    found = {key: value for part in parsed for key, value in children.fields(part).items()}
    return {**found, "trainer": given[0]}


def _parsed(given: Given, folder: str, more: dict[str, object]) -> Any:
    import trl

    trainer, keys = given
    scripts: type = trl.ScriptArguments
    if trainer in ("grpo", "rloo"):
        module = importlib.import_module(f"trl.scripts.{trainer}")
        scripts = getattr(module, f"{trainer.upper()}ScriptArguments")
    parser = trl.TrlParser((scripts, getattr(trl, f"{_TRAINERS[trainer]}Config"), trl.ModelConfig))
    file = Path(folder) / "given.yaml"
    file.write_text(json.dumps({**keys, **more}))
    return parser.parse_args_and_config(["--config", str(file)])


def losses(given: Given, folder: str) -> list[float]:
    """Train as TRL's own script does; return the logged losses."""
    made = _trainer(given, folder)
    made.train()
    return children.losses_of(made.state.log_history)


def tokens(given: Given, folder: str) -> list[dict[str, object]]:
    """Return the columns of its training rows, and the labels that its collator makes."""
    if given[1].get("add_bos"):
        return _tokens_of_open_instruct(given[1])
    made = _trainer(given, folder)
    rows = [dict(row) for row in made.train_dataset]
    for row in rows:
        batch = made.data_collator([row])
        row["labels"] = batch["labels"][0].tolist() if "labels" in batch else None
    return rows


def _tokens_of_open_instruct(keys: dict[str, Any]) -> list[dict[str, object]]:
    """Return what Open-Instruct's own code makes of conversations; what it imports to log and launch is left
    out.
    """
    sys.path.insert(0, f"{os.environ['PACELINE_SOURCES']}/open-instruct")
    sys.modules |= {
        f"open_instruct.{name}": MagicMock() for name in ("launch_utils", "logger_utils", "utils")
    }
    from open_instruct import dataset_transformation as theirs

    config = theirs.TokenizerConfig(tokenizer_name_or_path=keys["model_name_or_path"], add_bos=True)
    tokenizer = theirs.get_tokenizer_tulu_v2_2(config)
    rows = [json.loads(line) for line in Path(keys["dataset_name"]).read_text().splitlines()]
    made = [theirs.sft_tulu_tokenize_and_truncate_v1(row, tokenizer, keys["max_length"]) for row in rows]
    return [{name: row[name].tolist() for name in ("input_ids", "labels")} for row in made]


def scores(given: dict[str, Any], folder: str) -> float:
    """Return the score of an answer by open-r1's ``code``; here its script runs on this machine."""
    sys.path.insert(0, str(Path(__file__).parent))
    import score_others

    sys.modules |= {
        name: MagicMock() for name in ("latex2sympy2_extended", "math_verify")
    }  # of other rewards
    score_others.rewards_of(Path(os.environ["PACELINE_SOURCES"], "open-r1"))
    from open_r1 import rewards

    rewards.get_provider = lambda **_: SimpleNamespace(execute_scripts=lambda texts, _: [_value(texts[0])])
    info = {"language": "python", "test_cases": given["tests"]}
    return float(rewards.code_reward([[{"content": given["answer"]}]], verification_info=[info])[0])


def _value(script: str) -> float:
    """Return the value of a script's last line, as the service does; 0 where it raises."""
    *body, last = ast.parse(textwrap.dedent(script)).body
    names: dict[str, Any] = {}
    try:
        exec(compile(ast.Module(body, []), "script", "exec"), names)  # noqa: S102
        return float(eval(compile(ast.Expression(last.value), "script", "eval"), names))  # type: ignore[attr-defined]  # noqa: S307
    except subprocess.TimeoutExpired:
        return 0.0


def _trainer(given: Given, folder: str) -> Any:
    import trl
    from datasets import load_dataset
    from transformers import AutoTokenizer

    script, training, model = _parsed(given, folder, {})[:3]
    training.model_init_kwargs = {"attn_implementation": model.attn_implementation, "dtype": model.dtype}
    rows = load_dataset("json", data_files=script.dataset_name, split="train", cache_dir=f"{folder}/hf")
    return getattr(trl, f"{_TRAINERS[given[0]]}Trainer")(
        model=model.model_name_or_path,
        args=training,
        train_dataset=rows,
        processing_class=AutoTokenizer.from_pretrained(model.model_name_or_path),
        peft_config=trl.get_peft_config(model),
    )


if __name__ == "__main__":
    import trl

    assert [
        getattr(trl, f"{name}Trainer") for name in _TRAINERS.values()
    ]  # imports all, once, before the children

    children.answer(arguments=arguments, tokens=tokens, losses=losses, scores=scores)
