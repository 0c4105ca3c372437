"""Optimizers by Transformers' ``optim`` names: options and state sizes, and why some are not supported.

Rules, the planner's memory model and ``strategies.optimizer`` all read this table. Imports no torch.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod

from paceline.config import codes
from paceline.config.options import Kind
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json, JsonObject

Shape = tuple[int, ...]
Arguments = Mapping[str, Json]


@dataclass(frozen=True)
class Optimizer:
    """A supported optimizer.

    ``made_by``: ``module:class``; ``options``: valid names in ``optim_args``; ``fixed``: arguments that are
    always passed; ``adam``: takes betas and epsilon from the config; ``kept``: number of state elements for a
    tensor of a given shape; ``counts``: also keeps a step count per tensor (a float32 scalar);
    ``elementwise``: a shard of a matrix can be updated independently; ``largest_rate``: a learning rate above
    it is a mistake (an adaptive step moves each weight by about the rate, and weights are about 0.02).
    """

    made_by: str
    options: Mapping[str, Kind]
    kept: Callable[[Shape, Arguments], int]
    fixed: Mapping[str, Json] = field(default_factory=dict)
    adam: bool = False
    counts: bool = True
    elementwise: bool = True
    largest_rate: float = 0.3


def on(value: Json) -> bool:
    """Whether a switch of ``optim_args`` is on; its value may be a text."""
    return value in (True, "true", "True")


def _adam(shape: Shape, args: Arguments) -> int:
    return prod(shape) * (3 if on(args.get("amsgrad")) else 2)


def _momentum(shape: Shape, args: Arguments) -> int:
    return prod(shape) * bool(args.get("momentum"))


def _rmsprop(shape: Shape, args: Arguments) -> int:
    return prod(shape) * (1 + bool(args.get("momentum")) + on(args.get("centered")))


def _one(shape: Shape, args: Arguments) -> int:
    return prod(shape)


def _factored(shape: Shape, args: Arguments) -> int:
    """A row and a column of means for a matrix, all of a vector; with beta1 also a full first moment."""
    count = prod(shape)
    first = count if args.get("beta1") is not None else 0
    return first + (count // shape[-1] + count // shape[-2] if len(shape) >= 2 else count)


_CODE: dict[str, Kind] = {"foreach": "switch", "maximize": "switch", "differentiable": "switch"}
_FUSED: dict[str, Kind] = {**_CODE, "fused": "switch"}
_ADAM: dict[str, Kind] = {
    **_FUSED,
    "betas": "betas",
    "eps": "size",
    "amsgrad": "switch",
    "capturable": "switch",
}
#: The options are the signatures of torch 2.13 and Transformers; a test compares them
BUILT: dict[str, Optimizer] = {
    "adamw_torch": Optimizer("torch.optim:AdamW", _ADAM, _adam, adam=True),
    "adamw_torch_fused": Optimizer("torch.optim:AdamW", _ADAM, _adam, {"fused": True}, adam=True),
    "sgd": Optimizer(
        "torch.optim:SGD",
        {**_FUSED, "momentum": "size", "dampening": "size", "nesterov": "switch"},
        _momentum,
        counts=False,
        largest_rate=100.0,
    ),
    "adagrad": Optimizer(
        "torch.optim:Adagrad",
        {**_FUSED, "lr_decay": "size", "initial_accumulator_value": "size", "eps": "size"},
        _one,
        largest_rate=1.0,
    ),
    "rmsprop": Optimizer(
        "torch.optim:RMSprop",
        {
            **_CODE,
            "alpha": "size",
            "eps": "size",
            "momentum": "size",
            "centered": "switch",
            "capturable": "switch",
        },
        _rmsprop,
    ),
    "adafactor": Optimizer(
        "transformers.optimization:Adafactor",
        {
            "eps": "pair",
            "clip_threshold": "number",
            "decay_rate": "number",
            "beta1": "number",
            "scale_parameter": "switch",
            "relative_step": "switch",
            "warmup_init": "switch",
        },
        _factored,
        {"scale_parameter": False, "relative_step": False},
        elementwise=False,
    ),
}
_LESS_MEMORY = (
    "adamw_torch_fused; to save memory, shard its states (distributed_strategy: fsdp or zero2) or use lora:"
)
# (pattern of names, reason, alternative)
_NOT_BUILT: tuple[tuple[str, str, str], ...] = (
    ("rmsprop_bnb.*", "RMSprop of bitsandbytes is not supported", "rmsprop"),
    (
        "(paged_)?lion_.*",
        "Lion is not supported, in 8 bits or in 32",
        "adamw_torch_fused with 3 to 10 times Lion's learning rate",
    ),
    ("(paged_)?ademamix.*", "AdEMAMix is not supported", "adamw_torch_fused"),
    (
        ".*(8bit|4bit)",
        "quantised moments of bitsandbytes and torchao are not supported: moments are kept in float32",
        _LESS_MEMORY,
    ),
    (
        "paged_.*",
        "moments paged to host memory by bitsandbytes are not supported",
        "adamw_torch_fused, and offload with distributed_strategy: zero2 and offload_optimizer",
    ),
    (
        "galore_.*|apollo_.*",
        "low-rank gradients need an extra package that is not used here",
        "adamw_torch_fused with lora:, which trains low-rank updates",
    ),
    (
        "lomo|adalomo",
        "an update fused into the backward needs an extra package that is not used here",
        "adafactor, whose states are small, or sgd",
    ),
    (
        "schedule_free_.*",
        "it needs the package schedulefree, which is not used here",
        "adamw_torch_fused with lr_scheduler_type: constant_with_warmup",
    ),
    ("adamw_torch_xla|adamw_torch_npu_fused", "it is for another type of device", "adamw_torch_fused"),
    (
        "adamw_apex_fused",
        "Apex is not used; torch's fused AdamW computes the same update",
        "adamw_torch_fused",
    ),
    ("adamw_anyprecision", "it needs torchdistx, which is no longer maintained", "adamw_torch_fused"),
    ("grokadamw|stable_adamw", "it needs an extra package that is not used here", "adamw_torch_fused"),
)
#: Transformers' names that are known but not supported
KNOWN = (
    "adamw_torch_xla",
    "adamw_torch_npu_fused",
    "adamw_apex_fused",
    "adamw_anyprecision",
    "adamw_torch_4bit",
    "adamw_torch_8bit",
    "ademamix",
    "adamw_bnb_8bit",
    "adamw_8bit",
    "ademamix_8bit",
    "lion_8bit",
    "lion_32bit",
    "paged_adamw",
    "paged_adamw_32bit",
    "paged_adamw_8bit",
    "paged_ademamix_32bit",
    "paged_ademamix_8bit",
    "paged_lion_32bit",
    "paged_lion_8bit",
    "rmsprop_bnb",
    "rmsprop_bnb_8bit",
    "rmsprop_bnb_32bit",
    "galore_adamw",
    "galore_adamw_8bit",
    "galore_adafactor",
    "galore_adamw_layerwise",
    "galore_adamw_8bit_layerwise",
    "galore_adafactor_layerwise",
    "lomo",
    "adalomo",
    "grokadamw",
    "schedule_free_radam",
    "schedule_free_adamw",
    "schedule_free_sgd",
    "apollo_adamw",
    "apollo_adamw_layerwise",
    "stable_adamw",
)


def elementwise(name: str) -> bool:
    """Whether a part of a matrix can be updated independently.

    True for unsupported names, which are refused elsewhere.
    """
    return name not in BUILT or BUILT[name].elementwise


def contradictions(name: str, args: Arguments) -> list[str]:
    """Return messages for arguments that are valid one by one but not in combination."""
    found = []
    if on(args.get("nesterov")) and (not args.get("momentum") or args.get("dampening")):
        found.append("nesterov needs a momentum above 0 and no dampening")
    if on(args.get("fused", BUILT[name].fixed.get("fused"))) and (
        on(args.get("foreach")) or on(args.get("differentiable"))
    ):
        found.append("fused excludes foreach and differentiable")
    if on(args.get("relative_step")) or on(args.get("warmup_init")):
        found.append(
            "the learning rate comes from learning_rate and its schedule; relative_step and"
            " warmup_init would derive it from the step"
        )
    return found


def not_built(name: str) -> tuple[str, str]:
    """Return (reason, alternative) for a name that is not in ``BUILT``."""
    for pattern, why, instead in _NOT_BUILT:
        if re.fullmatch(pattern, name):
            return why, instead
    return "there is no optimizer of this name", f"one of {', '.join(BUILT)}"


def parse_optim_args(given: Json) -> JsonObject:
    """Parse ``optim_args``: Transformers' ``"momentum=0.9,nesterov=True"`` or a mapping.

    Raises ConfigError.
    """
    if not given:
        return {}
    if isinstance(given, Mapping):
        return dict(given)
    args: JsonObject = {}
    for part in _parts(str(given)):
        key, found, text = part.partition("=")
        if not found or not key.strip():
            what, where = "write optim_args as a list of name=value", "training.optim_args"
            raise ConfigError(codes.TRAIN_OPTIM_ARGS(what, where, str(given), "momentum=0.9,nesterov=True"))
        try:
            args[key.strip()] = ast.literal_eval(text.strip())
        except (ValueError, SyntaxError):
            args[key.strip()] = text.strip()
    return args


def _parts(text: str) -> list[str]:
    """Split the text at commas outside brackets (``betas=(0.9, 0.95)``)."""
    return re.split(r",(?![^(\[]*[)\]])", text)
