"""Load a config for this machine, with the environment translated; for a start also check its files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.config.source import COMMAND_LINE
from paceline.core.diagnostics import errors
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json

if TYPE_CHECKING:
    from paceline.config.load import Loaded


def load(
    config: Path | None,
    overrides: Sequence[str] | None,
    flags: Mapping[str, Json] | None = None,
    *,
    ruled: bool = True,
    tree: Mapping[str, Json] | None = None,
    flags_from: str = COMMAND_LINE,
) -> Loaded:
    """Load ``config`` with the environment (the guide's variables translated), overrides and flags.

    ``ruled`` False leaves the rules for later, when the machine's facts are known; ``tree`` and
    ``flags_from``: as in ``load_config``. Raises ConfigError with all violations.
    """
    from paceline.config.load import NotLoaded, load_config
    from paceline.launch.environment.guide_variables import translate
    from paceline.rules import of_config

    translation = translate(os.environ)
    wrong = errors(translation.notes)
    try:
        loaded = load_config(
            None if config is None else str(config),
            overrides or (),
            translation.environ(os.environ),
            dict(flags or {}),
            of_config if ruled else None,
            tree,
            flags_from,
        )
    except NotLoaded as error:
        raise NotLoaded((*wrong, *error.diagnostics), error.partial, error.doubt) from None
    except ConfigError as error:
        raise ConfigError(*wrong, *error.diagnostics) from None
    if wrong:
        raise ConfigError(*wrong)
    return replace(loaded, notes=(*translation.notes, *loaded.notes))


def load_to_start(
    config: Path | None,
    overrides: Sequence[str] | None,
    flags: Mapping[str, Json] | None = None,
    *,
    tree: Mapping[str, Json] | None = None,
    flags_from: str = COMMAND_LINE,
) -> Loaded:
    """``load`` for a run on this machine, without the rules.

    Raises ConfigError with the problems of the config, of the files it names and of its plan together.
    """
    from paceline.config.load import NotLoaded
    from paceline.launch.preflight.plan_job import with_plan

    try:
        return load(config, overrides, flags, ruled=False, tree=tree, flags_from=flags_from)
    except NotLoaded as error:
        raise with_plan(error) from None
