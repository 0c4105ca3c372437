"""peft's ``adapter_config.json``: each setting is kept, has no effect here, or is refused with its name."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from math import isfinite

from paceline.config.sections.lora import is_pattern
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json, JsonObject, as_number
from paceline.plan import codes
from paceline.plan.model.family import Family, text_name
from paceline.plan.model.parameter_list import ALL_LINEAR
from paceline.plan.plan import AdapterSpec

KEY = "lora.adapter_name_or_path"

#: Settings of peft's LoraConfig that an ``AdapterSpec`` carries.
CARRIED = frozenset(
    {
        "r",
        "lora_alpha",
        "lora_dropout",
        "target_modules",
        "exclude_modules",
        "target_parameters",
        "modules_to_save",
        "bias",
        "use_rslora",
        "use_dora",
        "rank_pattern",
        "alpha_pattern",
        "layers_to_transform",
        "layers_pattern",
        "init_lora_weights",  # by ``_INITS``
        "ensure_weight_tying",
        "peft_type",
    }
)
#: Settings that change nothing of what a saved adapter computes, or only beside another one that is refused.
NO_MATTER = frozenset(
    {
        "arrow_expert_num",
        "auto_mapping",
        "base_model_name_or_path",
        "corda_config",
        "eva_config",
        "fan_in_fan_out",  # peft and this program follow the layer's class
        "inference_mode",
        "loftq_config",
        "lora_ga_config",
        "megatron_core",
        "peft_version",
        "qalora_group_size",
        "revision",
        "runtime_config",
        "task_type",
    }
)
#: Settings that change what an adapter computes or trains, and have no counterpart here.
REFUSED = frozenset(
    {
        "alora_invocation_tokens",
        "arrow_config",
        "kasa_config",
        "layer_replication",
        "lora_bias",
        "megatron_config",
        "monteclora_config",
        "trainable_token_indices",
        "use_bdlora",
        "use_qalora",
        "velora_config",
    }
)
#: Settings of peft's OFTConfig that an ``AdapterSpec`` carries, and those that change nothing of a saved one.
OFT_CARRIED = frozenset(
    {
        "oft_block_size",
        "target_modules",
        "exclude_modules",
        "modules_to_save",
        "layers_to_transform",
        "layers_pattern",
        "ensure_weight_tying",
        "peft_type",
    }
)
_OF_LAYERS = (
    "target_modules",
    "exclude_modules",
    "modules_to_save",
    "layers_to_transform",
    "layers_pattern",
    "unties",
)
OFT_NO_MATTER = frozenset({"eps", "init_weights"}) | (
    NO_MATTER
    & {
        "auto_mapping",
        "base_model_name_or_path",
        "fan_in_fan_out",
        "inference_mode",
        "peft_version",
        "revision",
        "task_type",
    }
)
#: The only values that are followed of the rest: the others are other parametrizations, or drop blocks.
OFT_FIXED: Mapping[str, Json] = {
    "r": 0,
    "bias": "none",
    "module_dropout": 0.0,
    "coft": False,
    "block_share": False,
    "use_cayley_neumann": True,
    "num_cayley_neumann_terms": 5,
}
#: Initial values that leave the base as it was: the saved factors are all there is.
_INITS = frozenset({"gaussian", "eva", "orthogonal"})
#: Names of layers that peft takes for the experts' (``Family.renames_experts``).
OF_EXPERTS = ("gate_proj", "up_proj", "down_proj")
#: Those that change the base by a decomposition of its weights, which gives the same one each time.
DECOMPOSITIONS = frozenset({"pissa", "olora"})
_CONVERT = (
    "save it once with peft as plain LoRA (save_pretrained with path_initial_model_for_weight_conversion), or"
    " merge it with peft (merge_and_unload) and train the merged model"
)


def with_settings(
    adapter: AdapterSpec, settings: JsonObject, where: str, named: Callable[[str], str] = text_name
) -> AdapterSpec:
    """Return ``adapter`` with rank, scale, layers and further ``settings`` of peft's ``adapter_config.json``.

    ``where``: the file; ``named``: a module's name in the model that is trained, from that in the file.
    Raises ConfigError ``plan.adapter_kind`` for anything but plain LoRA.
    """
    wrong = list(_wrong(settings))
    if wrong:
        raise ConfigError(
            codes.PLAN_ADAPTER_KIND(
                "this adapter is not plain LoRA on the unchanged base",
                KEY,
                f"{where}: {'; '.join(wrong)}",
                _hint(settings),
            )
        )
    adapter = replace(
        adapter,
        target_modules=names(settings.get("target_modules"), named),
        exclude_modules=names(settings.get("exclude_modules"), named),
        modules_to_save=_saved(settings, named),
        layers_to_transform=tuple(
            int(as_number(layer)) for layer in _listed(settings.get("layers_to_transform"))
        ),
        layers_pattern=tuple(str(layer) for layer in _listed(settings.get("layers_pattern")) if layer),
        unties=bool(settings.get("modules_to_save")) and not settings.get("ensure_weight_tying"),
    )
    if settings.get("peft_type") == "OFT":
        plain = AdapterSpec(r=1, alpha=1, quantization=adapter.quantization, start=adapter.start)
        of_layers = {key: getattr(adapter, key) for key in _OF_LAYERS}
        return replace(plain, oft_block_size=int(as_number(settings["oft_block_size"])), **of_layers)
    ranks, alphas = (_numbers(settings.get(key), named) for key in ("rank_pattern", "alpha_pattern"))
    return replace(
        adapter,
        r=int(as_number(settings["r"])),
        alpha=_number(settings["lora_alpha"]),
        dropout=float(as_number(settings.get("lora_dropout") or 0.0)),
        target_parameters=names(settings.get("target_parameters"), named),
        bias=str(settings.get("bias") or "none"),
        use_rslora=bool(settings.get("use_rslora")),
        use_dora=bool(settings.get("use_dora")),
        oft_block_size=0,
        init_lora_weights=_decomposition(_init(settings)),
        rank_pattern={key: int(number) for key, number in ranks.items()},
        alpha_pattern=alphas,
    )


def spec_of(settings: JsonObject, where: str) -> AdapterSpec:
    """Return the adapter of a folder. Raises ConfigError ``plan.adapter_kind``."""
    return with_settings(AdapterSpec(r=1, alpha=1), settings, where)


def untied(modules: str) -> Diagnostic:
    """Return the finding that peft has untied ``modules``, which share one weight in the model."""
    return codes.PLAN_ADAPTER_KIND(
        "this adapter was trained with embedding and head as two weights, and in the model they are one",
        KEY,
        f"modules_to_save: {modules}, without ensure_weight_tying",
        "train it in peft with ensure_weight_tying=True; or merge it with peft and train the merged model",
    )


def _wrong(settings: JsonObject) -> list[str]:
    """Return the unsupported settings, each with its name."""
    kind, init, experts = settings.get("peft_type"), _init(settings), settings.get("target_parameters")
    if kind == "OFT":
        return _wrong_rotation(settings)
    if kind != "LORA":
        return [f"peft_type is {kind}"]
    wrong = []
    if not _is_whole(settings.get("r")):
        wrong.append(f"r is {settings.get('r')!r}"[:80])
    if not _is_number(settings.get("lora_alpha")):
        wrong.append(f"lora_alpha is {settings.get('lora_alpha')!r}"[:80])
    dropout = settings.get("lora_dropout") or 0.0
    if not (_is_number(dropout) and 0 <= as_number(dropout) < 1):
        wrong.append(f"lora_dropout is {dropout!r}"[:80])
    if not (names(settings.get("target_modules")) or names(experts)):
        wrong.append("target_modules names nothing")
    decomposed = _decomposition(init)
    if not (init is None or isinstance(init, bool) or str(init).lower() in _INITS or decomposed):
        wrong.append(f"init_lora_weights is {init!r}: {_init_means(str(init).lower())}"[:200])
    if settings.get("use_dora") and experts:
        wrong.append("use_dora is set beside target_parameters: peft has none for experts")
    if decomposed and experts:
        wrong.append(f"init_lora_weights is {init!r} beside target_parameters: peft has none for experts")
    for key in ("rank_pattern", "alpha_pattern"):
        pattern = settings.get(key)
        if pattern and not (
            isinstance(pattern, dict)
            and all(map(_is_whole if key == "rank_pattern" else _is_number, pattern.values()))
        ):
            wrong.append(f"{key} is no mapping to numbers")
        if pattern and experts:
            wrong.append(f"{key} is set beside target_parameters")
    if not all(isinstance(layer, int) for layer in _listed(settings.get("layers_to_transform"))):
        wrong.append("layers_to_transform holds something other than numbers")
    accepted = CARRIED | NO_MATTER
    return wrong + [f"{key} is set" for key in sorted(settings) if key not in accepted and settings[key]]


def _wrong_rotation(settings: JsonObject) -> list[str]:
    """Return what of OFT's settings cannot be followed, each by its name."""
    wrong = [
        f"{key} is {settings[key]!r}"[:80]
        for key, value in OFT_FIXED.items()
        if settings.get(key, value) not in (value, None)
    ]
    if not _is_whole(settings.get("oft_block_size")):
        wrong.append(f"oft_block_size is {settings.get('oft_block_size')!r}"[:80])
    if not names(settings.get("target_modules")):
        wrong.append("target_modules names nothing")
    accepted = OFT_CARRIED | OFT_NO_MATTER | OFT_FIXED.keys()
    return wrong + [f"{key} is set" for key in sorted(settings) if key not in accepted and settings[key]]


