"""Choose the layers with an adapter, those trained in full, and those that no adapter can train."""

from __future__ import annotations

import copy
import re
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, TypeGuard

from torch import nn

from paceline.config.sections.lora import is_pattern
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.models import codes
from paceline.models.attention.sparse_indexer import selectors
from paceline.models.lora.base_weights import MERGED
from paceline.models.lora.names import plain_name
from paceline.models.module_tensors import ties
from paceline.plan.features.peft_settings import OF_EXPERTS, names_module, no_adapter_in
from paceline.plan.model.family import composites, family_of, in_part, parts_of
from paceline.plan.model.parameter_list import of_adapter
from paceline.plan.plan import AdapterSpec

if TYPE_CHECKING:
    from peft import LoraConfig, OFTConfig
    from peft.tuners.tuners_utils import BaseTunerLayer

    from paceline.protocols.model import HFModel

#: Transformers' class -> layers whose weight it reads without a call: neither adapters nor 4 bits would act
#: there. Gemma 3n clamps the weight in training, LongCat's router widens it;
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
    "MultiheadAttention": ("out_proj",),  # torch's, in towers
    "NemotronHMamba2Mixer": ("out_proj",),
    "Zamba2MambaMixer": ("out_proj",),
}


def read_by_parent(parent: nn.Module) -> set[str]:
    """Return the names of the linear layers in ``parent`` whose weights its own code reads."""
    kinds = type(parent).__mro__  # a swapped class has the original among its bases
    return {child for kind in kinds for child in READ_BY_PARENT.get(kind.__name__, ())}


def out_of_reach(hf: nn.Module) -> list[str]:
    """Return the last two name components of the layers that no adapter reaches, sorted:
    ``router.classifier``.
    """
    names = set[str]()
    for name, module in hf.named_modules():
        names |= {f"{name.rpartition('.')[2]}.{child}" for child in read_by_parent(module)}
    for name, part in selectors(hf):
        for inner, module in part.named_modules():
            if isinstance(module, nn.Linear):
                names.add(".".join(f"{name}.{inner}".split(".")[-2:]))
    return sorted(names)


def is_wrapped(module: nn.Module) -> TypeGuard[BaseTunerLayer]:
    return hasattr(module, "_disable_adapters")


def excluded_modules(spec: AdapterSpec, beyond: list[str], beside: str = "") -> str | list[str] | None:
    """Return peft's ``exclude_modules``: the spec's own, what no adapter reaches, and what is trained in full
    (named to peft as such, it would be copied). ``beside``: a pattern of more.
    """
    names = list(spec.exclude_modules)
    patterns = [f"(?:{names.pop()})"] if len(names) == 1 and is_pattern(names[0]) else []
    patterns += [beside] if beside else []
    if not patterns and not spec.modules_to_save:
        return list(dict.fromkeys([*names, *beyond])) or None
    patterns += [rf"(.*\.)?{re.escape(name)}" for name in (*names, *beyond)]
    return "|".join([*patterns, *map(no_adapter_in, spec.modules_to_save)])


def beside_text(hf: HFModel, targets: Collection[str]) -> str:
    """Return the pattern of the modules in a tower or projector that ``targets`` do not mean, since they name
    modules of the text as well. Empty if there are none.
    """
    parts = parts_of(hf.config.model_type)
    modules = [name for name, _ in hf.named_modules()]
    named = {
        target: {bool(in_part(n, parts)) for n in modules if n == target or n.endswith(f".{target}")}
        for target in targets
    }
    both = sorted(target for target, places in named.items() if len(places) == 2)
    if not both:
        return ""
    paths, names = ("|".join(map(re.escape, some)) for some in (parts, both))
    return rf"(model\.)?({paths})\.(.*\.)?({names})"


