"""Learning-rate schedules by name: options (``lr_scheduler_kwargs``) and requirements. Imports no torch.

The signatures are those of Transformers 5.23 (``optimization.py``) and ``training.loop.lr_schedules``; a
test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping

from paceline.config.registries.options import Kind
from paceline.core.json_types import Json

_FORMS = ("linear", "cosine", "1-sqrt")
_LOG = ("log", "linear")
_MIN_LR: dict[str, Kind] = {"num_cycles": "size", "min_lr": "size", "min_lr_rate": "size"}
OPTIONS: dict[str, Mapping[str, Kind]] = {
    "linear": {},
    "cosine": {"num_cycles": "size"},
    "cosine_with_restarts": {"num_cycles": "size"},
    "polynomial": {"lr_end": "size", "power": "size"},
    "constant": {},
    "constant_with_warmup": {},
    "inverse_sqrt": {"timescale": "size"},
    "cosine_with_min_lr": _MIN_LR,
    "cosine_warmup_with_min_lr": {**_MIN_LR, "warmup_lr_rate": "size"},
    "warmup_stable_decay": {
        "num_decay_steps": "whole",
        "num_stable_steps": "whole",
        "warmup_type": _FORMS,
        "decay_type": _FORMS,
        "min_lr_ratio": "size",
        "num_cycles": "size",
    },
    "warmup_lr": {"warmup_min_lr": "size", "warmup_type": _LOG},
    "warmup_decay_lr": {"total_num_steps": "whole", "warmup_min_lr": "size", "warmup_type": _LOG},
    "warmup_cosine_lr": {
        "total_num_steps": "whole",
        "warmup_min_ratio": "size",
        "cos_min_ratio": "size",
        "warmup_type": _LOG,
    },
    "one_cycle": {
        "cycle_min_lr": "size",
        "cycle_first_step_size": "size",
        "cycle_second_step_size": "size",
        "cycle_first_stair_count": "whole",
        "cycle_second_stair_count": "whole",
        "decay_step_size": "size",
        "decay_lr_rate": "size",
    },
    "lr_range_test": {
        "lr_range_test_step_size": "size",
        "lr_range_test_step_rate": "number",
        "lr_range_test_staircase": "switch",
    },
}
#: Options of which exactly one must be given.
NEEDED: dict[str, tuple[str, ...]] = {
    "cosine_with_min_lr": ("min_lr", "min_lr_rate"),
    "cosine_warmup_with_min_lr": ("min_lr", "min_lr_rate"),
    "warmup_stable_decay": ("num_decay_steps",),
    "one_cycle": ("cycle_min_lr",),
}
#: Schedules that follow measured losses: a resumed run could not repeat them.
STATEFUL = ("reduce_lr_on_plateau", "greedy")
_ABOVE_0 = ("cycle_first_step_size", "lr_range_test_step_size", "timescale", "total_num_steps")


def unmet(name: str, options: Mapping[str, Json], learning_rate: float, max_steps: int | None) -> str:
    """Return a message about options that are missing although each given one is valid; empty if none is
    missing."""
    needed = NEEDED.get(name, ())
    chosen = [option for option in needed if options.get(option) is not None]
    if needed and len(chosen) != 1:
        return f"needs {' or '.join(needed)}" + (", not both" if chosen else "")
    for option in _ABOVE_0:
        if option in OPTIONS[name] and options.get(option) == 0:
            return f"needs {option} above 0"
    lr_end = options.get("lr_end") or 1e-7
    if name == "polynomial" and isinstance(lr_end, (int, float)) and learning_rate <= lr_end:
        return f"ends at lr_end ({lr_end:g}), which must be below learning_rate ({learning_rate:g})"
    decay = options.get("num_decay_steps") if name == "warmup_stable_decay" else None
    if isinstance(decay, (int, float)) and max_steps is not None and 0 < max_steps < decay:
        return (
            f"decays over {decay} steps (num_decay_steps), but training.max_steps is {max_steps}:"
            " training would start far into the decay"
        )
    return ""
