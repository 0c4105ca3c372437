"""Adapters (LoRA) in the plan: trained parameters, required packages, supported strategies."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import util
from importlib.machinery import ModuleSpec
from math import prod
from pathlib import Path

from paceline.config.sections.lora import LoraSection
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import ConfigError
from paceline.core.files import MAX_CONFIG_BYTES, read_text
from paceline.core.json_types import as_object
from paceline.core.units import human_count
from paceline.plan import codes
from paceline.plan.features.experts import expert_parameters
from paceline.plan.features.peft_settings import OF_EXPERTS, fits, is_target, rank_of, rotated, with_settings
from paceline.plan.mesh import Mesh
from paceline.plan.model.family import text_name
from paceline.plan.model.files.safetensors_headers import linears
from paceline.plan.model.parameter_list import ALL_LINEAR, Parameter, is_linear, is_transposed, parameters_of
from paceline.plan.model.shape import ModelShape
from paceline.plan.plan import AdapterSpec, Decision, Quantization, decomposes
from paceline.plan.strategies.spec import StrategySpec, strategy_specs
from paceline.plan.strategy_options import NO_OPTIONS, EngineOptions


def adapter_of(lora: LoraSection | None, *, vision: bool = False) -> AdapterSpec | None:
    """Return ``Plan.adapter`` for the config's ``lora`` section; None without one. ``vision``: the whole of a
    composite model is trained.

    With ``adapter_name_or_path`` rank, scale, layers and dropout come from that folder's
    ``adapter_config.json``.
    Raises ConfigError if it cannot be read, is not LoRA, or uses unsupported settings.
    """
    if lora is None:
        return None
    bits = lora.quantization_bit
    beside_oft = {
        "r": lora.r != LoraSection.model_fields["r"].default,
        "alpha": lora.alpha is not None,
        "dropout": bool(lora.dropout),
        "target_parameters": bool(lora.target_parameters),
        "bias": lora.bias != "none",
        "use_dora": lora.use_dora,
        "use_rslora": lora.use_rslora,
        "loraplus_lr_ratio": lora.loraplus_lr_ratio is not None,
        "init_lora_weights": lora.init_lora_weights is not None,
    }
    if lora.oft_block_size and any(beside_oft.values()) and not lora.adapter_name_or_path:
        beside = ", ".join(key for key, is_set in beside_oft.items() if is_set)
        raise ConfigError(
            codes.PLAN_ADAPTER_KIND(
                "OFT rotates inputs in blocks: it has no factors, no scale and no dropout",
                "lora.oft_block_size",
                f"oft_block_size beside {beside}",
                f"remove {beside}; or oft_block_size, for LoRA",
            )
        )
    adapter = AdapterSpec(
        r=lora.r,
        alpha=2 * lora.r if lora.alpha is None else lora.alpha,
        dropout=lora.dropout or 0.0,
        target_modules=lora.target_modules,
        modules_to_save=lora.modules_to_save,
        target_parameters=lora.target_parameters,
        bias=lora.bias,
        use_rslora=lora.use_rslora,
        init_lora_weights=lora.init_lora_weights,
        use_dora=lora.use_dora,
        oft_block_size=lora.oft_block_size or 0,
        quantization=Quantization(bits, lora.quantization_type, lora.double_quant) if bits else None,
    )
    if lora.adapter_name_or_path:
        started = _started(
            Path(lora.adapter_name_or_path).expanduser(), adapter, str if vision else text_name
        )
        return started if lora.dropout is None else replace(started, dropout=lora.dropout)
    return adapter


def check_adapter(
    adapter: AdapterSpec | None,
    spec: StrategySpec,
    mesh: Mesh,
    compute: str,
    engine: EngineOptions = NO_OPTIONS,
    installed: Callable[[str], ModuleSpec | None] = util.find_spec,
    here: bool = True,
) -> list[Diagnostic]:
    """Return the reasons why this adapter cannot run: missing packages, unsupported strategy or precision.

    ``engine``: ``Plan.engine``. ``here`` is False if the run is for another machine: missing packages are
    then notes.
    """
    if adapter is None:
        return []
    problems = []
    if installed("peft") is None:
        problems.append(_not_installed("peft", "adapters need peft", "lora", "lora", here))
    axes = [a for a in ("pp", "tp", "cp") if getattr(mesh, a) > 1 and a not in spec.adapter_axes]
    if not spec.whole_rows or axes:
        cut = ", ".join(f"{axis}={getattr(mesh, axis)}" for axis in axes)
        ones = " and ".join(f"{axis}_size: 1" for axis in axes)
        elsewhere = "" if spec.whole_rows else "distributed_strategy: fsdp or zero3"
        problems.append(
            codes.PLAN_ADAPTER_STRATEGY(
                "lora",
                f"{spec.name}{f' with {cut}' if axes else ''}",
                strategies="set " + " and ".join(filter(None, (ones, elsewhere))),
                adapters="adapters",
                needed="complete layers and rows on every rank,"
                " or shards by FSDP, ZeRO or tensor parallelism",
            )
        )
    if adapter.use_dora:
        problems += _with_lengths(adapter)
    if adapter.use_dora or adapter.oft_block_size:
        problems += _of_whole_layers(adapter, spec, mesh, engine)
    if adapter.target_parameters and mesh.tp > 1:
        problems.append(
            codes.PLAN_ADAPTER_EXPERTS(
                "tensor parallelism shares the experts among its ranks, but not their adapters",
                "lora.target_parameters",
                f"{', '.join(adapter.target_parameters)} with tp={mesh.tp}",
                f"leave target_parameters out, or {spec.tensor_key(engine)}: 1",
            )
        )
    if adapter.quantization is not None and decomposes(adapter):
        problems.append(
            codes.PLAN_ADAPTER_KIND(
                "an adapter that begins with a part of the base weights needs them in full precision, before"
                " they are packed in 4 bits",
                "lora.quantization_bit",
                f"{adapter.quantization.bits} beside init_lora_weights: {adapter.init_lora_weights}",
                "quantization_bit: null; or "
                + (
                    "merge the adapter with peft (merge_and_unload), and quantise the merged model"
                    if adapter.start
                    else "an adapter on the unchanged base (init_lora_weights: true)"
                ),
            )
        )
    return (
        problems
        if adapter.quantization is None
        else [*problems, *_quantised(spec, mesh, compute, engine, installed, here)]
    )


def _of_whole_layers(
    adapter: AdapterSpec, spec: StrategySpec, mesh: Mesh, engine: EngineOptions
) -> Iterator[Diagnostic]:
    """Yield why OFT cannot run, or DoRA, which reads each whole weight in addition to the layer's product."""
    key, off = ("oft_block_size", "null") if adapter.oft_block_size else ("use_dora", "false")
    axes = [f"{axis}_size: {size}" for axis in ("pp", "tp", "cp") if (size := getattr(mesh, axis)) > 1]
    if axes or spec.gathers_by_layer(engine):
        where = " with ".join(filter(None, (spec.label(engine), ", ".join(axes))))
        yield codes.PLAN_ADAPTER_STRATEGY(
            f"lora.{key}",
            where,
            strategies=f"distributed_strategy: fsdp, zero2 or ddp; or {key}: {off}",
            adapters="adapters of OFT" if adapter.oft_block_size else "adapters of DoRA",
            needed="whole layers on every rank, or shards by FSDP; ZeRO-3 gathers one layer at a time",
        )


