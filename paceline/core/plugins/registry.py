"""A lazy registry ``name -> "module:attr"``: listing the names imports none of the modules."""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from paceline.core import codes
from paceline.core.diagnostics import Code
from paceline.core.errors import ConfigError
from paceline.core.files import read_text
from paceline.core.json_types import Json


def load_attr(target: str) -> Any:
    """Import ``module:attr``. Raises ConfigError when the module or the attribute does not exist."""
    module_name, _, attr = target.partition(":")
    if not module_name or not attr:
        raise ConfigError(codes.CORE_TARGET(found=target))
    if module_name.endswith(".py") or "/" in module_name:
        name = Path(module_name).name.removesuffix(".py")
        raise ConfigError(
            codes.CORE_TARGET_MODULE(
                "this is the path of a file, where the name of a module is wanted",
                found=target,
                hint=f"{name}:{attr}, with the file's folder as the start's, or on PYTHONPATH",
            )
        )
    try:
        module = importlib.import_module(module_name)
    except Exception as exc:  # a user's module may raise anything
        there = not isinstance(exc, ModuleNotFoundError) or exc.name not in (
            module_name,
            module_name.split(".")[0],
        )
        raise ConfigError(
            codes.CORE_TARGET_MODULE(
                f"module '{module_name}' cannot be imported",
                found=f"{type(exc).__name__}: {exc}"[:400],
                hint=(
                    "correct the module: it raises an error when it is imported"
                    if there
                    else "start from the folder that contains it, or add that folder to PYTHONPATH"
                ),
            )
        ) from exc
    if not hasattr(module, attr):
        near = difflib.get_close_matches(attr, [n for n in vars(module) if not n.startswith("_")], n=3)
        raise ConfigError(
            codes.CORE_TARGET_ATTR(
                found=target, module_name=module_name, attr=attr, hint=f"nearest: {', '.join(near) or 'none'}"
            )
        )
    return getattr(module, attr)


def source_of(module_name: str) -> Path | None:
    """Return the file of a module, found package by package without importing any; None if there is none."""
    places, origin = None, None
    for end in (i for i, letter in enumerate(module_name + ".") if letter == "."):
        found = PathFinder.find_spec(module_name[:end], places)
        places, origin = (found.submodule_search_locations, found.origin) if found else (None, None)
    return Path(origin) if origin else None


def is_assigned(target: str) -> bool:
    """Whether the module's source assigns ``attr`` at top level, found without importing it.

    False when there is no readable Python source.
    """
    module_name, _, attr = target.partition(":")
    origin = source_of(module_name)
    # Look for an assignment at top level
    try:
        tree = ast.parse(read_text(origin)) if origin and origin.suffix == ".py" else ast.Module([], [])
    except (OSError, SyntaxError, ValueError):
        return False
    targets = [t for n in tree.body if isinstance(n, ast.Assign) for t in n.targets]
    targets += [n.target for n in tree.body if isinstance(n, ast.AnnAssign)]
    return attr in {name.id for t in targets for name in ast.walk(t) if isinstance(name, ast.Name)}


class Registry:
    """Built-in names, and ``module:attr`` for user-defined objects."""

    def __init__(self, kind: str, unknown: Code, entries: Mapping[str, str]) -> None:
        self.kind = kind
        self._unknown = unknown
        self._entries = dict(entries)

    def names(self) -> tuple[str, ...]:
        """The built-in names, in the order of the table."""
        return tuple(self._entries)

    def load(self, name: str) -> Any:
        """Import the object of a built-in name or ``module:attr``.

        Raises ConfigError with the nearest name.
        """
        if name in self._entries:
            return load_attr(self._entries[name])
        if ":" in name:
            return load_attr(name)
        near = difflib.get_close_matches(name, self._entries, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"one of: {', '.join(self._entries)}, or module:name"
        raise ConfigError(self._unknown(f"there is no {self.kind} named '{name}'", found=name, hint=hint))


def is_async(function: Callable[..., Json]) -> bool:
    """Whether a call returns a coroutine or an asynchronous generator, also of an object or a partial."""
    plain = function.func if isinstance(function, partial) else function
    called = (plain, getattr(type(plain), "__call__", None))  # noqa: B004
    return any(inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one) for one in called)
