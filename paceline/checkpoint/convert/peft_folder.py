"""Another program's adapter folder (``adapter_config.json``, ``adapter_model.*``) as a checkpoint of ours."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from paceline.checkpoint import codes
from paceline.checkpoint.base_model_files import join_folders
from paceline.checkpoint.convert.convert import write_converted
from paceline.checkpoint.convert.hf_trainer import state_of
from paceline.checkpoint.convert.pickle_reader.client import PickleReader
from paceline.checkpoint.convert.pickle_reader.torch_tensors import MappedFiles
from paceline.checkpoint.convert.tensor_names import (
    misfit,
    model_names,
    read_config,
    role_of,
    side_files,
    some_of,
)
from paceline.checkpoint.format.foreign_folders import ADAPTER_CONFIG
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import CheckpointError, ConfigError
from paceline.core.files import is_local_name, read_bytes
from paceline.plan.features.peft_settings import rank_of, spec_of
from paceline.plan.model.files.safetensors_headers import adapter_sizes
from paceline.plan.model.read_config import shape_from_config
from paceline.plan.plan import AdapterSpec

_BASE_KEY = "base_model_name_or_path"
_NEEDED = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model", "*.tiktoken"]


@contextmanager
def adapter_checkpoint(folder: Path, model: str | None, beside: Path) -> Iterator[Path]:
    """Yield a checkpoint of the adapter in ``folder``, which an export merges into its base; until then it is
    in a folder inside ``beside``.

    ``model``: folder or hub name of the base (default: the one in adapter_config.json). Raises
    CheckpointError and ConfigError.
    """
    settings = read_config(folder, ADAPTER_CONFIG)
    base = _base_folder(folder, model or str(settings.get(_BASE_KEY) or ""))
    config = read_config(base)
    names = model_names(config, base)
    settings[_BASE_KEY] = str(base)
    spec = spec_of(settings, str(folder / ADAPTER_CONFIG))
    if found := adapter_sizes(folder, spec, shape_from_config(config)):
        raise ConfigError(*found)
    with (
        tempfile.TemporaryDirectory(prefix=".paceline-adapter-", dir=beside) as scratch,
        closing(PickleReader()) as pickles,
    ):
        state = state_of(folder, MappedFiles(pickles), names, "an adapter folder of peft")
        _check_ranks(folder, spec, {name: tensor.shape for name, tensor in state.weights.items()})
        state = replace(state, role=role_of(config, state.adapter, state.weights).value, base=str(base))
        side = join_folders(side_files(base), side_files(folder))
        side |= {"config.json": read_bytes(base / "config.json")}
        side |= {ADAPTER_CONFIG: json.dumps(settings, indent=2).encode()}
        yield write_converted(state, names.buffers, side, folder, Path(scratch)).path


def _check_ranks(folder: Path, spec: AdapterSpec, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise CheckpointError unless the factors have the ranks of the settings, which set their scale."""
    end = ".lora_A.weight"
    ranks = {name.removesuffix(end): shape[0] for name, shape in shapes.items() if name.endswith(end)}
    if spec.target_parameters:  # factors of experts hold all their ranks
        return
    if wrong := [f"{name}: {rank}" for name, rank in ranks.items() if rank != rank_of(spec, name)]:
        raise misfit(
            f"factors of the adapter have another rank than {ADAPTER_CONFIG} says",
            str(folder),
            some_of(wrong),
            "copy both files of one adapter",
        )


def _base_folder(folder: Path, name: str) -> Path:
    """Return the local folder of an adapter's base; a hub's is downloaded. Raises CheckpointError."""
    path = Path(name).expanduser()
    # A relative path begins where the adapter was trained, which nothing says: often a folder around it.
    # A name that the hub may have is looked for where peft looks.
    around = [Path.cwd(), *(folder.absolute().parents[:3] if is_local_name(name) else ())]
    for place in (path,) if path.is_absolute() else (start / path for start in around):
        if name and (place / "config.json").is_file():
            return place
    if name and not is_local_name(name):
        from huggingface_hub import snapshot_download

        try:
            return Path(snapshot_download(name, allow_patterns=_NEEDED))
        except Exception as error:  # noqa: BLE001  (network, authentication and hub errors)
            raise CheckpointError(_no_base(folder, f"{name}: {type(error).__name__}")) from error
    tried = "" if path.is_absolute() else f", in none of {', '.join(map(str, around))}"
    raise CheckpointError(_no_base(folder, f"{name}{tried}" if name else f"no {_BASE_KEY}"))


def _no_base(folder: Path, value: str) -> Diagnostic:
    return codes.EXPORT_BASE_MODEL(
        "the base model of this adapter is not here", str(folder), value, "name its folder with --model"
    )
