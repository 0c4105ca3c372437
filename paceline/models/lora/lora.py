"""LoRA (Hu et al. 2021, arXiv:2106.09685) through peft, injected into a Hugging Face model that keeps its own
class.

peft wraps a linear layer into one that adds ``scale · B(A(dropout(x)))``; nothing else of the model changes,
so packed attention, the head and generation work as before. Fused kernels skip modules with a wrapped child.
Modules trained in full next to the adapters are trained in place, not copied: tied weights stay tied, the
head stays the head.

Trained parameters are named as in peft's files, without their prefix
(``model.layers.0.self_attn.q_proj.lora_A.weight``).
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor, nn

from paceline.config.sections.lora import is_pattern
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json, JsonObject
from paceline.core.units import human_count
from paceline.models import codes
from paceline.models.attention.sparse_indexer import selectors
from paceline.models.lora.base_weights import MERGED, decompose, remainder
from paceline.models.lora.expert_lora import (
    experts_parameter,
    is_experts,
    is_transposed,
    merge_experts,
    route_adapters,
)
from paceline.models.lora.targets import out_of_reach
from paceline.models.module_tensors import shapes_standing_in, standing_in
from paceline.plan.features.peft_settings import names_module, no_adapter_in, rank_of, scale_of, untied
from paceline.plan.model.family import text_name
from paceline.plan.plan import AdapterSpec
from paceline.runtime.random_seed import seed_for

if TYPE_CHECKING:
    from peft import LoraConfig
    from peft.tuners.tuners_utils import BaseTunerLayer

    from paceline.models.loading.sharded_loading import FolderSlices
    from paceline.protocols.model import HFModel


NAME = "default"  # peft's name of the one adapter
PEFT_PREFIX = "base_model.model."
WEIGHTS = "adapter_model.safetensors"
_FACTOR = re.compile(rf"(\.lora_[AB])\.{NAME}\.weight$")
_BASE = re.compile(r"(\.base_layer)+\.")
_PIECE_BYTES = 16 * 2**20  # of a product that is added to a weight
SAMPLED = 1024  # values of each tensor that are hashed into a fingerprint


@dataclass(frozen=True)
class Adapter:
    """The adapter injected into a model.

    spec     ``Plan.adapter``
    trained  the model's own parameter names -> plain names (peft's, without prefix)
    peft     the contents of adapter_config.json
    base     identifies the frozen weights (``fingerprint`` is None where they were on meta)
    note     one line for the log
    """

    spec: AdapterSpec
    trained: Mapping[str, str]
    peft: JsonObject
    base: Mapping[str, Any]
    note: str

    def noting(self, more: str) -> Adapter:
        """Return a copy with ``more`` appended to the note."""
        return replace(self, note=f"{self.note}; {more}")


def add_adapter(
    hf: HFModel,
    spec: AdapterSpec,
    seed: int,
    base: Mapping[str, Any],
    rows: tuple[int, int] | None = None,
    dtype: torch.dtype = torch.float32,
    slices: FolderSlices | None = None,
) -> Adapter:
    """Inject the adapters and freeze the rest; initialize from the seed (A uniform, B zero: outputs do not
    change), from the base weights (``init_lora_weights``), which keep the remainder, or from a folder's
    weights.

    ``base`` names the model (``name_or_path``, ``revision``); ``rows`` are the (old, new) embedding rows if
    they were resized; what is trained gets ``dtype``; ``slices``: where the files have the parameters that
    are on meta, beside which adapters get values. The adapters depend on ``seed`` alone: equal on every
    rank and under every strategy. Raises ConfigError with a ``models.adapter_*`` code.
    """
    fingerprint = base_fingerprint(hf, slices)
    with shapes_standing_in(hf, on=slices is not None), standing_in(hf, dtype):
        config = _inject(hf, spec, seed)
    _check_layers(hf, bool(spec.start))
    experts = route_adapters(hf) if spec.target_parameters else 0
    first = ""
    if spec.init_lora_weights:
        first = decompose(hf, spec.init_lora_weights, bool(spec.start))
    saved = _train_whole(hf, spec.modules_to_save)
    for parameter in hf.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(dtype)
    if rows is not None and rows[1] > rows[0] and not _all_trained(hf.get_input_embeddings()):
        raise ConfigError(_new_rows(rows))
    trained = {name: plain_name(name) for name, p in hf.named_parameters() if p.requires_grad}
    trained_ties = {other: name for other, name in ties(hf).items() if name in trained}
    if spec.unties and trained_ties:
        raise ConfigError(untied(", ".join(spec.modules_to_save)))
    if spec.start and (fingerprint is not None or (Path(spec.start) / WEIGHTS).is_file()):
        load_adapter(hf, Path(spec.start), trained)
    count = sum(p.numel() for p in hf.parameters() if p.requires_grad)
    whole = sum(p.numel() for p in hf.parameters())
    note = (
        f"LoRA r {spec.r} on {', '.join(spec.target_modules)}: {human_count(count)} of"
        f" {human_count(whole)} parameters are trained"
    )
    if first:
        note += f"; {first}"
    if beyond := out_of_reach(hf):
        note += f"; none on {', '.join(beyond)}: no adapter would train there"
    if experts:
        note += f"; on the experts of {experts} layers it is computed on the routed tokens"
    identity = {**base, "fingerprint": fingerprint, "ties": trained_ties}
    settings = _peft_config(config, saved, base, bool(trained_ties))
    settings["init_lora_weights"] = spec.init_lora_weights or True
    return Adapter(spec, trained, settings, identity, note)


@contextmanager
def switched_off(hf: HFModel) -> Iterator[None]:
    """Disable every adapter inside the context. peft's own switch (``enable_adapters``) would also change
    ``requires_grad``.
    """
    layers = [module for module in hf.modules() if _is_adapted(module)]
    for layer in layers:
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False


def _is_adapted(module: nn.Module) -> TypeGuard[BaseTunerLayer]:
    return hasattr(module, "_disable_adapters")


def plain_name(name: str) -> str:
    """Return the name in peft's files (without prefix) of a parameter of an injected model."""
    if _FACTOR.search(name):  # one of several parameters of a module has its factors under base_layer
        return _FACTOR.sub(r"\1.weight", name)
    return _BASE.sub(".", name)


