"""The user's own code: list what a config names, and turn exceptions of its specs into errors at the user's
line."""

from __future__ import annotations

import copy
import functools
import inspect
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import ParamSpec, TypeVar

from paceline.config.schema import Config
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError, PacelineError
from paceline.core.json_types import Json
from paceline.core.package import PACKAGE
from paceline.core.plugins.tables import EXTENSIONS
from paceline.plan import codes

S = TypeVar("S")
P = ParamSpec("P")
_NOT_THEIRS = (str(PACKAGE), *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")))


def guarded(spec: S, key: str) -> S:
    """Return a copy of a user-defined spec whose methods and properties raise ConfigError, at ``key``, for
    any exception of the user's code.

    So callers need not distinguish user-defined specs. A generator is read to its end inside the call. It is
    also an error if a method returns None where the base class promises a value.
    """
    copied = copy.copy(spec)
    cls: type = type(spec)
    object.__setattr__(copied, "__class__", _guarded_class(cls, key))
    return copied


@functools.cache  # one class a spec, so that equal specs stay equal
def _guarded_class(cls: type, key: str) -> type:
    members: dict[str, object] = {"__slots__": (), "__module__": cls.__module__, "__doc__": cls.__doc__}
    for name in {name for base in cls.__mro__[:-1] for name in vars(base) if not name.startswith("__")}:
        member, may_be_none = inspect.getattr_static(cls, name), _may_be_none(cls, name)
        if isinstance(member, property) and member.fget is not None:
            members[name] = property(_call(member.fget, name, key, may_be_none))
        elif isinstance(member, functools.cached_property):
            members[name] = functools.cached_property(_call(member.func, name, key, may_be_none))
        elif inspect.isfunction(member):
            members[name] = _call(member, name, key, may_be_none)
    return type(cls.__name__, (cls,), members)


def _may_be_none(cls: type, name: str) -> bool:
    """Whether Paceline's base class allows this method to return None, or lacks the method."""
    members = [vars(base)[name] for base in cls.__mro__ if name in vars(base) and _is_ours(base)]
    method = (
        members[-1].fget
        if members and isinstance(members[-1], property)
        else members[-1]
        if members
        else None
    )
    return "None" in str(getattr(method, "__annotations__", {}).get("return", "None"))


def _is_ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == PACKAGE.name


def _call(method: Callable[P, object], name: str, key: str, may_be_none: bool) -> Callable[P, object]:
    @functools.wraps(method)
    def call(*args: P.args, **options: P.kwargs) -> object:
        try:
            result = method(*args, **options)
            result = tuple(result) if isinstance(result, Iterator) else result
            if result is None and not may_be_none:
                code = inspect.unwrap(method).__code__
                raise TypeError(f"{name} returned None ({code.co_filename}:{code.co_firstlineno})")
            return result
        except PacelineError:
            raise  # of a method that this one called, or an answer of Paceline's own
        except Exception as error:  # a user's code may raise anything
            raise ConfigError(_failed(args[0], name, key, error)) from error

    return call


def _failed(spec: object, method: str, key: str, error: Exception) -> Diagnostic:
    frames = traceback.extract_tb(error.__traceback__)[1:]
    theirs = [frame for frame in frames if not frame.filename.startswith(_NOT_THEIRS)]
    lines = theirs or frames
    place_text = f" ({lines[-1].filename}:{lines[-1].lineno})" if lines else ""
    return codes.SPEC_CHECK(
        key,
        f"{type(error).__name__}: {error}{place_text}",
        method=method,
        getattr=getattr(spec, "name", ""),
        base=_base(spec),
    )


def _base(spec: object) -> str:
    """Name of the package's class that the spec derives from."""
    ours = next(base for base in type(spec).__mro__ if _is_ours(base))
    return f"{ours.__module__}.{ours.__qualname__}"


_TARGET = re.compile(r"([A-Za-z_][\w.]*):[A-Za-z_][\w.]*")
_NAMES = ("name", "path", "converter")  # what names code in an item of a list


def own_code(config: Config, folder: Path) -> tuple[str, ...]:
    """Return ``FILE (kind module:attr)`` of all code that ``config`` names; for a module outside ``folder``,
    its name in place of the file.

    Imports nothing.
    """
    data = config.to_json()
    listed: dict[str, None] = {}
    for extension in EXTENSIONS.values():
        for key in extension.key.split(", "):
            value: Json = data
            for part in key.split("."):
                value = value.get(part) if isinstance(value, Mapping) else None
            for target in _targets(value):
                listed[f"{_file(target, folder)} ({extension.words} {target})"] = None
    if config.model.trust_remote_code and config.model.name_or_path:
        listed[f"{config.model.name_or_path} (the model's own code: model.trust_remote_code)"] = None
    return tuple(listed)


def _targets(value: Json) -> Iterator[str]:
    if isinstance(value, str) and _TARGET.fullmatch(value):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _targets(item)
    elif isinstance(value, dict):
        for name in _NAMES:
            yield from _targets(value.get(name))


def _file(target: str, folder: Path) -> str:
    """Return the file of a target's module if it lies in ``folder``, else the module."""
    module = target.partition(":")[0]
    path = Path(*module.split("."))
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((str(file) for file in files if (folder / file).is_file()), module)
