"""Names of parameters with adapters: in a model, in the plain form, and in peft's files."""

from __future__ import annotations

import re
from collections.abc import Iterator

from paceline.plan.model.family import text_name
from paceline.plan.model.parameter_list import of_adapter

NAME = "default"  # peft's name of the one adapter
PEFT_PREFIX = "base_model.model."
WEIGHTS = "adapter_model.safetensors"
_FACTOR = re.compile(rf"(\.lora_[AB]|\.oft_R)\.{NAME}\.weight$")
_FIRST = (".lora_A.weight", ".oft_R.weight")  # one of them is in each adapter
_MAGNITUDE = re.compile(rf"(\.lora_magnitude_vector)\.{NAME}\.weight$")
_BASE = re.compile(r"(\.base_layer)+\.")


def plain_name(name: str) -> str:
    """Return the name in peft's files (without prefix) of a parameter of an injected model."""
    if _FACTOR.search(name):  # one of several parameters of a module has its factors under base_layer
        return _FACTOR.sub(r"\1.weight", name)
    name = _MAGNITUDE.sub(r"\1", name)  # DoRA's, as peft's files have it
    return _BASE.sub(".", name)


def stored_name(key: str) -> str:
    """Return the plain name of a tensor in a peft file."""
    name = text_name(key.removeprefix(PEFT_PREFIX))
    return name if of_adapter(name) else plain_name(name)  # factors of fused experts lie under base_layer


def peft_key(name: str, adapted: frozenset[str]) -> str:
    """Return a trained parameter's key in ``adapter_model.safetensors``; ``adapted`` are the modules that
    have an adapter.
    """
    module, _, leaf = name.rpartition(".")
    of_base = module in adapted and not leaf.startswith("lora_")
    return f"{PEFT_PREFIX}{module}.base_layer.{leaf}" if of_base else PEFT_PREFIX + name


def adapted_modules(names: Iterator[str]) -> frozenset[str]:
    """Return the modules that have an adapter, given plain parameter names."""
    return frozenset(of_adapter(name) for name in names if name.endswith(_FIRST))