def _stored_name(key: str) -> str:
    """Return the plain name of a tensor in a peft file."""
    name = text_name(key.removeprefix(PEFT_PREFIX))
    return name if ".lora_" in name else plain_name(name)  # factors of fused experts lie under base_layer


def peft_key(name: str, adapted: frozenset[str]) -> str:
    """Return a trained parameter's key in ``adapter_model.safetensors``; ``adapted`` are the modules that
    have an adapter.
    """
    module, _, leaf = name.rpartition(".")
    return f"{PEFT_PREFIX}{module}.base_layer.{leaf}" if module in adapted else PEFT_PREFIX + name


def adapted_modules(names: Iterator[str]) -> frozenset[str]:
    """Return the modules that have an adapter, given plain parameter names."""
    return frozenset(name.removesuffix(".lora_A.weight") for name in names if name.endswith(".lora_A.weight"))


Step = Callable[[Tensor, Mapping[str, Tensor]], None]  # what the trained tensors do to a weight, in place


def merging(hf: HFModel, spec: AdapterSpec, trained: Collection[str]) -> dict[str, list[Step]]:
    """Return by name how the weights of the plain model ``hf`` (they may be on meta) become those with the
    adapters merged: W + scale · B A, in W's dtype, and what was trained in full copied in. From W is first
    taken what the adapter began with, if it was (``init_lora_weights``). Call the steps of a weight in their
    order, without gradients.

    ``trained``: plain names. Raises KeyError for one that the model does not have.
    """
    own = {id(p): name for name, p in hf.named_parameters()}
    places = {name: own[id(p)] for name, p in hf.named_parameters(remove_duplicate=False)}
    steps: dict[str, list[Step]] = {}
    for module in sorted(adapted_modules(iter(trained))):
        if is_experts(hf, module):
            name = experts_parameter(hf, spec.target_parameters, module)
            step: Step = partial(merge_experts, is_transposed(hf, module), scale_of(spec, module), module)
        else:
            name = f"{module}.weight"
            if spec.init_lora_weights:
                taken = partial(
                    _keep_remainder,
                    _transposed(hf, module),
                    spec.init_lora_weights,
                    rank_of(spec, module),
                    scale_of(spec, module),
                )
                steps.setdefault(places[name], []).append(taken)
            step = partial(_add_product, _transposed(hf, module), scale_of(spec, module), module)
        steps.setdefault(places[name], []).append(step)
    for name in trained:
        if ".lora_" not in name:
            steps.setdefault(places[name], []).append(partial(_copy_in, name))
    return steps


