"""What becomes of a trained model: an exported folder, answers. Runs in this process and imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.diagnostics import Diagnostic

if TYPE_CHECKING:
    from paceline.checkpoint.export.exporters import Exporter
    from paceline.generation.answer import Message

Model = str | PathLike[str]  # a ``Run`` is a path, too


def export(
    run: Model,
    to: str | PathLike[str],
    *,
    checkpoint: str = "result",
    dtype: str = "float32",
    role: str = "policy",
    merge: bool = False,
    overwrite: bool = False,
    exporters: Sequence[Exporter] | None = None,
    max_shard_size: str = "5GB",
) -> Path:
    """Write the model of a run, or of one checkpoint, as a Hugging Face folder, and return the folder.

    ``checkpoint``: latest, best, step-N, or the one that the run's result names; ``dtype``: float32, bfloat16
    or float16; ``role``: which model of the run; ``merge``: merge an adapter into its base; ``overwrite``:
    replace a folder that is not empty; ``exporters``: names or functions of the folder, in place of the run's
    training.exporters; ``max_shard_size``: of a file of weights (500MB, 2GiB). Raises ConfigError and
    CheckpointError.
    """
    from paceline.checkpoint.export.exporters import exporters_of
    from paceline.checkpoint.export.hf_export import export_hf
    from paceline.checkpoint.export.main import choose, shard_bytes

    notes: list[Diagnostic] = []
    found = choose(Path(run), checkpoint, notes)
    target = Path(to).expanduser().absolute()
    also = exporters_of(exporters, found)
    return export_hf(
        found,
        target,
        dtype,
        role=role,
        overwrite=overwrite,
        merge=merge,
        exporters=also,
        max_shard_bytes=shard_bytes(max_shard_size),
        verified=True,
    ).path


def generate(
    model: Model,
    prompts: Sequence[str | Sequence[Message]],
    *,
    system: str | None = None,
    max_new_tokens: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    batch_size: int = 64,
) -> list[str]:
    """Return the model's answer to each prompt, in order.

    ``model``: a run, one of its checkpoints, or a Hugging Face folder. A prompt is a text, which becomes a
    user's message behind ``system``, or a whole conversation. What is not given is as the run's
    ``generation:`` section has it; temperature 0 is greedy. Raises ConfigError.
    """
    from paceline.evaluation.open_run import opened
    from paceline.evaluation.prompts import prompts_of
    from paceline.generation.answer import answer
    from paceline.generation.settings import sampling_of

    path = Path(model)
    given: Mapping[str, float | None] = {
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
    }
    sampling = sampling_of(path, given)
    hf, tokenizer = opened(path)
    hf.generation_config.max_length = None
    opening: list[Message] = [{"role": "system", "content": system}] if system else []
    conversations = [
        [*opening, {"role": "user", "content": one}] if isinstance(one, str) else [*opening, *one]
        for one in prompts
    ]
    return answer(hf, tokenizer, prompts_of(tokenizer, conversations), sampling, batch_size=batch_size)