def _init(settings: JsonObject) -> Json:
    return settings.get("init_lora_weights", True)


def _decomposition(init: Json) -> str | None:
    """Return the member of ``DECOMPOSITIONS``, if any; peft accepts OLoRA in upper or lower case."""
    word = str(init)
    return "olora" if word.lower() == "olora" else word if word in DECOMPOSITIONS else None


def _init_means(init: str) -> str:
    if init.startswith("pissa_niter"):
        return "it changed the base by a random approximation, which nobody can repeat"
    if init.startswith(("corda", "lora_ga", "loftq")):
        return "it changed the base by what is not saved with it, and the base here is the unchanged one"
    if init == "mica":
        return "one of its factors must not be trained"
    return "what it does to the base is not known"


def _hint(settings: JsonObject) -> str:
    init = _init(settings)
    if isinstance(init, str) and init.lower() not in _INITS and _decomposition(init) is None:
        return _CONVERT
    return (
        "use an adapter of peft_type LORA or OFT without these settings; or merge it with peft and train the"
        " result"
    )


def _saved(settings: JsonObject, named: Callable[[str], str]) -> tuple[str, ...]:
    """Return the fully trained modules, without those that peft itself adds for a score head."""
    saved = names(settings.get("modules_to_save"), named)
    score_heads = ("classifier", "score") if settings.get("task_type") == "SEQ_CLS" else ()
    return tuple(name for name in saved if name not in score_heads)


