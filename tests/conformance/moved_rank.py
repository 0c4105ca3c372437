"""A rank of the real worker that saves what it has restored, before its first step: the state after a move,
as it would leave again.
"""

from __future__ import annotations

import sys

from paceline.training.rank import main
from paceline.training.trainer import Trainer

_train = Trainer.train


def saved_first(trainer: Trainer) -> str:
    """``Trainer.train`` of a resumed run, after a save at the step that it resumes from."""
    if trainer.state.step and trainer.save is not None:
        trainer.save(trainer.state.step)
    return _train(trainer)


if __name__ == "__main__":
    Trainer.train = saved_first  # type: ignore[method-assign]
    sys.exit(main(sys.argv[1:]))
