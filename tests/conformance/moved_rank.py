"""A rank of the real worker that saves what it has restored, before its first step: the state after a move,
as it would leave again.
"""

from __future__ import annotations

import sys

from paceline.protocols.window import Window
from paceline.training.loop.trainer import Trainer
from paceline.training.rank import main

_step = Trainer._step


def saved_first(trainer: Trainer, window: Window, waited: float) -> None:
    """``Trainer._step`` of a resumed run's first window, once the rest of a rollout has been read for it."""
    Trainer._step = _step  # type: ignore[method-assign]
    if trainer.state.step and trainer.saves is not None:
        trainer.saves.save(trainer.state.step)
    _step(trainer, window, waited)


if __name__ == "__main__":
    Trainer._step = saved_first  # type: ignore[method-assign]
    sys.exit(main(sys.argv[1:]))
