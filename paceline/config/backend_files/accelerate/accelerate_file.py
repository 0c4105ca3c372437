"""The YAML (or JSON) of ``accelerate config``, read as the lowest layer.

It gives precision, processes, nodes, the distributed type, and blocks of settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from paceline.config import codes
from paceline.config.backend_files.accelerate import blocks as blocks
from paceline.config.backend_files.layer import Document, Foreign
from paceline.config.keys.nearest import nearest
from paceline.config.source import shown
from paceline.config.yaml_text.read_file import names, read_table, texts
from paceline.core.diagnostics import Severity
from paceline.core.json_types import Json, JsonObject, as_object

_TABLE = read_table("accelerate", "backend_files")
KNOWN, _NOT_DRIVEN = frozenset(names(_TABLE["keys"])), names(_TABLE["not_driven"])
_STRATEGY, REFUSED, _PLAIN = (texts(_TABLE[name]) for name in ("strategies", "refused", "plain"))
#: key → (the note if its value requests something, values besides null, false and "" that do not)
SAID = {
    key: (str(row["says"]), names(row.get("silent")))
    for key, row in ((key, as_object(row)) for key, row in as_object(_TABLE["said"]).items())
}
_BLOCKS: dict[str, tuple[str, Callable[[Document, Foreign, JsonObject], None]]] = {
    "deepspeed_config": ("DEEPSPEED", blocks.deepspeed_block),
    "fsdp_config": ("FSDP", blocks.fsdp_block),
    "megatron_lm_config": ("MEGATRON_LM", blocks.megatron_block),
    "parallelism_config": ("", blocks.parallelism_block),
    "dynamo_config": ("", blocks.dynamo_block),
}


def read(document: Document, layer: Foreign, upper: Mapping[str, Json] | None = None) -> None:
    """Add this document's settings to the lowest layer; FSDP and DeepSpeed settings go to ``layer.blocks``.

    ``upper``: the values of higher layers by path; settings that they decide are not reported.
    """
    data = document.data
    if "SAGEMAKER" in str(data.get("compute_environment", "")).upper() or "ec2_instance_type" in data:
        _refuse(
            document, layer, "compute_environment", str(data.get("compute_environment")), REFUSED["SAGEMAKER"]
        )
        return
    _unknown(document, layer)
    kind = _distribution(document, layer)
    if kind is None and "distributed_type" in data:
        return
    _plain_keys(document, layer)
    _no_precision(document, layer, upper or {})
    if kind in _NOT_DRIVEN:
        layer.notes.append(
            document.note(
                "distributed_type",
                f"distributed_type {kind}: such devices are not supported; on a machine with them a start is"
                " refused without use_cpu: true",
                "MULTI_GPU or MULTI_CPU",
                Severity.WARNING,
            )
        )
    if kind == "MULTI_CPU":
        layer.entries.append(document.entry("training.use_cpu", True, "distributed_type"))
    _processes(document, layer)
    _check_written(document, layer)
    if isinstance(data.get("dynamo_backend"), str):
        blocks.dynamo_block(
            Document({"dynamo_backend": data["dynamo_backend"]}, document.name, document.lines), layer, data
        )
    _blocks(document, layer, kind)


def _plain_keys(document: Document, layer: Foreign) -> None:
    """Read the precision and other plain keys."""
    data = document.data
    eight_bits = str(data.get("mixed_precision")).lower() == "fp8"
    if eight_bits or data.get("fp8_config"):
        path = "mixed_precision" if eight_bits else "fp8_config"
        layer.notes.append(
            document.note(
                path,
                f"{path}: 8-bit matrix products are not supported; the run computes in bf16, which they"
                " approximate: more exact and slower",
                "mixed_precision: bf16",
                Severity.WARNING,
            )
        )
        if eight_bits:
            layer.entries.append(document.entry("training.mixed_precision", "bf16", path))
    for key, to in _PLAIN.items():
        if data.get(key) not in (None, "") and not (key == "mixed_precision" and eight_bits):
            layer.entries.append(document.entry(to, data[key], key))


def _blocks(document: Document, layer: Foreign, kind: str | None) -> None:
    """Read the blocks of this distributed_type; others are ignored, as in Accelerate."""
    data = document.data
    for name, (wanted, take) in _BLOCKS.items():
        block = data.get(name)
        if block and not isinstance(block, dict):
            layer.problems.append(
                codes.CONFIG_TYPE(
                    f"{name} must be a mapping",
                    document.place(name),
                    shown(name, block),
                    f"{name}: with indented keys below it",
                )
            )
        if not isinstance(block, dict) or not any(value is not None for value in block.values()):
            continue
        if wanted and kind not in (None, wanted):
            layer.notes.append(
                document.note(
                    name,
                    f"{name} is ignored with distributed_type {kind}, as in accelerate",
                    f"distributed_type: {wanted}",
                )
            )
            continue
        take(document.part(name), layer, data)
    if kind in ("DEEPSPEED", "FSDP") and not data.get(f"{kind.lower()}_config"):
        name = f"{kind.lower()}_config"
        _BLOCKS[name][1](document.bare("distributed_type"), layer, data)


def _no_precision(document: Document, layer: Foreign, upper: Mapping[str, Json]) -> None:
    """Without mixed_precision use float32, as Accelerate does, unless FSDP's policy or DeepSpeed sets it."""
    data = document.data
    elsewhere = any(
        isinstance(block, dict)
        and any(key.endswith(("mixed_precision_policy", "config_file")) for key in block)
        for block in [data.get(name) for name in ("fsdp_config", "deepspeed_config")]
    )
    has_precision = any(data.get(key) not in (None, "") for key in ("mixed_precision", "fp16")) or data.get(
        "fp8_config"
    )
    if (
        "distributed_type" not in data
        or has_precision
        or elsewhere
        or upper.get("training.mixed_precision", "auto") != "auto"
    ):
        return
    layer.entries.append(document.entry("training.mixed_precision", "no", "distributed_type"))
    layer.notes.append(
        document.note(
            "mixed_precision",
            "mixed_precision is absent: float32, as in accelerate",
            "set mixed_precision: bf16, or training.mixed_precision",
        )
    )


