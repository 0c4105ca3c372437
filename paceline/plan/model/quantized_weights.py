"""Folders with quantized weights: those that are read as plain weights, and those that are refused.

No torch; ``models.loading.dequantize`` has the formulas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from paceline.core.diagnostics import Diagnostic
from paceline.core.json_types import Json, JsonObject
from paceline.core.safetensors_header import StoredTensor
from paceline.plan import codes

FP8, FBGEMM, MXFP4, GPTQ, AWQ = "fp8", "fbgemm_fp8", "mxfp4", "gptq", "awq"
COMPRESSED = "compressed-tensors"
METHODS = (FP8, FBGEMM, MXFP4, GPTQ, AWQ, COMPRESSED)
_FORMATS = ("float-quantized", "int-quantized", "naive-quantized", "pack-quantized")
_WHOLE_BITS = (2, 4, 8)  # which divide a word


@dataclass(frozen=True)
class PackedWeight:
    """The storage of a weight.

    - ``first``: the name suffix of its numbers
    - ``parts``: the name suffixes of all its parts -> their names in the formula; ``optional`` ones may be
    missing
    - ``idle``: name suffixes of tensors that scale activations
    - ``plain``: the suffix of its name in the model
    - ``count``: numbers per stored element
    """

    first: str
    parts: Mapping[str, str]
    plain: str
    optional: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    count: int = 1


_ACTIVATIONS = (".input_scale", ".activation_scale", ".input_scale_ub", ".input_zero_point", ".output_scale")


def method_of(config: Mapping[str, Json]) -> str:
    """Return the quantization method in a ``config.json``; empty for plain weights."""
    settings = settings_of(config)
    return "" if settings is None else str(settings.get("quant_method", "unnamed"))


def settings_of(config: Mapping[str, Json]) -> JsonObject | None:
    """Return ``quantization_config``, with the settings of compressed-tensors' only group merged into it."""
    inner = config.get("text_config")
    parts = (config, inner) if isinstance(inner, Mapping) else (config,)
    written = next((p["quantization_config"] for p in parts if p.get("quantization_config")), None)
    if not written:
        return None
    settings: JsonObject = dict(written) if isinstance(written, Mapping) else {"quant_method": str(written)}
    groups = settings.get("config_groups")
    group_values = groups.values() if isinstance(groups, Mapping) else ()
    kinds = [group.get("weights") for group in group_values if isinstance(group, Mapping)]
    if kinds and isinstance(kinds[0], Mapping) and all(kind == kinds[0] for kind in kinds):
        settings |= kinds[0]
    return settings


def plain_config(config: JsonObject) -> JsonObject:
    """Return a ``config.json`` without its quantization, for plain weights."""
    inner = config.get("text_config")
    kept = {k: v for k, v in config.items() if k != "quantization_config"}
    return {**kept, "text_config": plain_config(inner)} if isinstance(inner, dict) else kept


def quantised_base(config: Mapping[str, Json], where: str, own_code: bool = False) -> list[Diagnostic]:
    """Return why the quantized weights of a folder's ``config.json`` cannot be read; empty if they can, or
    are plain.
    """
    settings = settings_of(config)
    if settings is None:
        return []
    method, why = method_of(config), _not_read(settings)
    if own_code:
        why = "the model brings Python code of its own"
    if not why:
        return []
    return [
        codes.PLAN_QUANTISED_BASE(
            f"the weights are stored quantized ({method}), and cannot be read as plain ones: {why}",
            where,
            f"quantization_config: {method}",
            "use the release of this model in bfloat16, or one of"
            f" {', '.join(METHODS)}; lora.quantization_bit: 4 quantizes a plain base when it is loaded",
        )
    ]


def _not_read(settings: Mapping[str, Json]) -> str:
    """Return why no formula reads weights with these settings; empty if one does."""
    method, bits = settings.get("quant_method"), settings.get("bits")
    if method not in METHODS:
        return "no formula for this method is here"
    if method == GPTQ and bits not in _WHOLE_BITS:
        return f"numbers of {bits} bits"
    if method == GPTQ and settings.get("checkpoint_format", "gptq") not in ("gptq", "gptq_v2"):
        return f"checkpoint_format {settings['checkpoint_format']}"
    if method == AWQ and (bits != 4 or str(settings.get("version", "gemm")).lower() != "gemm"):
        return f"{bits} bits in the layout {settings.get('version')}, where 4 bits in gemm are read"
    if method == COMPRESSED:
        kind, size, form = (settings.get(key) for key in ("type", "num_bits", "format"))
        if form not in _FORMATS or kind not in ("float", "int"):
            return f"format {form}, with weights of one kind in one of {', '.join(_FORMATS)} alone"
        if size != 8 and not (kind == "int" and size in _WHOLE_BITS):
            return f"{kind} of {size} bits"
        if as_rule := settings.get("sparsity_config"):
            return f"sparsity_config {as_rule}"
    return ""


