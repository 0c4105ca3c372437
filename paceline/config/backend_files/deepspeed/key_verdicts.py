"""Shared by the readers of DeepSpeed's JSON: reports on its keys."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.config.backend_files.layer import Document, Foreign, SettingsReader
from paceline.config.yaml_text.read_file import names, read_table, texts
from paceline.core.json_types import Json, JsonObject, as_object

_TABLE = read_table("deepspeed", "backend_files")
#: path → (reason, what to write instead)
REFUSED = {
    path: (str(row["why"]), str(row["instead"]))
    for path, row in ((path, as_object(row)) for path, row in as_object(_TABLE["refused"]).items())
}
DROPPED, NOT_GRANTED, NOTES_BY_KEY = (texts(_TABLE[name]) for name in ("dropped", "not_granted", "said"))
OPTIMIZERS, COMPRESSED = texts(_TABLE["optimizers"]), texts(_TABLE["compressed"])
NO_OPTIMIZER = texts(_TABLE["no_optimizer"])
SCHEDULES = texts(_TABLE["schedules"])
#: schedules that cannot be had: none today
NO_SCHEDULE: dict[str, str] = {}
#: block → {name in older versions: current name}
RENAMED = {block: texts(table) for block, table in as_object(_TABLE["renamed"]).items()}
IGNORED, LOSS_SCALE = frozenset(names(_TABLE["ignored"])), frozenset(names(_TABLE["loss_scale"]))
AUTOTP_DECIDES = names(_TABLE["autotp_decides"])


def is_on(value: Json) -> bool:
    """Whether a value turns its feature on.

    For a block ``enabled`` decides: its own, or without one any nested block's.
    """
    if isinstance(value, dict):
        if "enabled" in value:
            return value["enabled"] is True or str(value["enabled"]).lower() in ("true", "1")
        return (
            any(is_on(item) for item in value.values() if _switched(item))
            if _switched(value)
            else bool(value)
        )
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value > 0
    return value not in (None, False, "", "auto", "false", "False", "none")


def _switched(value: Json) -> bool:
    """Whether the value contains an ``enabled`` at any depth."""
    return isinstance(value, dict) and ("enabled" in value or any(_switched(item) for item in value.values()))


class EntryWriter(SettingsReader):
    """Creates entries of the lowest layer from a normalised document.

    ``upper``: the values of higher layers by path.
    """

    def __init__(
        self, document: Document, layer: Foreign, normal: JsonObject, upper: Mapping[str, Json]
    ) -> None:
        super().__init__(document, layer)
        self.normal = normal
        self.upper = upper

    def set_entry(self, to: str, value: Json, path: str) -> None:
        """Set the canonical path ``to`` to ``value``, unless that is null or ``"auto"``."""
        if given_value(value):
            super().set_entry(to, value, path)

    def default(self, to: str, value: Json, path: str, says: str, remedy: str) -> None:
        """Set ``to`` to DeepSpeed's default for an absent key, with a note, unless a higher layer sets it."""
        if to not in self.upper:
            self.set_entry(to, value, path)
            self.note(path, says, remedy)

    def typed(self, name: str) -> tuple[str, JsonObject] | None:
        """Return (type, params) of the block ``optimizer`` or ``scheduler``; None without the block."""
        block = self.normal.get(name)
        if not isinstance(block, dict):
            return None
        return str(block.get("type") or ""), as_object(block.get("params"))


def given_value(value: Json) -> bool:
    """Whether a JSON value sets something; null and ``"auto"`` do not."""
    return value is not None and value != "auto"
