"""Keys of DeepSpeed's JSON that are not passed on unchanged, as ``keys/deepspeed.toml`` has them."""

from __future__ import annotations

from paceline.config.yaml_text.read_file import names, read_table, texts
from paceline.core.json_types import Json, as_object

_TABLE = read_table("deepspeed", "backend_files")
#: path → (reason, what to write instead)
REFUSED = {
    path: (str(row["why"]), str(row["instead"]))
    for path, row in ((path, as_object(row)) for path, row in as_object(_TABLE["refused"]).items())
}
DROPPED, NOT_GRANTED, SAID = (texts(_TABLE[name]) for name in ("dropped", "not_granted", "said"))
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