def layouts(settings: Mapping[str, Json]) -> tuple[PackedWeight, ...]:
    """Return the possible layouts of a weight with these settings, the more specific first."""
    method = settings.get("quant_method")
    if method == MXFP4:
        return (PackedWeight("_blocks", {"_blocks": "blocks", "_scales": "scales"}, "", count=2),)
    if method in (GPTQ, AWQ):
        names = ("qweight", "qzeros", "scales", *(("g_idx",) if method == GPTQ else ()))
        return (
            PackedWeight(
                ".qweight",
                {f".{n}": n for n in names},
                ".weight",
                (".g_idx",),
                count=32 // int(str(settings["bits"])),
            ),
        )
    numbers = ("F8_E4M3", "F8_E5M2") if method != COMPRESSED else ("F8_E4M3", "F8_E5M2", "I8")
    plain = PackedWeight(
        "",
        {"": "weight", "_scale_inv": "scale", "_scale": "scale", "_zero_point": "zero_point"},
        "",
        ("_scale_inv", "_scale", "_zero_point"),
        _ACTIVATIONS,
        numbers,
    )
    if method != COMPRESSED:
        return (plain,)
    ends = ("packed", "scale", "zero_point", "shape", "g_idx")
    return (
        PackedWeight(
            ".weight_packed",
            {f".weight_{end}": end for end in ends},
            ".weight",
            ((".weight_zero_point", ".weight_g_idx")),
            _ACTIVATIONS,
            count=32 // int(str(settings.get("num_bits", 8))),
        ),
        plain,
    )


@dataclass(frozen=True)
class PackedNames:
    """``weights``: a weight's name in the model -> the formula's names of its parts -> their stored names;
    ``idle``: tensors that scale activations and belong to no weight; ``numbers``: elements of a weight, with
    padding; ``lacking``: missing parts.
    """

    weights: Mapping[str, Mapping[str, str]]
    idle: frozenset[str]
    numbers: Mapping[str, int]
    lacking: tuple[str, ...]
    _made_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def others(self, stored: Mapping[str, StoredTensor]) -> set[str]:
        """Return the dtypes of tensors outside of quantized weights."""
        return {stored[name].dtype for name in self.plain(stored) if name not in self.weights}

    def plain(self, stored: Iterable[str]) -> list[str]:
        """Return the tensor names that plain files would have."""
        inside = {name for parts in self.weights.values() for name in parts.values()} | self.idle
        return [*(name for name in stored if name not in inside), *self.weights]

    def files_of(self, name: str) -> tuple[str, ...]:
        """Return the names under which the files store the weight ``name``."""
        if name not in self.weights:
            return (name,)
        return (*self.weights[name].values(), *self._made_of.get(name, ()))

    @property
    def num_bytes(self) -> int:
        """Bytes of the weights in bfloat16."""
        return 2 * sum(self.numbers.values())


def packed_names(stored: Mapping[str, StoredTensor], settings: Mapping[str, Json]) -> PackedNames:
    """Find the quantized weights among ``stored``, all tensors of a folder with these settings."""
    weights: dict[str, dict[str, str]] = {}
    numbers: dict[str, int] = {}
    beside: dict[str, tuple[str, ...]] = {}
    lacking: list[str] = []
    for layout in layouts(settings):
        for name in sorted(stored):
            numbers_name = _parts(name, layout, stored)
            if numbers_name is None:
                continue
            base = name.removesuffix(layout.first) if layout.first else name
            ends = {end: part for end, part in layout.parts.items() if base + end in stored}
            needed = [end for end in layout.parts if end not in layout.optional and end not in ends]
            if "scale" in layout.parts.values() and "scale" not in ends.values():
                needed.append("_scale")
            lacking += [base + end for end in needed]
            plain = base + layout.plain
            weights[plain] = {part: base + end for end, part in ends.items()}
            size = 1
            for length in stored[name].shape:
                size *= length
            numbers[plain] = size * layout.count
            module = plain.removesuffix(".weight")
            idle = (*(module + end for end in layout.idle), *(plain + "_" + end[1:] for end in layout.idle))
            beside[plain] = tuple(n for n in idle if n in stored)
    return PackedNames(
        weights, frozenset(name for some in beside.values() for name in some), numbers, tuple(lacking), beside
    )


def _parts(name: str, layout: PackedWeight, stored: Mapping[str, StoredTensor]) -> str | None:
    """Return the weight's parts if ``name`` holds its numbers in this layout."""
    if layout.dtypes:
        return name if stored[name].dtype in layout.dtypes else None
    return name if name.endswith(layout.first) else None
