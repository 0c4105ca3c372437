"""Linear layers that an adapter cannot train: their parent reads the weight itself, without a call, or no
gradient reaches them. What a parent reads cannot be packed in 4 bits either.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from paceline.models.attention.sparse_indexer import selectors

#: Transformers' class -> its layers. Gemma 3n clamps the weight in training, LongCat's router widens it;
#: state spaces hand weights to their kernels (``out_proj`` and ``x_proj`` only where such kernels are
#: installed: an adapter would act on one machine and not on another).
READ_BY_PARENT: Mapping[str, tuple[str, ...]] = {
    "BambaMixer": ("out_proj",),
    "FalconH1Mixer": ("out_proj",),
    "FalconMambaMixer": ("dt_proj", "out_proj", "x_proj"),
    "Gemma3nTextAltUp": ("correction_coefs",),
    "GraniteMoeHybridMambaLayer": ("out_proj",),
    "JambaMambaMixer": ("dt_proj",),
    "LongcatFlashTopkRouter": ("classifier",),
    "Mamba2Mixer": ("out_proj",),
    "MambaMixer": ("dt_proj", "out_proj", "x_proj"),
    "NemotronHMamba2Mixer": ("out_proj",),
    "Zamba2MambaMixer": ("out_proj",),
}


def read_by_parent(parent: nn.Module) -> set[str]:
    """Return the names of the linear layers in ``parent`` whose weight it reads itself."""
    kinds = type(parent).__mro__  # a swapped class has the original among its bases
    return {child for kind in kinds for child in READ_BY_PARENT.get(kind.__name__, ())}


def out_of_reach(hf: nn.Module) -> list[str]:
    """Return the last two name components of the layers that no adapter reaches, sorted:
    ``router.classifier``.
    """
    found = set[str]()
    for name, module in hf.named_modules():
        found |= {f"{name.rpartition('.')[2]}.{child}" for child in read_by_parent(module)}
    for name, part in selectors(hf):
        for inner, module in part.named_modules():
            if isinstance(module, nn.Linear):
                found.add(".".join(f"{name}.{inner}".split(".")[-2:]))
    return sorted(found)
