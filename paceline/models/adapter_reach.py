"""Linear layers whose weight their parent reads itself, without a call: what peft wraps around them never
acts.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

#: Transformers' class -> its layer. Gemma 3n clamps the weight in training, LongCat's router widens it.
READ_BY_PARENT: Mapping[str, str] = {
    "Gemma3nTextAltUp": "correction_coefs",
    "JambaMambaMixer": "dt_proj",
    "LongcatFlashTopkRouter": "classifier",
}


def out_of_reach(hf: nn.Module) -> list[str]:
    """Return the last two name components of the layers that no adapter reaches, sorted:
    ``router.classifier``.
    """
    found = set()
    for name, module in hf.named_modules():
        for kind in type(module).__mro__:  # a swapped class has the original among its bases
            if child := READ_BY_PARENT.get(kind.__name__):
                found.add(f"{name.rpartition('.')[2]}.{child}")
    return sorted(found)
