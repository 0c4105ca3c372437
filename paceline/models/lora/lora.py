"""LoRA (Hu et al. 2021, arXiv:2106.09685) and its kin through peft, injected into a Hugging Face model that
keeps its own class.

peft wraps a linear layer into one that adds ``scale · B(A(dropout(x)))``; nothing else of the model changes,
so packed attention, the head and generation work as before. Fused kernels skip modules with a wrapped child.
Modules trained in full next to the adapters are trained in place, not copied: tied weights stay tied, the
head stays the head.

Trained parameters are named as in peft's files, without their prefix
(``model.layers.0.self_attn.q_proj.lora_A.weight``).
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from paceline.config.sections.lora import is_pattern
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json, JsonObject
from paceline.core.units import human_count
from paceline.models import codes
from paceline.models.lora.base_weights import MERGED, decompose, measure_rows
from paceline.models.lora.expert_lora import (
    route_adapters,
)
from paceline.models.lora.names import NAME, WEIGHTS, plain_name, stored_name
from paceline.models.lora.targets import (
    beside_text,
    check_layers,
    check_parameters,
    excluded_modules,
    fused_experts,
    is_reached,
    is_wrapped,
    named_as_experts,
    out_of_reach,
    read_otherwise,
    train_in_full,
    trunk_linears,
    unfit_targets,
)
from paceline.models.module_tensors import shapes_standing_in, standing_in, ties
from paceline.plan.features.peft_settings import untied
from paceline.plan.model.family import parts_of, text_name
from paceline.plan.plan import AdapterSpec
from paceline.runtime.random_seed import seed_for

if TYPE_CHECKING:
    from peft import LoraConfig, OFTConfig

    from paceline.models.loading.sharded_loading import FolderSlices
    from paceline.protocols.model import HFModel


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
    """Inject the adapters and freeze the rest. Initialise them from the seed (A uniform, B zero: outputs do
    not change), from the base weights (``init_lora_weights``), or from a folder.

    ``base`` names the model (``name_or_path``, ``revision``). ``rows`` are the (old, new) embedding rows if
    they were resized. Trained tensors get ``dtype``. ``slices``: the files' places of parameters on meta,
    whose adapters get values. The adapters depend on ``seed`` alone: equal on every rank and under every
    strategy. Raises ConfigError with a ``models.adapter_*`` code.
    """
    # Before the adapters: they may change base weights (PiSSA), and files hold the unchanged ones.
    fingerprint = base_fingerprint(hf, slices)
    with shapes_standing_in(hf, on=slices is not None), standing_in(hf, dtype):
        config = _inject(hf, spec, seed)
    # Only after the injection are there layers whose kind can be looked at.
    check_layers(hf, bool(spec.start))
    experts = route_adapters(hf) if spec.target_parameters else 0
    first = ""
    if spec.init_lora_weights:
        first = decompose(hf, spec.init_lora_weights, bool(spec.start))
    if spec.use_dora:
        measure_rows(hf)
    saved = train_in_full(hf, spec.modules_to_save)
    for parameter in hf.parameters():
        if parameter.requires_grad:
            # In place of ``.to`` on modules, which would convert the frozen base too.
            parameter.data = parameter.data.to(dtype)
    # Frozen, the new rows would keep their first values.
    learns_rows = all(p.requires_grad for p in hf.get_input_embeddings().parameters())
    if rows is not None and rows[1] > rows[0] and not learns_rows:
        raise ConfigError(
            codes.MODELS_ADAPTER_NEW_ROWS(
                "lora.modules_to_save", f"{rows[1]} rows needed, but there are {rows[0]}"
            )
        )
    trained = {name: plain_name(name) for name, p in hf.named_parameters() if p.requires_grad}
    trained_ties = {other: name for other, name in ties(hf).items() if name in trained}
    if spec.unties and trained_ties:
        raise ConfigError(untied(", ".join(spec.modules_to_save)))
    if spec.start and (fingerprint is not None or (Path(spec.start) / WEIGHTS).is_file()):
        load_adapter(hf, Path(spec.start), trained)
    count = sum(p.numel() for p in hf.parameters() if p.requires_grad)
    whole = sum(p.numel() for p in hf.parameters())
    kind = f"{'DoRA' if spec.use_dora else 'LoRA'} r {spec.r}"
    if spec.oft_block_size:
        kind = f"OFT in blocks of {spec.oft_block_size}"
    note = (
        f"{kind} on {', '.join(spec.target_modules)}:"
        f" {human_count(count)} of {human_count(whole)} parameters are trained"
    )
    if first:
        note += f"; {first}"
    if beyond := out_of_reach(hf):
        note += f"; none on {', '.join(beyond)}: no adapter would train there"
    if spec.target_modules == ("all-linear",) and not spec.oft_block_size and (taken := named_as_experts(hf)):
        note += f"; none on {', '.join(sorted(taken))}: peft takes these names for the experts'"
    if experts:
        note += f"; on the experts of {experts} layers it is computed on the routed tokens"
    identity = {**base, "fingerprint": fingerprint, "ties": trained_ties}
    settings = _peft_config(config, saved, base, bool(trained_ties))
    if not spec.oft_block_size:
        settings["init_lora_weights"] = spec.init_lora_weights or True
    return Adapter(spec, trained, settings, identity, note)


@contextmanager
def switched_off(hf: HFModel) -> Iterator[None]:
    """Disable every adapter inside the context. peft's own switch (``enable_adapters``) would also change
    ``requires_grad``.
    """
    layers = [module for module in hf.modules() if is_wrapped(module)]
    for layer in layers:
        # What peft's layers look at in their forward.
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False


@torch.no_grad()
def base_fingerprint(hf: HFModel, slices: FolderSlices | None = None) -> str | None:
    """Return a sha256 (hex) over names, shapes and up to 1,024 evenly spaced float32 values of every
    parameter. None if a parameter is on meta and not in the files (``slices``) either.
    """
    digest = hashlib.sha256()
    for name, parameter in sorted(hf.named_parameters()):
        # Some values of each tensor tell two bases apart, and are read in no time.
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
    # without the name of the text's place in a whole model, which is another in files of other versions
    places = {text_name(trained[name]): p for name, p in hf.named_parameters() if name in trained}
    try:
        with safe_open(file, "pt") as stored:
            # The names and shapes must match exactly: peft itself would load a part without an error.
            keys = {stored_name(key): key for key in stored.keys()}  # noqa: SIM118 - it is no mapping
            shapes = {n: tuple(stored.get_slice(key).get_shape()) for n, key in keys.items()}
            # A file may hold a tied weight under its other name as well.
            others = frozenset(map(text_name, ties(hf)))
            _compare(file, {n: tuple(p.shape) for n, p in places.items()}, shapes, others)
            for name, parameter in places.items():
                if not parameter.is_meta:
                    parameter.copy_(stored.get_tensor(keys[name]))
    except (OSError, SafetensorError) as error:
        raise ConfigError(_no_weights(file, str(error).split("\n")[0])) from error


Shapes = Mapping[str, tuple[int, ...]]


def _compare(file: Path, needed: Shapes, stored: Shapes, other_names: Collection[str]) -> None:
    wrong = {
        "missing": sorted(set(needed) - set(stored)),
        "unknown": sorted(set(stored) - set(needed) - set(other_names)),
        "have another shape": sorted(n for n in set(needed) & set(stored) if needed[n] != stored[n]),
    }
    if any(wrong.values()):
        reports = (f"{w}: {', '.join(n[:4])}{' …' if len(n) > 4 else ''}" for w, n in wrong.items() if n)
        raise ConfigError(_no_weights(file, "; ".join(reports)))


def _inject(hf: HFModel, spec: AdapterSpec, seed: int) -> LoraConfig | OFTConfig:
    from peft import LoraConfig, OFTConfig, inject_adapter_in_model

    # Which layers: one pattern or a list of names, each of which must match something.
    targets = list(spec.target_modules)
    whole = bool(parts_of(hf.config.model_type))
    taken = frozenset[str]() if spec.oft_block_size else named_as_experts(hf)
    listed = whole or taken or fused_experts(hf) or any("." in name for name in trunk_linears(hf))
    # peft's own "all-linear" would do for a plain text model.
    if targets == ["all-linear"] and listed:
        # peft would take the experts' tensors for a layer of its own kind, a layer's number in a list for
        # all modules of that number, and a whole model's tower
        targets = [name for name in trunk_linears(hf) if name.rpartition(".")[2] not in taken]
    alone = len(targets) == 1 and (targets[0] == "all-linear" or is_pattern(targets[0]))
    idle = (
        []
        if alone
        else [t for t in targets if not any(n == t or n.endswith(f".{t}") for n, _ in hf.named_modules())]
    )
    if idle:  # peft would silently adapt only those it finds
        reason = f"{'some' if len(idle) < len(targets) else 'the'} targets match no layer"
        raise ConfigError(unfit_targets(spec, hf, f"no layer is named {' or '.join(idle)}", reason))
    beyond = out_of_reach(hf)
    if not alone and (unreached := [t for t in targets if not is_reached(hf, t, beyond)]):
        reason = "no adapter trains a layer whose weight the class reads itself, or that no gradient reaches"
        raise ConfigError(unfit_targets(spec, hf, f"{', '.join(unreached)} ({', '.join(beyond)})", reason))
    check_parameters(hf, spec)
    # an adapter's own folder says exactly what it has
    beside = "" if alone or spec.start else beside_text(hf, targets)
    layers: dict[str, Any] = {
        "target_modules": targets[0] if alone else targets,
        "exclude_modules": excluded_modules(spec, beyond, beside),
        "task_type": _task(hf),
        "layers_to_transform": list(spec.layers_to_transform) or None,
        "layers_pattern": list(spec.layers_pattern) or None,
    }
    config = (
        OFTConfig(oft_block_size=spec.oft_block_size, **layers)
        if spec.oft_block_size
        else LoraConfig(
            r=spec.r,
            lora_alpha=spec.alpha,  # type: ignore[arg-type]  # a fraction is as good
            lora_dropout=spec.dropout,
            bias=spec.bias,  # type: ignore[arg-type]
            use_rslora=spec.use_rslora,
            use_dora=spec.use_dora,
            target_parameters=list(spec.target_parameters) or None,
            rank_pattern=dict(spec.rank_pattern),
            alpha_pattern=dict(spec.alpha_pattern),
            **layers,
        )
    )
    if others := _read_otherwise(hf, config, spec):
        reason = "peft takes these names for the experts', as they were before Transformers 5"
        raise ConfigError(
            codes.MODELS_ADAPTER_TARGETS(
                reason,
                "lora.target_modules",
                f"{', '.join(spec.target_modules)}: peft would choose otherwise at {', '.join(others[:4])}",
                MERGED if spec.start else "all-linear, or a list without gate_proj, up_proj and down_proj",
            )
        )
    # A is drawn from the seed on the CPU, so that it is equal on every rank.
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        torch.manual_seed(seed_for(seed, role="adapter"))
        warnings.filterwarnings("ignore", message="fan_in_fan_out is set to False")  # peft corrects it
        warnings.filterwarnings("ignore", message="Invalid `oft_block_size`")  # the plan counts as peft does
        warnings.filterwarnings("ignore", message="You have passed exclude_modules")  # none is a layer: fine
        try:
            inject_adapter_in_model(config, hf, adapter_name=NAME)
        except (ValueError, TypeError) as error:
            raise ConfigError(unfit_targets(spec, hf, str(error))) from error
    # The modules trained in full were excluded from injection alone: peft wraps them by
    # ``modules_to_save``.
    config.exclude_modules = excluded_modules(
        replace(spec, modules_to_save=()), beyond, beside
    )  # as files say it
    return config


def _read_otherwise(hf: HFModel, config: LoraConfig | OFTConfig, spec: AdapterSpec) -> list[str]:
    try:
        return read_otherwise(hf, config)
    except ValueError as error:
        raise ConfigError(unfit_targets(spec, hf, str(error))) from error


def _task(hf: HFModel) -> str:
    """Return peft's task type. For sequence classification peft then leaves the linear ``score`` head
    alone.
    """
    return "SEQ_CLS" if type(hf).__name__.endswith("ForSequenceClassification") else "CAUSAL_LM"


def _peft_config(
    config: LoraConfig | OFTConfig, saved: list[str], base: Mapping[str, Any], tied: bool
) -> JsonObject:
    """Return the contents of ``adapter_config.json``: what peft writes, with its sets as sorted lists."""
    from peft import OFTConfig

    written: dict[str, Json | set[str]] = config.to_dict()  # type: ignore[no-untyped-call]
    values: JsonObject = {k: sorted(v) if isinstance(v, (set, frozenset)) else v for k, v in written.items()}
    ours = {
        "peft_type": "OFT" if isinstance(config, OFTConfig) else "LORA",
        "task_type": config.task_type,
        "inference_mode": True,
        "modules_to_save": saved or None,
        "ensure_weight_tying": tied,
        "base_model_name_or_path": base.get("name_or_path"),
        "revision": base.get("revision"),
    }
    return values | ours


def _no_weights(file: Path, problem: str) -> Diagnostic:
    return codes.MODELS_ADAPTER_WEIGHTS("lora.adapter_name_or_path", f"{file}: {problem}")
