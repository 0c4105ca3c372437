"""An adapter among a whole model's tensors, as engines save it: what is trained is brought over, the base is
not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from paceline.checkpoint.convert.pickle_reader.torch_tensors import LazyTensor
from paceline.checkpoint.convert.source_state import ForeignState, misfit
from paceline.checkpoint.convert.tensor_names import ModelNames, adapter_name, read_config
from paceline.checkpoint.export.hf_folder import ADAPTER_CONFIG
from paceline.core.json_types import JsonObject
from paceline.plan.features.peft_settings import names_module
from paceline.plan.model.parameter_list import NO_DECAY

_FACTOR = ".lora_"


def is_adapter(names: Iterable[str]) -> bool:
    """Whether tensors of these names are, or hold, an adapter's."""
    return any(_FACTOR in name for name in names)


def adapter_state(
    weights: Mapping[str, LazyTensor],
    trained: Collection[str],
    folder: Path,
    names: ModelNames,
    form: str,
) -> ForeignState:
    """Return the adapter in ``weights``. ``trained``: names of what the optimizer has moments of, where they
    are known; peft's factors are trained in any case, and so is what ``adapter_config.json`` trains in full.

    Raises CheckpointError if that file is neither in ``folder`` nor in the one around it.
    """
    beside = next((path for path in (folder, folder.parent) if (path / ADAPTER_CONFIG).is_file()), None)
    if beside is None:
        raise misfit(
            "the folder holds an adapter, and nothing says its rank, scale and layers",
            str(folder),
            f"no {ADAPTER_CONFIG}",
            f"put peft's {ADAPTER_CONFIG} into the folder",
        )
    settings = read_config(beside, ADAPTER_CONFIG)
    saved = settings.get("modules_to_save")
    full_modules = [str(module) for module in saved] if isinstance(saved, list) else []
    mine = {adapter_name(name) for name in trained}
    kept = {}
    for stored_name, tensor in weights.items():
        name = adapter_name(stored_name)
        module = name.rpartition(".")[0]
        full = ".modules_to_save." in stored_name and names_module(full_modules, module)
        if _FACTOR in name or full or name in mine:
            kept[name] = tensor
    modules = {name.rpartition(".")[0] for name in names.parameters}
    layers = (name.partition(_FACTOR)[0].replace(".base_layer", "") for name in kept if _FACTOR in name)
    if strange := sorted(
        path for path in layers if not any(m == path or m.startswith(f"{path}.") for m in modules)
    ):
        raise misfit("the adapter's layers are none of the model's", str(folder), ", ".join(strange[:5]))
    return bare_adapter(kept, names, form, settings)


def bare_adapter(
    weights: dict[str, LazyTensor], names: ModelNames, form: str, settings: JsonObject
) -> ForeignState:
    """Return the state of tensors that are all an adapter's, under our names."""
    order = adapter_order(weights, names)
    decaying = frozenset(n for n, shape in order.items() if len(shape) > 1 and not NO_DECAY.search(n))
    return ForeignState(form, 0, weights, adapter=settings, trained=order, decaying=decaying)


def adapter_order(weights: Mapping[str, LazyTensor], names: ModelNames) -> dict[str, tuple[int, ...]]:
    """Return an adapter's tensors with their shapes in the order in which peft's model has them."""
    positions = {name.rpartition(".")[0]: number for number, name in enumerate(names.parameters)}

    def place(name: str) -> tuple[int, str]:
        layer, factor, _ = name.partition(".lora_")
        return positions.get(layer if factor else name.rpartition(".")[0], len(positions)), name

    return {name: weights[name].shape for name in sorted(weights, key=place)}