def _with_lengths(adapter: AdapterSpec) -> Iterator[Diagnostic]:
    """Yield what DoRA does not go with."""
    beside = {
        "quantization_bit: 4": adapter.quantization is not None,
        "target_parameters": bool(adapter.target_parameters),
    }
    for key, is_set in beside.items():
        if is_set:
            yield codes.PLAN_ADAPTER_KIND(
                "DoRA trains the lengths of the rows of plain linear layers",
                "lora.use_dora",
                f"use_dora beside {key}",
                f"use_dora: false, or leave {key.partition(':')[0]} out",
            )


def _quantised(
    spec: StrategySpec,
    mesh: Mesh,
    compute: str,
    engine: EngineOptions,
    installed: Callable[[str], ModuleSpec | None],
    here: bool,
) -> list[Diagnostic]:
    """The further checks of ``check_adapter`` for a 4-bit base."""
    problems = []
    if installed("bitsandbytes") is None:
        problems.append(
            _not_installed(
                "bitsandbytes", "4-bit weights need bitsandbytes", "lora.quantization_bit", "qlora", here
            )
        )
    if not spec.keeps_packed(engine):
        problems.append(
            codes.PLAN_QUANTISED_STRATEGY(
                "4-bit weights cannot be trained under this strategy: it would shard or cast the"
                " packed bytes",
                "lora.quantization_bit",
                spec.label(engine),
                "set distributed_strategy:"
                f" {' or '.join(s.name for s in strategy_specs() if s.quantised_base and s.whole_rows)};"
                " or quantization_bit: null, for adapters on unquantised weights",
            )
        )
    elif mesh.tp > 1 and "tp" in spec.adapter_axes:
        problems.append(
            codes.PLAN_QUANTISED_STRATEGY(
                "tensor parallelism cuts weights along inputs and outputs, but 4-bit weights are packed in"
                " blocks without either",
                "lora.quantization_bit",
                f"{spec.label(engine)} with tp={mesh.tp}",
                f"{spec.tensor_key(engine)}: 1, under which fsdp shards the packed weights over all ranks; or"
                " quantization_bit: null, for adapters on unquantised weights",
            )
        )
    if compute == "float64":
        problems.append(codes.PLAN_QUANTISED_FLOAT64("model.dtype", "float64 with quantization_bit"))
    return problems