def _unknown(document: Document, layer: Foreign) -> None:
    for key in document.data:
        if key in KNOWN or key.startswith(("_", "//", "#")):
            continue
        near = nearest(key, sorted(KNOWN))
        layer.problems.append(
            codes.ACCELERATE_UNKNOWN_KEY(
                f"Accelerate has no setting '{key}'",
                where=document.place(key),
                found=key,
                hint=f"did you mean '{near[0]}'?" if near else "remove it",
            )
        )


def _distribution(document: Document, layer: Foreign) -> str | None:
    """Return Accelerate's distributed_type, or None when it is not given or not supported."""
    kind = document.data.get("distributed_type")
    if kind is None:
        return None
    # A bare NO is read as the word "NO"; some write it as false.
    name = "NO" if kind is False else str(kind).upper()
    if name in _STRATEGY:
        if _STRATEGY[name]:
            layer.entries.append(
                document.entry("training.distributed_strategy", _STRATEGY[name], "distributed_type")
            )
        return name
    if name in REFUSED:
        _refuse(document, layer, "distributed_type", name, REFUSED[name])
    else:
        layer.problems.append(
            codes.CONFIG_VALUE(
                f"distributed_type {name} is not supported",
                where=document.place("distributed_type"),
                found=name,
                hint=f"one of {', '.join(_STRATEGY)}",
            )
        )
    return None


def _refuse(document: Document, layer: Foreign, path: str, value: str, why: str, hint: str = "") -> None:
    hint = hint or "use MULTI_GPU, FSDP or DEEPSPEED on the available devices"
    layer.problems.append(
        codes.ACCELERATE_NOT_BUILT(
            f"{path} {value}: {why}", where=document.place(path), found=value, hint=hint
        )
    )


def _processes(document: Document, layer: Foreign) -> None:
    total, machines = document.data.get("num_processes"), document.data.get("num_machines") or 1
    if total is None or total == -1:
        return
    if not (
        isinstance(total, int)
        and isinstance(machines, int)
        and machines > 0
        and total > 0
        and total % machines == 0
    ):
        layer.problems.append(
            codes.CONFIG_VALUE(
                "num_processes must be a multiple of num_machines",
                where=document.place("num_processes"),
                found=f"{total} over {machines}",
                hint="set num_processes to the number of processes of all machines together",
            )
        )
        return
    layer.entries.append(document.entry("launch.nproc", total // machines, "num_processes"))


def _check_written(document: Document, layer: Foreign) -> None:
    for key, (says, silent) in SAID.items():
        value = document.data.get(key)
        word = value.strip().lower() if isinstance(value, str) else value
        if word in (None, False, "", "no", "false") or word in ([], {}) or word in silent:
            continue
        layer.notes.append(document.note(key, f"{key}: {says}", "you can remove the line"))
    machines = document.data.get("num_machines") or 1
    if document.data.get("same_network") is False and isinstance(machines, int) and machines > 1:
        layer.notes.append(
            document.note(
                "same_network",
                "same_network: the machines must reach each other's ports; if they cannot, the first"
                " collective fails within its timeout",
            )
        )
