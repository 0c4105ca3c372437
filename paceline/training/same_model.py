"""Check that a checkpoint fits this run: same algorithm, optimizer, model sizes and adapter.

Imports no torch. Without these checks a smaller model, or an adapter on fewer layers, would silently load a
part of the checkpoint, and another optimizer would load a state that is not its own.
"""

from __future__ import annotations

from collections.abc import Collection

from paceline.config.optimizers import BUILT
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json, JsonObject, as_object
from paceline.plan.codec import to_json
from paceline.plan.model.parameters import SCORE
from paceline.plan.model.read_shape import shape_from_config
from paceline.plan.parts import OptimizerSpec
from paceline.plan.plan import Plan
from paceline.training import codes

_EXPORT = "run paceline export RUN --to DIR and start a new run with model.name_or_path: DIR"
_SIZES = ("hidden_size", "layers", "heads", "kv_heads", "head_dim", "intermediate")  # the vocabulary may grow
_WHOLE = "modules_to_save"
_ADAPTER = ("r", "alpha", "use_rslora", "target_modules", _WHOLE, "bias")
# left out where there are none
_INIT = "init_lora_weights"
_UNLESS_DEFAULT = (
    _INIT,
    "target_parameters",
    "exclude_modules",
    "rank_pattern",
    "alpha_pattern",
    "layers_to_transform",
    "layers_pattern",
)
# any shape large enough to be quantised: optimizers of one class with as many bytes for it are compatible
_MATRIX = (64, 128)


def other_training(state: JsonObject, plan: Plan, saved: JsonObject) -> list[Diagnostic]:
    """Return how a run by ``plan`` differs from the one that saved ``state``.

    ``saved`` is the ``config.json`` in the checkpoint.
    """
    training = as_object(as_object(state.get("config")).get("training"))
    before = training.get("algorithm", plan.algorithm)
    if before != plan.algorithm:  # rows, heads and roles follow from it
        return [
            codes.RESUME_OTHER_ALGORITHM(
                "training.algorithm",
                f"{before} in the checkpoint, {plan.algorithm} now",
                before=before,
                algorithm=plan.algorithm,
                export=_EXPORT,
            )
        ]
    return [
        *compare_optimizer(as_object(state.get("optimizer")), plan.optimizer),
        *_adapters(state, to_json(plan.adapter), tied=plan.shape is not None and plan.shape.tied),
        *_sizes(saved, plan),
    ]


def compare_optimizer(before: JsonObject, now: OptimizerSpec) -> list[Diagnostic]:
    targets = tuple(_names(before.get("target_modules")))
    saved = (
        OptimizerSpec(name=str(before["name"]), args=as_object(before["args"]), target_modules=targets)
        if before
        else None
    )
    if saved is None or _keeps(saved) == _keeps(now):  # older checkpoints lack it
        return []
    return [
        codes.RESUME_OTHER_OPTIMIZER(
            "training.optim",
            f"{_named(saved)} in the checkpoint, {_named(now)} now",
            named=_named(saved),
            export=_EXPORT,
        )
    ]


def _named(optimizer: OptimizerSpec) -> str:
    args = ", ".join(f"{key}={value}" for key, value in optimizer.args.items())
    of = f" on {', '.join(optimizer.target_modules)}" if optimizer.target_modules else ""
    return f"{optimizer.name} with optim_args: {args}{of}" if args else optimizer.name + of


def _keeps(optimizer: OptimizerSpec) -> tuple[Json, ...]:
    built = BUILT.get(optimizer.name)
    if built is None:
        return (optimizer.name,)
    if built.projects:
        rank, kind = optimizer.args.get("rank") or 128, optimizer.args.get("proj_type") or "std"
        return built.made_by, rank, kind, sorted(optimizer.target_modules)
    return built.made_by, built.moment_bytes(_MATRIX, optimizer.args, 4)


def _adapters(state: JsonObject, now: JsonObject | None, *, tied: bool) -> list[Diagnostic]:
    before = None if state.get("adapter") is None else as_object(state["adapter"])
    if (before is None) != (now is None):
        held, trained = (
            ("a complete model", "an adapter") if before is None else ("an adapter", "all weights")
        )
        what, hint = (
            f"the checkpoint contains {held}, but this run trains {trained}",
            "use the lora section it was saved with, or start a new run",
        )
        return [codes.RESUME_ADAPTER(what, "lora", held, hint)]
    if before is None or now is None:
        return []
    # Ignore differences that the run itself makes: saved modules, and alpha that follows the rank
    other = [key for key in _ADAPTER if key in before and _shown(before[key]) != _shown(now[key])]
    for key in _UNLESS_DEFAULT:
        if (before.get(key) or None) != (now.get(key) or None):
            none: JsonObject = {key: "true" if key == _INIT else []}
            before, now, other = none | before, none | now, [*other, key]
    if _same_whole(_names(before.get(_WHOLE)), _names(now[_WHOLE]), tied=tied) and _WHOLE in other:
        other.remove(_WHOLE)
    if other[:2] == ["r", "alpha"]:  # alpha defaults to twice the rank
        other.remove("alpha")
    return [
        codes.RESUME_ADAPTER(
            f"the adapter in the checkpoint was saved with another {key}",
            f"lora.{key}",
            f"{_shown(before[key])} in the checkpoint, {_shown(now[key])} now",
            f"{key}: {_shown(before[key])}; or start a new run",
        )
        for key in other
    ]


def _same_whole(before: Collection[str], now: Collection[str], *, tied: bool) -> bool:
    """Whether the adapter was saved with the modules that this run requests.

    The run itself adds a new head and the other name of a tied weight.
    """
    added = set(before) - set(now) - {SCORE.partition(".")[0]}
    return set(now) <= set(before) and len(added) <= (1 if tied and now else 0)


def _names(value: Json) -> list[str]:
    return [str(name) for name in value] if isinstance(value, (list, tuple)) else []


def _shown(value: Json) -> str:
    return str(sorted(_names(value)) if isinstance(value, (list, tuple)) else value)


def _sizes(saved: JsonObject, plan: Plan) -> list[Diagnostic]:
    try:
        before = shape_from_config(saved) if saved else None
    except ConfigError:  # an unknown family: its tensors are compared when they are read
        return []
    if before is None or plan.shape is None:
        return []
    other = [n for n in _SIZES if getattr(before, n) != getattr(plan.shape, n)]
    if not other:
        return []
    found = ", ".join(
        f"{name} {getattr(before, name)} in the checkpoint, {getattr(plan.shape, name)} now" for name in other
    )
    what = "the checkpoint belongs to a model of other sizes"
    hint = "use the model it was saved from, or start a new run in another training.output_dir"
    return [codes.RESUME_OTHER_MODEL(what, plan.model_key, found, hint)]
