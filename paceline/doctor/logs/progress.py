"""Signs of life in a log: steps and losses, bars, saves, the end of a training."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

_LOSS = re.compile(
    r"(?i)\b(?:lm[ _])?(?:train[ _/]?)?loss['\"]?\s*[:=|]\s*['\"]?([-+]?[\d.]+(?:e[-+]?\d+)?|nan|inf)"
)
_NORM = re.compile(r"(?i)\bgrad[ _]norm['\"]?\s*[:=|]\s*['\"]?([-+]?[\d.]+(?:e[-+]?\d+)?|nan|inf)")
_STEP = re.compile(
    r"(?i)(?:global_step/max_steps['\"]?: ?['\"]|\bglobal[ _]?step['\"]?\s*[:=]\s*|\biteration\s*[:=]?\s+"
    r"|\bsteps?['\"]?\s*[:=]?\s*)(\d{1,9})(?!\d|\.\d+ on )"  # no "STEP 4411.0 ON node" of Slurm
)
_BAR = re.compile(
    r"^\s{0,8}(?P<name>[^|%]{0,120}?)\s{0,40}\d{1,3}%\|[^|]{0,200}\|"
    r"\s{0,8}(?P<at>\d{1,12})/(?P<of>\d{1,12})\s{0,8}\["
)
_PREPARES = re.compile(
    r"(?i)tokeniz|running tokenizer|^map\b|^filter|packing|preprocess|converting|generating \w+ split|^prepar"
)
_ENDED = re.compile(
    r"(?i)train_runtime|training (?:is )?(?:completed|finished|done|complete)\b|exits successfully"
    r"|end time of running|`?Trainer\.fit`? stopped"
    r"|\btraining run (?:completed|finished)|run finished|finished: completed"
)
_TRAINS = re.compile(r"(?i)(?:train(?:ing)?|epoch[ \d/]*|steps?)?:?$")
_END_WORDS = ("train", "exits", "end time", "finished")
_SAVED = re.compile(
    r"(?i)(?:saving (?:model )?checkpoint to|saved? (?:model |state )?(?:checkpoint )?(?:to|at|in)"
    r"|checkpoint saved (?:to|at)|successfully saved checkpoint (?:at iteration \d+ )?to)"
    r"\s+['\"]?([\w./@:-]{1,300})"
)


@dataclass
class LogProgress:
    """Counts, in the order of the lines. ``steps``: signs of a step; ``finite``: those with a sound loss.

    ``last``: the number of the last step. ``saved``: the newest checkpoint that the log names, and the last
    step before it. ``preparing``: the last bar of a data step that has not reached its end.
    """

    steps: int = 0
    finite: int = 0
    last: int | None = None
    saved: str = ""
    saved_step: int | None = None
    ended: bool = False
    preparing: tuple[int, str] | None = None
    nan: list[tuple[int, str]] = field(default_factory=list)
    zero: list[tuple[int, str]] = field(default_factory=list)
    _bar: int = -1

    def read(self, number: int, text: str) -> bool:
        """Take in a line; whether it is nothing but progress."""
        lower = text.lower()
        if "sav" in lower and (saved := _SAVED.search(text)) is not None:
            self.saved, self.saved_step = saved[1].rstrip(".,"), self.last
        if any(word in lower for word in _END_WORDS) and _ENDED.search(text):
            self.ended = True
        loss = _LOSS.search(text) if "loss" in lower else None
        step = _STEP.search(text) if loss or "step" in text or "iteration" in text else None
        if step is not None:
            self.last = int(step[1]) if loss or self.last is None else max(self.last, int(step[1]))
        if loss is None:
            return False
        self.steps += 1
        self._take_loss(number, text, loss[1].lower())
        return "error" not in lower and "traceback" not in lower

    def take_bar(self, number: int, text: str) -> str:
        """Take in the bar that a line begins with, and return what stands behind it."""
        bar = _BAR.match(text) if "%|" in text else None
        if bar is None:
            return text
        at, name = int(bar["at"]), bar["name"]
        if _PREPARES.search(name):
            self.preparing = (number, text) if at < int(bar["of"]) else None
        elif _TRAINS.match(name) and (at > self._bar or at == 0):  # 0: another attempt begins
            self.steps, self.last, self._bar = self.steps + (at > self._bar >= 0), at, at
        close = text.find("]", bar.end(), bar.end() + 160)
        return text[close + 1 :].lstrip() if close >= 0 else ""

    def _take_loss(self, number: int, text: str, written: str) -> None:
        norm = _NORM.search(text)
        try:
            loss, size = float(written), float(norm[1]) if norm else None
        except ValueError:
            return
        bad_norm = size is not None and not math.isfinite(size)
        if loss == 0.0 and (bad_norm or size == 0.0):
            self.zero.append((number, text))
        elif not math.isfinite(loss) or bad_norm:
            self.nan.append((number, text))
        else:
            self.finite += 1
            if loss != 0.0:
                self.nan.clear()
                self.zero.clear()
