"""Optimizers by Transformers' ``optim`` names, with all facts about each.

Rules, the planner's memory model and ``strategies.optimizers.build`` all read this table. Imports no torch.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from paceline.config import codes
from paceline.config.registries import optimizer_bytes
from paceline.config.registries.optimizer_bytes import Arguments, StateBytes, on
from paceline.config.registries.options import Kind, misfits
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json, JsonObject


class StateSplit(Enum):
    """How a strategy splits the optimizer's state over ranks.

    WHOLE: not at all; TENSORS: each rank has whole tensors; SHARDS: each rank has a block of every tensor;
    FLAT: each rank has a part of a flat buffer, in which the shapes of tensors are lost.
    """

    WHOLE = "whole"
    TENSORS = "tensors"
    SHARDS = "shards"
    FLAT = "flat"


_ALL = frozenset(StateSplit)
_SHAPED = frozenset({StateSplit.WHOLE, StateSplit.TENSORS, StateSplit.SHARDS})
_TENSORS = frozenset({StateSplit.WHOLE, StateSplit.TENSORS})


@dataclass(frozen=True)
class Optimizer:
    """A supported optimizer.

    - ``made_by``: ``module:class``
    - ``options``: valid in ``optim_args``
    - ``moment_bytes``: of one tensor
    - ``fixed``: arguments that are always passed
    - ``takes``: arguments from the config
    - ``counts``: keeps a step count per tensor (a float32 scalar)
    - ``splits``: how its state may be split over ranks, and ``splits_why``: why not otherwise
    - ``package``: the optional package that it needs
    - ``devices``: the only kinds of device that it runs on (empty: any), and ``elsewhere``: the optimizer to
      take on others
    - ``quantised``: moments are stored in 8 or 4 bits with a scale per block
    - ``factored``: keeps means over rows and columns of matrices
    - ``orthogonalises``: steps the matrices of hidden layers by Muon, with one moment, and other parameters
      as ``moment_bytes`` says
    - ``projects``: keeps moments of projected gradients for the matrices of ``optim_target_modules``, and
      others as ``moment_bytes`` says
    - ``draws``: the projections are random
    - ``by_blocks``: keeps a second moment for each head, row or tensor, by the sizes of heads
    - ``averaged``: evaluation, generation and saves use averaged weights, and it allows no schedule
    - ``compiles``: its step is compiled once for each shape of a tensor
    - ``float64``: computes in float64 where the weights are
    - ``rounds``: keeps the weights in bfloat16 alone and rounds each update stochastically
    - ``largest_rate``: a learning rate above it is a mistake (an adaptive step moves each weight by about the
      rate, and weights are about 0.02)
    """

    made_by: str
    options: Mapping[str, Kind]
    moment_bytes: StateBytes
    fixed: Mapping[str, Json] = field(default_factory=dict)
    takes: tuple[str, ...] = ()
    counts: bool = True
    splits: frozenset[StateSplit] = _ALL
    splits_why: str = ""
    package: str = ""
    devices: tuple[str, ...] = ()
    elsewhere: str = ""
    quantised: bool = False
    factored: bool = False
    orthogonalises: bool = False
    projects: bool = False
    draws: bool = False
    by_blocks: bool = False
    averaged: bool = False
    compiles: bool = False
    float64: bool = True
    rounds: bool = False
    largest_rate: float = 0.3


_LOW_BIT_DEVICES = ("cpu", "cuda", "xpu")  # of which bitsandbytes and torchao have kernels
_CODE: dict[str, Kind] = {"foreach": "switch", "maximize": "switch", "differentiable": "switch"}
_FUSED: dict[str, Kind] = {**_CODE, "fused": "switch"}
_ADAM: dict[str, Kind] = {
    **_FUSED,
    "betas": "betas",
    "eps": "size",
    "amsgrad": "switch",
    "capturable": "switch",
}
_BETAS, _BETAS_EPS = ("betas",), ("betas", "eps")
_BLOCKS = "the moments have a scale per block of a tensor, which flat partitions do not preserve"


def _bnb(cls: str, moments: int, bits: int, unpaged: str = "") -> Optimizer:
    """An optimizer of bitsandbytes; paged ones (of ``unpaged``) keep moments in memory that CUDA moves to the
    host.
    """
    lion = moments == 1
    small: dict[str, Kind] = {"min_8bit_size": "whole"} if bits == 8 else {}
    return Optimizer(
        f"bitsandbytes.optim:{cls}",
        {"betas": "betas", **({} if lion else {"eps": "size"}), **small},
        optimizer_bytes.bnb_8bit(moments) if bits == 8 else optimizer_bytes.fp32_moments(moments),
        {"optim_bits": bits, "is_paged": bool(unpaged)},
        takes=_BETAS if lion else _BETAS_EPS,
        counts=False,
        splits=_SHAPED if bits == 8 else _ALL,
        splits_why=_BLOCKS if bits == 8 else "",
        package="bitsandbytes",
        devices=("cuda",) if unpaged else _LOW_BIT_DEVICES,
        elsewhere=unpaged or "adamw_torch",
        quantised=bits == 8,
        float64=False,
        largest_rate=0.03 if lion else 0.3,
    )


def _bnb_rmsprop(bits: int) -> Optimizer:
    """RMSprop of bitsandbytes, not paged; as in Transformers, its arguments come only from ``optim_args``."""
    small: dict[str, Kind] = {"min_8bit_size": "whole"} if bits == 8 else {}
    return replace(
        _bnb("RMSprop", 1, bits),
        options={"alpha": "size", "eps": "size", "momentum": "size", **small},
        fixed={"optim_bits": bits},
        takes=(),
        largest_rate=0.3,
    )


def _torchao(cls: str, bits: int, block: int) -> Optimizer:
    return Optimizer(
        f"torchao.optim:{cls}",
        {"betas": "betas", "eps": "size", "amsgrad": "switch", "block_size": "count"},
        optimizer_bytes.torchao(bits, block),
        takes=_BETAS_EPS,
        splits=_SHAPED,
        splits_why=_BLOCKS,
        package="torchao",
        devices=_LOW_BIT_DEVICES,
        elsewhere="adamw_torch",
        quantised=True,
        compiles=True,
        float64=False,
    )


def _schedule_free(
    cls: str,
    options: dict[str, Kind],
    takes: tuple[str, ...],
    moment_bytes: StateBytes = optimizer_bytes.two,
    largest_rate: float = 0.3,
) -> Optimizer:
    """An optimizer of schedulefree: z next to the weights, and a second moment."""
    return Optimizer(
        f"schedulefree:{cls}",
        {**options, "r": "size", "weight_lr_power": "size", "foreach": "switch"},
        moment_bytes,
        takes=(*takes, *(["warmup_steps"] if "warmup_steps" in options else [])),
        counts=False,
        splits=frozenset({StateSplit.WHOLE, StateSplit.SHARDS}),
        splits_why=(
            "each rank computes the averaged weights from their optimizer state, and under this strategy a"
            " rank has the state of only a part of its weights"
        ),
        package="schedulefree",
        averaged=True,
        largest_rate=largest_rate,
    )


#: The options are the signatures of torch 2.13, Transformers, bitsandbytes and torchao; a test compares them
BUILT: dict[str, Optimizer] = {
    "adamw_torch": Optimizer("torch.optim:AdamW", _ADAM, optimizer_bytes.adam, takes=_BETAS_EPS),
    "adamw_torch_fused": Optimizer(
        "torch.optim:AdamW", _ADAM, optimizer_bytes.adam, {"fused": True}, takes=_BETAS_EPS
    ),
    "adamw_torch_8bit": _torchao("AdamW8bit", 8, 256),
    "adamw_torch_4bit": _torchao("AdamW4bit", 4, 128),
    "adamw_bnb_8bit": _bnb("AdamW", 2, 8),
    "adamw_8bit": _bnb("AdamW", 2, 8),
    "paged_adamw": _bnb("AdamW", 2, 32, "adamw_torch_fused"),
    "paged_adamw_32bit": _bnb("AdamW", 2, 32, "adamw_torch_fused"),
    "paged_adamw_8bit": _bnb("AdamW", 2, 8, "adamw_bnb_8bit"),
    "lion_32bit": _bnb("Lion", 1, 32),
    "lion_8bit": _bnb("Lion", 1, 8),
    "paged_lion_32bit": _bnb("Lion", 1, 32, "lion_32bit"),
    "paged_lion_8bit": _bnb("Lion", 1, 8, "lion_8bit"),
    "rmsprop_bnb": _bnb_rmsprop(32),
    "rmsprop_bnb_8bit": _bnb_rmsprop(8),
    "rmsprop_bnb_32bit": _bnb_rmsprop(32),
    "adamw_bf16_rounding": Optimizer(
        "paceline.strategies.optimizers.stochastic_rounding_adamw:RoundedAdamW",
        {"betas": "betas", "eps": "size", "seed": "whole"},
        optimizer_bytes.fp32_moments(2),
        takes=_BETAS_EPS,
        splits=frozenset({StateSplit.WHOLE, StateSplit.SHARDS}),
        splits_why="its weights in bfloat16 have no fp32 masters, which this strategy keeps",
        float64=False,
        rounds=True,
    ),
    "muon": Optimizer(
        "paceline.strategies.optimizers.muon:MuonWithAdamW",
        {
            "betas": "betas",
            "eps": "size",
            "momentum": "size",
            "nesterov": "switch",
            "ns_coefficients": "three",
            "ns_steps": "count",
            "adjust_lr_fn": ("match_rms_adamw", "original"),
            "ns_dtype": ("bfloat16", "float32"),
        },
        optimizer_bytes.two,
        takes=_BETAS_EPS,
        splits=_SHAPED,
        splits_why="Muon orthogonalises complete matrices, and flat partitions do not preserve their shapes",
        orthogonalises=True,
    ),
    "galore_adamw": Optimizer(
        "paceline.strategies.optimizers.galore_adamw:GaLoreAdamW",
        {
            "rank": "count",
            "update_proj_gap": "count",
            "scale": "size",
            "proj_type": ("std", "reverse_std", "right", "left", "full"),
            "betas": "betas",
            "eps": "size",
        },
        optimizer_bytes.two,
        takes=_BETAS_EPS,
        counts=False,
        splits=_TENSORS,
        splits_why="GaLore projects complete gradient matrices; a shard has only a part of them",
        projects=True,
    ),
    "apollo_adamw": Optimizer(
        "paceline.strategies.optimizers.apollo_adamw:ApolloAdamW",
        {
            "rank": "count",
            "update_proj_gap": "count",
            "scale": "size",
            "scale_type": ("channel", "tensor"),
            "scale_front": "switch",
            "proj": ("random",),
            "proj_type": ("std",),
            "betas": "betas",
            "eps": "size",
        },
        optimizer_bytes.two,
        takes=_BETAS_EPS,
        counts=False,
        splits=_TENSORS,
        splits_why="APOLLO projects complete gradient matrices; a shard has only a part of them",
        projects=True,
        draws=True,
    ),
    "adam_mini": Optimizer(
        "paceline.strategies.optimizers.adam_mini:AdamMini",
        {"dim": "count", "n_heads": "count", "betas": "betas", "eps": "size"},
        optimizer_bytes.of_rows,
        takes=_BETAS_EPS,
        counts=False,
        splits=_TENSORS,
        splits_why="Adam-mini's second moments are means over whole heads; a shard may have a part of one",
        by_blocks=True,
    ),
    "schedule_free_adamw": _schedule_free(
        "AdamWScheduleFree", {"betas": "betas", "eps": "size", "warmup_steps": "whole"}, _BETAS_EPS
    ),
    "schedule_free_radam": _schedule_free(
        "RAdamScheduleFree", {"betas": "betas", "eps": "size", "silent_sgd_phase": "switch"}, _BETAS_EPS
    ),
    "schedule_free_sgd": _schedule_free(
        "SGDScheduleFree", {"momentum": "size", "warmup_steps": "whole"}, (), optimizer_bytes.one, 100.0
    ),
    "sgd": Optimizer(
        "torch.optim:SGD",
        {**_FUSED, "momentum": "size", "dampening": "size", "nesterov": "switch"},
        optimizer_bytes.sgd,
        counts=False,
        largest_rate=100.0,
    ),
    "adagrad": Optimizer(
        "torch.optim:Adagrad",
        {**_FUSED, "lr_decay": "size", "initial_accumulator_value": "size", "eps": "size"},
        optimizer_bytes.one,
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
        optimizer_bytes.rmsprop,
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
        optimizer_bytes.factored,
        {"scale_parameter": False, "relative_step": False},
        factored=True,
        splits=_TENSORS,
        splits_why=(
            "Adafactor uses means over rows and columns of complete matrices; a shard has only a part of them"
        ),
    ),
}


def supports(name: str, split: StateSplit) -> bool:
    """Whether the optimizer works under a strategy with this split of its state.

    True for unsupported names, which another check refuses.
    """
    return name not in BUILT or split in BUILT[name].splits


def runs_on(name: str, device: str | None) -> bool:
    """Whether the optimizer runs on this kind of device; True where either is unknown."""
    row = BUILT.get(name)
    return row is None or not row.devices or device is None or device in row.devices


# (pattern of names, reason, alternative)
_NOT_BUILT: tuple[tuple[str, str, str], ...] = (
    ("(paged_)?ademamix.*", "AdEMAMix is not supported", "adamw_torch_fused"),
    (
        "galore_adamw_layerwise",
        "each layer would be updated within the backward; the updates are galore_adamw's",
        "galore_adamw, with max_grad_norm: 0 for the same numbers",
    ),
    ("galore_.*", "of GaLore's optimizers AdamW is supported", "galore_adamw"),
    (
        "apollo_adamw_layerwise",
        "each layer would be updated within the backward; the updates are apollo_adamw's",
        "apollo_adamw, with max_grad_norm: 0 for the same numbers",
    ),
    (
        "lomo|adalomo",
        "an update fused into the backward needs an extra package that is not used here",
        "adafactor, whose states are small, or sgd",
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
    "ademamix",
    "ademamix_8bit",
    "paged_ademamix_32bit",
    "paged_ademamix_8bit",
    "galore_adamw_8bit",
    "galore_adafactor",
    "galore_adamw_layerwise",
    "galore_adamw_8bit_layerwise",
    "galore_adafactor_layerwise",
    "lomo",
    "adalomo",
    "grokadamw",
    "apollo_adamw_layerwise",
    "stable_adamw",
)


def not_built(name: str) -> tuple[str, str]:
    """Return (reason, alternative) for a name that is not in ``BUILT``."""
    for pattern, why, instead in _NOT_BUILT:
        if re.fullmatch(pattern, name):
            return why, instead
    return "there is no optimizer of this name", f"one of {', '.join(BUILT)}"


def contradictions(name: str, args: Arguments) -> list[str]:
    """Return messages for arguments that are valid one by one but not in combination."""
    messages = []
    if on(args.get("nesterov")) and (not args.get("momentum") or args.get("dampening")):
        messages.append("nesterov needs a momentum above 0 and no dampening")
    if on(args.get("fused", BUILT[name].fixed.get("fused"))) and (
        on(args.get("foreach")) or on(args.get("differentiable"))
    ):
        messages.append("fused excludes foreach and differentiable")
    if on(args.get("relative_step")) or on(args.get("warmup_init")):
        messages.append(
            "the learning rate comes from learning_rate and its schedule; relative_step and"
            " warmup_init would derive it from the step"
        )
    return messages


def optim_args_problems(name: str, optim_args: Json) -> Iterator[Diagnostic]:
    """Yield the problems of the ``optim_args`` of the optimizer ``name``."""
    try:
        args = parse_optim_args(optim_args)
    except ConfigError as error:
        yield replace(error.diagnostics[0], found="")
        return
    for message, value, remedy in misfits(args, BUILT[name].options):
        yield codes.TRAIN_OPTIM_ARGS(f"the optimizer {name} {message}", "", value, remedy)
    for words in contradictions(name, args):
        yield codes.TRAIN_OPTIM_ARGS(f"the optimizer {name}: {words}", hint="remove one of them")


def parse_optim_args(optim_args: Json) -> JsonObject:
    """Parse ``optim_args``: Transformers' ``"momentum=0.9,nesterov=True"`` or a mapping.

    Raises ConfigError.
    """
    if not optim_args:
        return {}
    if isinstance(optim_args, Mapping):
        return dict(optim_args)
    args: JsonObject = {}
    for part in _parts(str(optim_args)):
        key, equals, text = part.partition("=")
        if not equals or not key.strip():
            raise ConfigError(
                codes.TRAIN_OPTIM_ARGS(
                    "write optim_args as a list of name=value",
                    "training.optim_args",
                    str(optim_args),
                    "momentum=0.9,nesterov=True",
                )
            )
        try:
            args[key.strip()] = ast.literal_eval(text.strip())
        except (ValueError, SyntaxError):
            args[key.strip()] = text.strip()
    return args


def _parts(text: str) -> list[str]:
    """Split the text at commas outside brackets (``betas=(0.9, 0.95)``)."""
    # A comma inside brackets belongs to a tuple
    return re.split(r",(?![^(\[]*[)\]])", text)
