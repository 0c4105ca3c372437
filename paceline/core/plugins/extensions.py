"""The kinds of user-defined parts: one table for the config, the library and the docs.

A part is named as ``module:attr`` wherever the config has its key; a package registers a name for one in the
entry-point group ``paceline.KIND``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Extension:
    """One kind: its description, YAML key, library argument, and the form of a user's own."""

    words: str
    key: str
    argument: str
    form: str


#: Kind, which is the entry-point group after ``paceline.`` → the extension.
EXTENSIONS: Mapping[str, Extension] = {
    "algorithms": Extension("algorithm", "training.algorithm", "train(algorithm=)", "module:SPEC"),
    "strategies": Extension(
        "strategy", "training.distributed_strategy", "train(strategy=)", "module:Class or module:SPEC"
    ),
    "datasets": Extension("data set", "data.train, data.eval", "train(dataset=)", "module:function"),
    "converters": Extension("row converter", "data.converter", "train(converter=)", "module:function"),
    "rewards": Extension("reward", "training.rollout.rewards", "train(rewards=)", "module:function"),
    "metrics": Extension("metric of answers", "training.eval_metrics", "train(metrics=)", "module:function"),
    "callbacks": Extension("callback", "training.callbacks", "train(callbacks=)", "module:Class"),
    "trackers": Extension("tracker", "training.report_to", "train(trackers=)", "module:Class"),
    "exporters": Extension("exporter", "training.exporters", "export(exporters=)", "module:function"),
}


def registered(kind: str, name: str) -> tuple[str, ...]:
    """Return the ``module:attr`` that installed packages register for ``name``: none, one, or several if they
    disagree. ``kind`` is a key of EXTENSIONS. Imports none of them.
    """
    from importlib.metadata import entry_points  # slow to import

    assert kind in EXTENSIONS, kind
    return tuple(sorted({point.value for point in entry_points(group=f"paceline.{kind}", name=name)}))
