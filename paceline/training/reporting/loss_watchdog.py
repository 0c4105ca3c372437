"""A callback that ends a run whose loss stays high: what axolotl calls its loss watchdog."""

from __future__ import annotations

from paceline.runlog.events import Step


class LossWatchdog:
    """Asks to stop when the loss of ``patience`` steps in a row is above ``threshold``.

    Under ``training`` in a config::

        callbacks: [{name: "paceline.extend:LossWatchdog", options: {threshold: 5.0}}]

    A loss that is no number ends every run by itself.
    """

    should_stop = False

    def __init__(self, threshold: float, patience: int = 3) -> None:
        if patience < 1:
            raise ValueError(f"patience is a number of steps, 1 or more: {patience}")
        self.threshold, self.patience, self._above = threshold, patience, 0

    def on_step_end(self, event: Step) -> None:
        """Count the step if its loss is too high; begin anew if it is not."""
        self._above = self._above + 1 if event.loss > self.threshold else 0
        self.should_stop = self._above >= self.patience