def check_parameters(hf: HFModel, spec: AdapterSpec) -> None:
    """Raise ConfigError ``models.adapter_targets`` for a target parameter that the model does not have."""
    names = [name for name, p in hf.named_parameters() if p.dim() == 3]
    idle = [t for t in spec.target_parameters if not any(n == t or n.endswith(f".{t}") for n in names)]
    if idle:
        leaves = sorted({".".join(name.split(".")[-3:]) for name in names})
        raise ConfigError(
            codes.MODELS_ADAPTER_TARGETS(
                "no tensor of fused experts has this name",
                "lora.target_parameters",
                ", ".join(idle),
                f"use some of {', '.join(leaves)}" if leaves else "leave target_parameters out",
            )
        )


def fused_experts(hf: HFModel) -> list[str]:
    """Return the modules that keep all experts of a layer in one tensor: they have no linear layers for
    adapters to wrap.
    """
    parts = parts_of(hf.config.model_type)
    return [
        name
        for name, module in hf.named_modules()
        if any(p is not None and p.dim() == 3 for p in module._parameters.values())
        and not in_part(name, parts)
    ]


def named_as_experts(hf: HFModel) -> frozenset[str]:
    """Return the names of layers that peft takes for those of experts (``Family.renames_experts``)."""
    composite = composites().get(str(hf.config.model_type))
    kind = (composite.text if composite is not None else "") or hf.config.get_text_config().model_type
    return frozenset(OF_EXPERTS if family_of(kind).renames_experts else ())


def read_otherwise(hf: HFModel, config: LoraConfig | OFTConfig) -> list[str]:
    """Return the linear layers that ``config`` names and peft would leave out, or adapt beside them, because
    it takes some names for those of experts before Transformers 5; else the tensors that it would add.
    """
    from peft import LoraConfig
    from peft.tuners.tuners_utils import check_target_module_exists
    from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers

    if not isinstance(config, LoraConfig):
        return []
    theirs = copy.deepcopy(config)
    convert_peft_config_for_transformers(theirs, hf, None)
    names = [name for name, module in hf.named_modules() if isinstance(module, nn.Linear)]
    mine, read = ({n for n in names if check_target_module_exists(c, n)} for c in (config, theirs))
    added = set(theirs.target_parameters or ()) - set(config.target_parameters or ())
    return sorted(mine ^ read) or sorted(added)


def trunk_linears(hf: HFModel) -> list[str]:
    """Return the last name components of the linear layers in the trunk's text (with the word before a
    number: ``adapters.0``), sorted. Routers that are special linear layers are left out (Llama 4's returns
    scores and logits).
    """
    head, beyond = hf.get_output_embeddings(), out_of_reach(hf)
    parts = parts_of(hf.config.model_type)
    return sorted(
        {
            # from the last word on: ``adapters.0``
            re.sub(r"^.*\.(?=[^.\d][^.]*(\.\d+)*$)", "", n)
            for n, m in hf.base_model.named_modules()
            if isinstance(m, nn.Linear)
            and m is not head
            and not in_part(n, parts)
            and type(m).forward is nn.Linear.forward
            and not any(n.endswith(f".{name}") for name in beyond)
        }
    )


def check_layers(hf: HFModel, started: bool) -> None:
    """Check that adapters wrap only linear layers (``nn.Linear``, GPT-2's ``Conv1D``) of the trunk; let them
    compute in their input's dtype. ``started``: the adapter is a folder's.
    """
    from peft.tuners.lora import Linear
    from peft.tuners.lora.layer import ParamWrapper
    from peft.tuners.oft import Linear as Rotated

    head = hf.get_output_embeddings()
    for name, module in hf.named_modules():
        is_head = module is head
        if not is_wrapped(module) or isinstance(module, ParamWrapper):
            continue
        if is_head or not isinstance(module, (Linear, Rotated)):
            kind = "the head" if is_head else type(module.get_base_layer()).__name__
            raise ConfigError(
                codes.MODELS_ADAPTER_TARGET(
                    "adapters can only be added to linear layers of the trunk",
                    "lora.target_modules",
                    f"{name} ({kind})",
                    MERGED
                    if started
                    else f"target_modules: [{', '.join(_linear_names(hf))}]; modules_to_save trains"
                    " embeddings and the head in full",
                )
            )
        module.cast_input_dtype_enabled = False


