"""An adapter among a whole model's tensors, as engines save it: what is trained is brought over, the base is
not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from paceline.checkpoint.convert.hf_trainer import ADAPTER_CONFIG, adapter_decaying, adapter_order
from paceline.checkpoint.convert.source_state import ForeignState, LazyTensor, misfit
from paceline.checkpoint.convert.tensor_names import ModelNames, adapter_name, read_config
from paceline.plan.features.peft_settings import names_module

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
) -> tuple[ForeignState, dict[str, tuple[int, ...]], frozenset[str]]:
    """Return the adapter in ``weights``; the shapes of what is trained, in the model's order; and which of it
    weight decay applies to. ``trained``: names of what the optimizer has moments of, where they are known;
    peft's factors are trained in any case, and so is what ``adapter_config.json`` trains in full.

    Raises CheckpointError if that file is neither in ``folder`` nor in the one around it.
    """
    beside = next((one for one in (folder, folder.parent) if (one / ADAPTER_CONFIG).is_file()), None)
    if beside is None:
        what = "the folder holds an adapter, and nothing says its rank, scale and layers"
        raise misfit(
            what, str(folder), f"no {ADAPTER_CONFIG}", f"put peft's {ADAPTER_CONFIG} into the folder"
        )
    settings = read_config(beside, ADAPTER_CONFIG)
    saved = settings.get("modules_to_save")
    whole = [str(module) for module in saved] if isinstance(saved, list) else []
    mine = {adapter_name(name) for name in trained}
    kept = {}
    for given, tensor in weights.items():
        name = adapter_name(given)
        module = name.rpartition(".")[0]
        full = ".modules_to_save." in given and names_module(whole, module)
        if _FACTOR in name or full or name in mine:
            kept[name] = tensor
    modules = {name.rpartition(".")[0] for name in names.parameters}
    layers = (name.partition(_FACTOR)[0].replace(".base_layer", "") for name in kept if _FACTOR in name)
    if strange := sorted(
        one for one in layers if not any(m == one or m.startswith(f"{one}.") for m in modules)
    ):
        raise misfit("the adapter's layers are none of the model's", str(folder), ", ".join(strange[:5]))
    state = ForeignState(form, 0, kept, adapter=settings)
    order = adapter_order(kept, names)
    return state, order, adapter_decaying(order)
