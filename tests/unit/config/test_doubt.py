"""What the rules say beside an invalid value: only what holds whichever value was meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.config.load import NotLoaded, load_config
from paceline.launch.preflight.plan_job import with_files

MODEL = """model: {config: {model_type: llama, hidden_size: 16, intermediate_size: 32, num_hidden_layers: 1,
  num_attention_heads: 2, vocab_size: 64, max_position_embeddings: 32}, tokenizer: nowhere}
data: {train: rows.json, max_length: 32}
"""


def codes_of(tmp_path: Path, training: str) -> list[str]:
    """The codes of all that is said of a run with these keys, a line each, files apart."""
    path = tmp_path / "run.yaml"
    path.write_text("\n  ".join([f"{MODEL}training:", *training.split("; ")]))
    with pytest.raises(NotLoaded) as caught:
        load_config(str(path))
    return [d.code for d in with_files(caught.value).diagnostics if not d.code.startswith("data.")]


@pytest.mark.parametrize(
    "training",
    [
        "optim: galore_adamww; optim_target_modules: [q_proj]",
        "optim: adamw_bnb; optim_args: 'betas=(0.9,0.95), rank=4'",
        "lr_scheduler_type: consine; lr_scheduler_kwargs: {num_cycles: 2}",
        "algorithm: dpoo; dpo: {beta: 0.2}",
        "per_device_train_batch_size: two; gradient_accumulation_steps: 4",
        "save_strategy: stepz; load_best_model_at_end: true; eval_strategy: epoch",
    ],
)
def test_nothing_is_said_of_a_default_that_stands_in_for_a_wrong_value(tmp_path: Path, training: str) -> None:
    assert codes_of(tmp_path, training) == ["config.value"] or codes_of(tmp_path, training) == ["config.type"]


def test_what_holds_for_every_value_is_said_at_once(tmp_path: Path) -> None:
    found = codes_of(tmp_path, "optim: adamww; early_stopping_patience: 3; parallelism: {tp_size: 2}")
    assert set(found) == {"config.value", "eval.early_stopping"}
    found = codes_of(tmp_path, "optim: adamww; distributed_strategy: ddp; parallelism: {tp_size: 2}")
    assert set(found) == {"config.value", "par.strategy"}
