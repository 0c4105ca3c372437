"""A first loss that is no number: the message names the loaded tensor that is not finite, and its file."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from paceline.config.schema import Config
from paceline.core.errors import PacelineError
from paceline.training import codes
from paceline.training.loop.nonfinite_trace import explain_nonfinite
from paceline.training.loop.train_state import TrainState


@pytest.mark.parametrize("value", [math.nan, math.inf, 1.0])
@pytest.mark.parametrize("adapter", [True, False])
@pytest.mark.parametrize("steps", [0, 3])
def test_the_first_loss_names_the_tensor_that_is_not_finite(
    tmp_path: Path, value: float, adapter: bool, steps: int
) -> None:
    base, lora = tmp_path / "base", tmp_path / "adapter"
    for folder, name, here in ((base, "model", not adapter), (lora, "adapter_model", adapter)):
        folder.mkdir()
        weight = torch.ones(3, 2, dtype=torch.bfloat16)
        weight[1, 1] = value if here else 1.0
        save_file(
            {"a": torch.ones(2), "b": weight, "c": torch.ones(1, dtype=torch.int64)},
            folder / f"{name}.safetensors",
        )
    config = Config.model_validate(
        {"model": {"name_or_path": str(base)}, "lora": {"adapter_name_or_path": str(lora)}}
    )
    with pytest.raises(PacelineError) as caught, explain_nonfinite(config, TrainState(trained_steps=steps)):
        raise PacelineError(codes.TRAINING_NONFINITE("step 1", "losses {'loss': nan}", step=1))
    [found] = caught.value.diagnostics
    blamed = not steps and not math.isfinite(value)
    file = (lora / "adapter_model.safetensors") if adapter else (base / "model.safetensors")
    assert (f"b in {file} has 1 of 6 values" in found.found) is blamed and "losses" in found.found
    assert ("learning_rate" in found.hint) is not blamed