def train_in_full(hf: HFModel, wanted: Iterable[str]) -> list[str]:
    """Unfreeze the modules named in ``modules_to_save``, in place; return those names plus the names of
    modules tied to them, sorted.
    """
    saved: set[str] = set()
    trained: set[int] = set()
    selecting = {id(inner) for _, part in selectors(hf) for inner in part.modules()}
    # Unfreeze what is named; remember the tensors, so that their tied names are found below.
    parts = parts_of(hf.config.model_type)
    for target in wanted:
        matches = [(n, m) for n, m in hf.named_modules() if names_module((target,), n)]
        in_text = [(n, m) for n, m in matches if not in_part(n, parts)]
        apart = bool(in_text) and len(in_text) < len(matches)  # of a whole model the text is meant
        matches = in_text if apart else matches
        hits = [m for _, m in matches]
        if both := [n for n, m in matches if any(map(is_wrapped, m.modules()))]:
            raise ConfigError(
                codes.MODELS_ADAPTER_MODULES_TO_SAVE(
                    "a module is trained in full, or it has an adapter",
                    "lora.modules_to_save",
                    f"{target} names {both[0]}, which has an adapter",
                    f"name {target} in full, or leave it out of target_modules",
                )
            )
        if hits and all(id(m) in selecting for m in hits):
            raise ConfigError(
                codes.MODELS_ADAPTER_MODULES_TO_SAVE(
                    "no gradient reaches what selects keys", "lora.modules_to_save", target, "leave it out"
                )
            )
        parameters = [p for m in hits for p in m.parameters()]
        if not parameters:
            owners = (n for n, m in hf.named_modules() if next(m.parameters(recurse=False), None) is not None)
            leaves = {n.removesuffix(".base_layer").rpartition(".")[2] for n in owners if not of_adapter(n)}
            raise ConfigError(
                codes.MODELS_ADAPTER_MODULES_TO_SAVE(
                    "the model has no such module with parameters",
                    "lora.modules_to_save",
                    target,
                    f"modules_to_save: [{', '.join(sorted(leaves)[:12])}] are there",
                )
            )
        for parameter in parameters:
            parameter.requires_grad_(True)
            trained.add(id(parameter))
        saved.update([n for n, _ in matches] if apart else [target])
    for name in ties(hf):  # the other name of a tied weight
        module = name.rpartition(".")[0]
        if id(hf.get_parameter(name)) in trained and not names_module(saved, module):
            saved.add(module.rpartition(".")[2])
    return sorted(saved)


def is_reached(hf: HFModel, target: str, beyond: list[str]) -> bool:
    """Return whether ``target`` names a module other than those that end in one of ``beyond``."""
    paths = (f".{n}" for n, _ in hf.named_modules())
    return any(n.endswith(f".{target}") and not any(n.endswith(f".{b}") for b in beyond) for n in paths)


def unfit_targets(
    spec: AdapterSpec, hf: HFModel, message: str, reason: str = "peft finds no layer to adapt"
) -> Diagnostic:
    return codes.MODELS_ADAPTER_TARGETS(
        reason,
        "lora.target_modules",
        f"{', '.join(spec.target_modules)}: {message.splitlines()[0][:200]}",
        MERGED if spec.start else f"use all-linear, or some of {', '.join(_linear_names(hf)[:12])}",
    )


def _linear_names(hf: HFModel) -> list[str]:
    """Return the last names of the trunk's linear layers, also where adapters wrap them already."""
    head = hf.get_output_embeddings()
    linear = (n for n, m in hf.named_modules() if isinstance(m, nn.Linear) and m is not head)
    names = (name for name in linear if not of_adapter(name))
    return sorted({plain_name(f"{name}.weight").split(".")[-2] for name in names} - {"default"})
