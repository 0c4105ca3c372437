"""Callbacks: an object with a method per kind of event, or a function of events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any

from paceline.runlog.events import CheckpointSaved, Eval, Event, Finished, Step

#: Event → the method that gets it; the methods are named as in Transformers' TrainerCallback.
METHODS: Mapping[type[Event], str] = {
    Step: "on_step_end",
    Eval: "on_evaluate",
    CheckpointSaved: "on_save",
    Finished: "on_train_end",
}


def has_methods(target: object) -> bool:
    """Whether an object, or a class, has at least one of the methods."""
    return any(callable(getattr(target, name, None)) for name in METHODS.values())


def deliver(callback: Any, event: Event) -> None:
    """Call ``callback``'s method for ``event``; a function gets every event."""
    method = METHODS[type(event)]
    if has_methods(callback):
        call = getattr(callback, method, None)
        if call is not None:
            call(event)
    else:
        callback(event)


def requests_stop(callback: Any) -> bool:
    """Whether ``callback.should_stop`` is set; it may be a method, too."""
    wish = getattr(callback, "should_stop", False)
    return bool(wish() if callable(wish) else wish)


def read_only(event: Event) -> Event:
    """Return a copy of ``event`` whose mappings cannot be written to: the log's own stays as it is."""
    values = {field.name: getattr(event, field.name) for field in fields(event)}
    return replace(
        event,
        **{
            name: MappingProxyType(dict(value))
            for name, value in values.items()
            if isinstance(value, Mapping)
        },
    )
