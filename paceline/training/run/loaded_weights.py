"""Check a run's loaded weights if its first loss is not finite."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from paceline.config.schema import Config
from paceline.core.errors import PacelineError
from paceline.core.safetensors_header import FLOATS, header_of
from paceline.models.loading.model_source import weights_folder
from paceline.plan.model.files.safetensors_headers import weights_of
from paceline.training import codes
from paceline.training.loop.train_state import TrainState


@contextmanager
def explain_nonfinite(config: Config, state: TrainState) -> Iterator[None]:
    """Add the non-finite loaded tensor to the error of a run without a finite step."""
    try:
        yield
    except PacelineError as error:
        found = error.diagnostics[0]
        if found.code != codes.TRAINING_NONFINITE.name or state.trained_steps:
            raise
        loaded = next((text for folder in _folders(config) if (text := not_finite(folder))), "")
        if not loaded:
            raise
        raise PacelineError(
            replace(
                found,
                what=f"{found.what}: the weights that were loaded are no numbers",
                found=f"{loaded}; {found.found}",
                hint="download the model again, or take an earlier checkpoint of the run that wrote it",
            )
        ) from error


def _folders(config: Config) -> Iterator[Path]:
    model, lora = config.model, config.lora
    if model.config is None and model.name_or_path:
        yield weights_folder(model.name_or_path, model.revision)
    if lora is not None and lora.adapter_name_or_path:
        yield Path(lora.adapter_name_or_path).expanduser()


def not_finite(folder: Path) -> str:
    """Return the first tensor of a folder's files that holds NaN or infinity, and its file; empty if none."""
    from safetensors import SafetensorError, safe_open

    adapter = folder / "adapter_model.safetensors"
    try:
        for file in [*weights_of(folder, []), *([adapter] if adapter.is_file() else [])]:
            kinds = {name: entry.dtype for name, entry in header_of(file).items() if entry.dtype in FLOATS}
            with safe_open(file, "pt") as opened:
                for name in kinds:
                    wrong = ~opened.get_tensor(name).isfinite()
                    if wrong.any():
                        count = f"{int(wrong.sum()):,} of {wrong.numel():,} values"
                        return f"{name} in {file} has {count} that are not finite"
    except (OSError, ValueError, SafetensorError):  # the files have gone or changed since
        return ""
    return ""
