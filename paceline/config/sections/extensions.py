"""Parts of a training from the user or an installed package: a name with its options.

A package registers a part in the entry-point group ``paceline.KIND``. Its name in a config becomes the
``module:attr`` that the package gives, so all later code knows one form.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from paceline.config.sections.types import Mapping, Section, misfit, to_path, to_text, to_texts
from paceline.core.json_types import Json
from paceline.core.plugins.tables import registered


def own_name(kind: str, built_in: Collection[str] = (), *, only: bool = False) -> Callable[[Json], str]:
    """Return a reader of names of ``kind``: a name that a package registers becomes its ``module:attr``.

    Names that are ``built_in``, or that no package knows, stay as they are, for a rule to judge. With
    ``only``, a name that no package knows is refused here.
    """

    def read(value: Json) -> str:
        name = to_text(value).strip()
        if ":" in name or name in built_in:
            return name
        found = registered(kind, name)
        if len(found) > 1:
            raise misfit(
                f"must name one part: installed packages register '{name}' as {' and as '.join(found)}"
            )
        if only and not found:
            raise misfit(f"must be module:function, or a name that a package registers in paceline.{kind}")
        return found[0] if found else name

    return read


EXPORTERS = ("gguf",)  # built in; how: ``checkpoint.export.exporters``
NO_EXPORTER = "none"


def to_exporters(value: Json) -> tuple[str, ...]:
    """Convert a name, comma-separated names or a list of these: ours, registered, or ``module:function``."""
    read = own_name("exporters", EXPORTERS, only=True)
    return tuple(dict.fromkeys(read(name) for name in to_texts(value) if name != NO_EXPORTER))


def to_data_path(value: Json) -> str:
    """Convert to a path; a bare word that is not a file, but registered by a package as a data set, becomes
    its ``module:function``.
    """
    path = to_path(value)
    bare = re.fullmatch(r"[^\W\d][\w-]*", path) is not None and not Path(path).exists()
    return own_name("datasets")(path) if bare else path


class CallbackItem(Section):
    """A user's callback."""

    name: Annotated[str, BeforeValidator(own_name("callbacks"))] = Field(
        description="Your class or function as module:name, or a name that an installed package registers."
    )
    options: Mapping = Field(default={}, description="Keyword arguments for the class.")


def to_items(value: Json) -> Json:
    """Convert a name, comma-separated names, a mapping, or a list of these to a list of mappings."""
    if isinstance(value, str):
        return [{"name": part.strip()} for part in value.split(",") if part.strip()]
    if isinstance(value, dict):
        return [value]
    if isinstance(value, (list, tuple)):
        return [{"name": item} if isinstance(item, str) else item for item in value]
    return value


class OwnFields(Section):
    """Callbacks and exporters."""

    callbacks: Annotated[tuple[CallbackItem, ...], BeforeValidator(to_items)] = Field(
        default=(),
        description=(
            "Your own callbacks as module:Class (methods on_step_end, on_evaluate, on_save, on_train_end;"
            " should_stop) or module:function, with `options`; each rank has its own"
            " (docs/reference/library.md)."
        ),
    )
    exporters: Annotated[tuple[str, ...], BeforeValidator(to_exporters)] = Field(
        default=(),
        description=(
            "What `paceline export` of this run also writes into the folder: gguf, or your own as"
            " module:function of the exported folder."
        ),
    )
