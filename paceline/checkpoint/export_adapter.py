"""Export an adapter's checkpoint: as a peft folder, or merged into its base model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from paceline.checkpoint import codes
from paceline.checkpoint.adapter_names import NamesInWhole
from paceline.checkpoint.disk import write_fresh
from paceline.checkpoint.folder import ADAPTER_CONFIG, MAX_CONFIG_BYTES, finite
from paceline.checkpoint.reader import CheckpointReader
from paceline.checkpoint.strictjson import parse_object
from paceline.checkpoint.tensorfile import TensorEntry
from paceline.config.schema import Config
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import CheckpointError
from paceline.core.json_types import Json, JsonObject, as_number, as_object
from paceline.models.adapters import WEIGHTS, adapted_modules, base_fingerprint, merge, peft_key
from paceline.models.buffers import persistent_buffers
from paceline.models.factory import HFModelFactory
from paceline.models.quantised import round_trip
from paceline.models.scalar_head import Classes
from paceline.plan.codec import from_json
from paceline.plan.parts import AdapterSpec
from paceline.protocols.model import BuildOptions
from paceline.protocols.roles import Role
from paceline.protocols.shard import PARAM

_OF_WHOLE_MODELS = ("config.json", "generation_config.json")


def is_adapter(reader: CheckpointReader) -> bool:
    """Whether the checkpoint holds an adapter, not a full model."""
    return ADAPTER_CONFIG in reader.side_files()


def adapter_entries(
    reader: CheckpointReader, entries: list[TensorEntry], names: NamesInWhole | None
) -> list[TensorEntry]:
    """Rename the tensors to the keys of peft's file.

    A tied weight that was trained is written under both its names, as peft expects. ``names``: where the
    language model is a part of its folder's model.
    """
    adapted = adapted_modules(e.name for e in entries)
    ties = as_object(_base(reader).get("ties"))
    named = entries + [
        replace(e, name=other) for e in entries for other, own in ties.items() if own == e.name
    ]
    if names is None:
        return [replace(e, name=peft_key(e.name, adapted)) for e in named]
    adapted = frozenset(map(names.of, adapted))
    return [replace(e, name=peft_key(names.of(e.name), adapted)) for e in named]


def write_adapter_files(
    stage: Path, reader: CheckpointReader, trained: Iterable[str], names: NamesInWhole | None
) -> None:
    """Write ``adapter_config.json`` and the tokenizer's files; ``trained``: the names of its tensors in the
    checkpoint.
    """
    for name in reader.side_files():
        contents = reader.side_file(name)
        if name == ADAPTER_CONFIG and names is not None:
            settings = parse_object(contents, str(reader.path), max_bytes=MAX_CONFIG_BYTES)
            contents = json.dumps(names.settings(settings, trained), indent=2).encode()
        if name not in _OF_WHOLE_MODELS:
            write_fresh(stage / name, [contents])


def check_adapter(stage: Path, entries: list[TensorEntry], where: Path) -> None:
    """Load the folder with peft, without a base, and compare every tensor. Raises CheckpointError."""
    from peft import PeftConfig
    from safetensors.torch import load_file

    kind = PeftConfig.from_pretrained(str(stage)).peft_type
    stored = load_file(stage / WEIGHTS)
    wrong = sorted({e.name for e in entries} ^ set(stored))
    wrong += [e.name for e in entries if e.name in stored and not torch.equal(stored[e.name], e.load())]
    if wrong or kind != "LORA":
        what = "peft loads other weights than were written; the export was removed"
        raise CheckpointError(codes.EXPORT_LOAD_CHECK(what, str(where), f"{kind}: {', '.join(wrong[:5])}"))


def merged_entries(
    reader: CheckpointReader, role: str, config: Mapping[str, Json], dtype: torch.dtype
) -> list[TensorEntry]:
    """Return the tensors of the full model: load or build the base, and merge the adapter into it.

    Raises CheckpointError ``export.base_model`` if the base is not the one that was trained on, and
    ConfigError if it cannot be loaded.
    """
    base, saved = _base(reader), reader.state.get("adapter")
    if not isinstance(saved, dict):
        raise CheckpointError(_no_spec(reader))
    if "config" not in reader.state:
        raise CheckpointError(_converted(reader))
    spec = from_json(AdapterSpec, saved)
    # Build the base in the dtype of the trained weights.
    names = [n for n in reader.names() if n.role == role and n.kind == PARAM]
    trained = {n.name: reader.read(role, n.name, PARAM) for n in names}
    wide = any(tensor.dtype == torch.float64 for tensor in trained.values())
    run = Config.from_json(as_object(reader.state["config"]))
    rows = (as_object(config.get("text_config")) or config).get("vocab_size")  # None: the class's own
    build = HFModelFactory(
        run.model.model_copy(update={"trust_remote_code": False}),  # it must not enable remote code
        role=Role(role),
        vocab_size=None if rows is None else int(as_number(rows)),
        seed=run.training.seed,
        master_dtype=torch.float64 if wide else torch.float32,
        classes=Classes.read(Role(role), config),
    )
    hf = build(BuildOptions(device=torch.device("cpu"), fused=False)).hf
    # It must be the base that was trained on.
    found = base_fingerprint(hf)
    if base.get("fingerprint") and found != base["fingerprint"]:
        raise CheckpointError(
            codes.EXPORT_BASE_MODEL(
                "the base weights differ from those that the adapter was trained on",
                str(base.get("name_or_path") or "model.config"),
                f"fingerprint {str(found)[:12]}, trained on {str(base['fingerprint'])[:12]}",
                "use the exact revision it was trained on; or export the adapter without --merge",
            )
        )
    # Training saw the base rounded to 4 bits, so the merge starts from that.
    if spec.quantization is not None:
        round_trip(hf, spec.quantization)
    try:
        merge(hf, spec, trained)
    except (KeyError, RuntimeError) as error:
        raise CheckpointError(
            codes.EXPORT_TENSORS(
                "the adapter does not fit its base model", str(reader.path), str(error)[:300]
            )
        ) from error
    return [
        TensorEntry(
            name,
            dtype if t.is_floating_point() else t.dtype,
            tuple(t.shape),
            _given(t, dtype, reader.path, name),
        )
        for name, t in (*hf.named_parameters(), *persistent_buffers(hf))
    ]


def _given(tensor: Tensor, dtype: torch.dtype, path: Path, name: str) -> Callable[[], Tensor]:
    return lambda: finite(tensor.detach(), dtype, path, name)


def _base(reader: CheckpointReader) -> JsonObject:
    return as_object(reader.state.get("base_model"))


def _converted(reader: CheckpointReader) -> Diagnostic:
    return codes.EXPORT_BASE_MODEL(
        "the adapter was another program's: which base weights it was trained on is not known",
        str(reader.path),
        hint="resume from it and merge a checkpoint of that run, or export the adapter without --merge",
    )


def _no_spec(reader: CheckpointReader) -> Diagnostic:
    return codes.EXPORT_ADAPTER(
        "the checkpoint does not contain the settings of its adapter",
        str(reader.path),
        "no 'adapter' in its state",
    )