def adapter_decisions(adapter: AdapterSpec | None, shape: ModelShape | None) -> tuple[Decision, ...]:
    """Return the plan's decisions about the adapter."""
    if adapter is None:
        return ()
    # Rank, scale and targets, and how many parameters that is.
    scale = adapter.alpha / (adapter.r**0.5 if adapter.use_rslora else adapter.r)
    kind = (
        f"OFT in blocks of {adapter.oft_block_size}"
        if adapter.oft_block_size
        else f"r {adapter.r}, scale {scale:g}"
    )
    choice = f"{kind}, on {', '.join(adapter.target_modules)}"
    count = None if shape is None else adapter_parameters(shape, adapter)
    trained = "the number of trained parameters is counted when the model is built"
    if shape is not None and count is not None:
        trained = (
            f"{human_count(count)} parameters trained in addition to"
            f" {human_count(shape.num_parameters)} ({100 * count / shape.num_parameters:.2g} %)"
        )
    why = f"{trained}; everything else is frozen and not saved: checkpoints contain the adapter,"
    of_experts = shape is not None and bool(shape.experts) and adapter.target_modules == (ALL_LINEAR,)
    base, renames = adapter.quantization, shape is not None and shape.family.renames_experts
    named = ", ".join(OF_EXPERTS) if renames and not adapter.oft_block_size else ""
    rows = (
        (True, "lora", choice, f"{why} `paceline export --merge` writes a complete model"),
        (
            of_experts,
            "lora.target_modules",
            "the linear layers other than the experts" + (f" and {named}" if named else ""),
            "in Transformers, experts are plain parameters: target_parameters gives them adapters"
            + ("; peft takes these names for theirs" if named else ""),
        ),
        (
            bool(adapter.start),
            "lora.adapter_name_or_path",
            str(adapter.start),
            "rank, scale, layers and dropout are read from its config",
        ),
        (
            decomposes(adapter),
            "lora.init_lora_weights",
            str(adapter.init_lora_weights),
            "peft takes the adapter's first values out of each weight, which keeps the rest; they are read"
            " whole, and decomposed on the host",
        ),
        (
            bool(adapter.modules_to_save),
            "lora.modules_to_save",
            ", ".join(adapter.modules_to_save),
            "trained in full",
        ),
        (
            base is not None,
            "lora.quantization_bit",
            f"{base.bits} ({base.type}{', with its scales quantised as well' if base.double_quant else ''})"
            if base
            else "",
            "every frozen linear layer except the head, quantised by bitsandbytes while loading; a merged"
            " export adds the adapter to the quantised weights",
        ),
    )
    return tuple(Decision(subject, choice, why) for holds, subject, choice, why in rows if holds)


