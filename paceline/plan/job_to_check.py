"""What the spec of a strategy or an algorithm may ask of a job that it checks."""

from __future__ import annotations

from typing import Any, Protocol

from paceline.config.schema import Config
from paceline.core.diagnostics import Code, Diagnostic, Severity


class JobToCheck(Protocol):
    """A job before it is planned (``rules.base.Context``): its config, its algorithm's options, and who set what."""

    @property
    def config(self) -> Config: ...

    @property
    def world_size(self) -> int | None:
        """Processes; None where that is not known yet."""
        ...

    @property
    def own_options(self) -> Any:
        """The section of the job's algorithm, where one was given."""
        ...

    def given(self, path: str) -> bool:
        """Whether a layer above the defaults set this key."""
        ...

    def problem(
        self, code: Code, what: str, *paths: str, hint: str, found: str = "", severity: Severity = Severity.ERROR
    ) -> Diagnostic:
        """A finding about some keys: where they stand, and their values as what was found."""
        ...