def names(value: Json, named: Callable[[str], str] = text_name) -> tuple[str, ...]:
    """Return the names in a setting (one or a list), as ``named`` gives them: of the language model."""
    if isinstance(value, str):
        return (named(value),) if value else ()
    return tuple(sorted(named(str(name)) for name in value)) if isinstance(value, list) else ()


def _listed(value: Json) -> list[Json]:
    return list(value) if isinstance(value, list) else [] if value is None else [value]


def _numbers(value: Json, named: Callable[[str], str]) -> dict[str, float]:
    pairs = value.items() if isinstance(value, dict) else ()
    return {named(key): as_number(number) for key, number in pairs}


def _number(value: Json) -> float:
    number = as_number(value)
    return int(number) if number.is_integer() else number


def _is_whole(value: Json) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_number(value: Json) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)


def is_target(adapter: AdapterSpec, name: str, family: Family) -> bool:
    """Whether a linear layer of the trunk gets an adapter (peft's ``check_target_module_exists``)."""
    if family.renames_experts and not adapter.oft_block_size and name.rpartition(".")[2] in OF_EXPERTS:
        return False
    if _named(adapter.exclude_modules, name) or any(
        re.fullmatch(no_adapter_in(saved), name) for saved in adapter.modules_to_save
    ):
        return False
    if list(adapter.target_modules) == [ALL_LINEAR]:
        return True
    return _named(adapter.target_modules, name) and _in_layers(adapter, name)