def adapter_parameters(shape: ModelShape, adapter: AdapterSpec) -> int | None:
    """Return the exact number of trained parameters. None for an unlisted family and with trained biases.
    Also None where Transformers' class was not queried and ``modules_to_save`` has a module other than
    embedding and head.
    """
    listed, saved_modules = shape.listing is not None, set(adapter.modules_to_save)
    if (
        (saved_modules - (set() if listed else {"embed_tokens", "lm_head"}))
        or adapter.bias != "none"
        or not (listed or linears(shape))
    ):
        return None
    adapted = (
        prod(rotated(adapter, in_features(shape, p)))
        if adapter.oft_block_size
        else rank_of(adapter, name) * sum(p.shape) + adapter.use_dora * out_features(shape, p)
        for p, name in _adapted(shape, adapter)
    )
    experts = expert_parameters(shape, adapter) if adapter.target_parameters else 0
    head = shape.head_outputs * shape.hidden_size if shape.scalar_head else 0  # new: trained in full
    tables = min(len(saved_modules), 1) if shape.tied else len(saved_modules)
    return head + experts + sum(adapted) + tables * shape.vocab * shape.hidden_size


def out_features(shape: ModelShape, parameter: Parameter) -> int:
    """Return the number of outputs of a linear layer's weight."""
    return parameter.shape[1 if is_transposed(shape, parameter) else 0]


def in_features(shape: ModelShape, parameter: Parameter) -> int:
    """Return the number of inputs of a linear layer's weight."""
    return parameter.shape[0 if is_transposed(shape, parameter) else 1]


def adapted_layers(shape: ModelShape, adapter: AdapterSpec) -> frozenset[str] | None:
    """Return the names of the linear layers that get an adapter; None for an unlisted family."""
    if shape.listing is None and not linears(shape):
        return None
    return frozenset(name for _, name in _adapted(shape, adapter))


def check_patterns(adapter: AdapterSpec | None, shape: ModelShape | None) -> list[Diagnostic]:
    """Return the keys of rank_pattern and alpha_pattern that no layer with an adapter has."""
    layers = None if adapter is None or shape is None else adapted_layers(shape, adapter)
    if adapter is None or layers is None:
        return []
    patterns = {"rank_pattern": adapter.rank_pattern, "alpha_pattern": adapter.alpha_pattern}
    return [
        codes.PLAN_ADAPTER_PATTERN("lora.adapter_name_or_path", f"{name}: {', '.join(missing)}")
        for name, numbers in patterns.items()
        if (missing := [key for key in numbers if not any(fits(key, layer) for layer in layers)])
    ]


def _adapted(shape: ModelShape, adapter: AdapterSpec) -> Iterator[tuple[Parameter, str]]:
    """Yield the weights of the linear layers that get an adapter, with the layers' names."""
    for parameter in parameters_of(shape):
        name = parameter.name.rpartition(".")[0]
        if is_linear(shape, parameter) and is_target(adapter, name, shape.family):
            yield parameter, name


def _started(folder: Path, adapter: AdapterSpec, named: Callable[[str], str]) -> AdapterSpec:
    """Return ``adapter`` with the settings of its folder's ``adapter_config.json`` (``with_settings``)."""
    file = folder / "adapter_config.json"
    try:
        if file.stat().st_size > MAX_CONFIG_BYTES:
            raise ValueError(f"larger than {MAX_CONFIG_BYTES >> 20} MiB")
        config = as_object(json.loads(read_text(file)))
    except (OSError, ValueError) as error:
        raise ConfigError(
            codes.PLAN_ADAPTER_FOLDER("lora.adapter_name_or_path", f"{file}: {error}")
        ) from error
    return replace(with_settings(adapter, config, str(file), named), start=str(folder.absolute()))


def _not_installed(package: str, what: str, where: str, extra: str, here: bool) -> Diagnostic:
    missing = f"{package} is not installed" + (
        "" if here else " on this machine, which is not the one being planned for"
    )
    return codes.PLAN_NOT_INSTALLED(
        what, where, missing, f"pip install 'paceline[{extra}]'", Severity.ERROR if here else Severity.NOTE
    )
