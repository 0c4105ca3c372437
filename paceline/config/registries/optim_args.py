"""``optim_args``: parsing, and valid arguments that contradict each other. Imports no torch."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from paceline.config import codes
from paceline.config.registries.optimizer_bytes import Arguments, on
from paceline.config.registries.optimizers import BUILT
from paceline.config.registries.options import misfits
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json, JsonObject


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


def optim_args_problems(name: str, given: Json) -> Iterator[Diagnostic]:
    """Yield what is wrong with the ``optim_args`` of the optimizer ``name``."""
    try:
        args = parse_optim_args(given)
    except ConfigError as error:
        yield replace(error.diagnostics[0], found="")
        return
    for what, found, hint in misfits(args, BUILT[name].options):
        yield codes.TRAIN_OPTIM_ARGS(f"the optimizer {name} {what}", "", found, hint)
    for words in contradictions(name, args):
        yield codes.TRAIN_OPTIM_ARGS(f"the optimizer {name}: {words}", hint="remove one of them")


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
            raise ConfigError(
                codes.TRAIN_OPTIM_ARGS(
                    "write optim_args as a list of name=value",
                    "training.optim_args",
                    str(given),
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
    return re.split(r",(?![^(\[]*[)\]])", text)