def is_saved(adapter: AdapterSpec, parameter: str, tied_head: bool) -> bool:
    """Whether ``modules_to_save`` trains a parameter in full: it names a module around it.

    ``tied_head``: the parameter is also the head's weight.
    """
    parts = parameter.split(".")[:-1]
    return any(
        names_module(adapter.modules_to_save, name)
        for name in (*[".".join(parts[: end + 1]) for end in range(len(parts))], *["lm_head"] * tied_head)
    )


def names_module(saved: Collection[str], module: str) -> bool:
    """Whether ``modules_to_save`` names a module, by peft's rule: any suffix matches, so ``norm`` is every
    norm (``_set_trainable``).
    """
    return module.endswith(tuple(saved))


def no_adapter_in(saved: str) -> str:
    """Return the pattern of modules without an adapter, because a name in ``modules_to_save`` is a component
    of theirs (``check_target_module_exists``).
    """
    return rf"(.*\.)?{saved}(\..*)?"


def _named(patterns: tuple[str, ...], name: str) -> bool:
    """Whether a pattern matches the end of ``name``, or the single regular expression matches it."""
    if len(patterns) == 1 and is_pattern(patterns[0]):
        return re.fullmatch(patterns[0], name) is not None
    return any(name == pattern or name.endswith(f".{pattern}") for pattern in patterns)


def _in_layers(adapter: AdapterSpec, name: str) -> bool:
    if not adapter.layers_to_transform or name in adapter.target_modules:
        return True
    ways = [rf"(?:^|.*?\.){pattern}\.(\d+)\." for pattern in adapter.layers_pattern] or [
        r".*?\.[^.]*\.(\d+)\."
    ]
    found = next((match for way in ways if (match := re.match(way, name))), None)
    return found is not None and int(found[1]) in adapter.layers_to_transform


def rank_of(adapter: AdapterSpec, layer: str) -> int:
    """Return the rank of the adapter on ``layer``."""
    return int(_by_pattern(adapter.rank_pattern, layer, adapter.r))


def rotated(adapter: AdapterSpec, inputs: int) -> tuple[int, int]:
    """Return the shape of OFT's tensor of a layer with so many inputs: its blocks, and the entries above the
    diagonal of one. Where the block size does not divide the inputs, peft takes the nearest that does.
    """
    size = min(adapter.oft_block_size, inputs)
    above = next(n for n in range(size, inputs + 1) if inputs % n == 0)
    below = next(n for n in range(size, 0, -1) if inputs % n == 0)
    size = below if size - below <= above - size else above
    return inputs // size, size * (size - 1) // 2


def scale_of(adapter: AdapterSpec, layer: str) -> float:
    """alpha / r, or alpha / sqrt(r) (rsLoRA, Kalajdzievski 2023, arXiv:2312.03732), of the adapter on
    ``layer``.
    """
    rank = float(rank_of(adapter, layer))
    return alpha_of(adapter, layer) / (rank**0.5 if adapter.use_rslora else rank)


def alpha_of(adapter: AdapterSpec, layer: str) -> float:
    """Return the numerator of the scale of the adapter on ``layer``."""
    return float(_by_pattern(adapter.alpha_pattern, layer, adapter.alpha))


def _by_pattern(patterns: Mapping[str, float], layer: str, otherwise: float) -> float:
    return next((number for key, number in patterns.items() if fits(key, layer)), otherwise)


def fits(key: str, layer: str) -> bool:
    """Whether a key of a pattern fits the end of ``layer`` (peft's ``get_pattern_key``)."""
    return re.match(rf"(.*\.)?({key})$", layer) is not None