def _keep_remainder(
    transposed: bool, init: str, rank: int, scale: float, weight: Tensor, trained: Mapping[str, Tensor]
) -> None:
    """Take from ``weight`` what the adapter began with."""
    left = remainder(weight.t() if transposed else weight, init, rank, scale)
    weight.copy_(left.t() if transposed else left)


def _add_product(
    transposed: bool, factor: float, module: str, weight: Tensor, trained: Mapping[str, Tensor]
) -> None:
    """Add the adapter's product to ``weight``, some of its outputs at a time."""
    a, b = (trained[f"{module}.lora_{letter}.weight"].to(weight) for letter in "AB")
    some = max(1, _PIECE_BYTES // max(1, a.shape[1] * a.element_size()))
    for first in range(0, b.shape[0], some):
        delta = (b[first : first + some] @ a).mul_(factor)
        if transposed:
            weight[:, first : first + some].add_(delta.t())
        else:
            weight[first : first + some].add_(delta)


def _copy_in(name: str, weight: Tensor, trained: Mapping[str, Tensor]) -> None:
    weight.copy_(trained[name])


@torch.no_grad()
def base_fingerprint(hf: HFModel, slices: FolderSlices | None = None) -> str | None:
    """Return a sha256 (hex) over names, shapes and up to 1,024 evenly spaced float32 values of every
    parameter; None if any is on meta, and is not in the files (``slices``) either.
    """
    digest = hashlib.sha256()
    for name, parameter in sorted(hf.named_parameters()):
        step = max(1, parameter.numel() // SAMPLED)
        if not parameter.is_meta:
            picked = parameter.detach().flatten()[::step][:SAMPLED].float().cpu().contiguous()
        elif slices is not None and slices.has(name):
            picked = slices.picked(name, tuple(parameter.shape), step, SAMPLED)
        else:
            return None
        digest.update(f"{name}|{tuple(parameter.shape)}|".encode())
        digest.update(picked.numpy().tobytes())
    return digest.hexdigest()


@torch.no_grad()
def load_adapter(hf: HFModel, folder: Path, trained: Mapping[str, str]) -> None:
    """Load the weights of a peft folder into the injected model, in place; on meta only compare.

    Raises ConfigError ``models.adapter_weights`` unless the file holds every trained parameter, each of the
    right shape, and nothing else (but other names of tied weights).
    """
    from safetensors import SafetensorError, safe_open

    file = folder / WEIGHTS
    named = hf.named_parameters()
    places = {plain: p for name, p in named if (plain := trained.get(name)) is not None}
    try:
        with safe_open(file, "pt") as stored:
            # The names and shapes must match exactly: peft itself would load a part without an error.
            keys = {_stored_name(key): key for key in stored.keys()}  # noqa: SIM118 - it is no mapping
            shapes = {n: tuple(stored.get_slice(key).get_shape()) for n, key in keys.items()}
            _compare(file, {n: tuple(p.shape) for n, p in places.items()}, shapes, ties(hf))
            for name, parameter in places.items():
                if not parameter.is_meta:
                    parameter.copy_(stored.get_tensor(keys[name]))
    except (OSError, SafetensorError) as error:
        raise ConfigError(_no_weights(file, str(error).split("\n")[0])) from error


Shapes = Mapping[str, tuple[int, ...]]


def _compare(file: Path, needed: Shapes, found: Shapes, other_names: Collection[str]) -> None:
    wrong = {
        "missing": sorted(set(needed) - set(found)),
        "unknown": sorted(set(found) - set(needed) - set(other_names)),
        "have another shape": sorted(n for n in set(needed) & set(found) if needed[n] != found[n]),
    }
    if any(wrong.values()):
        reports = (f"{w}: {', '.join(n[:4])}{' …' if len(n) > 4 else ''}" for w, n in wrong.items() if n)
        raise ConfigError(_no_weights(file, "; ".join(reports)))


def ties(hf: HFModel) -> dict[str, str]:
    """Map the other names of tied parameters to their own (``lm_head.weight`` ->
    ``model.embed_tokens.weight``).
    """
    own = {id(p): name for name, p in hf.named_parameters()}
    every = hf.named_parameters(remove_duplicate=False)
    return {name: own[id(p)] for name, p in every if own[id(p)] != name}


def _inject(hf: HFModel, spec: AdapterSpec, seed: int) -> LoraConfig:
    from peft import LoraConfig, inject_adapter_in_model

    # Which layers: one pattern or a list of names, each of which must match something.
    targets = list(spec.target_modules)
    if targets == ["all-linear"] and (fused_experts(hf) or any("." in name for name in trunk_linears(hf))):
        # peft would take the experts' tensors for a layer of its own kind, and a layer's number in a list for
        # all modules of that number
        targets = trunk_linears(hf)
    alone = len(targets) == 1 and (targets[0] == "all-linear" or is_pattern(targets[0]))
    idle = (
        []
        if alone
        else [t for t in targets if not any(n == t or n.endswith(f".{t}") for n, _ in hf.named_modules())]
    )
    if idle:  # peft would silently adapt only those it finds
        what = f"{'some' if len(idle) < len(targets) else 'the'} targets match no layer"
        raise ConfigError(_targets(spec, hf, f"no layer is named {' or '.join(idle)}", what))
    beyond = out_of_reach(hf)
    if not alone and (named := [t for t in targets if not _reached(hf, t, beyond)]):
        what = "no adapter trains a layer whose weight the class reads itself, or that no gradient reaches"
        raise ConfigError(_targets(spec, hf, f"{', '.join(named)} ({', '.join(beyond)})", what))
    _check_parameters(hf, spec)
    config = LoraConfig(
        r=spec.r,
        lora_alpha=spec.alpha,  # type: ignore[arg-type]  # a fraction is as good
        lora_dropout=spec.dropout,
        target_modules=targets[0] if alone else targets,
        exclude_modules=_excluded(spec, beyond),
        bias=spec.bias,  # type: ignore[arg-type]
        use_rslora=spec.use_rslora,
        task_type=_task(hf),
        target_parameters=list(spec.target_parameters) or None,
        rank_pattern=dict(spec.rank_pattern),
        alpha_pattern=dict(spec.alpha_pattern),
        layers_to_transform=list(spec.layers_to_transform) or None,
        layers_pattern=list(spec.layers_pattern) or None,
    )
    # A is drawn from the seed on the CPU, so that it is equal on every rank.
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        torch.manual_seed(seed_for(seed, role="adapter"))
        warnings.filterwarnings("ignore", message="fan_in_fan_out is set to False")  # peft corrects it
        warnings.filterwarnings("ignore", message="You have passed exclude_modules")  # none is a layer: fine
        try:
            inject_adapter_in_model(config, hf, adapter_name=NAME)
        except ValueError as error:
            raise ConfigError(_targets(spec, hf, str(error))) from error
    config.exclude_modules = _excluded(replace(spec, modules_to_save=()), beyond)  # as files say it
    return config


def _excluded(spec: AdapterSpec, beyond: list[str]) -> str | list[str] | None:
    """Return peft's ``exclude_modules``: the spec's own, what no adapter reaches, and what is trained in full
    (named to peft as such, it would be copied).
    """
    own = list(spec.exclude_modules)
    pattern = own.pop() if len(own) == 1 and is_pattern(own[0]) else None
    if pattern is None and not spec.modules_to_save:
        return list(dict.fromkeys([*own, *beyond])) or None
    parts = [rf"(.*\.)?{re.escape(name)}" for name in (*own, *beyond)]
    parts += map(no_adapter_in, spec.modules_to_save)
    return "|".join([*([] if pattern is None else [f"(?:{pattern})"]), *parts])


def _check_parameters(hf: HFModel, spec: AdapterSpec) -> None:
    """Raise ConfigError ``models.adapter_targets`` for a target parameter that the model does not have."""
    names = [name for name, p in hf.named_parameters() if p.dim() == 3]
    idle = [t for t in spec.target_parameters if not any(n == t or n.endswith(f".{t}") for n in names)]
    if idle:
        known = sorted({".".join(name.split(".")[-3:]) for name in names})
        raise ConfigError(
            codes.MODELS_ADAPTER_TARGETS(
                "no tensor of fused experts has this name",
                "lora.target_parameters",
                ", ".join(idle),
                f"use some of {', '.join(known)}" if known else "leave target_parameters out",
            )
        )


def fused_experts(hf: HFModel) -> list[str]:
    """Return the modules that keep all experts of a layer in one tensor: they have no linear layers for
    adapters to wrap.
    """
    return [
        name
        for name, module in hf.named_modules()
        if any(p is not None and p.dim() == 3 for p in module._parameters.values())
    ]


def trunk_linears(hf: HFModel) -> list[str]:
    """Return the last name components of the trunk's linear layers (from the last word on: ``adapters.0``),
    sorted; a router that is a linear layer of its own kind (Llama 4's gives scores and logits) is not among
    them.
    """
    head, beyond = hf.get_output_embeddings(), out_of_reach(hf)
    return sorted(
        {
            _from_last_word(n)
            for n, m in hf.base_model.named_modules()
            if isinstance(m, nn.Linear)
            and m is not head
            and type(m).forward is nn.Linear.forward
            and not any(n.endswith(f".{name}") for name in beyond)
        }
    )


def _from_last_word(name: str) -> str:
    return re.sub(r"^.*\.(?=[^.\d][^.]*(\.\d+)*$)", "", name)


def _task(hf: HFModel) -> str:
    """Return peft's task type. For sequence classification peft then leaves the linear ``score`` head
    alone.
    """
    return "SEQ_CLS" if type(hf).__name__.endswith("ForSequenceClassification") else "CAUSAL_LM"


def _check_layers(hf: HFModel, started: bool) -> None:
    """Check that adapters wrap only linear layers (``nn.Linear``, GPT-2's ``Conv1D``) of the trunk; let them
    compute in their input's dtype. ``started``: the adapter is a folder's.
    """
    from peft.tuners.lora import Linear, LoraLayer
    from peft.tuners.lora.layer import ParamWrapper

    head = hf.get_output_embeddings()
    for name, module in hf.named_modules():
        is_head = module is head
        if not isinstance(module, LoraLayer) or isinstance(module, ParamWrapper):
            continue
        if is_head or not isinstance(module, Linear):
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


def _own_names(hf: HFModel) -> list[str]:
    """Return the last parts of the names of modules with parameters, without those that peft has put in."""
    modules = (n for n, m in hf.named_modules() if any(True for _ in m.parameters(recurse=False)))
    names = {n.removesuffix(".base_layer").rpartition(".")[2] for n in modules if "lora_" not in n}
    return sorted(names)[:12]


def _train_whole(hf: HFModel, wanted: Iterable[str]) -> list[str]:
    """Unfreeze the modules named in ``modules_to_save``, in place; return those names plus the names of
    modules tied to them, sorted.
    """
    saved: set[str] = set()
    own: set[int] = set()
    selecting = {id(inner) for _, part in selectors(hf) for inner in part.modules()}
    # Unfreeze what is named; remember the tensors, so that their tied names are found below.
    for target in wanted:
        named = [(n, m) for n, m in hf.named_modules() if names_module((target,), n)]
        hits = [m for _, m in named]
        if both := [n for n, m in named if any(map(_is_adapted, m.modules()))]:
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
            raise ConfigError(
                codes.MODELS_ADAPTER_MODULES_TO_SAVE(
                    "the model has no such module with parameters",
                    "lora.modules_to_save",
                    target,
                    f"modules_to_save: [{', '.join(_own_names(hf))}] are there",
                )
            )
        for parameter in parameters:
            parameter.requires_grad_(True)
            own.add(id(parameter))
        saved.add(target)
    for name in ties(hf):  # the other name of a tied weight
        module = name.rpartition(".")[0]
        if id(hf.get_parameter(name)) in own and not names_module(saved, module):
            saved.add(module.rpartition(".")[2])
    return sorted(saved)


def _peft_config(config: LoraConfig, saved: list[str], base: Mapping[str, Any], tied: bool) -> JsonObject:
    """Return the contents of ``adapter_config.json``: what peft writes, with its sets as sorted lists."""
    given: dict[str, Json | set[str]] = config.to_dict()  # type: ignore[no-untyped-call]
    values: JsonObject = {k: sorted(v) if isinstance(v, (set, frozenset)) else v for k, v in given.items()}
    ours = {
        "peft_type": "LORA",
        "task_type": config.task_type,
        "inference_mode": True,
        "modules_to_save": saved or None,
        "ensure_weight_tying": tied,
        "base_model_name_or_path": base.get("name_or_path"),
        "revision": base.get("revision"),
    }
    return values | ours


def _reached(hf: HFModel, target: str, beyond: list[str]) -> bool:
    """Return whether ``target`` names a module other than those that end in one of ``beyond``."""
    named = (f".{n}" for n, _ in hf.named_modules())
    return any(n.endswith(f".{target}") and not any(n.endswith(f".{b}") for b in beyond) for n in named)


def _all_trained(module: nn.Module) -> bool:
    return all(p.requires_grad for p in module.parameters())


def _transposed(hf: HFModel, module: str) -> bool:
    """Return whether the layer stores its weight as [in, out] (``Conv1D``)."""
    return not isinstance(hf.get_submodule(module), nn.Linear)


def _targets(
    spec: AdapterSpec, hf: HFModel, message: str, what: str = "peft finds no layer to adapt"
) -> Diagnostic:
    return codes.MODELS_ADAPTER_TARGETS(
        what,
        "lora.target_modules",
        f"{', '.join(spec.target_modules)}: {message.splitlines()[0][:200]}",
        MERGED if spec.start else f"use all-linear, or some of {', '.join(_linear_names(hf)[:12])}",
    )


def _linear_names(hf: HFModel) -> list[str]:
    """Return the last names of the trunk's linear layers, also where adapters wrap them already."""
    head = hf.get_output_embeddings()
    linear = (n for n, m in hf.named_modules() if isinstance(m, nn.Linear) and m is not head)
    own = (name for name in linear if not any(part.startswith("lora_") for part in name.split(".")))
    return sorted({plain_name(f"{name}.weight").split(".")[-2] for name in own} - {"default"})


def _new_rows(rows: tuple[int, int]) -> Diagnostic:
    return codes.MODELS_ADAPTER_NEW_ROWS(
        "lora.modules_to_save", f"{rows[1]} rows needed, but there are {rows[0]}"
    )


def _no_weights(file: Path, found: str) -> Diagnostic:
    return codes.MODELS_ADAPTER_WEIGHTS("lora.adapter_name_or_path", f"{file}: {found}")
